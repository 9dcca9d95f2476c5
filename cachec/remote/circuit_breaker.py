"""Leaves a remote alone that costs time and gives nothing.

    $CACHEC_DIR/remote/<name>.lost    a byte for each hundredth of a time-out that processes have lost in a row

Lost are the seconds of a fault (half a time-out at least, so that three in a row are enough) and of an answer without
a result that took long. With one and a half time-outs the remote is off for ``OFF_SECONDS`` after the last; then one
more fault is enough to put it off again, and one good answer forgets all. Appending is atomic: it needs no lock.
"""

from __future__ import annotations

import contextlib
import math
import os
import time

from cachec.base import fsio

OFF_SECONDS = 60.0

#: Of a time-out: what may be lost in a row; what a good answer may take, whatever it says; what a fault costs.
_LIMIT, _PROMPT, _FAULT = 1.5, 0.05, 0.5

_BYTES = 100


class Breaker:
    """Whether a remote is to be asked. Raises nothing: where nothing can be written, this process remembers alone."""

    def __init__(self, folder: str | os.PathLike[str], name: str, timeout: float) -> None:
        """timeout: seconds to wait for one row."""
        self._timeout = timeout
        self._limit = _LIMIT * timeout
        self._folder = os.fspath(folder)
        self._path = os.path.join(self._folder, f"{name}.lost")
        self._own = 0.0
        self._own_until = 0.0

    def is_off(self) -> bool:
        """Whether the remote is left alone for now."""
        if self._own >= self._limit and time.monotonic() < self._own_until:
            return True
        lost, age = self._seconds_lost()
        return lost >= self._limit and abs(age) < OFF_SECONDS

    def record_failure(self, seconds: float) -> bool:
        """A call ended in a fault after so long; whether the remote is off from now on."""
        return self._lose(max(seconds, _FAULT * self._timeout))

    def record_answer(self, seconds: float) -> bool:
        """An answer came after so long, less what it saved; whether the remote is off from now on."""
        if seconds > _PROMPT * self._timeout:
            return self._lose(seconds)
        self._own = 0.0
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        return False

    def _lose(self, seconds: float) -> bool:
        self._own += seconds
        self._own_until = time.monotonic() + OFF_SECONDS
        try:
            lost, age = self._seconds_lost()
            if lost < self._limit and abs(age) >= OFF_SECONDS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
            fsio.make_dir(self._folder)
            fd = fsio.open_own(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, b"." * math.ceil(seconds / self._timeout * _BYTES))
            finally:
                os.close(fd)
        except OSError:
            return self._own >= self._limit
        return self.is_off()

    def _seconds_lost(self) -> tuple[float, float]:
        """Seconds lost in a row by all processes, and the seconds since the last."""
        try:
            status = os.stat(self._path)
        except OSError:
            return 0.0, 0.0
        return status.st_size * self._timeout / _BYTES, time.time() - status.st_mtime
