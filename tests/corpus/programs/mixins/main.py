import cachec
from targets import Base, Laptop, Server

cache = cachec.Cache()


@cache.stage
def describe(target):
    made = target()
    return target.__name__, made.lanes, made.features()


if __name__ == "__main__":
    for target in [Laptop, Server]:
        print("RESULT", describe(target))
