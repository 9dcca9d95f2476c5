"""A real ``redis-server`` on the loopback, started by a test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.needs import need


@dataclass
class Redis:
    """A server that runs: its process, port and socket."""

    process: subprocess.Popen[str]
    port: int
    path: str

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Another one's connection, as its administrator has it."""
        return redis.Redis(port=self.port)

    def stop(self) -> None:
        """It takes connections, and answers no more."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[Redis]:
    """A server with an empty memory and these options; skips the test where there is none."""
    need("redis-server")
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        path = os.path.join("/tmp", f"cachec-redis-{os.getpid()}-{port}.sock")  # a socket's path has 107 bytes at most
        line = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", path, "--save", ""]
        process = subprocess.Popen([*line, *options], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if any("eady to accept connections" in line for line in process.stdout):
            break
        process.wait()  # somebody was faster with the port
    else:
        raise AssertionError("redis-server does not start")
    try:
        yield Redis(process, port, path)
    finally:
        process.kill()  # a stopped one too
        process.wait()
        process.stdout.close()
        Path(path).unlink(missing_ok=True)
