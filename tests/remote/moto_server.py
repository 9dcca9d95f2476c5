"""An object store on the loopback: moto's server in a process of its own, started by a test.

Run as a script, it prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

BUCKET = "team"


@contextlib.contextmanager
def running_moto(**environ: str) -> Iterator[str]:
    """The URL of a server with one bucket; skips the test where moto is not installed."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto: pip install 'moto[server]'")
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()
        yield url
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    os._exit(0)  # it would wait for connections that are kept open
