"""JAX to StableHLO to IREE, with weights as parameters."""

import argparse

import numpy as np

import cachec
import net

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def lower(weights: cachec.WeightSet, batch: int) -> cachec.Program:
    import jax

    from cachec_jax import to_stablehlo

    return to_stablehlo(net.forward, weights.placeholders(), jax.ShapeDtypeStruct((batch, net.WIDTH), "float32"))


@cache.stage(tools=["iree-base-compiler"])
def build(program: cachec.Program, *, target: str, options: tuple[str, ...] = ()) -> cachec.File:
    from cachec_iree import compile

    return compile(program, target=target, options=options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="vmvx", choices=["llvm-cpu", "vmvx"])
    parser.add_argument("-O", type=int, default=2, dest="level")
    return parser.parse_args()


def main():
    args = parse()
    x = np.linspace(-1, 1, 2 * net.WIDTH, dtype=np.float32).reshape(2, -1)
    for seed in (0, 1):
        weights = cachec.WeightSet.from_arrays(net.parameters(np.random.default_rng(seed)))
        program = lower(weights, 2)
        module = build(program, target=args.target, options=(f"--iree-opt-level=O{args.level}",))
        print("RESULT", seed, np.round(np.asarray(cachec.link(module, weights)(x)), 3).tolist())


if __name__ == "__main__":
    main()
