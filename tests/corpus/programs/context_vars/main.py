import cachec
import options

cache = cachec.Cache()


def cast(name):
    return f"cast({name}, {options.current()})"


@cache.stage
def lower(names):
    return [cast(name) for name in names]


if __name__ == "__main__":
    print("RESULT", lower(["x", "w"]))
    with options.dtype("bfloat16"):
        print("RESULT", lower(["x", "w"]))
    print("RESULT", lower(["x", "w"]))
