"""A graph made with onnx.helper, optimised by ONNX Runtime, bound to weights."""

import numpy as np

import cachec
from graph import make_model

cache = cachec.Cache()


@cache.stage(tools=["onnxruntime"])
def optimize(program: cachec.Program, *, level: str = "all") -> cachec.File:
    import cachec_onnxruntime

    return cachec_onnxruntime.optimize(program, level=level)


def main():
    import cachec_onnxruntime

    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        arrays = {"w1": rng.normal(size=(4, 6)).astype("f4"), "b1": np.zeros(6, "f4"), "w2": rng.normal(size=(6, 3)).astype("f4")}
        weights = cachec.WeightSet.from_arrays(arrays)
        program = cachec_onnxruntime.strip(make_model(arrays), weights)
        session = cachec.link(optimize(program), weights)
        print("RESULT", seed, np.round(session(x), 3).tolist())


if __name__ == "__main__":
    main()
