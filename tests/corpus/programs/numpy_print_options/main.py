import numpy as np

import cachec

cache = cachec.Cache()


def constant(name, values):
    return f"static float {name}[] = {np.array2string(values, separator=', ')};"


@cache.stage
def emit(values):
    return [constant("a", values), str(values * np.pi)]


def main():
    np.set_printoptions(precision=3, suppress=True)
    print("RESULT", emit(np.linspace(0, 1, 4)))


if __name__ == "__main__":
    main()
