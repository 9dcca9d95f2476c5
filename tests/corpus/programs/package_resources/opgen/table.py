import functools
import json
from importlib import resources


@functools.cache
def ops():
    text = resources.files("opgen.data").joinpath("ops.json").read_text()
    return json.loads(text)
