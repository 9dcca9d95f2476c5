"""Stages that look at a folder while somebody else edits it: what such a run stores is never handed out where the stage
itself would give something else.

Edited by a thread that was there before the run, by one that such a thread starts meanwhile, and by another process. A
run looks, waits, and looks again, so an edit falls before, between or after its looks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

import cachec
from cachec.errors import UnresolvedCode
from cachec.recording.active_runs import active
from tests.soundness import looks
from tests.soundness.runner import Report, judge

#: The longest time, in seconds, that an edit comes after the beginning of a run; a run takes about half of it.
_LATE = 0.004


def native(p: str) -> Any:
    """By code of Rust, which no event of Python tells of."""
    return load_file("w.safetensors")["x"].tolist()


def native_if_there(p: str) -> Any:
    """The same of a file that may not be there."""
    try:
        return load_file("new.safetensors")["x"].tolist()
    except FileNotFoundError:
        return None


def variable(p: str) -> Any:
    return os.environ.get("SOUNDNESS_RACE")


def _weights(value: float) -> bytes:
    return save({"x": np.array([value], "f4")})


def _replaced(path: Path, data: bytes) -> None:
    beside = path.parent.with_name(f"{path.name}.part")  # in the folder it would come and go, which is not seen
    beside.write_bytes(data)
    beside.rename(path)


def _link_replaced(path: Path, target: str) -> None:
    beside = path.parent.with_name(f"{path.name}.link")
    beside.symlink_to(target)
    beside.rename(path)


#: In two steps, between which there is nothing: what is there again in the end is not seen.
_IN_STEPS = frozenset({"a folder in its place", "a folder in a link's place", "content of the same times"})

EDITS: dict[str, looks.Edit] = {
    **{name: edit for name, edit in looks.EDITS.items() if name not in _IN_STEPS},
    "a link in its place": lambda p: _link_replaced(p / "a", "s/b"),
    "a link leads elsewhere": lambda p: _link_replaced(p / "link", "s/more"),
    "weights": lambda p: (p / "w.safetensors").write_bytes(_weights(2)),
    "weights replaced": lambda p: _replaced(p / "w.safetensors", _weights(3)),
    "weights gone": lambda p: (p / "w.safetensors").unlink(),
    "more weights": lambda p: (p / "new.safetensors").write_bytes(_weights(4)),
    "more weights moved there": lambda p: _replaced(p / "new.safetensors", _weights(5)),
    "a table replaced": lambda p: _replaced(p / "c.ini", b"[three]\n"),
    "a folder and what is in it": lambda p: ((p / "new").mkdir(), (p / "new/a").write_text("x")),
    "a file moved": lambda p: (p / "a").rename(p / "new"),
    "a folder moved": lambda p: (p / "s").rename(p / "new"),
    "a variable": lambda p: os.environ.update(SOUNDNESS_RACE="set"),
}
#: Of the process, so no other one does it.
_OF_THE_PROCESS = frozenset({"a variable"})

#: What is made between the moment at which a run's own making, or its step to a folder, is told of and that itself is
#: taken for its own, or for what was not there.
_MAKE = frozenset(
    {
        *("file_made", "folder_made", "folder_made_by_an_own_function", "file_there_is_not_made"),
        *("gone_to", "removed", "tree_removed", "beside_a_rename_that_fails", "beside_a_folder_opened_to_write"),
    }
)

LOOKERS = [
    *(each for each in looks.LOOKERS if each.__name__ not in looks.REFUSED | _MAKE),
    native,
    native_if_there,
    variable,
]


def _twice(looker: FunctionType) -> Callable[[str], Any]:
    def stage(p: str) -> Any:
        found = []
        for _ in range(2):
            try:
                found.append(looker(p))
            except Exception as error:
                found.append(type(error).__name__)
            time.sleep(0.001)
        return found

    return stage


def _fill(folder: Path) -> None:
    os.environ.pop("SOUNDNESS_RACE", None)
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    (folder / "w.safetensors").write_bytes(_weights(1))
    looks.fill(folder)


class _Process:
    """Another process, which does an edit when it is told to."""

    def __init__(self) -> None:
        told, self._tell = os.pipe()
        self._hear, done = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._tell)
            os.close(self._hear)
            with open(told) as lines:
                for line in lines:  # until the parent's end closes
                    name, p = json.loads(line)
                    with suppress(OSError):
                        EDITS[name](Path(p))
                    os.write(done, b".")
            os._exit(0)
        os.close(told)
        os.close(done)

    def __call__(self, name: str, folder: Path) -> None:
        os.write(self._tell, f"{json.dumps([name, str(folder)])}\n".encode())
        os.read(self._hear, 1)

    def close(self) -> None:
        os.close(self._tell)
        os.close(self._hear)
        os.waitpid(self._child, 0)


def _by_a_thread(name: str, folder: Path) -> None:
    with suppress(OSError):
        EDITS[name](folder)


def _by_a_thread_of_a_thread(name: str, folder: Path) -> None:
    thread = threading.Thread(target=_by_a_thread, args=(name, folder))
    thread.start()
    thread.join()


def run_races(seed: int, folder: Path) -> Iterator[Report]:
    """Every looker with every edit and editor, in an order by chance, and again."""
    rng = random.Random(seed)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    process = _Process()
    editors = {"thread": _by_a_thread, "thread's thread": _by_a_thread_of_a_thread, "process": process}
    try:
        with closing(cachec.Cache(folder / "races", log="off", mode="on")) as cache, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for turn in range(sys.maxsize):
                cases = [(looker, name, editor) for looker in LOOKERS for name in EDITS for editor in editors]
                for looker, name, editor in rng.sample(cases, len(cases)):
                    if editor == "process" and name in _OF_THE_PROCESS:
                        continue
                    said = f"{looker.__name__} / {name} / {editor}"
                    stage = cache.stage(_twice(looker), name=f"{said} {turn}")
                    with tempfile.TemporaryDirectory(dir=folder) as made, chdir(made):
                        edit = editors[editor]
                        yield _one(said, stage, lambda p: edit(name, p), Path(made), rng.random() * _LATE)
    finally:
        process.close()
        os.environ.pop("SOUNDNESS_RACE", None)
        sys.dont_write_bytecode = before


def _one(said: str, stage: Any, edit: Callable[[Path], None], folder: Path, late: float) -> Report:
    """A run with an edit meanwhile; then calls as it left the folder, and as it was before."""
    report = Report(projects=1, cases=1)
    _fill(folder)
    looks.wait()
    ready, over = threading.Event(), threading.Event()

    def meanwhile() -> None:
        ready.set()
        while not active().every and not over.is_set():
            time.sleep(0)
        time.sleep(late)
        edit(folder)

    editing = threading.Thread(target=meanwhile)
    editing.start()
    ready.wait()
    looks.forget()
    with suppress(UnresolvedCode):
        stage(str(folder))
    over.set()
    editing.join()
    for again in (lambda _: None, _fill):
        again(folder)
        looks.wait()
        looks.forget()
        truth = json.dumps(stage.__wrapped__(str(folder)))
        looks.forget()
        try:
            value, outcome = stage.call(str(folder))
        except UnresolvedCode as error:
            report.refused.append(f"{said}: {error}")
            continue
        reason = "refused" if outcome.reason.value.startswith("bypass") else outcome.reason.value
        answer = {"reason": reason, "value": json.dumps(value), "detail": str(outcome.detail)}
        judge(report, said, {**answer, "truth": truth})
    return report
