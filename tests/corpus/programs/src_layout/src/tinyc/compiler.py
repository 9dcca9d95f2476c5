import cachec

from .codegen import generate
from .parse import parse

cache = cachec.Cache()


@cache.stage
def compile_text(text: str) -> list[str]:
    return generate(parse(text))


@cache.stage
def parse_text(text: str):
    return parse(text)
