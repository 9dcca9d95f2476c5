from pathlib import Path
from string import Template

import cachec

cache = cachec.Cache()
TEMPLATES = Path(__file__).parent / "templates"
VALUES = {"STEP": 4, "N": 100}


class Dollar(Template):
    delimiter = "@"


@cache.stage
def loop(body):
    template = Dollar((TEMPLATES / "loop.c").read_text())
    return template.substitute(VALUES, BODY=body)


@cache.stage
def call(name, *args):
    return (TEMPLATES / "call.fmt").read_text().strip().format(name=name, args=", ".join(args))


if __name__ == "__main__":
    print("RESULT", repr(loop(call("f", "i"))))
