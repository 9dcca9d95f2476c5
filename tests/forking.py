"""Python programs in new processes: started, or forked off a process that has imported cachec, at a tenth of the cost.

A program that is forked finds more modules imported than one that is started, and the same seed of hashes each time.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Ended(NamedTuple):
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


def started(script: Path, cwd: Path, env: Mapping[str, str]) -> Ended:
    """Run a file in a process of its own."""
    command = [sys.executable, "-B", str(script)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


class Forking:
    """Runs files in processes that are forked off one of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-B", "-m", "tests.forking"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, script: Path, cwd: Path, env: Mapping[str, str]) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(script), str(cwd), dict(env)]) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def _run(script: str, cwd: str, env: dict[str, str]) -> int:
    """Be a process that was started with this file: the status that it ends with."""
    from tests.soundness.server import began

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    began()
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__file__=script, __loader__=SourceFileLoader("__main__", script), __cached__=None)
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _answer(job: list[Any]) -> list[Any]:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if not child:
            status = 1
            try:
                with open(os.devnull, "rb") as nothing:
                    os.dup2(nothing.fileno(), 0)
                os.dup2(stdout.fileno(), 1)
                os.dup2(stderr.fileno(), 2)
                status = _run(*job)
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
    return [code, *texts]


def main() -> None:
    from tests.soundness.server import warm

    warm()
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
