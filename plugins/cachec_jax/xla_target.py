"""The target of XLA in this process: the machine's processor and accelerators, and the flags that XLA has read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cachec.commands.run import host_accelerators, host_processor
from cachec.errors import UsageError

#: A program that prints the options that XLA takes from XLA_FLAGS, which it reads once a process. Each object is part
#: of the one before, and does not keep it alive.
_EFFECTIVE = """
try:
    from jaxlib import _jax as extension
except ImportError:
    from jaxlib import xla_extension as extension
options = extension.CompileOptions()
build = options.executable_build_options
print(build.debug_options)
"""


def record_target() -> None:
    """Record in the running stage that its result is for the processor and the accelerators of this machine."""
    import jax

    host_processor()
    if jax.default_backend() != "cpu":
        host_accelerators()


def check_flags() -> None:
    """Raise UsageError where XLA_FLAGS, which are in the key, were changed after XLA had read them."""
    started = _initial_variable(b"XLA_FLAGS")
    if started is not None and started == os.environb.get(b"XLA_FLAGS", b""):
        return
    from cachec_jax.internals import jaxlib_extension

    options = jaxlib_extension.CompileOptions()
    build = options.executable_build_options
    mine = str(build.debug_options)
    process = subprocess.run([sys.executable, "-c", _EFFECTIVE], capture_output=True, text=True, check=False)
    # The first word is different in each process, and means nothing.
    if process.returncode or process.stdout.split()[1:] != mine.split()[1:]:
        raise UsageError(
            f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r} is not what XLA goes by in this process; set it before "
            "JAX is used, or where Python is started"
        )


def _initial_variable(variable: bytes) -> bytes | None:
    """Return the value of a variable at the start of this process, empty if unset; None if it can't be read."""
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return None
    found = [entry for entry in given.split(b"\0") if entry.startswith(variable + b"=")]
    return found[0][len(variable) + 1 :] if found else b""
