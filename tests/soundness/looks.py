"""Stages that look at a folder in the ways of ``lookers``, against edits of that folder. The oracle is the function
itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FunctionType
from typing import Any

import cachec
from cachec.errors import CapturedWeights, UnresolvedCode
from tests.soundness import lookers
from tests.soundness.runner import Report, judge

Edit = Callable[[Path], object]

LOOKERS = [
    each
    for name, each in vars(lookers).items()
    if isinstance(each, FunctionType) and each.__module__ == lookers.__name__ and not name.startswith("_")
]

#: CLOCK_REALTIME_COARSE (linux/time.h): the clock of time stamps of files.
_COARSE = 5

#: What is not seen, and said so: the result is not stored.
REFUSED = {"untold", "renamed", "renamed_folder", "hard_linked", "module_imported"} | {
    name for name in vars(lookers) if name.startswith(("process_", "memo_"))
}

_MODULE = "x = {}\n"
_FILES = {"a": "1", "s/b": "2", "m.py": _MODULE.format(1), "c.ini": "[one]\nk = 1\n"}


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _linked_to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def _as_before(path: Path, text: str) -> None:
    """Another file with the times of the one before."""
    before = path.stat()
    path.unlink()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


EDITS: dict[str, Edit] = {
    "content": lambda p: (p / "a").write_text("3"),
    "size": lambda p: (p / "a").write_text("11111"),
    "deep content": lambda p: (p / "s/b").write_text("333"),
    "content of the same times": lambda p: _as_before(p / "a", "4"),
    "a module": lambda p: (p / "m.py").write_text(_MODULE.format(22)),
    "a table": lambda p: (p / "c.ini").write_text("[two]\n"),
    "one more": lambda p: (p / "new").write_text("x"),
    "one more folder": lambda p: (p / "new").mkdir(),
    "one deep more": lambda p: (p / "s/new").write_text("x"),
    "a module that was sought": lambda p: (p / "looked_for.py").write_text(_MODULE.format(5)),
    "a link to nowhere": lambda p: (p / "new").symlink_to("nowhere"),
    "gone": lambda p: (p / "a").unlink(),
    "a folder in its place": lambda p: _instead(p / "a", Path.mkdir),
    "a link in its place": lambda p: _instead(p / "a", _linked_to("s/b")),
    "a link leads elsewhere": lambda p: _instead(p / "link", _linked_to("s/more")),
    "a folder in a link's place": lambda p: _instead(p / "link", Path.mkdir),
    "may be run": lambda p: (p / "a").chmod(0o755),
    "other times": lambda p: os.utime(p / "a", ns=(1, 10**18)),
    "nothing": lambda p: None,
}


def fill(folder: Path) -> None:
    (folder / "s/more").mkdir(parents=True)
    (folder / "s/more/b").write_text("of another")
    (folder / "s/a").write_text("beside another")
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    (folder / "link").symlink_to("s")
    wait()


def wait() -> None:
    """Until the next tick: a file of the tick in which a run begins may have been written after that."""
    now = time.clock_gettime_ns(_COARSE)
    while time.clock_gettime_ns(_COARSE) == now:
        pass


def forget() -> None:
    """What lookers import is imported anew by each call."""
    for name in ("looked_for", "m"):
        sys.modules.pop(name, None)


def _told(function: Callable[[str], Any], p: str) -> str:
    forget()
    for memo in lookers.MEMOS:
        memo.cache_clear()
    try:
        return json.dumps(function(p))
    except Exception as error:
        return repr(error)


def run_looks(seed: int, folder: Path) -> Iterator[Report]:
    """Every looker with every edit, in an order by chance, and again. Without bytecode in the folders: it has times."""
    rng = random.Random(seed)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with closing(cachec.Cache(folder / "looks", log="off", mode="on")) as cache, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for turn in range(sys.maxsize):
                pairs = [(looker, name, back) for looker in LOOKERS for name in EDITS for back in (False, True)]
                for looker, name, back in rng.sample(pairs, len(pairs)):
                    said = f"{looker.__name__} / {name}{' / back' if back else ''}"
                    stage = cache.stage(looker, name=f"{said} {turn}")
                    with tempfile.TemporaryDirectory(dir=folder) as made:
                        yield one(said, stage, looker, name, Path(made, "p"), is_back=back)
    finally:
        sys.dont_write_bytecode = before


def one(
    said: str,
    stage: Any,
    looker: Callable[[str], Any],
    name: str,
    folder: Path,
    *,
    is_back: bool,
    may_be_refused: bool = False,
) -> Report:
    """The stage before and after an edit; is_back: after and before. may_be_refused: no answer need be stored."""
    may_be_refused = may_be_refused or looker.__name__ in REFUSED
    report = Report(projects=1, cases=1)

    def anew(folder: Path) -> None:
        shutil.rmtree(folder)
        fill(folder)

    fill(folder)
    if is_back:
        EDITS[name](folder)
        wait()
    p = str(folder)
    first, was_stored = _told(looker, p), False
    for edit in (None, EDITS["nothing"], anew if is_back else EDITS[name]):
        if edit is not None:
            edit(folder)
            wait()
        truth = _told(looker, p)
        forget()
        try:
            value, outcome = stage.call(p)
        except (UnresolvedCode, CapturedWeights) as error:  # of whatever this process has imported
            answer = {"reason": "refused", "value": None, "detail": str(error)}
        except Exception as error:
            answer = {"reason": "raised", "value": repr(error), "detail": ""}
        else:
            kept_out = outcome.reason.value.startswith("bypass")
            reason = "refused" if kept_out else outcome.reason.value
            answer = {"reason": reason, "value": json.dumps(value), "detail": str(outcome.detail)}
        if answer["reason"] != "refused" or not may_be_refused:
            judge(report, said, {**answer, "truth": truth})
        is_stored = answer["reason"] not in {"refused", "raised"}
        if was_stored and truth == first and is_stored:
            # What a looker asks for may be another thing although what it makes of it is the same.
            found = report.needless if edit is EDITS["nothing"] else report.coarse
            report.neutral += edit is EDITS["nothing"]
            report.unused += edit is not EDITS["nothing"]
            if answer["reason"] != "hit":
                found.append(f"{said}: {answer['reason']} {answer['detail']}")
        was_stored |= is_stored
    return report
