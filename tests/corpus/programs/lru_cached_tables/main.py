import cachec
from tables import cost, load

cache = cachec.Cache()


@cache.stage
def total(ops):
    return sum(cost(op, n) for op, n in ops)


@cache.stage
def cheapest():
    return min(load("costs"), key=load("costs").get)


if __name__ == "__main__":
    known = sorted(load("costs"))
    print("operations:", ", ".join(known))
    print("RESULT", total([("add", 4), ("mul", 2), ("add", 4)]))
    print("RESULT", cheapest())
