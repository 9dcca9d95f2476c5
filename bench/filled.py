"""Stores as a year of work leaves them: made-up entries, written straight into the table."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.model import RECORD_VERSION, ArtifactRef, Entry, Leaf, Part, PartKind, Read, Trace
from cachec.store.row_codec import pack
from cachec.store.search_index import SearchTerms, search_terms
from cachec.store.store import Store

#: A Unix time that the made-up entries are older than.
NOW = 1_900_000_000.0

MANIFEST = msgspec.json.encode([{"name": f"layers.{number}.weight"} for number in range(200)])

INSERT = (
    "INSERT OR IGNORE INTO Cache"
    "(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value) "
    "VALUES (?, 1, ?, NULL, ?, 0, ?, 0, 1, NULL, ?)"
)


@dataclass(frozen=True)
class _Made:
    """A made-up entry; number says everything about it."""

    number: int

    @property
    def key(self) -> str:
        return digest_bytes(f"made {self.number}".encode())

    @property
    def stage(self) -> str:
        return f"project.pipeline.stage{self.number % 10}"

    @property
    def content(self) -> bytes:
        return f"artifact {self.number} ".encode() * 8

    def parts(self) -> tuple[Part, ...]:
        """The parts of the key: 20 functions, a tool, four arguments and a weight set."""
        version = f"0.{self.number % 5}.0"
        given = (
            ("batch", str(self.number)),
            ("target", repr(("cpu", "cuda", "rocm", "vulkan")[self.number % 4])),
            ("level", str(self.number % 3)),
        )
        manifest = digest_bytes(MANIFEST)
        return (
            *(_part(PartKind.CODE, f"project.module{n}.function{n}", f"module{n}.py:{n}") for n in range(20)),
            msgspec.structs.replace(_part(PartKind.DISTRIBUTION, "jaxlib", f"jaxlib {version}"), version=version),
            *(msgspec.structs.replace(_part(PartKind.ARGUMENT, name, text), value=text) for name, text in given),
            msgspec.structs.replace(_part(PartKind.WEIGHTS, "weights", "200 weights"), refs=(manifest,)),
        )

    def entry(self, parts: ArtifactRef) -> Entry:
        """The entry, with one trace of two reads."""
        ref = ArtifactRef(digest_bytes(self.content), len(self.content))
        reads = (
            Read("weight", "weights", "scale", digest_bytes(b"scale")),
            Read("file", f"/src/header{self.number % 50}.h", "", digest_bytes(b"header")),
        )
        trace = Trace(
            reads=reads,
            value=Leaf("file", (ref,), {"name": "model.vmfb", "kind": "iree:vmfb"}),
            seconds=10.0 ** (self.number % 41 / 10 - 1),
            created=NOW - self.number * 7919 % 3_000_000,
        )
        tags = ("nightly",) if self.number % 7 == 0 else ()
        return Entry(version=RECORD_VERSION, key=self.key, stage=self.stage, tags=tags, parts=parts, traces=(trace,))


def _part(kind: PartKind, name: str, text: str) -> Part:
    return Part(kind, name, digest_bytes((name + text).encode()), text)


def fill(store: Store, numbers: range, *, files: bool) -> None:
    """Make entries up; with ``files`` their artifacts too, else only rows."""
    store.prepare()
    store.index.write("usage:x", b"", "x")  # so that there is a table
    store.index.delete("usage:x")
    facts: set[str] = set()
    with closing(sqlite3.connect(store.folder / "index" / "cache.db", isolation_level=None)) as table:
        table.execute("PRAGMA synchronous = 0")
        for start in range(numbers.start, numbers.stop, 20_000):
            chunk = range(start, min(start + 20_000, numbers.stop))
            table.execute("BEGIN IMMEDIATE")
            table.executemany(INSERT, _rows(store, chunk, facts, files=files))
            table.execute("COMMIT")


def _rows(
    store: Store, numbers: range, facts: set[str], *, files: bool
) -> Iterator[tuple[str, float, float, str, bytes]]:
    known: dict[int, SearchTerms] = {}
    for number in numbers:
        made = _Made(number)
        key = made.key
        terms = known.get(number % 60) or known.setdefault(number % 60, search_terms(key, made.parts()))
        given = tuple(
            msgspec.structs.replace(each, value=str(number)) if each.name == "batch" else each
            for each in terms.summary.given
        )
        summary = msgspec.structs.replace(terms.summary, key=key, given=given)
        parts = msgspec.json.encode(made.parts()) if files else b""
        entry = made.entry(ArtifactRef(digest_bytes(parts), len(parts)))
        if files:
            for data in (made.content, parts):
                _place(store, data)
        rows = [(f"entry:default:{key}", pack(entry)), (f"summary:default:{key}", pack(summary))]
        name = f"facts:{summary.facts}"
        if name not in facts:
            facts.add(name)
            rows.append((name, pack(terms.facts)))
        for row_name, row in rows:
            yield store.index.row_name(row_name), NOW, NOW, entry.stage, row


def key_and_stage(number: int) -> tuple[str, str]:
    """Of the made-up entry of that number."""
    made = _Made(number)
    return made.key, made.stage


def _place(store: Store, data: bytes) -> None:
    digest = digest_bytes(data)
    path = store.objects.root / digest[:2] / digest
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(fd, data)
    os.close(fd)
