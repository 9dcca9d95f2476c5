"""Stub."""

import ast
import sys
import types
from typing import NamedTuple


class MainModule(NamedTuple):
    file: str
    package: str | None
    needed: frozenset
    used: frozenset


def main_of():
    m = sys.modules["__main__"]
    f = getattr(m, "__file__", None)
    if not f:
        return None
    t = open(f).read()
    tree = ast.parse(t)
    needed = {
        n.id
        for s in tree.body
        if isinstance(s, (ast.FunctionDef, ast.ClassDef))
        for n in ast.walk(s)
        if isinstance(n, ast.Name)
    }
    c = compile(t, f, "exec")
    used = set()

    def walk(c):
        used.update(c.co_names)
        for k in c.co_consts:
            if hasattr(k, "co_names"):
                walk(k)

    for k in c.co_consts:
        if hasattr(k, "co_names"):
            walk(k)
    return MainModule(f, m.__package__, frozenset(needed), frozenset(used))


def replay(main, values, imports):
    m = types.ModuleType("__main__")
    m.__file__ = main.file
    m.__package__ = main.package
    sys.modules["__main__"] = m
    m.__dict__.update(values)
    m.__builtins__ = __builtins__
    tree = ast.parse(open(main.file).read())
    tree.body = [s for s in tree.body if isinstance(s, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))]
    exec(compile(tree, main.file, "exec"), m.__dict__)
