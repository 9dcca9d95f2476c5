"""Generated programs with isolated stages, run as users run them: as scripts, by ``python -m``, as notebooks.

Each program runs plainly and with a cache (at first in mode ``both`` by chance), again, after an edit that changes
nothing, after edits that decide the result, edited back, and in another checkout. The oracle is the plain run.
"""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import symtable
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.soundness.constructs import CONSTRUCTS
from tests.soundness.isolated_constructs import EACH, OTHER_STATE, SCRIPTS, Situation
from tests.soundness.runner import ROOT, Report
from tests.soundness.server import write

#: What comes of a stage without arguments, and of any: how its value is made.
_WAYS = (
    "direct",
    "helper",
    "lambda",
    "partial",
    "table",
    "closure",
    "nested",
    "method",
    "async",
    "thread",
    "generator",
)
_WAYS_OF_ANY = ("direct", "lambda", "async", "thread", "generator")
_FORMS = ("top", "early", "guard", "function", "loop", "with", "try", "if", "thread", "boot")
_SOURCES = ("text", "argv", "env", "file")
_CALLS = ("direct", "direct", "direct", "pool", "map", "loop")
_STYLES = ("script", "script", "script", "-m", "cells")
_CELL = "# --- cell\n"
#: Constructs of projects that are not told apart by a script's plain run, or not there in one.
_OF_PROJECTS = [
    Situation(each.name, each.text, each.use, files=each.files, without=("cells",) if "cell" in each.without else ())
    for each in CONSTRUCTS
    if not any(name.endswith(".zip") for name in each.files)
]


class Program(NamedTuple):
    """A way to write down a situation. shape: all that was drawn."""

    situation: Situation
    place: str
    way: str
    form: str
    source: str
    called: str
    style: str
    stages: bool
    is_repeated: bool

    def __str__(self) -> str:
        drawn = (self.place, self.way, self.form, self.source, self.called, self.style)
        return (
            f"{self.situation.name} / {' / '.join(drawn)}{' / stages' * self.stages}{' / repeated' * self.is_repeated}"
        )


class Variant(NamedTuple):
    """What an edit is of. given: the numbers V. significant: the number in texts. neutral: how many lines are added."""

    given: tuple[int, ...]
    significant: int
    neutral: int = 1


