import sympy
from sympy.printing.str import StrPrinter

import cachec

cache = cachec.Cache()


class Printer(StrPrinter):
    def _print_Symbol(self, expr):
        return f"%{expr.name}"

    def _print_Integer(self, expr):
        return f"i32({expr})"


def volume(dims):
    return sympy.prod(dims)


@cache.stage
def expand(text: str) -> str:
    return str(sympy.expand(sympy.sympify(text)))


@cache.stage
def lower(names: list[str]) -> list[str]:
    n, m = sympy.symbols(names, positive=True, integer=True)
    total = volume([n + 1, (n + 2) * m, n + 1])
    replaced, (result,) = sympy.cse(total)
    printer = Printer()
    return [f"%{name} = {printer.doprint(value)}" for name, value in replaced] + [printer.doprint(result)]


if __name__ == "__main__":
    print("RESULT", expand("(a + b)**2 - a*b"))
    print("RESULT", lower(["n", "m"]))
