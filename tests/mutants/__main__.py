"""``make mutants``: change the sources in one place at a time, and count how many of the changes a test notices.

``python -m tests.mutants 300 --seed 0``. The tests of a change are those that run its line, as measured once for each
state of a file of tests (remove the folder when sources were moved about): first a few that run little else, and where
they notice nothing some more. A change that lets tests hang counts as noticed. One that survives changes nothing, or a
test is missing: a person has to judge.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from tests.mutants import operators, trace
from tests.mutants.operators import Mutant
from tests.mutants.tree import tree

#: What is changed: whatever decides of a key, of what is stored and handed out, and of weights.
MODULES = (
    *("cachec/key/**/*.py", "cachec/stage/**/*.py", "cachec/store/**/*.py", "cachec/launcher/**/*.py"),
    *("cachec/recording/**/*.py", "cachec/commands/**/*.py", "cachec/weights/formats/*.py"),
    *("cachec/weights/io/*.py", "cachec/weights/library/*.py", "cachec/base/elf.py"),
    *("plugins/cachec_mlir/topology_hash.py", "plugins/cachec_mlir/text/*.py", "plugins/cachec_mlir/bytecode/*.py"),
)
#: Files of tests that run one of them, without those that are about something else.
TESTS = (
    *("tests/base", "tests/key", "tests/stage", "tests/store", "tests/recording", "tests/commands", "tests/launcher"),
    *("tests/weights", "tests/codecs", "tests/programs", "tests/safety", "tests/plugins/mlir", "tests/maintain"),
    *("tests/reproduce", "tests/build/test_helpers.py"),
)

#: CPU seconds that tests may take: in the first look at a change, and in the second. What a test costs at least.
LOOKS = (3.0, 15.0)
_LEAST = 0.05
#: How many times as long a test takes that is traced.
_TRACED = 3


class Forks:
    """A process that runs tests in the tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [root / ".venv/bin/python", Path(__file__).with_name("forks.py")],
            cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, files: list[str], names: list[str] | None, **job: Any) -> dict[str, Any]:
        """Run tests; what came of it."""
        job = {"environ": {}, "log": str(self._folder / "log"), "files": files, "names": names, **job}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(forks: Forks, root: Path, folder: Path, file: str) -> dict[str, Any]:
    """What the tests of one file run and cost, as JSON keeps it."""
    state = hashlib.sha256((root / file).read_bytes()).hexdigest()[:12]
    kept = folder / "map" / f"{file.replace('/', '-')}-{state}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    kept.parent.mkdir(exist_ok=True)
    lines, tests = folder / "lines", folder / "tests"
    lines.write_text("")
    tests.write_text("")
    environ = {trace.FILE: str(lines), trace.ROOT: str(root)}
    forks.run([file], None, environ=environ, tests=str(tests), seconds=1200, wall=3600)
    found: dict[str, Any] = {"collecting": 0.0, "names": [], "tests": {}, "lines": {}}
    for said in map(json.loads, tests.read_text().splitlines()):
        if "test" not in said:
            found.update(said)
        elif said["passed"]:
            found["tests"][said["test"]] = said["seconds"]
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(set(lines.read_text().splitlines())):
        name, path, line = row.rsplit("\t", 2)
        if name in found["tests"]:
            places[name][path].append(int(line))
    found["lines"] = places
    kept.write_text(json.dumps(found))
    return found


