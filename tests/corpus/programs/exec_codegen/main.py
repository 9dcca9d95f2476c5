import cachec
from codegen import clamp, unrolled

cache = cachec.Cache()
dot = unrolled(3)


@cache.stage
def products(rows):
    return [dot(row, row) for row in rows]


@cache.stage
def relu(values, low):
    function = clamp(low)
    return [function(value) for value in values]


@cache.stage
def polynomial(text, xs):
    code = compile(text, "<polynomial>", "eval")
    return [eval(code, {"x": x}) for x in xs]


if __name__ == "__main__":
    print("RESULT", products([[1, 2, 3], [4, 5, 6]]))
    print("RESULT", relu([-2, 3], 0))
    print("RESULT", polynomial("x**2 + 1", [1, 2]))
