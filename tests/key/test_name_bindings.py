"""Statements that do nothing but bind a name, and those that may do more."""

from __future__ import annotations

import ast

import pytest

from cachec.key.name_bindings import NameBindings

#: Texts, with the names that their statements do nothing but bind.
PLAIN = {
    "def f(): return 1": "f",
    "async def f(x, /, y=1, *z, k=None, **w): return 1": "f",
    "def f(x: int, y: str = 'a') -> 'Model': return 1": "f",
    "import numpy as np\ndef f(x=np): pass": "f",
    "def f(): pass\ndef g(x=f): pass": "f g",
    "from __future__ import annotations\ndef f(x: np.ndarray) -> list[Foo]: pass": "f",
    "class A: pass": "A",
    "class A:\n 'Text.'\n x: int = 1\n y = (1, [2], {'a': -3})\n def f(self): 1\n @property\n def g(self): 1": "A",
    "class A(Exception): pass": "A",
    "class A: pass\nclass B(A): pass": "A B",
    "from abc import ABC\nclass A(ABC): pass\nclass B(A):\n def f(self): pass": "A B",
    "from abc import ABC, abstractmethod\nclass A(ABC):\n @abstractmethod\n def f(self): pass": "A",
    "class A(object):\n x = compute()\nclass B(A): pass": "B",
    "X = 1": "X",
    "X: int = -1": "X",
    "X = {'a': [1, (2, 3)], 'b': {4}}": "X",
}

#: Texts of which the last statement may do more.
MORE = [
    "@decorated\ndef f(): pass",
    "def f(x=compute()): pass",
    "def f(x=unknown): pass",
    "def f(x: np.ndarray): pass",
    "def f(x: list[int]): pass",
    "if c:\n    y = 1\ndef f(x=y): pass",
    "y = [z for z in 'ab']\ndef f(x=z): pass",
    "y = 1\ndel y\ndef f(x=y): pass",
    "y: int\ndef f(x=y): pass",
    "def __getattr__(name): return 1",
    "__all__ = ['a']",
    "X: int",
    "X = Y",
    "X = f()",
    "X = []; X += [1]",
    "X = Y = 1",
    "X, Y = 1, 2",
    "X.y = 1",
    "X = {**{}}",
    "X = {(): []}",
    "@decorated\nclass A: pass",
    "class A(Base): pass",
    "class A(metaclass=M): pass",
    "class A(dict): pass",
    "class A(Exception, key=1): pass",
    "class A: pass\nclass B: pass\nclass C(A, B): pass",
    "class A(Protocol): pass",
    "class A:\n x = compute()",
    "class A:\n print(1)",
    "class A:\n __slots__ = ('x',)",
    "class A:\n x = 1\n if x: y = 2",
    "class A:\n @cached_property\n def f(self): pass",
    "class A:\n def property(self): pass\n @property\n def f(self): pass",
    "class A:\n def __init_subclass__(cls): pass",
    "class A:\n def __init_subclass__(cls): pass\nclass B(A): pass",
    "class A:\n if c:\n  def __init_subclass__(cls): pass\nclass B(A): pass",
    "from abc import ABC\nclass A(ABC):\n @classmethod\n def __subclasshook__(cls, other): return True",
    "from .abc import ABC\nclass A(ABC): pass",
    "from enum import Enum\nclass A(Enum): pass",
    "class A: pass\nA = decorated(A)\nclass B(A): pass",
    "from other import *\nclass A(Exception): pass",
    "Exception = 1\nclass A(Exception): pass",
    "property = 1\nclass A:\n @property\n def f(self): pass",
    "try:\n    int = None\nexcept: pass\ndef f(x: int): pass",
    "if c:\n    def f(): pass",
    "import numpy",
]


def bound(text: str) -> list[str]:
    tree = ast.parse(text)
    bindings = NameBindings(tree.body)
    return [bindings.bound_alone(node) for node in tree.body]


@pytest.mark.parametrize("text", PLAIN)
def test_a_statement_that_only_binds(text: str) -> None:
    assert [name for name in bound(text) if name] == PLAIN[text].split()


@pytest.mark.parametrize("text", MORE)
def test_a_statement_that_may_do_more(text: str) -> None:
    assert bound(text)[-1] == ""
