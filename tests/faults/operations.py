"""What is done to a store while the system fails, each as a user has it, and what has to be true afterwards."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cachec
from cachec.base.hashing import digest_bytes
from cachec.cli import main as command_line
from cachec.errors import CachecError
from cachec.launcher import direct, execute
from cachec.model import Entry
from cachec.store.store import Store, references
from cachec.weights.library.stored_weights import WeightStore
from tests.faults import stages
from tests.faults.scene import COMMAND, OPTIONS, Scene, remove

#: How the process of an operation ends: it did what it should; it said in words of cachec's why not; its result is not
#: what it should be. 1 is an exception.
RIGHT, REFUSED, WRONG = 0, 3, 4
_LINE = [*OPTIONS, "--", *COMMAND]
#: Other exit statuses of ``cachec`` and ``cachec exec``: not found, an error, can't be started, not there.
_SAID = frozenset({1, 2, 126, 127})


class Operation(NamedTuple):
    """run: in the place of a scene; returns one of the above. finished: whether its effect is there.

    removes: names of the stages whose entries it may remove. hits: it finds the scene as the case before has left it;
    for any other it is made anew. is_call: of a stage, which may have returned without storing anything.
    """

    name: str
    run: Callable[[Scene], int]
    finished: Callable[[Scene], bool]
    removes: frozenset[str] = frozenset()
    hits: bool = False
    is_call: bool = False


def _stage(n: int, **settings: Any) -> Callable[[Scene], int]:
    def run(scene: Scene) -> int:
        try:
            cache = scene.cache(**settings)
        except CachecError:
            return REFUSED  # it can't be opened, as the folder or the configuration can't be read
        value = stages.stages(cache)["plain"](n)
        cache.close()
        return RIGHT if value == stages.plain(n) else WRONG

    return run


def _is_stored(n: int) -> Callable[[Scene], bool]:
    @functools.cache
    def key(scene: Scene) -> str:
        with closing(scene.cache()) as cache:
            found: str = stages.stages(cache)["plain"].key(n)
            return found

    return lambda scene: any(entry.key == key(scene) for entry in Store(scene.store).entries())


def _foreign(n: int) -> Callable[[Scene], int]:
    """As JAX does with a key of its own: look, and put where there is nothing."""

    def run(scene: Scene) -> int:
        try:
            cache = scene.cache()
        except CachecError:
            return REFUSED
        value = cache.foreign("foreign").get(str(n))
        if value is None:
            cache.foreign("foreign").put(str(n), stages.foreign(n))
        cache.close()
        return RIGHT if value in {None, stages.foreign(n)} else WRONG

    return run


def _is_put(n: int) -> Callable[[Scene], bool]:
    def look(scene: Scene) -> bool:
        with closing(scene.cache()) as cache:
            return cache.foreign("foreign").get(str(n)) == stages.foreign(n)

    return look


def _execute(*, directly: bool) -> Callable[[Scene], int]:
    def run(_scene: Scene) -> int:
        return RIGHT if directly and direct.answer(_LINE) else _status(execute.main(_LINE))

    return run


def _is_copied(scene: Scene) -> bool:
    return (scene.work / "out.txt").read_bytes() == (scene.work / "in.txt").read_bytes()


def _cli(*args: str) -> Callable[[Scene], int]:
    def run(_scene: Scene) -> int:
        try:
            command_line(args, prog_name="cachec")
        except SystemExit as ended:
            return _status(ended.code if isinstance(ended.code, int) else 1)
        return RIGHT

    return run


def _is_warmed(scene: Scene) -> bool:
    return sum(entry.stage == "warmed.text" for entry in Store(scene.store).entries()) == 2


def _status(code: int) -> int:
    return RIGHT if code == 0 else REFUSED if code in _SAID else WRONG


def _is_whole(name: str) -> Callable[[Scene], bool]:
    def look(scene: Scene) -> bool:
        return WeightStore(Store(scene.store)).verify(name) == ()

    return look


def _is_exported(scene: Scene) -> bool:
    return (scene.work / "out.safetensors").read_bytes() == scene.weights.read_bytes()


def _has_no(stage: str) -> Callable[[Scene], bool]:
    return lambda scene: all(entry.stage != stage for entry in Store(scene.store).entries())


def _is_small(scene: Scene) -> bool:
    return len(list(Store(scene.store).entries())) <= 2


_ALL = frozenset({"plain", "scaled", "doubled", "folder", "exec:cp", "warmed.text", "foreign"})

OPERATIONS = (
    Operation("stage miss", _stage(3), _is_stored(3), is_call=True),
    Operation("stage miss that evicts", _stage(3, max_size=20_000), _is_stored(3), removes=_ALL, is_call=True),
    Operation("stage hit", _stage(1), _is_stored(1), hits=True, is_call=True),
    Operation("foreign miss", _foreign(3), _is_put(3), is_call=True),
    Operation("foreign hit", _foreign(1), _is_put(1), hits=True, is_call=True),
    Operation("exec miss", _execute(directly=False), _is_copied),
    Operation("exec hit", _execute(directly=True), _is_copied, hits=True),
    Operation("exec hit, whole road", _execute(directly=False), _is_copied, hits=True),
    Operation("weights import", _cli("weights", "add", "new.safetensors", "new", "--own"), _is_whole("new")),
    Operation("weights export", _cli("weights", "export", "base", "out.safetensors"), _is_exported),
    Operation(
        "gc",
        _cli("gc", "--max-size", "20KB"),
        _is_small,
        removes=_ALL,
    ),
    Operation(
        "invalidate", _cli("invalidate", "--stage", "plain", "--yes"), _has_no("plain"), removes=frozenset({"plain"})
    ),
)

#: Killed too, and less often: it starts other processes, which takes a second.
WARM = Operation("warm", _cli("warm", "--jobs", "1"), _is_warmed)


def use(scene: Scene) -> int:
    """Everything that a store is used for, once: what is left of it gives what is right, or says what it can't."""
    if call(scene) != RIGHT:
        return WRONG
    key = next((entry.key for entry in _entries(scene) if entry.stage == "plain"), "0" * 64)
    asked = (
        *(("stats",), ("ls",), ("gc",), ("show", key), ("show", "out.txt"), ("why", key), ("pin", key)),
        *(("why", *OPTIONS, "--", *COMMAND[:1], "-a", *COMMAND[2:]), ("config",)),
        *(("weights", "ls"), ("weights", "show", "base"), ("weights", "verify", "base"), ("warm", "--list")),
        *(("weights", "export", "base", "exported.safetensors"), ("weights", "verify", "placed")),
        *(("repro", "make", key, "-o", "bug.zip"), ("pin", "--remove", key)),
    )
    right = all(_cli(*line)(scene) in {RIGHT, REFUSED} for line in asked)
    given = cachec.open_weights(scene.weights)
    with suppress(CachecError):
        for name, weight in WeightStore(Store(scene.store)).open("base").items():
            right = right and bytes(weight.raw()) == bytes(given[name].raw())
    return RIGHT if right else WRONG


