"""The supervisor as a process of its own, for a caller that has threads and children of its own.

There it may be a subreaper, reap what it finds, take signals and fork without a thread beside it; and no thread of the
caller makes a traced command wait. The caller starts it by ``command_line``, with two descriptors: of a file with the
request, and of an empty one for the report. The command gets the standard streams and the inheritable descriptors.
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

#: The package itself is not imported: what it needs is not to be found without site packages.
_MAIN = """
import sys, types
package = sys.modules["cachec"] = types.ModuleType("cachec")
package.__path__ = [sys.argv.pop(1)]
from cachec.tracing.standalone import main
main()
"""


class Report(NamedTuple):
    """What came of a command."""

    #: Unix time, just before.
    started: float
    accesses: Accesses


def command_line(request: int, report: int) -> list[str]:
    """Return what starts the supervisor: by this interpreter, which takes paths for the same bytes as this process."""
    encoding, folder = f"utf8={sys.flags.utf8_mode}", os.path.dirname(os.path.dirname(__file__))
    return [sys.executable, "-I", "-S", "-X", encoding, "-c", _MAIN, folder, str(request), str(report)]


def encode_request(args: Sequence[str], program: str, environ: Mapping[str, str], cwd: str) -> bytes:
    """Return the request to run ``program``."""
    return json.dumps([list(args), program, dict(environ), cwd]).encode()


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

    request, report = map(int, sys.argv[1:])
    os.set_inheritable(report, False)
    with open(request, "rb") as file:
        args, program, environ, cwd = json.load(file)
    started = time.time()
    try:
        record = encode(trace(args, program=program, env=environ, cwd=cwd))
        head = ["ended", started]
    except OSError as error:
        record, head = b"", ["OSError", error.errno, error.strerror, error.filename]
    except ValueError as error:
        record, head = b"", ["ValueError", str(error)]
    with open(report, "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + record)
