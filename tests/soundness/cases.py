"""Projects: a construct, where it stands, how the stage comes to it, and its edits, all chosen by a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.soundness.constructs import CONSTRUCTS, Construct
from tests.soundness.library_constructs import LIBRARY_CONSTRUCTS
from tests.soundness.registries import REGISTRIES

#: Where the construct is: a module imported at the top (whole, or by name), one imported inside the stage, the module
#: of the stage itself, or a cell of a notebook.
PLACES = ("top", "names", "inside", "main", "cell")
#: How the stage comes to its value.
WAYS = ("direct", "helper", "lambda", "partial", "table", "closure")
#: What cells are called: by ipykernel, which names a file that is never there, and by IPython. ``#`` is the cell.
KERNELS = ("/tmp/ipykernel_7/#.py", "<ipython-input-#-soundness>")

Files = dict[str, str | None]


class Edit(NamedTuple):
    """files: what is there after it, None for a file that is not. kind: ``decides`` the result, ``neutral`` (changes
    nothing: lines, comments), ``unused`` (adds to what nothing uses)."""

    kind: str
    files: Files


class Project(NamedTuple):
    """A program with a stage, and its edits; the first decides its result.

    cells: names of files, in the order in which a notebook runs them as cells, empty for a program of modules. kernel:
    what cells are called. live: a module and what to run in it, which does in a process what the first edit does in
    files; empty where nothing does. edits_while_running: whether files may be edited under a process.
    """

    name: str
    files: Files
    edits: tuple[Edit, ...]
    cells: tuple[str, ...]
    kernel: str
    live: tuple[str, str] | tuple[()]
    edits_while_running: bool


#: All that projects are made of.
EACH = CONSTRUCTS + REGISTRIES + LIBRARY_CONSTRUCTS


def projects(seed: int) -> Iterator[Project]:
    """Projects without end; among the first ones is every construct once, at a place of its own."""
    rng = random.Random(seed)
    while True:
        for construct in EACH:
            yield project(construct, rng)


def project(construct: Construct, rng: random.Random, place: str | None = None) -> Project:
    """One project of a construct, at a place that is given or drawn."""
    place = place or rng.choice([place for place in PLACES if place not in construct.without])
    way = rng.choice(WAYS)
    beside = rng.choice(_BESIDE) if rng.random() < 0.3 else None
    marks: Files = {"cachec.toml": ""} if rng.random() < 0.5 else {}
    numbers = rng.sample(range(1, 9), 3)
    while (numbers[0] + numbers[1]) % 2 == 0:  # of the other parity: what depends on that alone shows
        rng.shuffle(numbers)
        if len({each % 2 for each in numbers}) == 1:
            numbers = rng.sample(range(1, 9), 3)

    def files(significant: int, neutral: int = 1, unused: int = 1) -> Files:
        return marks | _files(construct, place, way, beside, significant, neutral, unused)

    first, second, third = numbers
    edits = [
        Edit("decides", files(second)),
        Edit("decides", files(third)),
        Edit("neutral", files(first, neutral=1 if "comment" in construct.without else 2)),
        Edit("unused", files(first, unused=2)),
    ]
    is_set = re.search(r"^K = \$S$", construct.text, re.M) and place != "cell"
    return Project(
        f"{construct.name} / {place} / {way} / {first}->{second}, {third}" + (f" / {beside.name}" if beside else ""),
        files(first),
        tuple(edits),
        ("construct.py", "main.py") if place == "cell" else (),
        rng.choice(KERNELS),
        ("main" if place == "main" else "helper", f"K = {second}") if is_set else (),
        "stale" not in construct.without and place != "cell",
    )


#: What may stand beside a construct in the same project: constructs of one text.
_BESIDE = [each for each in EACH if not each.files and not each.without]


def _files(
    construct: Construct, place: str, way: str, beside: Construct | None, significant: int, neutral: int, unused: int
) -> Files:
    def filled(text: str) -> str:
        return text.replace("$S", str(significant)).replace("$N", str(neutral))

    files: Files = {}
    for name, text in construct.files.items():
        there = not name.endswith("?") or significant % 2
        files[name.removesuffix("?")] = filled(text) if there else None
    # What is neutral: comments, lines, and what nothing uses.
    text = filled(construct.text) + "\n" * neutral + f"def unused_{place}(): return {unused}  # {neutral}\n"
    names = sorted(set(re.findall(r"@(\w+)", construct.use)))
    own = construct.use.replace("@", "helper." if place in ("top", "inside") else "")
    top, inside = "", ""
    if place == "main":
        top = text
    elif place == "cell":
        files["construct.py"] = text
    else:
        files["helper.py"] = text
        imported = f"from helper import {', '.join(names)}\n" if place == "names" else "import helper\n"
        top, inside = ("", imported) if place == "inside" else (imported, "")
    if beside is not None:
        files["beside.py"] = beside.text.replace("$S", "3").replace("$N", "1")
        own += f", ({beside.use.replace('@', 'beside.')})"
        top = f"import beside\n{top}"
    files["main.py"] = _main(top, inside, f"repr(({own},))", way)
    return files


def _main(top: str, inside: str, value: str, way: str) -> str:
    before, body = "", f"return {value}"
    step = f"    {inside}" if inside else ""
    if way == "helper":
        before, body, step = f"def value_of():\n{step}    return {value}\n", "return value_of()", ""
    elif way == "lambda":
        body = f"return (lambda: {value})()"
    elif way == "partial":
        before = (
            f"import functools\ndef value_of(x):\n{step}    return {value}\npart = functools.partial(value_of, 1)\n"
        )
        body, step = "return part()", ""
    elif way == "table":
        before, step_ = f"def value_of():\n{step}    return {value}\nTABLE = {{'it': value_of}}\n", ""
        body, step = "return TABLE['it']()", step_
    elif way == "closure":
        made = (
            f"def make():\n    def value_of():\n    {step or '    pass'}\n        return {value}\n    return value_of\n"
        )
        before, body, step = f"{made}made = make()\n", "return made()", ""
    return (
        "import os, cachec\n"
        "cache = cachec.Cache(os.environ['SOUNDNESS_STORE'], log='off', mode='on')\n"
        f"{top}\n{before}\n"
        f"@cache.stage\ndef stage(x=1):\n{step}    {body}\n"
    )
