import cachec
import helper

cache = cachec.Cache()
FACTOR = 3
MODE = None


@cache.stage
def work(values):
    return [helper.scaled(value) for value in values], helper.mode(), MODE


if __name__ == "__main__":
    MODE = "fast"
    print("RESULT", work([1, 2]))