class Map:
    """Which tests run which lines."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._collecting: dict[str, float] = {}
        self._size: dict[str, int] = defaultdict(int)  # nothing for a test that only looks at tables
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._by_file: dict[str, set[str]] = defaultdict(set)

    def add(self, file: str, found: dict[str, Any]) -> None:
        """Take what was measured of a file of tests."""
        self._collecting[file] = found["collecting"]
        self.seconds |= {test: seconds / _TRACED for test, seconds in found["tests"].items()}
        rows: dict[str, Any] = dict(found["lines"])
        # Other parameters of a function run what those run that were tried, as far as is known, and take less: what
        # is done once is done.
        for name in found["names"]:
            alike = [test for test in found["tests"] if test.partition("[")[0] == name.partition("[")[0]]
            if name not in found["tests"] and alike and "[" in name:
                self.seconds[name] = max(self.seconds[test] for test in alike) / 2
                rows[name] = found["lines"].get(alike[len(alike) // 2], {})
        for name, places in rows.items():
            self._size[name] = sum(map(len, places.values()))
            for path, lines in places.items():
                self._by_file[path].add(name)
                for line in lines:
                    self._by_line[path, line].add(name)

    def related(self, path: str, source: bytes, line: int) -> list[str]:
        """The tests of the module, then all others: those that run a line, then those of what is around it, of each
        those of its room first, and of these those that run little else."""
        room = _room(path)

        def rank(test: str) -> tuple[int, int, str]:
            there = _room(test.partition("::")[0])
            near = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(room, there, strict=False)))
            return -near, self._size[test], test

        found: dict[str, None] = {}
        around = (
            {test for each in lines for test in self._by_line.get((path, each), ())}
            for lines in operators.lines_of(source, line)
        )
        # A table is at times held against another without that anything of its module runs; and a script that runs
        # without what lies in the environment tells nothing.
        own = {test for test in self.seconds if _room(test.partition("::")[0])[-1] == room[-1]}
        beside = {test for test in self.seconds if _room(test.partition("::")[0])[:-1] == room[:-1]}
        for tests in (*around, own, self._by_file[path] or beside):
            found |= dict.fromkeys(sorted(tests - set(found), key=rank))
        return sorted(found, key=lambda test: test not in own)

    def looks(self, tests: list[str], allowed: Iterable[float]) -> Iterator[list[str]]:
        """Of related tests those of each look: of a function's parameters what a quarter of it runs, and no file
        that is dear to import. After the first look some of every file."""
        left = tests
        for seconds in allowed:
            share = seconds / 4
            if left is not tests:
                seen: dict[str, int] = defaultdict(int)
                turns = {}
                for test in left:
                    file = test.partition("::")[0]
                    seen[file] += 1
                    turns[test] = seen[file] // 4
                left = sorted(left, key=turns.__getitem__)
            chosen: list[str] = []
            files: set[str] = set()
            functions: dict[str, float] = defaultdict(float)
            for test in left:
                file, function = test.partition("::")[0], test.partition("[")[0]
                own = max(_LEAST, self.seconds[test])
                cost = own + (0 if file in files else self._collecting[file])
                if cost <= seconds and (function not in functions or functions[function] + own <= share):
                    seconds -= cost
                    files.add(file)
                    functions[function] += own
                    chosen.append(test)
            left = [test for test in left if test not in set(chosen)]
            if chosen:
                yield sorted(chosen, key=lambda test: (self.seconds[test], test))


def _room(path: str) -> list[str]:
    """Where a source or its tests are: ``cachec/key/code/scopes.py`` and ``tests/key/code/test_scopes.py`` are one."""
    parts = path.removesuffix(".py").split("/")[1:]
    return [part.removeprefix("test_").removeprefix("cachec_") for part in parts if part != "plugins"]


class Jury:
    """Applies mutants to the tree and runs their tests."""

    def __init__(self, forks: Forks, root: Path, known: Map, allowed: Sequence[float]) -> None:
        self._forks = forks
        self._root = root
        self._map = known
        self._allowed = allowed

    def noticed(self, mutant: Mutant) -> tuple[str, int]:
        """What noticed it (a test, a hang) or "", and how many tests were tried."""
        file = self._root / mutant.path
        source = file.read_bytes()
        tried = 0
        try:
            self._write(file, mutant.applied(source))
            for tests in self._map.looks(self._map.related(mutant.path, source, mutant.line), self._allowed):
                tried += len(tests)
                files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
                cost = sum(self._map.seconds[test] for test in tests)
                done = self._forks.run(files, tests, seconds=60 + int(3 * cost), wall=240 + 20 * cost)
                if done["hung"]:
                    return "hangs", tried
                if done["code"] not in {0, 5}:
                    return self._failed(), tried
        finally:
            self._write(file, source)
        return "", tried

    def _failed(self) -> str:
        for line in (self._forks._folder / "log").read_text(errors="replace").splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" - ")[0]
        return "does not start"

    def _write(self, file: Path, data: bytes) -> None:
        """With a bytecode file of its own, also where one is written twice a second."""
        file.write_bytes(data)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def population(root: Path, modules: tuple[str, ...]) -> list[Mutant]:
    """Every mutant of these modules."""
    files = sorted({file for pattern in modules for file in root.glob(pattern)})
    return [mutant for file in files for mutant in operators.mutants(str(file.relative_to(root)), file.read_bytes())]


def survivors(log: Path, whole: list[Mutant]) -> list[Mutant]:
    """Those that survived a run, wherever their lines are now: of equal ones in a file the nearest."""
    rows = log.read_text().splitlines()
    found = []
    for row, said in pairwise(rows):
        place, _, change = row[5:].partition(" ")
        path, _, line = place.partition(":")
        if said.strip().startswith("SURVIVES"):
            equal = [each for each in whole if (each.path, each.change) == (path, change)]
            found += sorted(equal, key=lambda each: abs(each.line - int(line)))[:1]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("count", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="+", default=MODULES, help="patterns of the sources that are changed")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders or files of tests")
    parser.add_argument("--share", default="1/1", help="2/3: the second of three runs side by side (in other folders)")
    parser.add_argument("--only", default="", help="of these, those whose description holds this text")
    parser.add_argument("--again", type=Path, help="the output of a run: judge those that survived it")
    parser.add_argument("--seconds", type=float, nargs="+", default=LOOKS, help="of CPU for each look at a change")
    parser.add_argument("--measure", action="store_true", help="only measure what tests run")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cachec-mutants")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    root = tree(given.folder)
    forks = Forks(root, given.folder)
    known = Map()
    for place in given.tests:
        for file in sorted((root / place).rglob("test_*.py") if (root / place).is_dir() else [root / place]):
            started = time.monotonic()
            name = str(file.relative_to(root))
            found = measure(forks, root, given.folder, name)
            known.add(name, found)
            if given.measure:
                cost = sum(found["tests"].values())
                said = f"{len(found['tests'])} tests, {cost:.0f} s CPU, {time.monotonic() - started:.0f} s"
                print(f"{name}: {said}", flush=True)
    if given.measure:
        return 0
    whole = population(root, tuple(given.modules))
    if given.again is not None:
        chosen = survivors(given.again, whole)
    else:
        chosen = random.Random(given.seed).sample(whole, min(given.count, len(whole)))
    part, parts = map(int, given.share.split("/"))
    chosen = [mutant for mutant in chosen if given.only in str(mutant)][part - 1 :: parts]
    jury = Jury(forks, root, known, given.seconds)
    noticed = 0
    for number, mutant in enumerate(chosen, 1):
        started = time.monotonic()
        by, tried = jury.noticed(mutant)
        noticed += bool(by)
        print(
            f"{number:4} {mutant}\n     {by or 'SURVIVES'} ({tried} tests, {time.monotonic() - started:.0f} s)",
            flush=True,
        )
    forks.close()
    print(f"{len(chosen)} of {len(whole)} mutants, seed {given.seed}: {noticed} noticed", end="")
    print(f" ({100 * noticed / max(1, len(chosen)):.1f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
