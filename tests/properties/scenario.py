"""A property of a compiler cache as a small shell session, and what playing it does, without cachec and with it.

A session is played twice from the same files, in a folder of the same name: once with the compiler itself and once
through ``cachec exec``. After every step both must agree on exit status, output and files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

#: Families of compilers. Each property runs with every member that is installed.
C = ("gcc", "clang")
CXX = ("g++", "clang++")
GCC = ("gcc",)
CLANG = ("clang",)
GXX = ("g++",)
CLANGXX = ("clang++",)

#: The versions of clang that are tried where there is no plain ``clang``.
_CLANG_VERSIONS = range(22, 13, -1)

#: A time stamp of the kernel is behind the clock by at most one tick of 100 Hz, in seconds.
_CLOCK_TICK = 0.02

#: Names of temporary files that compilers choose at random, such as ``/tmp/ccAb12Cd.o`` and ``/tmp/a-1f2e3d.o``.
_RANDOM_NAME = re.compile(rb"(/tmp/)(cc[0-9A-Za-z]{6}|[\w.+-]+-[0-9a-f]{6,10})")

#: Without this capability root is refused by the mode of a file, as any user is.
_WITHOUT_PRIVILEGE = "setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-all "


@dataclass(frozen=True)
class Property:
    """One thing that a compiler cache must keep.

    The steps are lines of shell, each after a word:

    ``sh``    edits files; it runs the same way in both sessions
    ``new``   succeeds and must not be a cache hit
    ``hit``   succeeds and must be a cache hit
    ``may``   succeeds, and is a hit or a bypass with a reason: a miss each time is wrong
    ``any``   is compared only
    ``fail``  fails and must not be a cache hit

    Whether an output existed counts for a command without an adapter. So a ``new`` step of such a command is played
    twice: then the cache knows what follows where its outputs exist, and where they don't.

    In a line ``$CC`` is the compiler (through cachec in the second session), ``$NAME`` the compiler itself, ``$RUN``
    what stands before a command to send it through cachec, ``$W`` the working folder, and ``$USER_ONLY`` takes the
    privileges of root away.
    """

    name: str
    compilers: tuple[str, ...]
    #: Path -> content of the files that exist at the beginning.
    files: Mapping[str, str | bytes]
    steps: str
    #: Patterns of files whose content differs from run to run even without a cache; their existence and mode count.
    unstable: tuple[str, ...] = ()
    #: Whether standard error differs from run to run even without a cache.
    unstable_stderr: bool = False
    #: Whether `make test` runs it, with the first compiler; the others are for `make test-long`.
    quick: bool = False
    #: Other programs that it needs.
    needs: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """The word and the command of each step."""
        for line in self.steps.strip().splitlines():
            word, _, command = line.strip().partition(" ")
            yield word, command.strip()
            if word == "new" and "$RUN" in command:
                yield "any", command.strip()


class Entry(NamedTuple):
    """A file of the working folder, without its time stamps."""

    kind: str
    mode: int
    #: Digest of a file's content, target of a link.
    content: str
    #: The first name of the same inode: tells hard links.
    same_as: str


@dataclass
class Step:
    """What one step did."""

    word: str
    command: str
    status: int
    stdout: bytes
    stderr: bytes
    tree: dict[str, Entry]
    #: Files that are newer than all that existed before the step.
    written: set[str]
    #: Reasons of the calls that cachec recorded during the step.
    reasons: list[str] = field(default_factory=list)


def find_compiler(name: str) -> str:
    """The name under which a compiler of that family is installed; the plain name where it is not."""
    if shutil.which(name):
        return name
    versions = (f"{name}-{version}" for version in _CLANG_VERSIONS) if name.startswith("clang") else ()
    return next((each for each in versions if shutil.which(each)), name)


def _tree(folder: Path, unstable: tuple[str, ...]) -> tuple[dict[str, Entry], dict[str, tuple[int, int]]]:
    """All files below a folder, and the inode and time stamp of each."""
    entries: dict[str, Entry] = {}
    stamps: dict[str, tuple[int, int]] = {}
    first: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        name = os.fspath(path.relative_to(folder))
        found = path.lstat()
        content = ""
        if stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(found.st_mode) and not any(fnmatch(name, pattern) for pattern in unstable):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        kind = stat.filemode(found.st_mode)[0]
        same = name if kind == "d" else first.setdefault(found.st_ino, name)
        entries[name] = Entry(kind, stat.S_IMODE(found.st_mode), content, same)
        if kind == "-":
            stamps[name] = (found.st_ino, found.st_mtime_ns)
    return entries, stamps


class Session:
    """Plays a property in ``folder``/work, through cachec or without."""

    def __init__(self, property: Property, compiler: str, folder: Path, *, cached: bool) -> None:
        self._property = property
        self._cached = cached
        self._work = folder / "work"
        self._temporary = folder / "tmp"
        self._records = folder / "records.jsonl"
        run = f"{Path(sys.executable).with_name('cachec')} exec -- " if cached else ""
        user = _WITHOUT_PRIVILEGE if os.geteuid() == 0 else ""
        name = find_compiler(compiler)
        self._prelude = f"W={self._work}; RUN='{run}'; NAME={name}; CC='{run}{name}'; USER_ONLY='{user}'; "
        self._environment = {
            "PATH": os.environ["PATH"],
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},  # of a work tree
            "LC_ALL": "C.UTF-8",
            "HOME": os.fspath(folder / "home"),
            "TMPDIR": os.fspath(self._temporary),
            "CACHEC_DIR": os.fspath(folder / "store"),
            "CACHEC_STATS_FILE": os.fspath(self._records),
            "CACHEC_LOG": "off",
            "CACHEC_SERVER": os.environ.get("CACHEC_SERVER", "off"),
        }
        for path in (self._work, self._temporary, folder / "home"):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        for file, text in property.files.items():
            place = self._work / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode() if isinstance(text, str) else text)

    def play(self) -> Iterator[Step]:
        """Run step after step; the session's files are there until the next one is asked for."""
        for word, command in self._property.lines():
            yield self._step(word, command)

    def litter(self) -> int:
        """How many temporary files are left."""
        return len(list(self._temporary.iterdir()))

    def _step(self, word: str, command: str) -> Step:
        time.sleep(_CLOCK_TICK)
        _, before = _tree(self._work, ("*",))
        recorded = self._records.stat().st_size if self._records.exists() else 0
        out, err = (self._temporary.parent / name for name in ("stdout", "stderr"))
        with out.open("wb") as stdout, err.open("wb") as stderr:  # a process left behind would hold a pipe open
            status = subprocess.run(
                ["sh", "-c", self._prelude + command],
                cwd=self._work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                check=False,
                timeout=120,
            ).returncode
        tree, after = _tree(self._work, self._property.unstable)
        newest = max((stamp for _, stamp in before.values()), default=0)
        written = {name for name, stamp in after.items() if stamp != before.get(name) and stamp[1] >= newest}
        step = Step(word, command, status, *map(_comparable, (out, err)), tree, written)
        if self._cached and self._records.exists():
            lines = self._records.read_bytes()[recorded:].splitlines()
            step.reasons = [str(record.get("reason", record)) for record in map(json.loads, lines)]
        return step


