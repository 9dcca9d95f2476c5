"""Runs pytest in forks of a process that has imported what tests import from elsewhere, and nothing of the project.

A request is a line of JSON on standard input, its answer a line of JSON on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
from typing import Any

import cachec_mutants_trace as trace
import pytest

#: What many tests import. No more: what starts threads can't be forked.
_IMPORTED = (
    *("hypothesis", "numpy", "ml_dtypes", "msgspec", "blake3", "click", "diskcache", "safetensors.numpy"),
    "sqlite3",
)


class ChosenTests:
    """Leaves of what was collected the tests of these names, in their order."""

    def __init__(self, names: list[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._places]
        items.sort(key=lambda item: self._places[item.nodeid])


class TracedTests:
    """Writes what tests run, and what they cost; of one function's parameters only the middle one is tried."""

    def __init__(self, lines: str, tests: str) -> None:
        self._lines = trace.LineLog(lines, os.getcwd())
        self._tests = open(tests, "w")  # noqa: SIM115 - as long as the process
        self._failed = False
        self._before = _cpu()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        names = [item.nodeid for item in items]
        self._tests.write(json.dumps({"collecting": _cpu() - self._before, "names": names}) + "\n")
        items[:] = [each[len(each) // 2] for each in functions.values()]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._failed, self._before = False, _cpu()
        self._lines.begin(item.nodeid)
        try:
            return (yield)
        finally:
            self._lines.end()
            found = {"test": item.nodeid, "seconds": _cpu() - self._before, "passed": not self._failed}
            self._tests.write(json.dumps(found) + "\n")
            self._tests.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.outcome != "passed"


def _cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _child(job: dict[str, Any]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"], job["seconds"] + 5))
    fd = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, fd), (2, fd)):
        os.dup2(source, target)
    os.environ.update(job["environ"])
    args = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not long", "--tb=short", *job["files"]]
    if job["names"] is None:
        args.remove("-x")
        chosen: object = TracedTests(job["environ"][trace.FILE], job["tests"])
    else:
        chosen = ChosenTests(job["names"])
    code = 70
    try:
        code = int(pytest.main(args, plugins=[chosen]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(job)
    ended, status = 0, 0
    while not ended and time.monotonic() - started < job["wall"]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # what it left behind as well
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "hung": not ended or code == -signal.SIGXCPU, "wall": time.monotonic() - started}


def main() -> None:
    sys.path.insert(0, os.getcwd())  # as `python -m pytest` does
    for name in _IMPORTED:
        importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):  # half of what a run of one test costs
        if not plugin.value.startswith("cachec"):
            plugin.load()
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
