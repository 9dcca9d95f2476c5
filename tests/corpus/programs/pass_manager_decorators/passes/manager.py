REGISTRY = {}


def pass_(name, *, after=(), repeat=1):
    def decorate(function):
        REGISTRY[name] = (function, tuple(after), repeat)
        return function

    return decorate


def ordered(names):
    done = []

    def visit(name):
        for other in REGISTRY[name][1]:
            visit(other)
        if name not in done:
            done.append(name)

    for name in names:
        visit(name)
    return done


def run(names, expr):
    for name in ordered(names):
        function, _, repeat = REGISTRY[name]
        for _ in range(repeat):
            expr = function(expr)
    return expr