def call(scene: Scene) -> int:
    """Each stage, with what the store has and has not, and a command as it was and as it never was."""
    try:
        cache = scene.cache()
    except CachecError:
        return RIGHT
    found = stages.stages(cache)
    given = cachec.open_weights(scene.weights)
    right = all(found["plain"](n) == stages.plain(n) for n in (1, 2, 4, os.getpid()))
    right = right and found["scaled"](given, 3).ir == stages.scaled(given, 3).ir
    right = right and bytes(found["doubled"](given)[0]["two"].raw()) == bytes(stages.doubled(given)[0]["two"].raw())
    seam = cache.foreign("foreign")
    right = right and all(seam.get(str(n)) in {None, stages.foreign(n)} for n in (1, 3))
    made = found["folder"](1, scene.work / "tree")
    right = right and (made.path / "link").read_bytes() == (scene.work / "tree" / "link").read_bytes()
    cache.close()
    for line in (_LINE, [*OPTIONS, "--", *COMMAND[:1], *COMMAND[2:]]):
        (scene.work / "out.txt").unlink(missing_ok=True)
        right = right and (direct.answer(line) or execute.main(line) == 0) and _is_copied(scene)
    return RIGHT if right else WRONG


def _entries(scene: Scene) -> list[Entry]:
    try:
        return list(Store(scene.store).entries())
    except CachecError:
        return []


def destroy(scene: Scene) -> int:
    """What removes, adds and replaces."""
    asked = (
        *(("weights", "add", "new.safetensors", "new", "--own"), ("weights", "verify", "new")),
        *(("invalidate", "--stage", "plain", "--yes"), ("weights", "rm", "base"), ("gc", "--max-size", "20KB")),
        ("weights", "add", "w.safetensors", "base", "--own"),
    )
    right = all(_cli(*line)(scene) in {RIGHT, REFUSED} for line in asked)
    return RIGHT if right else WRONG


