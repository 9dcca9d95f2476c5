"""The supervisor as a process of its own, for a caller that has threads and children of its own.

There it may be a subreaper, reap what it finds, take signals and fork without a thread beside it; and no thread of the
caller makes a traced command wait. The caller starts it by ``command_line``, with descriptors: of a file with the
request, of an empty one for the report, and of a pipe that ends with the caller, if the command is to end then. The
command gets the standard streams and the inheritable descriptors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachec.tracing.accesses import Accesses
from cachec.tracing.codec import decode, encode

#: How often, and with which pause, it is looked for processes to kill: what a killed one leaves behind comes to us.
_ROUNDS, _ROUND_SECONDS = 100, 0.005

#: The package itself is not imported: see ``spawn``.
_MAIN = """
import sys, types
package = sys.modules["cachec"] = types.ModuleType("cachec")
package.__path__ = [sys.argv.pop(1)]
from cachec.tracing.standalone import main
main()
"""


class Report(NamedTuple):
    """What came of a command. started: Unix time, just before."""

    started: float
    accesses: Accesses


def command_line(request: int, report: int, *alive: int) -> list[str]:
    """Return what starts the supervisor: by this interpreter, which takes paths for the same bytes as this process.

    alive: a pipe that the caller writes nothing to; the command is killed once the caller has closed it."""
    encoding, folder = f"utf8={sys.flags.utf8_mode}", os.path.dirname(os.path.dirname(__file__))
    return [sys.executable, "-I", "-S", "-X", encoding, "-c", _MAIN, folder, *map(str, (request, report, *alive))]


def encode_request(
    args: Sequence[str], program: str, environ: Mapping[str, str], cwd: str, *, joins: bool = False
) -> bytes:
    """Return the request to run ``program``. joins: see ``supervisor.trace``."""
    return json.dumps([list(args), program, dict(environ), cwd, joins]).encode()


def decode_report(data: bytes) -> Report:
    """Return what the supervisor reported. Raises OSError or ValueError where it could not start the command, and
    DamagedRecord where it did not come to its end."""
    head, _, record = data.partition(b"\n")
    kind, *values = json.loads(head or b'["ended", 0]')
    if kind == "OSError":
        raise OSError(*values)
    if kind == "ValueError":
        raise ValueError(*values)
    return Report(values[0], decode(record))


def main() -> None:
    """Run the command of the request, and write the report."""
    from cachec.tracing.supervisor import trace

    request, report, *alive = map(int, sys.argv[1:])
    for fd in (report, *alive):
        os.set_inheritable(fd, False)
    with open(request, "rb") as file:
        args, program, environ, cwd, joins = json.load(file)
    started = time.time()
    try:
        readers = dict.fromkeys(alive, _end_all)
        record = encode(trace(args, program=program, env=environ, cwd=cwd, readers=readers, joins=joins))
        head = ["ended", started]
    except OSError as error:
        record, head = b"", ["OSError", error.errno, error.strerror, error.filename]
    except ValueError as error:
        record, head = b"", ["ValueError", str(error)]
    with open(report, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + record)


def _end_all() -> bool:
    """Kill the command with all that it started, as the caller has ended."""
    from cachec.tracing.process import kill_traced

    for _ in range(_ROUNDS):
        if not kill_traced():
            break
        time.sleep(_ROUND_SECONDS)
    return False
