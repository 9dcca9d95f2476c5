#!/usr/bin/env python3
"""Count the names of the code base that a newcomer does not understand: ``scripts/measure_words.py [FOLDER ...] [-v]``.

It counts definitions (modules, classes, functions, parameters, variables, attributes), and of these:

- dialect: a part of the name is a word of the dialect that the project gave up, such as ``told`` or ``kept``;
- participle: the name of a function or class is one bare participle or adverb, such as ``gathered``.

It also lists class names that stand twice, and joints without a type: parameters and fields that are typed ``Any`` and
are named after a class of the project (but ``value``, which is any value).
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

DIALECT = frozenset(
    re.findall(
        r"\w+",
        "whose told untold kept met looks look looked looker hands handed standing outside ran said seen torn blind "
        "volatile road floor room house held left brought meanwhile somebody nobody beside",
    )
)
IRREGULAR = frozenset(
    re.findall(
        r"\w+",
        "begun bound broken brought built caught chosen done drawn fallen found given gone held hidden kept known left "
        "again ahead lost made meant met said seen sent shown spent taken thrown told torn understood written",
    )
)
NO_PARTICIPLES = frozenset({"bed", "embed", "feed", "need", "red", "seed", "shed", "speed"})


class Definition(NamedTuple):
    """A name that a file defines."""

    name: str
    kind: str
    file: Path
    line: int


def definitions(file: Path) -> Iterator[Definition]:
    """Return each name that ``file`` defines, as often as it defines it, and the file's own name."""
    yield Definition(file.stem if file.stem != "__init__" else file.parent.name, "module", file, 1)
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Definition(name, "function", file, node.lineno)
            case ast.ClassDef(name=name):
                yield Definition(name, "class", file, node.lineno)
            case ast.arg(arg=name):
                yield Definition(name, "parameter", file, node.lineno)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield Definition(name, "variable", file, node.lineno)


def uses_dialect(name: str) -> bool:
    """Whether a part of ``name`` is a word of the dialect."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return not DIALECT.isdisjoint(part.lower() for part in parts)


def is_bare_participle(name: str) -> bool:
    """Whether ``name`` is one word, and that a participle or an adverb."""
    word = name.strip("_")
    if re.search("[a-z][A-Z]", word):
        return False
    word = word.lower()
    return word in IRREGULAR or (word.isalpha() and word.endswith("ed") and word not in NO_PARTICIPLES)


def untyped_joints(file: Path) -> Iterator[Definition]:
    """Return parameters and fields whose whole type is ``Any``."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=ast.Name(id="Any")):
                yield Definition(name, "field", file, node.lineno)
            case ast.FunctionDef(args=args):
                for each in (*args.posonlyargs, *args.args, *args.kwonlyargs):
                    if isinstance(each.annotation, ast.Name) and each.annotation.id == "Any":
                        yield Definition(each.arg, "parameter", file, each.lineno)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the names that a newcomer does not understand.")
    parser.add_argument("folders", nargs="*", default=["cachec", "plugins"], help="default: cachec plugins")
    parser.add_argument("-v", "--verbose", action="store_true", help="list each name with its file and line")
    given = parser.parse_args()
    files = sorted(file for folder in given.folders for file in (ROOT / folder).rglob("*.py"))
    found = [each for file in files for each in definitions(file)]
    dialect = [each for each in found if uses_dialect(each.name)]
    participles = [
        each
        for each in found
        if each.kind in {"function", "class"} and is_bare_participle(each.name) and not uses_dialect(each.name)
    ]
    classes = defaultdict(list)
    for each in found:
        if each.kind == "class":
            classes[each.name].append(each)
    twice = [each for same in classes.values() if len(same) > 1 for each in same]
    own = {name.lower() for name in classes if not name.startswith("_")} - {"value"}
    joints = [each for file in files for each in untyped_joints(file) if each.name.replace("_", "") in own]
    print(f"definitions               {len(found):6}")
    for title, names in (
        ("dialect", dialect),
        ("bare participles", participles),
        ("class names twice", twice),
        ("untyped joints", joints),
    ):
        distinct = Counter(each.name for each in names)
        print(f"{title:24}  {len(names):6}  ({len(distinct)} distinct)")
        if given.verbose:
            for each in names:
                print(f"  {each.file.relative_to(ROOT)}:{each.line}: {each.kind} {each.name}")


if __name__ == "__main__":
    main()
