"""Starts a function of this package in a fresh interpreter.

fork(2) copies the page tables of this process: 0.1 ms and more for each MB, twice a run. And libraries that have
threads, as JAX has, warn of it. An interpreter without site packages takes 12 ms of CPU time.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any

#: With so much memory of its own, two forks of a process take as long as two interpreters.
_LARGE_BYTES = 200 << 20

#: Arguments: the folder of cachec, a module and its function, descriptors. The first has what ``marshal`` wrote. The
#: package itself is not imported: what it needs is not to be found without site packages.
_START = """
import marshal, os, sys, types
_, folder, module, function, data, *fds = sys.argv
package = sys.modules["cachec"] = types.ModuleType("cachec")
package.__path__ = [folder]
__import__(module)
with open(int(data), "rb") as file:
    arguments = marshal.load(file)
getattr(sys.modules[module], function)(arguments, *map(int, fds))
"""


def is_large() -> bool:
    """Whether a fork of this process takes longer than the start of an interpreter."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * mmap.PAGESIZE >= _LARGE_BYTES
    return False


def spawn(module: str, function: str, arguments: Any, fds: Sequence[int], *, setsid: bool = False) -> int:
    """Have a new process call ``function`` with ``arguments`` and ``fds``; return its number, 0 where that fails.

    arguments: of types that ``marshal`` writes. fds: have their numbers there too, and are inherited by its children.
    """
    folder = os.path.dirname(os.path.dirname(__file__))
    file = os.memfd_create("cachec-tracing")
    try:
        os.write(file, marshal.dumps(arguments))
        os.lseek(file, 0, os.SEEK_SET)
        words = [sys.executable, "-I", "-S", "-c", _START, folder, module, function, str(file), *map(str, fds)]
        actions = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in (file, *fds)]  # clears FD_CLOEXEC
        return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=setsid)
    except (OSError, ValueError, NotImplementedError):
        return 0
    finally:
        os.close(file)
