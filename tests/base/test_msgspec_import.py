"""msgspec is imported without what is slow to import, and is the same msgspec."""

from __future__ import annotations

import subprocess
import sys

import pytest

_TYPES = """
import json, sys, typing, threading
{before}
from cachec.base.msgspec_import import import_msgspec
import_msgspec()
import msgspec

class Movie(typing.TypedDict, total=False):
    title: typing.Required[str]
    year: int

class Row(msgspec.Struct):
    later: "list[Row] | None"
    film: "typing.Annotated[Movie, msgspec.Meta(description='a film')]"

row = msgspec.json.decode(b'{{"later": [], "film": {{"title": "M"}}}}', type=Row)
try:
    msgspec.json.decode(b'{{"later": [], "film": {{"year": 1931}}}}', type=Row)
    refused = ""
except msgspec.ValidationError as error:
    refused = str(error)
schema = msgspec.json.schema(Row)
from msgspec import _utils
print(json.dumps([repr(row), refused, schema, _utils is msgspec._utils is sys.modules["msgspec._utils"], {after}]))
"""


def _printed(before: str, after: str) -> str:
    code = _TYPES.format(before=before, after=after)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_it_decodes_as_where_typing_extensions_is_there() -> None:
    there = _printed("import typing_extensions", "True")
    assert "missing required field `title`" in there
    assert _printed("", "True") == there
    assert _printed("import msgspec", "True") == there


def test_what_is_slow_is_not_imported_and_can_be_afterwards() -> None:
    left = "sorted({'typing_extensions', 'inspect'} & set(sys.modules))"
    assert _printed("", left).endswith("true, []]\n")
    # Code that imports it afterwards has it, and so has code of another thread meanwhile: nothing stands in its place.
    assert _printed("", "__import__('typing_extensions').__name__").endswith('true, "typing_extensions"]\n')


def test_another_thread_may_import_it_at_that_moment() -> None:
    before = """
import builtins
started, real = threading.Event(), builtins.__import__
def slowly(name, *rest, **more):
    if name == "typing_extensions":
        raise AssertionError("asked for by us")
    if name == "typing" and not started.is_set() and sys._getframe(2).f_globals["__name__"] == "msgspec._utils":
        started.set()
        other.start()
        other.join()
    return real(name, *rest, **more)
found = []
other = threading.Thread(target=lambda: found.append(real("typing_extensions").__name__))
builtins.__import__ = slowly
"""
    assert _printed(before, "found").endswith('true, ["typing_extensions"]]\n')


@pytest.mark.parametrize("name", ["Cache", "open_weights", "Program"])
def test_nor_by_the_names_of_the_package(name: str) -> None:
    code = f"import sys, cachec; cachec.{name}; print(sorted({{'typing_extensions', 'inspect'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_another_thread_may_import_msgspec_at_that_moment() -> None:
    before = """
from importlib.machinery import SourceFileLoader
real = SourceFileLoader.exec_module
def use():
    import msgspec
    class Two(msgspec.Struct):
        a: int
    found.append(msgspec.json.decode(b'{"a": 2}', type=Two).a)
def execute(loader, module):
    if module.__name__ == "msgspec._utils" and not started.is_set():
        started.set()
        other.start()
        other.join()
    real(loader, module)
found, started, other = [], threading.Event(), threading.Thread(target=use)
SourceFileLoader.exec_module = execute
"""
    assert _printed(before, "found").endswith("true, [2]]\n")