def programs(seed: int) -> Iterator[tuple[Program, random.Random]]:
    """Programs without end; each situation once in a turn, and as many constructs of projects."""
    rng = random.Random(seed)
    while True:
        chosen = [*EACH, *rng.sample(_OF_PROJECTS, len(EACH) // 6)]
        for situation in rng.sample(chosen, len(chosen)):
            own = random.Random(rng.random())
            yield draw(situation, own), own


def draw(situation: Situation, rng: random.Random) -> Program:
    """One program of a situation."""
    without = situation.without
    is_script = situation in SCRIPTS
    places = [each for each in ("lib", "names", "inside", "main") if each not in without]
    if re.search(r"@(\w+)(\.\w+)* *=[^=]", situation.before) and "names" in places:
        places.remove("names")
    place = rng.choice(places)
    may_stand_apart = place != "main" and not is_script and not situation.takes
    form = rng.choice([each for each in _FORMS if each not in without and (each != "boot" or may_stand_apart)])
    if not situation.before and form in {"boot", "early"}:
        form = "guard"
    if form == "early" and situation.call:
        form = "top"
    style = rng.choice([each for each in _STYLES if each not in without])
    if style == "cells" and form not in {"top", "loop", "boot"}:
        form = "top"
    if style == "cells" and "__file__" in situation.text and place == "main":
        style = "script"
    way = rng.choice(_WAYS_OF_ANY if situation.takes else _WAYS)
    if "ways" in without:
        way = "direct"
    called = rng.choice(_CALLS) if way != "async" else rng.choice(("direct", "loop"))
    source = rng.choice(_SOURCES) if situation.before or situation.call else "text"
    apart = may_stand_apart and style != "cells" and rng.random() < 0.3
    is_repeated = (
        "again" not in without
        and form in {"loop", "function", "thread", "boot"}
        and rng.random() < 0.5
        and "V" in situation.before + situation.call
    )
    return Program(situation, place, way, form, source, called, style, apart, is_repeated)


# --- texts


def files_of(program: Program, variant: Variant) -> dict[str, str | None]:
    """The files of a program, after an edit."""
    situation = program.situation
    comment = "\n" * variant.neutral + f"# {variant.neutral}\n"

    def filled(text: str) -> str:
        return text.replace("$S", str(variant.significant)).replace("$N", "1")

    found: dict[str, str | None] = {}
    for name, text in situation.files.items():
        is_there = not name.endswith("?") or variant.significant % 2
        text = filled(text)
        if name.endswith((".py", ".py?")):
            text = comment + text
        found[name.removesuffix("?")] = text if is_there else None
    own = "" if program.place == "main" else "lib."
    imported, inside = "", ""
    if program.place != "main":
        found["lib.py"] = comment + filled(situation.text)
        imported = "import lib\n"
    used = own
    if program.place == "names":
        names = sorted(set(re.findall(r"@([A-Za-z_]\w*)", situation.use)) - {"__name__"})
        imported += f"from lib import {', '.join(names)}\n" if names else ""
        used = ""
    elif program.place == "inside":
        inside = "import lib; "

    def named(text: str, prefix: str) -> str:
        text = re.sub(r"@([A-Za-z_]\w*)", lambda match: prefix + match[1], filled(text))
        return re.sub(r"^\^", "@", text, flags=re.M)

    stage = _stage_text(program, named(situation.use, used), inside, comment.strip("\n"), filled(situation.takes))
    header = "import asyncio, contextlib, functools, multiprocessing, os, sys, threading\nimport cachec\ncache = cachec.Cache()\n"
    if "inner" in situation.call:
        header += "@cache.stage\ndef inner(x): return x * 3\n"
    text = filled(situation.text) if program.place == "main" else imported
    if program.stages:
        found["stages.py"] = comment + header + imported + stage
        stage = "from stages import stage\n"
    home = "HOME = os.getcwd()\n"
    before = named(situation.before, own)
    call = _call_text(program, named(situation.call, own))
    if program.form == "boot":
        found["boot.py"] = f"{comment}import os, sys\n{imported}{home}def boot(V):\n{_indented(before or 'pass')}"
        before = "boot(V)"
        imported_boot = "from boot import boot\n"
    else:
        imported_boot = ""
    parts = _placed(program, before, call, variant, stage)
    found["main.py"] = comment + _CELL.join([header + home + imported_boot + text, *parts])
    if program.source == "file":
        found["v.txt"] = " ".join(map(str, variant.given))
    if program.style == "cells":
        cells = (found.pop("main.py") or "").split(_CELL)
        found |= {f"cell{number}.txt": cell for number, cell in enumerate(cells)}
    return found


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))


def _stage_text(program: Program, use: str, inside: str, comment: str, takes: str) -> str:
    value, way = f"repr(({use},))", program.way
    step = f"    {comment}\n    {inside}"
    if way == "async":
        return f"@cache.stage\nasync def stage({takes}):\n{step}return {value}\n"
    if way == "lambda":
        return f"@cache.stage\ndef stage({takes}):\n{step}return (lambda: {value})()\n"
    if way == "thread":
        body = f"out = []\n    t = threading.Thread(target=lambda: out.append({value}))\n    t.start(); t.join()\n    return out[0]"
        return f"@cache.stage\ndef stage({takes}):\n{step}{body}\n"
    if way == "generator":
        return f"@cache.stage\ndef stage({takes}):\n{step}def values(): yield {value}\n    return next(values())\n".replace(
            "; def", "\n    def"
        )
    if way == "nested":
        return f"@cache.stage\ndef deeper():\n{step}return {value}\n@cache.stage\ndef stage():\n    return deeper()\n"
    if way == "method":
        return f"class Box:\n    @staticmethod\n    @cache.stage\n    def go():\n    {step.replace(chr(10), chr(10) + '    ')}return {value}\nstage = Box.go\n"
    helper = f"def value_of(x=1):\n{step}return {value}\n"
    if way == "helper":
        return f"{helper}@cache.stage\ndef stage(): return value_of()\n"
    if way == "partial":
        return f"{helper}part = functools.partial(value_of, 2)\n@cache.stage\ndef stage(): return part()\n"
    if way == "table":
        return f"{helper}TABLE = {{'it': value_of}}\n@cache.stage\ndef stage(): return TABLE['it']()\n"
    if way == "closure":
        return f"def make():\n{_indented(helper)}    return value_of\nmade = make()\n@cache.stage\ndef stage(): return made()\n"
    return f"@cache.stage\ndef stage({takes}):\n{step}return {value}\n"


