"""A cluster on one machine: a Dask scheduler, a remote, and three workers, each with its own checkout and store.

    python examples/cluster/run.py

The remote is a Redis server where ``redis-server`` and cachec's extra ``redis`` are installed, else a shared folder.
The targets of ``cachec.toml`` are compiled on the three workers, one of which is killed meanwhile; then a machine that
has nothing warms the same and compiles nothing. Needs the extras ``dask`` and ``jax``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
WORKERS = 3


def main() -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cachec-cluster-")))
        remote = _remote(folder, stack)
        print(f"remote     {remote}")
        scheduler = folder / "scheduler.json"
        _start(stack, "scheduler", scheduler, folder, {}, "--port", "0")
        workers = []
        for number in range(WORKERS):
            place = folder / f"machine{number}"
            shutil.copytree(HERE, place / "src")
            own = {"CACHEC_DIR": str(place / "store"), "CACHEC_WARM_FOLDER": str(place / "src")}
            words = ("--nthreads", "1", "--no-nanny", "--local-directory", str(place))
            workers.append(_start(stack, "worker", scheduler, folder, own, *words))
        while not scheduler.exists():
            time.sleep(0.05)
        url = json.loads(scheduler.read_text())["address"].replace("tcp://", "dask://")
        print(f"scheduler  {url}, {WORKERS} workers")
        warming = _cachec(folder / "here", remote, "warm", "--executor", url, "--materialize")
        time.sleep(5)
        workers[0].kill()
        print("worker 0   killed")
        if warming.wait():
            return 1
        print("another machine, which has nothing and no cluster:")
        return _cachec(folder / "other", remote, "warm").wait()


def _remote(folder: Path, stack: ExitStack) -> str:
    """The URL of a remote that is there until the stack ends."""
    server = shutil.which("redis-server")
    if server is None or importlib.util.find_spec("redis") is None:
        (folder / "remote").mkdir(mode=0o700)
        return f"file://{folder / 'remote'}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    _until_the_end(stack, subprocess.Popen(command, stdout=subprocess.DEVNULL))
    return f"redis://127.0.0.1:{port}"


def _start(
    stack: ExitStack, kind: str, scheduler: Path, folder: Path, environ: dict[str, str], *words: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(scheduler)]
    with (folder / "dask.log").open("a") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--no-dashboard", *words],
            env={**os.environ, **environ},
            stdout=log,
            stderr=log,
        )
    _until_the_end(stack, process)
    return process


def _until_the_end(stack: ExitStack, process: subprocess.Popen[bytes]) -> None:
    stack.callback(process.wait)
    stack.callback(process.kill)


def _cachec(store: Path, remote: str, *words: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "CACHEC_DIR": str(store), "CACHEC_REMOTE": remote}
    return subprocess.Popen([sys.executable, "-m", "cachec", *words], cwd=HERE, env=environ)


if __name__ == "__main__":
    sys.exit(main())
