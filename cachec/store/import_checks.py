"""Entries that another store wrote: what of one is looked at before anything of it is published here.

Its artifacts are checked as they come (``Objects.receive``), and whether its reads hold here at each look.
"""

from __future__ import annotations

from cachec.model import MAX_TRACES, READ_KINDS, RECORD_VERSION, Entry

#: References and reads of one entry: far more than any has.
MAX_NAMES = 100_000


def why_other_version(version: int) -> str:
    """Return what is said of an entry whose records have another version."""
    return (
        f"has records of version {version}, and this cachec reads version {RECORD_VERSION}: another release of cachec "
        "made it; make it anew with this release, or read it with that one"
    )


def why_unfit(entry: Entry, key: str) -> str:
    """Why an entry that came as that of ``key`` can't be one; empty where it can."""
    if entry.version != RECORD_VERSION:
        return why_other_version(entry.version)
    if entry.key != key or not 0 < len(entry.traces) <= MAX_TRACES:
        return f"is of key {entry.key[:12]}, with {len(entry.traces)} runs; expected {key[:12]}, with 1 to {MAX_TRACES}"
    if not (entry.stage.isprintable() and 0 < len(entry.stage) <= 1024):
        return "is of a stage without a printable name"
    for trace in entry.traces:
        if len(trace.reads) > MAX_NAMES:
            return f"has {len(trace.reads)} reads; at most {MAX_NAMES} are taken"
        for read in trace.reads:
            if why := why_no_read(read.kind, read.where, read.name):
                return f"has a read {why}"
    return ""


def why_no_read(kind: str, where: str, name: str) -> str:
    """Why these can't be what a run has read; empty where they can."""
    if kind not in READ_KINDS:
        return f"of the unknown kind {kind[:40]!r}"
    if "\0" in where or ("\0" in name and kind != "same"):
        return "with a NUL in its name"
    return ""
