import cachec
import operators
from base import Operator

cache = cachec.Cache()


@cache.stage
def evaluate(program):
    stack = []
    for word in program.split():
        cls = Operator.registry.get(word)
        if cls is None:
            stack.append(int(word))
            continue
        args = [stack.pop() for _ in range(min(cls.arity, len(stack)))]
        try:
            stack.append(cls().apply(*reversed(args)))
        except TypeError:
            stack.append(None)
    return stack


@cache.stage
def table():
    return sorted((cls.symbol, cls.arity, cls.commutes) for cls in Operator.registry.values())


if __name__ == "__main__":
    print("RESULT", evaluate("12 9 * 5 + neg"))
    print("RESULT", table())
