"""Whether a remote can be used: what a person wants to know before builds rest on it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines import engine_of
from cachec.remote.engines.base import PlacedEngine, RemoteBlob
from cachec.remote.schemes import import_clients
from cachec.remote.urls import Address, parse

#: After one of these nothing else is tried: it would fail alike, and slowly.
_OUT_OF_REACH = (Fault.REMOTE_UNREACHABLE.value, Fault.REMOTE_TIMEOUT.value)

#: What the blob of every probe holds, as engines can't remove one.
_CONTENT = b"".join(b"cachec probe %03d\n" % number for number in range(60))

#: What the detail of a fault has in it, and what may be done about that.
_HINTS = (
    (r"\b401\b|NOAUTH|WRONGPASS|Unauthenticated", "it wants a password (in the URL) or a token (CACHEC_REMOTE_TOKEN)"),
    (r"\b405\b", "this server takes no PUT at this path: its WebDAV, or another path"),
    (r"\b413\b", "a server, or a proxy before it, bounds what is sent: nginx has client_max_body_size for that"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS at this port: http, redis or reapi, or another port"),
)


class Step(NamedTuple):
    """One thing that was tried."""

    what: str
    #: ``ok``, ``no``, or a fault and its detail.
    result: str
    #: Seconds that it took.
    seconds: float
    is_good: bool


class ProbeResult(NamedTuple):
    """What came of a probe."""

    #: As it is shown.
    url: str
    steps: list[Step]
    #: What may be done where it can't be used, or empty.
    hint: str

    @property
    def is_usable(self) -> bool:
        """Whether builds can rest on it."""
        return all(step.is_good for step in self.steps)


def probe(url: str, namespace: str) -> ProbeResult:
    """Write, read, and remove a row of its own. The second equal failure ends the probe.

    A folder that is to be written and is not there is made, in one that is: by nobody else, as a mount may be missing.
    A blob of a thousand bytes, the same each time, stays there: engines need not remove those.
    Raises ConfigError for a URL that is none.
    """
    address = parse(url, namespace, os.environ)
    engine = engine_of(address)
    import_clients([address.scheme])
    content = _CONTENT
    blob = RemoteBlob(digest_bytes(content), len(content), sha256(content).hexdigest())
    row = b"cachec probe\n" + os.urandom(100)
    name = digest_bytes(row)
    steps: list[Step] = []

    def step(what: str, call: Callable[[float], bool], *, is_needed: bool = True) -> None:
        if steps and steps[-1].result.startswith(_OUT_OF_REACH):
            return
        results = [re.sub("GET|HEAD|PUT", "", each.result) for each in steps if each.result not in ("ok", "no")]
        if len(set(results)) < len(results):
            return  # one cause for all
        started = monotonic()
        try:
            is_done = call(started + 10.0)
            result, is_good = ("ok", True) if is_done else ("no", not is_needed)
        except StoreFault as fault:
            result, is_good = f"{fault.fault.value}: {fault.detail}", not is_needed
        steps.append(Step(what, result, monotonic() - started, is_good))

    def put_blob(until: float) -> bool:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            engine.put_blob(blob, file.name, until)
        return True

    def get_blob(until: float) -> bool:
        return b"".join(engine.get_blob(blob, until) or ()) == content

    is_read, is_written = address.is_read, address.is_written
    if isinstance(engine, PlacedEngine) and is_written and not engine.is_there(monotonic() + 10.0):
        step("make the folder, which is not there", engine.make)
    if is_read:
        step("a row that is not there", lambda until: engine.get_row(name, until) is None)
    if is_written:
        step("write a blob", put_blob)
        step("find it", lambda until: engine.has_blob(blob, until))
        if is_read:
            step("read it", get_blob)
        step("write a row", lambda until: engine.put_row(name, row, (blob,), until, replace=False))
        if is_read:
            step("read it", lambda until: engine.get_row(name, until) == row)
        other = row + b"2"
        step(
            "keep the first of two",
            lambda until: not engine.put_row(name, other, (blob,), until, replace=False),
            is_needed=False,
        )
        step("replace it", lambda until: engine.put_row(name, other, (blob,), until, replace=True))
        step("remove it", lambda until: engine.delete_row(name, until), is_needed=False)
    engine.close()
    return ProbeResult(address.shown, steps, _hint(address, steps))


def _hint(address: Address, steps: list[Step]) -> str:
    failed = [step for step in steps if not step.is_good]
    if not failed:
        return ""
    for pattern, words in _HINTS:
        if any(re.search(pattern, step.result) for step in failed):
            return words
    if address.scheme == "s3" and not any(name.startswith("AWS_") for name in os.environ):
        return "no variable AWS_... is set, so who asks has to be the role of the machine"
    refused = all(step.result.startswith((Fault.REMOTE_REFUSED.value, "no")) for step in failed)
    if refused and steps[0].is_good and address.is_read and failed[0].what.startswith("write"):
        return "it can be read; where it is not to be written, add mode=read to its URL"
    return ""
