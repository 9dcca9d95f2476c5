"""The record of a run as bytes, for another process of cachec: JSON of the tuples in ``accesses``.

Paths are text with surrogate escapes, as ``os.fsdecode`` gives it; JSON carries them as ``\\udcXX``. The bytes come
from a process that this one has started, or that traces it: they may be cut, or of another version.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cachec.tracing.accesses import Accesses, Change, State, TracedInput, TraceProblem, TraceProblemKind

#: Another form of the records, or another meaning, gets another number.
_FORM = "record 6"


class DamagedRecord(ValueError):
    """The bytes are not a record of this form."""


def encode(accesses: Accesses) -> bytes:
    """Return the bytes of a record."""
    return json.dumps([_FORM, sys.getfilesystemencoding(), accesses]).encode()


def decode(data: bytes) -> Accesses:
    """Return the record. Raises DamagedRecord, also where the writer has paths in another encoding."""
    try:
        form, encoding, value = json.loads(data)
        if (form, encoding) != (_FORM, sys.getfilesystemencoding()):
            raise DamagedRecord(f"form {form!r} with paths in {encoding!r}")
        returncode, inputs, changes, problems, *flags = value
        return Accesses(
            returncode,
            tuple(_input(*each) for each in inputs),
            tuple(_change(*each) for each in changes),
            tuple(TraceProblem(TraceProblemKind(reason), detail) for reason, detail in problems),
            *flags,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedRecord(f"{len(data)} bytes are no record: {error}") from error


def _input(*fields: Any) -> TracedInput:
    each = TracedInput(*fields)
    names = None if each.names is None else tuple(each.names)
    return each._replace(state=_state(fields[4]), names=names)


def _change(path: str, effect: int, before: list[int] | None, after: list[int] | None, mode: int | None) -> Change:
    return Change(path, effect, _state(before), _state(after), mode)


def _state(fields: list[int] | None) -> State | None:
    return None if fields is None else State(*fields)
