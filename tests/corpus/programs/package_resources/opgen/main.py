import cachec
from opgen import emit
from opgen.table import ops

cache = cachec.Cache()


@cache.stage
def declarations(names: tuple[str, ...]) -> str:
    return emit.header() + "\n".join(emit.signature(name) for name in names)


def main():
    names = tuple(ops())
    print("RESULT", repr(declarations(names)))
    print("RESULT", repr(declarations(names[:1])))


if __name__ == "__main__":
    main()
