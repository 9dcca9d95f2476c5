"""Units of a text, and which of them a code key has."""

from __future__ import annotations

import textwrap
from typing import Any

from cachec.key.code.codeobjects import nested
from cachec.key.code.modules import Source
from cachec.key.code.tables import table

TEXT = """
    import math
    SIZE = 3
    def f(x):
        def g(y): return [y + math.pi for _ in range(SIZE)]
        return (lambda z: g(z))(x)
    class A:
        k = SIZE
        def m(self): return f(self.k)
    def other(): return 1
    if SIZE:
        def late(): return A
"""


def entries(text: str) -> Any:
    return table(Source("m.py", textwrap.dedent(text)))


def test_every_code_object_has_its_unit() -> None:
    code = compile(textwrap.dedent(TEXT), "m.py", "exec")
    inner = {"<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>"}
    names = {one.co_qualname for one in nested(code) if one.co_name not in inner}
    assert set(entries(TEXT)) == names
    assert set(entries(TEXT)["f"].names) == {("range",), ("SIZE",), ("math", "pi")}


def test_an_edit_changes_what_it_is_in() -> None:
    def changed(old: str, new: str) -> set[str]:
        assert old in TEXT
        before, after = entries(TEXT), entries(TEXT.replace(old, new))
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    assert changed("y + math.pi", "y - math.pi") == {"<module>", "f", "f.<locals>.g"}
    assert changed("return 1", "return 2") == {"<module>", "other"}
    assert changed("k = SIZE", "k = 7") == {"<module>", "A"}
    assert changed("return 1", "return 1  # said") == set()


def test_a_key_says_which_units_it_covers(project: Any) -> None:
    project.write(
        {
            "main.py": "import helper, whole\ndef stage(x):\n import lazy\n return helper.f(x), lazy.C, whole.T\n",
            "helper.py": "def f(x):\n    def g(): return x\n    return g()\ndef unused(): ...\nclass A: ...\n",
            "lazy.py": "class C:\n    def m(self): return 1\ndef unused(): ...\n",
            "whole.py": "T = {}\ndef put(f): T[f] = 1\n@put\ndef any(): ...\n",
        }
    )
    key = project.key()

    def covers(file: str, name: str) -> bool:
        found: bool = key.covers(str(project.root / file), name)
        return found

    assert covers("main.py", "stage")
    assert covers("helper.py", "f")
    assert covers("helper.py", "f.<locals>.g")
    assert covers("helper.py", "<module>")
    assert not covers("helper.py", "unused")
    assert not covers("helper.py", "A")
    assert covers("lazy.py", "C.m")
    assert not covers("lazy.py", "unused")
    assert covers("whole.py", "any")
    assert not covers("elsewhere.py", "f")
