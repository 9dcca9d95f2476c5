"""Whether a remote can be used: what a person wants to know before builds rest on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.chain import engine_of, import_clients
from cachec.remote.engines.base import Blob
from cachec.remote.urls import parse

_OUT_OF_REACH = (Fault.REMOTE_UNREACHABLE.value, Fault.REMOTE_TIMEOUT.value)


class Step(NamedTuple):
    """One thing that was tried. result: ``ok``, ``no``, or a fault and its detail. seconds: that it took."""

    what: str
    result: str
    seconds: float
    is_good: bool


def probe(url: str, namespace: str) -> tuple[str, list[Step]]:
    """Write, read, and remove a row that nobody else has there; the URL as it is shown, and what came of it.

    A folder that is to be written and is not there is made, in one that is: by nobody else, as a mount may be missing.
    A blob of a thousand bytes stays there: engines need not remove those.
    Raises ConfigError for a URL that is none.
    """
    address = parse(url, namespace, os.environ)
    engine = engine_of(address)
    import_clients([address.scheme])
    content = os.urandom(1000)
    blob = Blob(digest_bytes(content), len(content), sha256(content).hexdigest())
    name, row = digest_bytes(blob.digest.encode()), b"cachec probe\n" + content[:100]
    steps: list[Step] = []

    def step(what: str, call: Callable[[float], bool], *, is_needed: bool = True) -> None:
        if steps and steps[-1].result.startswith(_OUT_OF_REACH):
            return
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
    if address.scheme == "file":
        from cachec.remote.engines.folder import SharedFolder

        assert isinstance(engine, SharedFolder)
        folder = engine
        if is_written and not folder.is_there(monotonic() + 10.0):
            step("make the folder, which is not there", folder.make)
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
    return address.shown, steps
