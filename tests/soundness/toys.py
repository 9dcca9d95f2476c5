"""Generated toy compilers under ``cachec exec -- ANYTHING``, against the bare command.

A toy is a program in Python, shell or C that reads in some ways and writes in others (``toy_ways``). Its project folder
exists twice, and each copy in turn stands at the same path: in one the bare command runs, in the other the cached one.
After each edit of both, exit status, streams, files, modes and links are compared.

A miss is needless where the toy ran in an equal project with equal variables before, and that was a hit or was stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

import cachec
from cachec.model import Outcome
from tests.soundness.runner import Report, judge
from tests.soundness.toy_ways import C_MAIN, C_PRELUDE, PY_PRELUDE, READS, SH_PRELUDE, SHOWING_PATHS, WRITES, Way, Write

LANGUAGES = ("py", "sh", "c")
#: Variables of the documented noise, that edits set.
NOISE = ("TERM", "GITHUB_SHA", "MAKEFLAGS", "SSH_AUTH_SOCK", "COLUMNS", "OLDPWD", "SHLVL", "WINDOWID")
#: Counts of this folder as nothing: no toy looks into it.
_UNRELATED = "unrelated"
_TIMEOUT = 60

Edit = Callable[[Path], Iterator[None]]
#: Of each path in a project: type, mode, link count (of files), content or target.
Tree = dict[str, tuple[object, ...]]


class Result(NamedTuple):
    status: int
    stdout: bytes
    stderr: bytes
    #: All files afterwards.
    tree: Tree
    #: Paths whose files were written, or made anew.
    written: frozenset[str]


class Toy(NamedTuple):
    """A generated program, and how it is called. cwd: below the project."""

    name: str
    language: str
    reads: tuple[Way, ...]
    writes: tuple[Write, ...]
    files: dict[str, str]
    line: tuple[str, ...]
    cwd: str
    env: dict[str, tuple[str, ...]]
    path: tuple[str, ...]
    wrap: str
    stdin: str
    #: Paths, from the project, that edits are of: of inputs, and of outputs.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def generate(rng: random.Random, project: Path) -> Iterator[Toy]:
    """Toys without end: each way to read in each language, alone or with others."""
    while True:
        pairs = [(language, way) for language in LANGUAGES for way in READS if getattr(way, language)]
        for language, way in rng.sample(pairs, len(pairs)):
            others = [each for each in READS if getattr(each, language) and not (each.stdin or each.wrap)]
            more = rng.sample(others, rng.choice((0, 0, 0, 1, 2)))
            writes = [each for each in WRITES if getattr(each, language)]
            chosen = [rng.choice(writes[:2]) if rng.random() < 0.2 else rng.choice(writes)]
            if rng.random() < 0.2:
                chosen.append(rng.choice(writes))
            yield make_toy(rng, project, language, (way, *(each for each in more if each is not way)), tuple(chosen))


def make_toy(
    rng: random.Random, project: Path, language: str, reads: tuple[Way, ...], writes: tuple[Write, ...]
) -> Toy:
    """One that reads and writes so. Paths are spelled, and the program is started, by chance."""
    cwd = "w" if any("beside" in each.name for each in writes) else rng.choice(("", "", "w"))
    up = "../" if cwd else ""
    spellings = (f"{up}r%d", f"{up or './'}r%d", f"{project}/r%d", f"{up}here/r%d", f"{up}w/../r%d", f"{up}.//r%d")
    files, codes, inputs, env, path, arguments = (
        {"here": "-> .", "w/f": "v1\n", f"{_UNRELATED}/f": "v1\n"},
        [],
        [],
        {},
        [],
        [],
    )
    stdin = ""
    for number, way in enumerate(reads):
        marks = {"@D": rng.choice(spellings) % number, "@A": f"{project}/r{number}", "@N": str(number)}
        for name, content in way.files.items():
            files[f"r{number}/{_filled(name, marks)}"] = _filled(content, marks)
            inputs.append(f"r{number}/{_filled(name, marks).rstrip('*/')}")
        inputs += [f"r{number}/{_filled(name, marks)}" for name in way.missing.split()]
        codes.append(_filled(getattr(way, language), marks))
        env |= {_filled(name, marks): tuple(_filled(each, marks) for each in way.env[name]) for name in way.env}
        path += [f"{project}/r{number}/{each}" for each in way.path]
        arguments += [_filled(each, marks) for each in way.arguments]
        stdin = f"r{number}/in" if way.stdin else stdin
    wrap = _filled(reads[0].wrap, {"@D": f"{up}r0"})
    inputs += sorted({str(Path(each).parent) for each in inputs})
    out = rng.choice(
        ("o.out", "built/o.out", f"{project}/built/o.out", "./o.out", f"{up or './'}beside.out", f"{up}way/o.out")
    )
    if "way" in out:
        files |= {"way": "-> built", "other/f": "v1\n"}
        inputs.append("way")
    if "built" in out or "way" in out:
        files[f"{cwd}/built/f".lstrip("/")] = files["built/f"] = "v1\n"
    arguments += ["-o", out, *(["--strict"] if rng.random() < 0.2 else [])]
    program, words = _program(
        rng, language, codes, [getattr(each, language) for each in writes], project, up, env=bool(env)
    )
    files |= program
    named = [each.replace("@O", out) for write in writes for each in write.outputs.split()]
    outputs = tuple(os.path.relpath(os.path.join(project, cwd, each), project) for each in named)
    name = f"{language}: {' + '.join(each.name for each in reads)} > {' + '.join(each.name for each in writes)}"
    line = (*words, *arguments)
    return Toy(
        *(name, language, reads, writes, files, line, cwd, env, tuple(path), wrap, stdin),
        *(tuple(inputs), outputs),
    )


def _filled(text: str, marks: dict[str, str]) -> str:
    return re.sub("|".join(marks), lambda match: marks[match[0]], text)


def _program(
    rng: random.Random, language: str, reads: list[str], writes: list[str], project: Path, up: str, *, env: bool
) -> tuple[dict[str, str], list[str]]:
    """The files of a toy, and the words that start it."""
    if language == "c":
        body = "".join(f"    {{ {each} }}\n" for each in reads) + "".join(f"    {{ {each} }}\n" for each in writes)
        return {"toy*": f"C0: {C_PRELUDE}{C_MAIN.format(body)}"}, [rng.choice((f"{up or './'}toy", f"{project}/toy"))]
    if language == "py":
        parts = [
            f"def read{number}():\n{_indented(each)}\nattempt(read{number})\n" for number, each in enumerate(reads)
        ]
        text = f'{PY_PRELUDE}{"".join(parts)}text = "\\n".join(lines) + "\\n"\n' + "".join(
            f"{each}\n" for each in writes
        )
        python = rng.choice((("python3",), (sys.executable, "-S"), *(() if env else ((sys.executable, "-I"),)), ()))
    else:
        body = "\n".join(reads)
        text = f"{SH_PRELUDE}text=$(\n{body}\n:\n) || exit $?\n" + "".join(f"{each}\n" for each in writes) + "exit 0\n"
        python = rng.choice((("sh",), ("bash",), ("/bin/dash",), ()))
    if python == ("sh",) and rng.random() < 0.3:
        return {}, ["sh", "-c", text, "toy"]
    interpreter = "/usr/bin/env python3" if language == "py" else "/bin/sh"
    return {"toy*": f"#!{interpreter}\n{text}"}, [*python, rng.choice((f"{up or './'}toy", f"{project}/toy"))]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


# --- Edits. Each is a generator: it does, and then undoes.


def _other(data: bytes, digits: bytes) -> bytes:
    """The same with other versions in it; of a program in C: with the same number of bytes."""
    if data.startswith(b"\x7fELF"):
        return re.sub(rb"v\d", b"v" + digits[:1], data) + (b"\0" if len(digits) > 1 else b"")
    return re.sub(rb"v\d+", b"v" + digits, data)


def _content(digits: bytes, keep_times: bool = False) -> Callable[[str], Edit]:
    def of(name: str) -> Edit:
        def edit(project: Path) -> Iterator[None]:
            path = project / name
            before, status = path.read_bytes(), path.stat()
            path.write_bytes(_other(before, digits))
            if keep_times:
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            yield
            path.write_bytes(before)

        return edit

    return of


def _mode(mode: int) -> Callable[[str], Edit]:
    def of(name: str) -> Edit:
        def edit(project: Path) -> Iterator[None]:
            before = stat.S_IMODE((project / name).lstat().st_mode)
            (project / name).chmod(mode)
            yield
            (project / name).chmod(before)

        return edit

    return of


def _instead(make: Callable[[Path, Path], object], aside: str = "") -> Callable[[str], Edit]:
    """Edits that rename a path (``make`` is given both) and put another thing in its place.

    aside: its new name, from the project; by default one beside the old.
    """

    def of(name: str) -> Edit:
        def edit(project: Path) -> Iterator[None]:
            path = project / name
            renamed = project / (aside or f"{name}.aside")
            path.rename(renamed)
            make(path, renamed)
            yield
            _remove(path)
            renamed.rename(path)

        return edit

    return of


def _replaced(make: Callable[[Path, Path], object]) -> Callable[[str], Edit]:
    """The same where no other name comes: the path itself is in a folder of which nobody reads."""
    return _instead(make, f"{_UNRELATED}/aside")


def _given_away(name: str) -> Edit:
    def edit(project: Path) -> Iterator[None]:
        if not os.geteuid():
            os.chown(project / name, 1, 2, follow_symlinks=False)
        yield
        if not os.geteuid():
            os.chown(project / name, 0, 0, follow_symlinks=False)

    return edit


def _made(make: Callable[[Path], object]) -> Callable[[str], Edit]:
    """Edits that make what is not there."""

    def of(name: str) -> Edit:
        def edit(project: Path) -> Iterator[None]:
            path = project / name
            missing = [each for each in path.parents if not each.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
            yield
            _remove(path)
            for each in missing:
                each.rmdir()

        return edit

    return of


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _elsewhere(path: Path, aside: Path) -> None:
    """A link to what lies beside it: of the same kind, if there is such, and not what it leads to already."""
    now = os.readlink(aside) if aside.is_symlink() else ""
    beside = [each for each in sorted(path.parent.iterdir()) if each != aside and each.name not in {now, _UNRELATED}]
    beside.sort(key=lambda each: each.is_dir() != aside.is_dir())
    path.symlink_to(beside[0].name if beside else "nowhere")


def _rewritten(path: Path, aside: Path) -> None:
    path.write_bytes(_other(aside.read_bytes(), b"6"))
    path.chmod(stat.S_IMODE(aside.stat().st_mode))


def _swapped(path: Path, aside: Path) -> None:
    shutil.copytree(aside, path, symlinks=True)
    for each in path.rglob("*"):
        if each.is_file() and not each.is_symlink():
            each.write_bytes(_other(each.read_bytes(), b"7"))


def _like_sibling(path: Path) -> None:
    """A file like the one of that name in a folder beside it, or beside itself; another version."""
    beside = [each / path.name for each in path.parent.parent.iterdir() if each != path.parent]
    beside += sorted(path.parent.iterdir())
    like = next((each for each in beside if each.is_file()), None)
    path.write_bytes(_other(like.read_bytes(), b"8") if like else b"v8\n")
    path.chmod(stat.S_IMODE(like.stat().st_mode) if like else 0o644)


def _one_more(name: str) -> Edit:
    def edit(project: Path) -> Iterator[None]:
        (project / name / "one-more.x").write_text("v9\n")
        yield
        (project / name / "one-more.x").unlink()

    return edit


def _linked(name: str) -> Edit:
    def edit(project: Path) -> Iterator[None]:
        path = project / name
        path.with_name(path.name + ".second").hardlink_to(path)
        yield
        path.with_name(path.name + ".second").unlink()

    return edit


def _attribute(name: str) -> Edit:
    def edit(project: Path) -> Iterator[None]:
        os.setxattr(project / name, "user.toy", b"v1")
        yield
        os.removexattr(project / name, "user.toy")

    return edit


_FILE: dict[str, Callable[[str], Edit]] = {
    "same size": _content(b"2"),
    "same size and times": _content(b"3", keep_times=True),
    "other size": _content(b"4000"),
    "another file": _instead(_rewritten),
    "empty": _instead(lambda path, _: path.touch()),
    "renamed": _instead(lambda path, aside: None),
    "made executable": _mode(0o755),
    "made not executable": _mode(0o644),
    "made private": _mode(0o600),
    "link to itself": _instead(lambda path, aside: path.symlink_to(aside.name)),
    "link to another": _instead(_elsewhere),
    "link to nowhere": _instead(lambda path, aside: path.symlink_to("nowhere")),
    "folder": _instead(lambda path, aside: path.mkdir()),
    "folder of that name": _replaced(lambda path, aside: path.mkdir()),
    "link of that name": _replaced(lambda path, aside: path.symlink_to(os.path.relpath(aside, path.parent))),
    "given away": _given_away,
    "second name": _linked,
    "attribute": _attribute,
}
_LINK: dict[str, Callable[[str], Edit]] = {
    "removed": _instead(lambda path, aside: None),
    "other target": _instead(_elsewhere),
    "link to nowhere": _instead(lambda path, aside: path.symlink_to("nowhere")),
    "link by another path": _instead(lambda path, aside: path.symlink_to(f"./{os.readlink(aside)}")),
    "file": _instead(lambda path, aside: path.write_text("v5\n")),
    "folder": _instead(lambda path, aside: path.mkdir()),
    "link to a link": _instead(lambda path, aside: path.symlink_to(aside.name)),
}
_FOLDER: dict[str, Callable[[str], Edit]] = {
    "swapped": _instead(_swapped),
    "renamed": _instead(lambda path, aside: None),
    "link to itself": _instead(lambda path, aside: path.symlink_to(aside.name)),
    "empty": _instead(lambda path, aside: path.mkdir()),
    "file": _instead(lambda path, aside: path.write_text("v5\n")),
    "one more": _one_more,
    "private": _mode(0o700),
}
_ABSENT: dict[str, Callable[[str], Edit]] = {
    "made": _made(_like_sibling),
    "folder made": _made(Path.mkdir),
    "link to nowhere": _made(lambda path: path.symlink_to("nowhere")),
    "link to another": _made(lambda path: _elsewhere(path, path)),
}


def _neutral(rng: random.Random, inputs: tuple[str, ...]) -> tuple[str, Edit]:
    """An edit that no toy may notice."""
    name = rng.choice(inputs)

    def touched(project: Path) -> Iterator[None]:
        if (project / name).exists():
            os.utime(project / name, (2 * 10**9, 2 * 10**9))
        yield

    def unrelated(project: Path) -> Iterator[None]:
        (project / _UNRELATED / "more").write_text("v1\n")
        (project / _UNRELATED / "f").write_text("v2\n")
        yield

    def elsewhere(project: Path) -> Iterator[None]:
        (project.parent / "unrelated-file").write_text(str(time.time_ns()))
        yield

    return rng.choice((("touched", touched), ("unrelated file", unrelated), ("file beside the project", elsewhere)))


class Session:
    """One toy, its two projects, and a store."""

    def __init__(self, toy: Toy, folder: Path, project: Path, rng: random.Random) -> None:
        self.toy, self.rng = toy, rng
        self._folder, self._project = folder, project
        self._copies = (folder / "bare", folder / "cached")
        self._stats = folder / "stats"
        self._offset = 0
        self.report = Report(projects=1)
        self._stored: dict[object, bool] = {}
        self._env = {name: values[0] for name, values in toy.env.items()}
        self._path, self._umask, self._piped = list(toy.path), 0o022, rng.random() < 0.5
        self._server, self._has_base = rng.choice(("auto", "off")), rng.random() < 0.5
        self._options = ["--stdin"] if toy.stdin and rng.random() < 0.7 else []
        texts = [*toy.files.values(), *toy.line, *toy.path, *(each for values in toy.env.values() for each in values)]
        self._is_movable = self._has_base and not any(str(project) in each for each in texts)
        self._is_movable &= not any(each.name in SHOWING_PATHS for each in toy.reads)
        self._options += ["--relocatable"] if self._is_movable else []
        self._parts = [
            *(f"{toy.language}: {each.name}" for each in toy.reads),
            *(f"> {each.name}" for each in toy.writes),
        ]
        self._noise: dict[str, str] = {}
        self._start, self._seconds = int(time.time()) - 1, itertools.count(1)
        (folder / "home").mkdir(parents=True)
        (folder / "tmp").mkdir()

    def close(self) -> None:
        if self._server != "off":
            subprocess.run(_cachec("server", "stop"), cwd=self._folder, env=self._environment(), capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, edits: int) -> Report:
        with contextlib.suppress(_Stop):
            self._fill()
            self.look("first")
            self.look("again")
            for _ in range(edits):
                self._edited()
            self._fill()
            self.look("made anew")
            self._move()
            self._fill()
            self.look("elsewhere")
            if not any(self._stored.values()):
                self.report.ways.update((part, "never stored") for part in self._parts)
        return self.report

    def _move(self) -> None:
        """Let the project lie at another path, which all its texts say then."""
        toy, old = self.toy, str(self._project)
        self._project = self._project.with_name("elsewhere")
        new = str(self._project)
        env = {name: tuple(each.replace(old, new) for each in values) for name, values in toy.env.items()}
        self.toy = toy._replace(
            files={name: text.replace(old, new) for name, text in toy.files.items()},
            line=tuple(each.replace(old, new) for each in toy.line),
            env=env,
            path=tuple(each.replace(old, new) for each in toy.path),
            wrap=toy.wrap.replace(old, new),
        )
        self._env, self._path = {name: values[0] for name, values in env.items()}, list(self.toy.path)

    def run_bare(self) -> list[Result]:
        """The same from scratch in each copy, without a cache."""
        self._fill()
        return [self._result(copy, list(self.toy.line)) for copy in self._copies]

    def _fill(self) -> None:
        for copy in self._copies:
            _remove(copy)
            _fill(copy, self.toy.files, self._folder.parent / "programs")
            self._set_times(copy)

    def _set_times(self, copy: Path) -> None:
        """Give each Python file that was just written a second of its own: Python takes what it has compiled of one for
        that of any text of the same size and second, so that the bare command would be wrong."""
        for path in copy.rglob("*.py"):
            if not path.is_symlink() and path.is_file() and path.stat().st_mtime > self._start:
                os.utime(path, (self._start - next(self._seconds),) * 2)

    def _edited(self) -> None:
        """An edit, a look, perhaps once more, and the way back."""
        chance = self.rng.random()
        if chance < 0.2:
            what, edit = _neutral(self.rng, self.toy.inputs)
        elif chance < 0.4:
            with self._setting() as what:
                self.look(what)
                if self.rng.random() < 0.3:
                    self.look(f"{what}, again")
            self.look(f"{what}, back")
            return
        else:
            what, edit = self._chosen()
        steps = [edit(copy) for copy in self._copies]
        self._step(steps)
        self.look(what)
        if self.rng.random() < 0.3:
            self.look(f"{what}, again")
        self._step(steps)
        self.look(f"{what}, back")

    def _step(self, steps: list[Iterator[None]]) -> None:
        """The same edit of both copies; where a toy has made it impossible, it is in both."""
        failed = []
        for step in steps:
            try:
                next(step, None)
            except OSError as error:
                failed.append(type(error))
        for copy in self._copies:
            self._set_times(copy)
        if failed:
            if len(failed) != len(steps):
                raise AssertionError(f"{self.toy.name}: an edit of equal copies ends otherwise")
            self._fill()

    def _chosen(self) -> tuple[str, Edit]:
        own = ["toy"] if "toy*" in self.toy.files and not self.toy.wrap else []
        names = self.toy.outputs if self.toy.outputs and self.rng.random() < 0.25 else (*self.toy.inputs, *own)
        name = self.rng.choice(names)
        path = self._copies[0] / name
        if path.is_symlink():
            table = _LINK
        elif path.is_dir():
            table = _FOLDER
        elif path.exists():
            table = _FILE
        else:
            table = _ABSENT
        kind = self.rng.choice([*table])
        return f"{name}: {kind}", table[kind](name)

    @contextlib.contextmanager
    def _setting(self) -> Iterator[str]:
        """Something beside files is another."""
        env, path, umask, noise, piped = dict(self._env), self._path, self._umask, self._noise, self._piped
        choices = ["noise", "umask", "pipe", *(["variable"] * 4 if env else []), *(["PATH"] * 4 if path else [])]
        what = self.rng.choice(choices)
        if what == "noise":
            self._noise = {name: str(self.rng.random()) for name in NOISE}
        elif what == "umask":
            self._umask = self.rng.choice((0o077, 0o027, 0o002))
        elif what == "pipe":
            self._piped = not piped
        elif what == "PATH":
            self._path = self.rng.choice((path[::-1], path[1:], path[:1], [*path[1:], path[0]]))
            what = f"PATH {[os.path.basename(each) for each in self._path]}"
        else:
            name = self.rng.choice([*env])
            value = self.rng.choice([*self.toy.env[name], None])
            del self._env[name]
            self._env |= {} if value is None else {name: value}
            what = f"{name}={value}"
        yield what
        self._env, self._path, self._umask, self._noise, self._piped = env, path, umask, noise, piped

    def _environment(self) -> dict[str, str]:
        path = [*self._path, os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
        env = {"PATH": ":".join(path), "HOME": str(self._folder / "home"), "TMPDIR": str(self._folder / "tmp")}
        own = {"CACHEC_DIR": str(self._folder / "store"), "CACHEC_LOG": "off", "CACHEC_SERVER": self._server}
        own |= {"CACHEC_BASE_DIR": str(self._project)} if self._has_base else {}
        return env | own | self._noise | self._env | {"CACHEC_STATS_FILE": str(self._stats)}

    def look(self, what: str) -> None:
        """Run the bare command in one copy and the cached one in the other, and compare."""
        toy, report = self.toy, self.report
        if self.rng.random() < 0.3:
            for name in toy.outputs:
                for copy in self._copies:
                    with contextlib.suppress(OSError):
                        _remove(copy / name)
        name = f"{toy.name} / {what}"
        before = _tree(self._copies[0]) | {".": (self._copies[0].stat().st_mode,)}
        state = (
            self._project,
            _related(before),
            tuple(sorted(self._env.items())),
            tuple(self._path),
            self._umask,
            self._piped,
        )
        try:
            truth = self._result(self._copies[0], list(toy.line))
        except OSError:
            return  # an edit has made the toy itself one that can't be started
        shown = self._result(self._copies[1], _cachec("exec", *self._options, "--", *toy.line))
        outcome = self._outcome()
        reason, detail = (outcome.reason.value, outcome.detail) if outcome else ("bypass", "no record")
        differing = _differing(shown, truth)
        judge(report, name, {"reason": reason, "value": differing, "truth": "", "detail": detail})
        report.cases += 1
        was_stored = self._stored.get(repr(state))
        is_stored = reason == "hit" or (outcome is not None and outcome.stored)
        if was_stored:
            report.neutral += 1
            if reason != "hit":
                report.needless.append(f"{name}: {reason} {detail}")
        self._stored[repr(state)] = is_stored
        if what == "elsewhere" and self._is_movable and is_stored:
            report.moved += 1
            if reason != "hit":
                report.apart.append(f"{name}: {reason} {detail}")
        if not is_stored and not truth.status:
            report.refused.append(f"{name}: {reason} {detail}")
        found = "wrong" if differing else "needless" if was_stored and reason != "hit" else ""
        kinds = ["cases", *([found] if found else []), *(["refused"] if not is_stored and not truth.status else [])]
        report.ways.update((part, kind) for part in self._parts for kind in kinds)
        if differing:
            raise _Stop

    def _outcome(self) -> Outcome | None:
        if not self._stats.exists():
            return None
        with self._stats.open("rb") as file:
            file.seek(self._offset)
            lines = file.read().splitlines()
            self._offset = file.tell()
        faults = [line for line in lines if b'"fault"' in line[:20]]
        if faults:
            self.report.failed.append(f"{self.toy.name}: {faults[0].decode()}")
        outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines if line not in faults]
        return outcomes[-1] if outcomes else None

    def _result(self, copy: Path, line: list[str]) -> Result:
        copy.rename(self._project)
        try:
            before = {path: os.lstat(self._project / path) for path in _tree(self._project)}
            if self.toy.wrap:
                line = ["/bin/sh", "-c", self.toy.wrap, "sh", *line]
            given = self._project / self.toy.stdin
            data = given.read_bytes() if self.toy.stdin and given.is_file() else b""
            with open(given if data and not self._piped else os.devnull, "rb") as stdin:
                done = subprocess.run(
                    line,
                    cwd=self._project / self.toy.cwd,
                    env=self._environment(),
                    capture_output=True,
                    umask=self._umask,
                    timeout=_TIMEOUT,
                    **({"input": data} if data and self._piped else {"stdin": stdin}),  # type: ignore[arg-type]
                )
            tree = _tree(self._project)
            written = {
                path
                for path in tree
                if path not in before or os.lstat(self._project / path).st_mtime_ns != before[path].st_mtime_ns
            }
            files = frozenset(each for each in written if tree[each][0] == "file")
            return Result(done.returncode, done.stdout, done.stderr, tree, files)
        finally:
            self._project.rename(copy)


class _Stop(Exception):
    """The copies differ from now on."""


#: Runs the cachec that this process has imported, be it of another checkout than the installed one.
_MAIN = f"""import sys
sys.path.insert(0, {str(Path(cachec.__file__).parents[1])!r})
sys.argv[0] = "cachec"
from cachec.__main__ import main
sys.exit(main())"""


def _cachec(*args: str) -> list[str]:
    return [sys.executable, "-P", "-c", _MAIN, *args]


def _related(tree: Tree) -> Tree:
    return {name: what for name, what in tree.items() if not name.startswith(_UNRELATED)}


def _tree(folder: Path) -> Tree:
    """All below a folder, but for the caches of Python."""
    found: Tree = {}
    for at, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in (*folders, *files):
            path = os.path.join(at, name)
            status, mode = os.lstat(path), stat.S_IMODE(os.lstat(path).st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(path, folder)] = ("link", os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    kept = [(each, os.getxattr(path, each)) for each in os.listxattr(path)]
                    found[os.path.relpath(path, folder)] = (
                        "file",
                        mode,
                        status.st_nlink,
                        status.st_uid,
                        status.st_gid,
                        *kept,
                        file.read(),
                    )
            else:
                found[os.path.relpath(path, folder)] = (
                    "other",
                    stat.S_IFMT(status.st_mode),
                    mode,
                    status.st_uid,
                    status.st_gid,
                )
    return found


def _differing(shown: Result, truth: Result) -> str:
    """In words, in what two results differ; empty where they are equal."""
    found = [
        f"{name}: {ours!r:.300} and not {theirs!r:.300}"
        for name, ours, theirs in zip(("status", "stdout", "stderr"), shown, truth, strict=False)
        if ours != theirs
    ]
    for name in sorted(shown.tree.keys() | truth.tree.keys()):
        ours, theirs = shown.tree.get(name), truth.tree.get(name)
        if ours != theirs:
            found.append(f"{name}: {ours!r:.200} and not {theirs!r:.200}")
    if truth.written - shown.written:
        found.append(f"not written: {sorted(truth.written - shown.written)}")
    return "; ".join(found)


def _fill(folder: Path, files: dict[str, str], programs: Path) -> None:
    for name, text in files.items():
        path = folder / name.rstrip("*/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
            continue
        if text.startswith(("C: ", "C0: ", "SO: ")):
            shutil.copyfile(_compiled(text, programs), path)
        else:
            path.write_text(text)
        path.chmod(0o755 if name.endswith("*") else 0o644)


def _compiled(text: str, programs: Path) -> Path:
    """A program in C: compiled once."""
    kind, source = text.split(": ", 1)
    if kind == "C":
        includes = "".join(f"#include <{each}.h>\n" for each in ("stdio", "stdlib", "string", "dlfcn"))
        source = f"{includes}int main(int c, char **v) {{ {source} return 0; }}\n"
    programs.mkdir(exist_ok=True)
    path = programs / hashlib.sha256(f"{kind} {source}".encode()).hexdigest()
    if not path.exists():
        options = ["-shared", "-fPIC"] if kind == "SO" else ["-pthread"]
        subprocess.run(["gcc", "-w", *options, "-x", "c", "-", "-o", path], input=source, text=True, check=True)
    return path


def run_toys(seed: int, folder: Path) -> Iterator[Report]:
    """Reports of toys without end."""
    rng = random.Random(seed)
    project = folder / "p"
    folder.mkdir(parents=True, exist_ok=True)
    for number, toy in enumerate(generate(rng, project), 1):
        session = Session(toy, folder / f"toy-{number}", project, random.Random(f"{seed} {number}"))
        try:
            yield session.run(edits=rng.randint(2, 5))
        finally:
            session.close()