def _linked(source: str, target: str) -> None:
    """A copy; of an artifact, which nobody may write to, a link: if one did, all that follow would tell."""
    if os.stat(source).st_mode & 0o222:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


class Bench:
    """One operation and its scene, again and again. Whoever makes it is a process with nothing else to do."""

    def __init__(self, operation: Operation, prepared: Path, folder: Path) -> None:
        """prepared: of ``prepare``. folder: is made."""
        self.operation = operation
        self._kept = prepared
        self.scene = Scene(folder)
        self._said = folder.parent / f"{folder.name}.said"
        shutil.copytree(prepared, folder, symlinks=True)
        self._keys = json.loads((prepared / "keys.json").read_text())

    def restore(self, copy: Callable[[str, str], object] = _linked) -> None:
        """The scene as it was prepared. copy: of a file."""
        for name in ("store", "work"):
            remove(self.scene.folder / name)
            shutil.copytree(self._kept / name, self.scene.folder / name, symlinks=True, copy_function=copy)

    def run(self) -> int:
        """The operation, to be called in a process that has entered."""
        return self.operation.run(self.scene)

    def enter(self) -> None:
        """Make the scene the place of this process, and lead its streams into a file."""
        self.scene.enter()
        fd = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)

    def begin(self) -> None:
        """Enter, with the output of no earlier run."""
        self.enter()
        (self.scene.work / "out.txt").unlink(missing_ok=True)

    def said(self) -> str:
        """What the last process wrote to its streams."""
        return self._said.read_text(errors="replace") if self._said.exists() else ""

    def judge(self, *, claimed: bool) -> None:
        """Look at the store, and run the operation again. claimed: it said that it has done what it should. Raises
        AssertionError that says what is wrong, or what the run raises."""
        if claimed and not self.operation.is_call:
            assert self.operation.finished(self.scene), "it said that it was done, and it is not"
        store = Store(self.scene.store)
        found = set()
        for entry in store.entries():
            found.add(entry.key)
            for ref in references(entry):
                assert digest_bytes(store.objects.read(ref)) == ref.digest, "an artifact is not whole"
        lost = {key for key, stage in self._keys.items() if key not in found and stage not in self.operation.removes}
        assert not lost, f"lost: {[self._keys[key] for key in lost]}"
        weights = WeightStore(store)
        for name in ("base", "placed"):
            assert weights.verify(name) == (), f"the weights {name} are damaged"
        store.close()
        (self.scene.work / "out.txt").unlink(missing_ok=True)
        is_gone = bool(self.operation.removes) and self.operation.finished(self.scene)
        status = self.operation.run(self.scene)
        assert status == RIGHT or (is_gone and status == REFUSED), f"run again, it ended with {status}"
        assert self.operation.finished(self.scene), "run again, it has no effect"


class Judge:
    """A process that lives as long as there is to judge, as a user's does: nothing is imported or copied again."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._start()
        ready = self._answer()
        assert not ready, ready

    def _start(self) -> None:
        asked, self._ask = os.pipe()
        answers, answering = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ask)
            os.close(answers)
            try:
                self._serve(asked, answering)
            finally:
                os._exit(1)
        os.close(asked)
        os.close(answering)
        self._answers = os.fdopen(answers, "rb")

    def _serve(self, asked: int, answering: int) -> None:
        given = b"0"
        while given:
            words = ""
            try:
                signal.alarm(120)
                self.bench.enter()
                self.bench.judge(claimed=given == b"1")
            except BaseException:
                words = traceback.format_exc() + self.bench.said()
            signal.alarm(0)
            os.write(answering, json.dumps(words).encode() + b"\n")
            given = os.read(asked, 1)

    def ask(self, *, claimed: bool) -> str:
        """What is wrong with the scene as it is; empty for nothing."""
        os.write(self._ask, b"1" if claimed else b"0")
        return self._answer()

    def _answer(self) -> str:
        if said := self._answers.readline():
            return str(json.loads(said))
        status = self.close()
        self._start()
        self._answer()
        return f"the next run ended by {status}"

    def close(self) -> int:
        """End it; returns how it ended."""
        os.close(self._ask)
        self._answers.close()
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def prepare(folder: Path) -> Path:
    """The scene that all begin with."""
    scene = Scene(folder).make()
    cachec.WeightSet.from_arrays({"a": np.ones((8, 4), "f4"), "n": np.arange(9000, dtype="i4")}).save(
        scene.work / "new.safetensors"
    )
    store = Store(scene.store)
    (folder / "keys.json").write_text(json.dumps({entry.key: entry.stage for entry in store.entries()}))
    store.close()
    return folder
