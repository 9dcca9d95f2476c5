"""Cases: a construct, where it stands, how the stage comes to it, and two edits, all chosen by a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.soundness.constructs import CONSTRUCTS, Construct

#: Where the construct is: a module imported at the top (whole, or by name), one imported inside the stage, or the
#: module of the stage itself.
PLACES = ("top", "names", "inside", "main")
#: How the stage comes to its value.
WAYS = ("direct", "helper", "lambda", "partial", "table", "closure")

Files = dict[str, str | None]


class Case(NamedTuple):
    """Files of a project, and of its edits: ``changed`` decides the result, ``neutral`` does not, nor does ``unused``,
    which adds to what nothing uses. A file that is None is not there. live: a module and what to run in it, which does
    in a process what ``changed`` does in files; empty where nothing does.
    """

    name: str
    files: Files
    changed: Files
    neutral: Files
    unused: Files
    live: tuple[str, str] | tuple[()]
    edits_while_running: bool


def cases(seed: int, count: int) -> Iterator[Case]:
    """As many cases as asked for; the first ones hold every construct once, at a place of its own."""
    rng = random.Random(seed)
    for number in range(count):
        construct = CONSTRUCTS[number % len(CONSTRUCTS)]
        places = [place for place in PLACES if place not in construct.without]
        yield case(construct, rng.choice(places), rng.choice(WAYS), rng)


def case(construct: Construct, place: str, way: str, rng: random.Random) -> Case:
    """One case of a construct."""
    first, second = rng.sample(range(1, 8), 2)
    if (first + second) % 2 == 0:
        second += 1  # of the other parity: what depends on that alone shows too

    def project(significant: int, neutral: int, unused: int) -> Files:
        return _project(construct, place, way, significant, neutral, unused)

    module = "main" if place == "main" else "helper"
    return Case(
        f"{construct.name} / {place} / {way} / {first}->{second}",
        project(first, 1, 1),
        project(second, 1, 1),
        project(first, 1 if "comment" in construct.without else 2, 1),
        project(first, 1, 2),
        (module, f"K = {second}") if re.search(r"^K = \$S$", construct.text, re.M) else (),
        "stale" not in construct.without,
    )


def _project(construct: Construct, place: str, way: str, significant: int, neutral: int, unused: int) -> Files:
    def filled(text: str) -> str:
        return text.replace("$S", str(significant)).replace("$N", str(neutral))

    files: Files = {}
    for name, text in construct.files.items():
        there = not name.endswith("?") or significant % 2
        files[name.removesuffix("?")] = filled(text) if there else None
    # What is neutral: comments, lines, and what nothing uses.
    text = filled(construct.text) + "\n" * neutral + f"def unused_{place}(): return {unused}  # {neutral}\n"
    names = sorted(set(re.findall(r"@(\w+)", construct.use)))
    own = construct.use.replace("@", "" if place in ("main", "names") else "helper.")
    top, inside = "", ""
    if place == "main":
        top = text
    else:
        files["helper.py"] = text
        imported = f"from helper import {', '.join(names)}\n" if place == "names" else "import helper\n"
        top, inside = ("", imported) if place == "inside" else (imported, "")
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
