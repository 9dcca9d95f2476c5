"""``why``: what tells how a key came to be another, in a store of 100,000 entries."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from bench.filled import INSERT, NOW
from bench.harness import Row, against, interleaved
from cachec.base.hashing import digest_bytes
from cachec.key.key_diff import differences
from cachec.model import RECORD_VERSION, ArtifactRef, Digest, Entry, Inline, Part, PartKind, Trace
from cachec.store.nearest_keys import Recent, neighbourhood, prints_of
from cachec.store.row_codec import pack
from cachec.store.store import Store

_STAGE = "exec:cc"

#: Entries that are edited, and in each of which way: the part that differs.
_ASKED = 8
_EDITS = ("-O2", "source", "cc", "CPATH")

_TRACE = Trace(reads=(), value=Inline("int", "0"), seconds=1.0, created=1_900_000_000.0)


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of entries and rounds."""
    many = max(_ASKED * 10, int(100_000 * scale))
    stores = {"small": _filled(folder / "small", _ASKED * 10), "large": _filled(folder / "large", many)}
    asked = [(number, edit) for number in range(_ASKED) for edit in _EDITS]
    order = random.Random(0).sample(asked, len(asked))

    def inside(store: Store) -> Callable[[], None]:
        def explain() -> None:
            for number, edit in order:
                _explained(store, number, edit)

        return explain

    def process(store: Store) -> Callable[[], None]:
        return lambda: _asked(store, *order[0])

    rounds = max(3, int(20 * scale))
    tasks = {f"{how.__name__} {name}": how(store) for how in (inside, process) for name, store in stores.items()}
    times = interleaved(tasks, rounds, warmup=1)
    each = {name: times[f"inside {name}"] / len(order) for name in stores}
    peer = f"{_ASKED * 10} entries"
    return [
        against(f"`cachec why KEY`, {many:,} entries", times["process large"], 1.5, peer, times["process small"]),
        against(f"a miss is explained, {many:,} entries", each["large"], 1.5, peer, each["small"]),
    ]


def _parts(number: int, edit: str = "") -> tuple[Part, ...]:
    """The parts of compiling one file, with one of them edited."""

    def part(kind: PartKind, name: str, text: str, subject: str = "") -> Part:
        return Part(
            kind, name, digest_bytes((text + " edited" * (name == (edit or None))).encode()), text, subject=subject
        )

    source = f"src/module{number}/part.c"
    content = part(PartKind.FILE, "source", f"content {number}")
    flags = [part(PartKind.ARGUMENT, name, "") for name in ("-O2", "-g", "-Wall", "-fPIC", "-DNDEBUG", "-c")]
    return (
        part(PartKind.STAGE, _STAGE, "adapter cc"),
        part(PartKind.EXECUTABLE, "cc", "cc 17"),
        part(PartKind.ENVIRONMENT, "CPATH", "not set"),
        part(PartKind.PLATFORM, "", "x86_64"),
        *flags,
        part(PartKind.ARGUMENT, "input", source),
        part(PartKind.ORDER, "order of arguments", "input", f"obj/{number}.o"),
        msgspec.structs.replace(content, name=source, subject=source),
    )


def _key(number: int, edit: str = "") -> Digest:
    return digest_bytes(f"{number} {edit}".encode())


def _filled(folder: Path, count: int) -> Store:
    """Entries of files, of the first of which there are edited ones too."""
    store = Store(folder)

    def publish(number: int, edit: str = "") -> None:
        parts = _parts(number, edit)
        described = store.objects.add_bytes(msgspec.json.encode(parts))
        store.publish(_key(number, edit), _STAGE, (), described, _TRACE, search_parts=parts)

    store.prepare()
    for number in range(_ASKED):
        publish(number)
        for edit in _EDITS:
            publish(number, edit)
    with closing(sqlite3.connect(folder / "index" / "cache.db", isolation_level=None)) as table:
        table.execute("PRAGMA synchronous = 0")
        table.execute("BEGIN IMMEDIATE")
        table.executemany(INSERT, (row for number in range(_ASKED, count) for row in _rows(number)))
        table.execute("COMMIT")
    return store


def _rows(number: int) -> Iterator[tuple[str, float, float, str, bytes]]:
    """The rows of an entry like the others, written straight into the table."""
    parts, key, evicted = _parts(number), _key(number), ArtifactRef(digest_bytes(b"evicted"), 1)
    entry = Entry(version=RECORD_VERSION, key=key, stage=_STAGE, tags=(), parts=evicted, traces=(_TRACE,))
    rows, mine = {f"entry:default:{key}": pack(entry)}, prints_of(parts)
    for alike in neighbourhood(_STAGE, parts).rows():
        rows[f"near:default:{alike}"] = pack(Recent(stage=_STAGE, alike=alike).with_newest(key, evicted, mine))
    return ((f"{RECORD_VERSION}:{name}", NOW, NOW, _STAGE, row) for name, row in rows.items())


def _explained(store: Store, number: int, edit: str) -> None:
    """Why a call that was never stored misses: the entry before the edit is named, and the part."""
    parts = _parts(number, edit)
    found = store.nearest(near for near in store.neighbours(_STAGE, parts).nearest if near.key != _key(number, edit))
    assert found is not None
    _check(found[0], [each.part.label for each in differences(found[1], parts)], number, edit)


def _asked(store: Store, number: int, edit: str) -> None:
    line = (sys.executable, "-m", "cachec", "--dir", str(store.folder), "why", _key(number, edit), "--json")
    said = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    _check(said["other"]["key"], [each["part"] for each in said["differences"]], number, edit)


def _check(key: Digest, labels: list[str], number: int, edit: str) -> None:
    is_source = edit == "source"
    differing = (part for part in _parts(number) if (part.kind is PartKind.FILE if is_source else part.name == edit))
    expected = next(differing).label
    if key != _key(number) or labels != [expected]:
        raise RuntimeError(f"why {edit} of {number}: expected {expected}, found {labels} against {key}")
