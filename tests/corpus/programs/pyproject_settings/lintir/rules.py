RULES = {}


def rule(function):
    RULES[function.__name__] = function
    return function


@rule
def rank(program, settings):
    for name, _, _, rank in program:
        if rank > settings.get("max-rank", 4):
            yield f"{name} has rank {rank}"


@rule
def unused(program, settings):
    used = {arg for _, _, args, _ in program for arg in args}
    for name, *_ in program[:-1]:
        if name not in used:
            yield f"{name} is never used"
