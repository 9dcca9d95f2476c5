"""What programs keep their configuration in counts with the values that are in it now, or the result is not stored."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stage.conftest import Program


class Holder(NamedTuple):
    """made: statements that make ``held``. changed: one that puts ``value`` in. read: what the stage returns of it.

    is_stored: whether a stage that reads it is stored at all.
    """

    made: str
    changed: str
    read: str
    is_stored: bool = True


_ABSL = """\
from absl import flags
held = flags.FLAGS
size = flags.DEFINE_integer("size", 0, "")
flags.FLAGS(["program"])
"""
_FIELDS = "import {0}\n@{1}\nclass Held:\n    size: int = 0\nheld = Held()\n"
_CLASS = "class Held:\n    {0}\nheld = Held()\n"

HOLDERS = {
    "absl: attribute": Holder(_ABSL, "held.size = value", "held.size"),
    "absl: item": Holder(_ABSL, "held['size'].value = value", "held['size'].value"),
    "absl: all": Holder(_ABSL, "held(['program', f'--size={value}'])", "held.flag_values_dict()['size']"),
    "absl: default": Holder(_ABSL, "held.set_default('size', value)", "held.size"),
    "absl: holder": Holder(_ABSL, "held.size = value", "size.value"),
    "argparse": Holder("import argparse\nheld = argparse.Namespace(size=0)", "held.size = value", "held.size"),
    "attrs": Holder(_FIELDS.format("attr", "attr.define"), "held.size = value", "held.size"),
    "chain": Holder("import collections\nheld = collections.ChainMap({}, {})", "held['a'] = value", "held['a']"),
    "class attribute": Holder(_CLASS.format("size = 0"), "Held.size = value", "held.size"),
    "configparser": Holder(
        "import configparser\nheld = configparser.ConfigParser()\nheld.read_string('[a]')",
        "held['a']['b'] = str(value)",
        "int(held['a']['b'])",
    ),
    "dataclass": Holder(_FIELDS.format("dataclasses", "dataclasses.dataclass"), "held.size = value", "held.size"),
    "dict": Holder("held = {}", "held['a'] = value", "held['a']"),
    "dict of attributes": Holder(
        "class Held(dict):\n    def __getattr__(self, name): return self[name]\nheld = Held()",
        "held['a'] = value",
        "held.a",
    ),
    "made attributes": Holder(
        _CLASS.format("def __getattr__(self, name): return self.__dict__['_' + name]"), "held._a = value", "held.a"
    ),
    "mangled": Holder(
        _CLASS.format("def put(self, a): self.__a = a\n    def get(self): return self.__a"),
        "held.put(value)",
        "held.get()",
    ),
    "pydantic": Holder(
        "import pydantic\nclass Held(pydantic.BaseModel):\n    size: int = 0\nheld = Held()",
        "held.size = value",
        "held.size",
    ),
    "simple namespace": Holder("import types\nheld = types.SimpleNamespace()", "held.a = value", "held.a"),
    "slots": Holder(_CLASS.format("__slots__ = ('a',)"), "held.a = value", "held.a"),
    "user dict": Holder("import collections\nheld = collections.UserDict()", "held['a'] = value", "held['a']"),
    "called": Holder(_CLASS.format("def __call__(self): return self.a"), "held.a = value", "held()"),
    "werkzeug": Holder(
        "from werkzeug.local import LocalProxy\nheld = LocalProxy(lambda: inner)\ninner = {}",
        "inner['a'] = value",
        "held['a']",
        is_stored=False,
    ),
    "yaml": Holder("import yaml\nheld = yaml.safe_load('{a: {b: 0}}')", "held['a']['b'] = value", "held['a']['b']"),
}
_SCRIPT = """\
import json
import cachec

{made}
cache = cachec.Cache()

@cache.stage
def stage():
    return {read}

if __name__ == "__main__":
    shown = []
    for value in (1, 2, 1):
        {changed}
        result, outcome = cache.call(stage)
        shown.append((result, outcome.reason.value))
    print(json.dumps(shown))
"""


@pytest.mark.parametrize("name", HOLDERS)
def test_a_value_counts_when_it_is_changed(name: str, tmp_path: Path, program: Program) -> None:
    holder = HOLDERS[name]
    script = tmp_path / "main.py"
    made = textwrap.dedent(holder.made)
    script.write_text(_SCRIPT.format(made=made, changed=holder.changed, read=holder.read))
    env = {"CACHEC_DIR": str(tmp_path / "store")}
    first, second = (json.loads(program(script, **env)) for _ in range(2))
    assert [value for value, _ in first] == [value for value, _ in second] == [1, 2, 1]
    assert all((reason == "hit") is holder.is_stored for _, reason in second), second
