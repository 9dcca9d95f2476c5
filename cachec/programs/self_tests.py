"""A plugin's self-test with releases newer than the plugin was tried with: run once, its verdict remembered.

    probes/<digest>.json     in the store's folder: a ``Verdict``, by what it is of

The self-test runs in a process of its own, with a store of its own and a time limit, so that a crash costs nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from cachec.base import __version__, fsio
from cachec.base.file_ownership import read_regular
from cachec.base.hashing import digest_bytes
from cachec.base.tracer_hiding import is_worker, unseen
from cachec.config import SELF_TEST
from cachec.model import MALFORMED_JSON
from cachec.programs.plugin import Plugin
from cachec.store.locks import forking_to_exec

#: Folder of the verdicts in a store.
FOLDER = "probes"

#: Seconds that a self-test may take. A compiler that is loaded from a cold disk by a busy machine takes a minute.
LIMIT_SECONDS = 300.0

#: Seconds for which a failure counts: its cause may have been the machine.
_FAILURE_SECONDS = 7 * 86400.0

#: Characters of a reason, and bytes of a verdict's file, at most.
_MAX_REASON, _MAX_FILE = 500, 1 << 16

_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from cachec.programs.self_tests import main; main()"


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a verdict is of: another one of these needs a verdict of its own."""

    plugin: str
    releases: Mapping[str, str]
    python: str
    cachec: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a self-test ended. reason: why it failed; empty where it passed. time: of day, in Unix time."""

    subject: Subject
    reason: str
    time: float


class _Failure(NamedTuple):
    """reason: empty for none. is_lasting: whether another try would fail too, as far as is known."""

    reason: str
    is_lasting: bool = True


def why_failing(plugin: Plugin, releases: Mapping[str, str], newer: str, store: Path) -> str:
    """Why newer releases are not used, in words; empty where the self-test passes with them. Runs it where no verdict
    is remembered in the folder of a store.

    releases: what is installed, here and below. newer: those that are newer than tried, in words.
    """
    with unseen():
        verdict = remembered_verdict(plugin, releases, store)
        if verdict is not None:
            reason = verdict.reason
        elif SELF_TEST in os.environ:
            reason = ""  # this is a self-test, or was started by one
        elif is_worker():  # what a test starts would count as read by the stage around
            reason = "its self-test does not run within a stage; run `cachec doctor --fix`"
        else:
            reason = run_and_remember(plugin, releases, store)
    return f"{newer}, and {reason}" if reason else ""


def run_and_remember(plugin: Plugin, releases: Mapping[str, str], store: Path, *, again: bool = False) -> str:
    """Run the self-test, remember the verdict where the folder can be written, and return why it failed.

    again: whether a remembered verdict is replaced. Processes at once wait for the first one and take its verdict.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a store that can't be written, or another test that does not end
            fsio.make_dir(store)
            fsio.make_inner_dir(store / FOLDER)
            stack.enter_context(fsio.folder_locked(store / FOLDER, exclusive=True, seconds=LIMIT_SECONDS))
            verdict = None if again else remembered_verdict(plugin, releases, store)
            if verdict is not None:
                return verdict.reason
        failure = _run(plugin)
        if failure.is_lasting:
            with contextlib.suppress(OSError):
                _remember(Verdict(_subject(plugin, releases), failure.reason, time.time()), store)
    return failure.reason


def remembered_verdict(plugin: Plugin, releases: Mapping[str, str], store: Path) -> Verdict | None:
    """Return the verdict in a store; None if there is no valid one."""
    subject = _subject(plugin, releases)
    try:
        verdict = msgspec.json.decode(read_regular(_place(subject, store), _MAX_FILE), type=Verdict)
    except (OSError, *MALFORMED_JSON):
        return None
    is_old = verdict.reason and not 0 <= time.time() - verdict.time < _FAILURE_SECONDS
    return None if is_old or verdict.subject != subject else verdict


def _subject(plugin: Plugin, releases: Mapping[str, str]) -> Subject:
    return Subject(plugin.name, dict(releases), sys.version.partition(" ")[0], __version__)


def _place(subject: Subject, store: Path) -> Path:
    return store / FOLDER / f"{digest_bytes(msgspec.json.encode(subject, order='sorted'))}.json"


def _remember(verdict: Verdict, store: Path) -> None:
    place = _place(verdict.subject, store)
    _, mode = fsio.modes_below(place.parent)
    with fsio.Staging(place.parent) as staged:
        staged.write(msgspec.json.encode(verdict))
        staged.commit(place, mode=mode, fsync=False)


def _run(plugin: Plugin) -> _Failure:
    if not plugin.self_test:
        return _Failure(f"{plugin.package} has no self-test", is_lasting=False)
    try:
        with tempfile.TemporaryDirectory(prefix="cachec-", ignore_cleanup_errors=True) as folder:
            return _run_in(Path(folder), plugin)
    except OSError as error:
        return _Failure(f"the self-test of {plugin.package} could not be run: {error}", is_lasting=False)


def _run_in(folder: Path, plugin: Plugin) -> _Failure:
    report = folder / "report"
    what = f"the self-test of {plugin.package}"
    with forking_to_exec():
        process = subprocess.Popen(
            [*_python(), "-c", _CHILD, _own_path(), json.dumps([plugin.self_test, str(report), _path()])],
            env=_environ(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        status = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return _Failure(f"{what} took longer than {LIMIT_SECONDS:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reason = report.read_text(errors="replace") if report.exists() else _ending(status)
    return _Failure(f"{what} failed: {' '.join(reason.split())[:_MAX_REASON]}" if reason else "")


def _python() -> list[str]:
    """This interpreter with its flags, but for those that make errors of warnings."""
    from subprocess import _args_from_interpreter_flags as flags  # type: ignore[attr-defined] # as multiprocessing does

    return [sys.executable, *(flag for flag in flags() if not flag.startswith("-W"))]


def _own_path() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _path() -> list[str]:
    """Return ``sys.path`` without entries for the current folder."""
    return [each for each in sys.path if os.path.isabs(each)]


def _environ(folder: Path) -> dict[str, str]:
    """That of this process without settings of cachec's, and with a store in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "PYTHONWARNINGS"))}
    own = {"CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off", "CACHEC_SERVER": "off", SELF_TEST: "1"}
    return {**kept, **own, "XDG_CONFIG_HOME": str(folder)}


def _ending(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it was ended by signal {-status}"


def main() -> NoReturn:
    """Run a self-test in its process. It exits without the library's own cleanup, which is not tested."""
    target, report, sys.path[:] = json.loads(sys.argv[2])
    failure = ""
    try:
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)()
    except BaseException as error:  # noqa: BLE001 - of a library: reported to the process that asked
        failure = f"{type(error).__name__}: {error}"
    Path(report).write_text(failure[:_MAX_REASON])
    os._exit(0)
