"""MLIR from a jinja2 template, compiled by IREE, run with its runtime."""

import jinja2
import numpy as np

import cachec

cache = cachec.Cache()
environment = jinja2.Environment(loader=jinja2.FileSystemLoader("templates"), undefined=jinja2.StrictUndefined)


def render(name, **values):
    return environment.get_template(name).render(**values)


@cache.stage(tools=["iree-base-compiler"])
def build(source: str, target: str = "vmvx") -> cachec.File:
    import cachec_iree

    program = cachec.Program(source, format="mlir:text", manifest=cachec.Manifest.of({}))
    return cachec_iree.compile(program, target=target)


def main():
    for size in (4, 6):
        source = render("axpy.mlir.j2", size=size, scale=2.5)
        run = cachec.link(build(source), cachec.WeightSet.from_arrays({}))
        x = np.arange(size, dtype=np.float32)
        print("RESULT", size, np.asarray(run(x, x + 1)).tolist())


if __name__ == "__main__":
    main()
