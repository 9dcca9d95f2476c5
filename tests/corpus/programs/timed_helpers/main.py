import cachec
from timing import retry, timed

cache = cachec.Cache()


@timed
def double(xs):
    return [x * 2 for x in xs]


@retry(2)
def flaky(name, attempt=0):
    if attempt < 3:
        raise RuntimeError(name)
    return f"{name} at attempt {attempt}"


@cache.stage
def process(xs):
    return double(xs) + double(xs[:1])


@cache.stage
@timed
def compile_it(name):
    return flaky(name)


if __name__ == "__main__":
    print("RESULT", process([1, 2, 3]))
    print("RESULT", compile_it("conv"))