def _call_text(program: Program, arguments: str) -> str:
    if program.way == "async":
        call = f"asyncio.run(stage({arguments}))"
    elif program.called == "pool":
        call = f"_pool.submit(stage{', ' * bool(arguments)}{arguments}).result()"
    elif program.called == "map":
        call = f"[_s({arguments}) for _s in [stage]][0]"
    else:
        call = f"stage({arguments})"
    text = f"print('=>', {call}, flush=True)"
    if program.called == "pool" and program.way != "async":
        return f"from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as _pool: {text}"
    if program.called == "loop":
        return f"for _n in range(2): {text}"
    return text


def _given(program: Program, variant: Variant) -> str:
    """An expression of the numbers."""
    if program.source == "argv":
        return "map(int, sys.argv[1:])"
    if program.source == "env":
        return "map(int, os.environ['SND_V'].split())"
    if program.source == "file":
        return "map(int, open(os.path.join(HOME, 'v.txt')).read().split())"
    return repr(list(variant.given))


def _placed(program: Program, before: str, call: str, variant: Variant, stage: str) -> list[str]:
    """The cells of the script that follow: the stage, and where what is done before it stands."""
    given, form = _given(program, variant), program.form
    first = f"V = list({given})[0]\n"
    both = f"{before}\n{call}\n".lstrip("\n")
    if form == "top":
        return [stage, f"{first}{before}\n", f"{call}\n"]
    if form == "early":
        return [f"{first}{before}\n", stage, f"{call}\n"]
    if form == "guard":
        return [stage, f"if __name__ == '__main__':\n{_indented(first + both)}"]
    if form == "loop" or (form == "boot" and program.style != "cells"):
        return [stage, f"for V in {given}:\n{_indented(both)}"]
    if form == "boot":
        return [stage, first + both]
    if form == "with":
        return [stage, f"with contextlib.nullcontext():\n{_indented(first + before)}\n{call}\n"]
    if form == "try":
        return [stage, f"try:\n{_indented(first + before)}finally:\n    pass\n{call}\n"]
    if form == "if":
        return [stage, f"V = list({given})[0]\nif V:\n{_indented(before or 'pass')}{call}\n"]
    names = _bound(before)
    declared = f"global {', '.join(names)}\n" if names else ""
    function = f"def run(V):\n{_indented(declared + both)}"
    start = "_t = threading.Thread(target=run, args=(V,))\n_t.start()\n_t.join()" if form == "thread" else "run(V)"
    return [stage, f"{function}if __name__ == '__main__':\n    for V in {given}:\n{_indented(_indented(start))}"]


def _bound(text: str) -> list[str]:
    """The names that statements bind at a module's top."""
    found = symtable.symtable(text, "", "exec").get_symbols()
    return sorted(each.get_name() for each in found if each.is_assigned() or each.is_imported() or each.is_namespace())


# --- runs


class Run(NamedTuple):
    """What a process did. calls: what the log says of the outermost stage, in order."""

    status: int
    results: list[str]
    err: str
    calls: list[dict[str, Any]]


