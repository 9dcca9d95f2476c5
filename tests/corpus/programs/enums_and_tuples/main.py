import cachec
from ops import Kind, Level, Op, Options, Type

cache = cachec.Cache()


@cache.stage
def show(op: Op, level: Level, options: Options) -> list[str]:
    lines = [op.text(), op.kind.short()]
    if level >= Level.O2 and Options.FUSE in options:
        lines.append("fused")
    return lines


@cache.stage
def infer(a: Type, b: Type) -> Type:
    return Type((a.shape[0], b.shape[1]), max(a.dtype, b.dtype))


if __name__ == "__main__":
    op = Op(Kind.MATMUL, Type((2, 3)))
    print("RESULT", show(op, Level.O2, Options.FUSE | Options.VECTORIZE))
    print("RESULT", show(Op(Kind.ADD, Type((4,), "i8")), Level.O0, Options.NONE))
    print("RESULT", infer(Type((2, 3)), Type((3, 5), "bf16")))