def _comparable(path: Path) -> bytes:
    return _RANDOM_NAME.sub(rb"\1RANDOM", path.read_bytes())


def compare(property: Property, compiler: str, folder: Path) -> Iterator[str]:
    """Play both sessions and say in which step and how they differ; nothing where the property holds."""
    bare = Session(property, compiler, folder, cached=False)
    wanted = list(bare.play())
    litter = bare.litter()
    for step in wanted:
        if step.word != "any" and (step.status != 0) != (step.word == "fail"):
            raise AssertionError(f"without cachec `{step.command}` ends with {step.status}: {step.stderr.decode()}")
    cached = Session(property, compiler, folder, cached=True)
    for number, (expected, step) in enumerate(zip(wanted, cached.play(), strict=True), 1):
        for difference in _differences(property, expected, step):
            yield f"step {number}, `{step.command}`: {difference}"
    if cached.litter() > litter:
        yield f"{cached.litter()} temporary files are left, without cachec {litter}"


def _differences(property: Property, expected: Step, step: Step) -> Iterator[str]:
    if step.status != expected.status:
        yield f"exit status {step.status}, without cachec {expected.status}"
    if step.stdout != expected.stdout:
        yield f"stdout {step.stdout!r}, without cachec {expected.stdout!r}"
    if step.stderr != expected.stderr and not property.unstable_stderr:
        yield f"stderr {step.stderr!r}, without cachec {expected.stderr!r}"
    for name in sorted(expected.tree.keys() | step.tree.keys()):
        ours, theirs = step.tree.get(name), expected.tree.get(name)
        if ours != theirs:
            yield f"file {name} is {_describe(ours)}, without cachec {_describe(theirs)}"
    if step.written != expected.written:
        yield f"wrote {sorted(step.written)}, without cachec {sorted(expected.written)}"
    yield from _wrong_reasons(step)


def _describe(entry: Entry | None) -> str:
    return "missing" if entry is None else f"{entry.kind}{entry.mode:o} {entry.content[:12]} ({entry.same_as})"


def _wrong_reasons(step: Step) -> Iterator[str]:
    """How the recorded reasons differ from what the step's word asks for."""
    if step.word in ("sh", "any"):
        return
    if not step.reasons:
        yield "cachec recorded nothing"
    for reason in step.reasons:
        is_hit = reason == "hit"
        if step.word == "hit" and not is_hit:
            yield f"{reason} where a hit is due"
        elif step.word in ("new", "fail") and is_hit:
            yield "a hit where the compiler has to run"
        elif step.word == "may" and not is_hit and not reason.startswith("bypass:"):
            yield f"{reason}: neither a hit nor a bypass"
