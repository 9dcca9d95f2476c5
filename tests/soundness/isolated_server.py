"""A process that forks for each job, and runs a script or the cells of a notebook as ``__main__`` there.

It is started as a file, so that no module of these tests is a module of the programs' project. Jobs and answers are
lines of JSON: a job has ``folder``, ``argv``, ``env``, ``cells`` (names of files; empty for the script ``argv[0]``),
and ``module``, the name that ``python -m`` is given, or nothing. ``is_warm``: the program's first starter is forked
from here as well, before the program begins: most of a miss is otherwise the start of Python.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import linecache
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from typing import Any

from cachec.worker import caller, fork_server

#: What the first isolated miss, and the first hit, of a process import.
_AHEAD = (
    "cachec",
    "cachec.stage.isolated_run",
    "cachec.key.key_diff",
    "cachec.tracing.codec",
    "cloudpickle",
    "tempfile",
)

#: As they are before a program replaces them.
_dumps, _loads = json.dumps, json.loads
#: Seconds after which a program is ended.
_LIMIT = 120


class _Forked:
    """A process that becomes a starter: what ``subprocess.Popen`` is to the caller's side."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        read, write = os.pipe()
        self._pid = os.fork()
        self.returncode: int | None = None
        if not self._pid:
            self._ours.close()
            os.close(read)
            self._become(theirs, write)
        theirs.close()
        os.close(write)
        self.stderr = os.fdopen(read, "rb", buffering=0)

    def begin(self, control: int, environ: dict[str, str]) -> None:
        socket.send_fds(self._ours, [_dumps(environ).encode()], [control])

    @staticmethod
    def _become(theirs: socket.socket, errors: int) -> None:
        status = 1
        try:
            data, fds, _, _ = socket.recv_fds(theirs, 1 << 20, 1)
            if not data:
                os._exit(0)  # none was needed
            theirs.close()
            os.dup2(errors, 2)
            os.environ.clear()
            os.environ.update(_loads(data))
            sys.argv[:] = ["-c", str(fds[0])]
            fork_server.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        until = None if timeout is None else time.monotonic() + timeout
        while until is not None and self._waited(os.WNOHANG) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("starter", timeout or 0)
            time.sleep(0.001)
        return self._waited(0)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self._pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start_warm() -> None:
    """Have the first starter of this process forked from what it is now."""
    spare, popen = [_Forked()], subprocess.Popen

    def started(line: list[str], **options: Any) -> Any:
        if not spare or "cachec.worker.fork_server" not in line[-3]:
            return popen(line, **options)
        forked = spare.pop()
        forked.begin(options["pass_fds"][0], dict(options["env"]))
        return forked

    caller.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": started})  # type: ignore[assignment]


def run_main(job: dict[str, Any]) -> None:
    """Run the program of a job in this process."""
    folder, argv = job["folder"], job["argv"]
    os.chdir(folder)
    os.environ.update(job["env"])
    sys.argv[:] = argv
    sys.path.insert(0, folder)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if job["cells"]:
        main.__dict__["In"] = history = [""]
        for number, name in enumerate(job["cells"], 1):
            with open(name, encoding="utf-8") as file:
                text = file.read()
            cell = f"<ipython-input-{number}-isolated>"
            linecache.cache[cell] = (len(text), None, text.splitlines(keepends=True), cell)
            history.append(text)
            exec(compile(text, cell, "exec", dont_inherit=True), main.__dict__)
    elif job["module"]:
        runpy._run_module_as_main(job["module"], alter_argv=False)  # type: ignore[attr-defined] # what ``-m`` does
    else:
        main.__file__ = os.path.join(folder, argv[0])
        main.__dict__["__cached__"] = None
        main.__loader__ = importlib.util.spec_from_file_location("__main__", main.__file__).loader  # type: ignore[union-attr]
        with open(main.__file__, encoding="utf-8") as file:
            exec(compile(file.read(), main.__file__, "exec", dont_inherit=True), main.__dict__)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program in a child, and return its exit status with what it wrote."""
    out, err = os.memfd_create("out"), os.memfd_create("err")
    child = os.fork()
    if not child:
        status = 1
        try:
            os.dup2(out, 1)
            os.dup2(err, 2)
            signal.alarm(_LIMIT)
            if job["is_warm"]:
                start_warm()
            try:
                run_main(job)
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError):
                    stream.flush()
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    return {"status": os.waitstatus_to_exitcode(status), "out": _content(out), "err": _content(err)}


def _content(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(fd, errors="replace") as file:
        return file.read()


def main() -> None:
    for name in (*_AHEAD, *sys.argv[1:]):
        importlib.import_module(name)
    del sys.path[0]  # the folder of this file
    sys.dont_write_bytecode = True
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
