"""What an audit found, as data. The field names are those of ``cachec audit --json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: What is wrong, or worth knowing.
#:
#: read: a file that the key does not cover was opened. distribution: files of one were. program: one was started.
#: listing: the names in a folder were read. missed: a file was looked for in vain that would count if it were there.
#: server: it was connected to. written: a file that is no output. removed: a file that was there is gone.
#: not-written: an output was not written. own-output: an output was read before it was written. differs: two runs wrote
#: different bytes. weights-read: weights that are keyed by name were opened. weights-unread: weights that are keyed by
#: content change nothing. path: a folder's path came into an output. kept-out: the launcher would not store the result,
#: for what it saw. strace: it does not tell everything.
Kind = Literal[
    "read",
    "distribution",
    "program",
    "listing",
    "missed",
    "server",
    "written",
    "removed",
    "not-written",
    "own-output",
    "differs",
    "weights-read",
    "weights-unread",
    "path",
    "kept-out",
    "strace",
]


@dataclass(frozen=True)
class Finding:
    """One thing. path: the file, folder or address. words: what is known of it. fix: what to do; empty for nothing."""

    kind: Kind
    path: str
    words: str
    fix: str = ""


@dataclass(frozen=True)
class WeightsCheck:
    """One declared file of weights. key: how it is keyed. opened: whether a process opened it. changes: whether the
    result is another with other bytes; None where that is not known, for the reason in ``words``."""

    path: str
    key: str
    opened: bool
    changes: bool | None
    words: str = ""


@dataclass(frozen=True)
class Audit:
    """All that was found. outcome: ``described``, or why ``exec`` would let the command pass. problems: a hit may be
    wrong, or two runs share nothing. notes: worth a look. deterministic: whether two runs wrote the same; None where
    nothing was written. options: of ``cachec exec``, for what is missing; adapter: the same as TOML, for a command that
    has none. system: how many files of the system, the compiler and its distribution were read."""

    command: tuple[str, ...]
    stage: str
    outcome: str
    detail: str
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    covered: dict[str, str]
    outputs: tuple[str, ...]
    deterministic: bool | None
    weights: tuple[WeightsCheck, ...]
    options: tuple[str, ...] = ()
    adapter: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
