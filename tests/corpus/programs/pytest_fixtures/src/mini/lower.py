import cachec

cache = cachec.Cache()
OPS = {"+": "addf", "*": "mulf"}


@cache.stage
def lower(program: list[str]) -> list[str]:
    return [f"%{index} = {OPS[op]}" for index, op in enumerate(program)]
