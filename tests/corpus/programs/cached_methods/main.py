import cachec
from types_db import Types

cache = cachec.Cache()


@cache.stage
def struct_size(types, names):
    return sum(types.size(name) for name in names)


if __name__ == "__main__":
    types = Types(8)
    print("known:", types.size("f32"), types.bits("odd"))
    print("RESULT", struct_size(types, ["f32", "odd", "i8"]))
    print("RESULT", struct_size(types, ["f64"]))
