import onnx

import cachec
from onnxtool.models import example
from onnxtool.passes import PASSES

cache = cachec.Cache()


@cache.stage(tools=["onnx"])
def optimize(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    for _, run in PASSES:
        run(proto.graph)
    onnx.checker.check_model(proto)
    return proto.SerializeToString(deterministic=True)


def show(model):
    return [f"{n.op_type}({','.join(n.input)})" for n in onnx.load_from_string(model).graph.node]


def main():
    before = example(4).SerializeToString(deterministic=True)
    after = optimize(before)
    print("RESULT", show(before))
    print("RESULT", show(after))


if __name__ == "__main__":
    main()
