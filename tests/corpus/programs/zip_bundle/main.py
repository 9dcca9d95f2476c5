import sys
import zipfile
from pathlib import Path

import cachec

sys.path.append(str(Path(__file__).parent / "plugin.zip"))
import plugin

cache = cachec.Cache()


def manifest(bundle):
    return bundle.read("MANIFEST").decode().split()


@cache.stage
def costs(path):
    with zipfile.ZipFile(path) as bundle:
        texts = [bundle.read(name).decode() for name in manifest(bundle)]
    return dict(text.strip().split(": ") for text in texts)


@cache.stage
def scaled(values):
    return [plugin.scale(value) for value in values]


if __name__ == "__main__":
    print("RESULT", costs("ops.zip"))
    print("RESULT", scaled([1, 2]))
