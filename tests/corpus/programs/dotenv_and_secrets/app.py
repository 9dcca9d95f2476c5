import os
from pathlib import Path

import cachec

cache = cachec.Cache()


def load_env(path=".env"):
    for line in Path(path).read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            os.environ.setdefault(name, value)
    os.environ.setdefault("QUANT", "int8")


def model_name():
    return os.environ["MODEL"] + "-" + os.environ["QUANT"]


@cache.stage
def manifest():
    return {"model": model_name(), "batch": int(os.environ.get("BATCH", 1))}


if __name__ == "__main__":
    load_env()
    print("RESULT", manifest())