class Server:
    """The forking server, asked by one thread."""

    def __init__(self, *ahead: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/soundness/isolated_server.py"), *ahead],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, folder: Path, program: Program, variant: Variant, mode: str, place: Path) -> Run:
        """Run a program in a new process."""
        log = place / "calls.jsonl"
        log.unlink(missing_ok=True)
        env = {
            "CACHEC_MODE": mode,
            "CACHEC_ISOLATED": "1",
            "CACHEC_DIR": str(place / "store"),
            "CACHEC_STATS_FILE": str(log),
        }
        argv = ["main.py"]
        if program.source == "argv":
            argv += map(str, variant.given)
        elif program.source == "env":
            env["SND_V"] = " ".join(map(str, variant.given))
        cells = sorted(path.name for path in folder.glob("cell*.txt")) if program.style == "cells" else []
        module = "main" if program.style == "-m" else ""
        job = {"folder": str(folder), "argv": argv, "env": env, "cells": cells, "module": module}
        job["is_warm"] = program.situation not in OTHER_STATE  # which a starter may have from its start
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        results = re.findall(r"^=> (.*)$", answer["out"], re.M)
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        calls = [row for row in rows if re.search(r"\b(stage|go)$", row.get("stage", ""))]
        return Run(answer["status"], results, answer["err"], calls)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_isolated(seed: int, folder: Path) -> Iterator[Report]:
    """Programs without end, each with all of its edits."""
    with closing(Server("numpy")) as with_numpy, closing(Server()) as ask:
        for number, (program, rng) in enumerate(programs(seed)):
            texts = program.situation.text + program.situation.before + program.situation.call
            place = folder / str(number)
            yield check(program, rng, with_numpy if "numpy" in texts else ask, place)
            shutil.rmtree(place, ignore_errors=True)


def check(program: Program, rng: random.Random, ask: Server, place: Path) -> Report:
    """One program: what a plain run gives, and what the cache gives."""
    report = Report(projects=1, cases=1)
    numbers = rng.sample(range(1, 10), 3)
    while numbers[0] % 2 == numbers[1] % 2:
        numbers = rng.sample(range(1, 10), 3)
    one, two, three = numbers
    given = (one, two, one) if program.is_repeated else (one,)
    first = Variant(given, one)
    has_v = "V" in program.situation.before + program.situation.call
    changed = (two, three) if program.is_repeated else (two,)
    edits = [("decides", Variant(changed, one))] if has_v else []
    if "$S" in str(program.situation):
        edits.append(("decides", Variant(given, two)))
    if len(edits) == 1:
        edits.append(("decides", Variant(given, three) if not has_v else Variant((three,), one)))
    steps = [
        ("first", first),
        ("again", first),
        ("neutral", Variant(given, one, 3)),
        *edits,
        ("back", first),
        ("moved", first),
    ]
    home, elsewhere = place / "p", place / "elsewhere" / "q"
    begun: Run | None = None
    original: Run | None = None
    again: Run | None = None
    for kind, variant in steps:
        checkout = elsewhere if kind == "moved" else home
        checkout.mkdir(parents=True, exist_ok=True)
        for stale in checkout.glob("d/x*"):  # what the program itself makes
            stale.unlink()
        write(checkout, files_of(program, variant))
        plain = begun if kind == "again" and begun is not None else ask(checkout, program, variant, "off", place)
        if plain.status or not plain.results:
            report.refused.append(f"{program}: no program: {plain.err.strip()[-300:]!r}")
            report.projects = report.cases = 0
            return report
        for stale in checkout.glob("d/x*"):
            stale.unlink()
        mode = rng.choice(("on", "both")) if kind == "first" else "on"
        run = ask(checkout, program, variant, mode, place)
        begun = begun or plain
        name = f"{program}, {kind} {variant.given} {variant.significant}{' both' * (mode == 'both')}"
        _judge(report, name, plain, run)
        if kind == "first":
            original = run
        elif kind == "again":
            again = run
            _count_never_stored(report, program, original, run)
        elif plain.results == begun.results:
            _count_needless(report, name, kind, again, run)
    return report


def _judge(report: Report, name: str, plain: Run, run: Run) -> None:
    report.looks += len(run.calls)
    report.hits += sum(call["reason"] == "hit" for call in run.calls)
    differs = [call.get("detail", "") for call in run.calls if call["reason"] == "bypass:isolation-differs"]
    if run.status != plain.status:
        report.failed.append(f"{name}: status {run.status}: {run.err.strip()[-600:]}")
    elif run.results != plain.results:
        reasons = [call["reason"] for call in run.calls]
        is_hit = len(reasons) == len(run.results) and any(
            mine != theirs and reason == "hit"
            for mine, theirs, reason in zip(run.results, plain.results, reasons, strict=True)
        )
        found = report.wrong if is_hit or len(reasons) != len(run.results) else report.failed
        found.append(f"{name}: gives {run.results}, a plain run {plain.results}; {reasons}")
    elif differs:
        report.failed.append(f"{name}: {differs[0]}")


def _count_never_stored(report: Report, program: Program, first: Run | None, again: Run) -> None:
    kept_out = [call for call in again.calls if call["reason"] != "hit"]
    if kept_out:
        call = kept_out[0]
        before = first.calls[0] if first and first.calls else {"reason": "", "detail": ""}
        told = [f"{each['reason']} {each.get('detail', '')}" for each in (call, before)]
        report.refused.append(f"{program}: {told[0]}; at first {told[1]}")
    report.ways["isolated", "cases"] += 1
    report.ways["isolated", "never stored"] += bool(kept_out)


def _count_needless(report: Report, name: str, kind: str, again: Run | None, run: Run) -> None:
    assert again is not None
    counted, found = {
        "neutral": ("neutral", report.needless),
        "back": ("neutral", report.needless),
        "moved": ("moved", report.apart),
        "decides": ("unused", report.coarse),
    }[kind]
    setattr(report, counted, getattr(report, counted) + 1)
    for mine, theirs in zip(again.calls, run.calls, strict=False):
        if mine["reason"] == "hit" and theirs["reason"] != "hit":
            found.append(f"{name}: {theirs['reason']} {theirs.get('detail', '')}"[:300])
            return
