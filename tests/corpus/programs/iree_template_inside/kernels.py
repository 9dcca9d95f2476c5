"""The template is rendered inside the stage."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader

import cachec

cache = cachec.Cache()
_FOLDER = Path(__file__).resolve().parent / "kernels"
_ENV = Environment(loader=FileSystemLoader(_FOLDER), trim_blocks=True, lstrip_blocks=True)
_ENV.filters["dims"] = lambda shape: "x".join(str(n) for n in shape)


@cache.stage(tools=["jinja2"])
def render(kernel: str, shape: tuple[int, ...], dtype: str = "f32") -> str:
    return _ENV.get_template(f"{kernel}.mlir").render(shape=shape, dtype=dtype)


@cache.stage(tools=["iree-base-compiler"])
def compile_kernel(source: str) -> cachec.File:
    import cachec_iree

    return cachec_iree.compile(cachec.Program(source, format="mlir:text", manifest=cachec.Manifest.of({})), target="vmvx")
