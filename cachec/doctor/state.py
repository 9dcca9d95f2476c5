"""What is in the store: the database, and what processes that were killed, or hang, have left."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from cachec import report
from cachec.base import fsio
from cachec.base.display_text import number_of, to_type
from cachec.base.mounts import is_network
from cachec.doctor.case import Case, Finding
from cachec.errors import StoreFault, WeightError
from cachec.maintain.sweep import GRACE_SECONDS, Sweep
from cachec.model import RECORD_VERSION, Fault
from cachec.store.leases import LeasedArtifacts, collecting
from cachec.store.objects import SHARD
from cachec.store.row_codec import body, unpack
from cachec.store.store import QuarantinedRow
from cachec.weights.library.stored_weights import WeightStore

#: Bytes of a database that is read in full, and of a log that no reader keeps from being taken over.
_READ_MAX, _LOG_MAX = 64 << 20, 256 << 20

#: Rows that are looked at. Keys are digests, so that the first in their order are a fair sample.
_SAMPLE = 500

_DIGEST = r"[0-9a-f]{64}"
_LEASE = r"\d+-[0-9a-f]{16}"
_MOVED = re.compile(r"corrupt-(\d+)")


def database(case: Case) -> Iterator[Finding]:
    """The index as SQLite has it, and a sample of its rows."""
    if is_network(case.mounts.kind(case.place)):
        return  # which is told, and which is why it can't be opened
    file = case.folder / "index" / "cache.db"
    for name in fsio.names_in(file.parent, _MOVED):
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(name.partition("-")[2]) / 1e9))
        yield Finding(
            "index-moved",
            f"on {made} the index was found damaged, and what was stored before is lost; it was moved to "
            f"{file.parent}/{name}",
            "look at the disk (dmesg, smartctl), then remove that folder; gc does after a week",
        )
    log = fsio.identity_if_there(f"{file}-wal")
    if log is not None and log.size > _LOG_MAX:
        yield Finding(
            "index-log",
            f"{file}-wal has {report.size(log.size)}: a process that hangs keeps an old state of the index",
            f"end it (fuser {file})",
        )
    try:
        damage = case.index.damage() if is_read_whole(case) else ""
        if damage:
            yield Finding(
                "index",
                f"the index is damaged: {damage}",
                "the next call that stores something moves it aside, and its entries are lost",
                partial(case.index.atomically, lambda: None),
                f"move it to {file.parent}/corrupt-TIME, and begin a new one",
            )
            return
        yield from _rows(case)
    except StoreFault as fault:
        yield Finding("index", f"the index can't be read: {fault.detail}", _WAY.get(fault.fault, _WAY[Fault.IO_ERROR]))


_WAY = {
    Fault.STORE_UNWRITABLE: "let this user write its folder, or open the store once where it can be written",
    Fault.STORE_FULL: "make room on the disk",
    Fault.INDEX_BUSY: "another process writes; ask again, and end it if it hangs (fuser)",
    Fault.IO_ERROR: "look at the disk (dmesg, smartctl)",
}


def is_read_whole(case: Case) -> bool:
    """Whether the database is so small that all of it is looked at."""
    found = fsio.identity_if_there(case.folder / "index" / "cache.db")
    return found is None or found.size <= _READ_MAX


def _rows(case: Case) -> Iterator[Finding]:
    if next(case.index.keys(prefix=f"entry:{case.store.quoted}"), None) is None:
        other = next(case.index.keys(prefix="entry:"), None)
        if other is not None:
            name = other.split(":")[1].replace("%3A", ":").replace("%25", "%")
            yield Finding(
                "namespace",
                f"no entry is in the namespace {case.settings.namespace!r}; others are in {name!r}",
                f"set CACHEC_NAMESPACE={name}, if it is meant",
            )
    damaged: Counter[Fault] = Counter()
    checked = 0
    for name, row in islice(case.index.rows(f"entry:{case.store.quoted}"), _SAMPLE):
        checked += 1
        try:
            if row is None:
                raise StoreFault(Fault.ROW_REFUSED, name)
            body(row, name)
        except StoreFault as fault:
            damaged[fault.fault] += 1
    if damaged:
        yield Finding(
            "rows",
            f"of {checked} entries {damaged.total()} are damaged, and miss",
            to_type("gc removes them"),
        )
    yield from _put_away(case)


def _put_away(case: Case) -> Iterator[Finding]:
    away = []
    for name, row in islice(case.index.rows(f"quarantine:{case.store.quoted}"), _SAMPLE):
        with suppress(StoreFault):  # a damaged one goes with the next gc
            away.append(unpack(row or b"", QuarantinedRow, name))
    if away:
        newest = max(away, key=lambda each: each.time)
        count = (
            f"{number_of(_SAMPLE, 'entry')} or more are"
            if len(away) == _SAMPLE
            else f"{number_of(len(away), 'entry')} {'is' if len(away) == 1 else 'are'}"
        )
        yield Finding(
            "quarantine",
            f"{count} put away as wrong; the last of {newest.stage}: {newest.reason}",
            "declare a stage whose results differ deterministic=False; for damage look at the disk; gc removes "
            "them in a week",
        )


class _LockFile(NamedTuple):
    """The lock of a key, or a lease. path: its file. age: seconds since it was taken, or last grew."""

    path: str
    age: float
    is_held: bool


def find_leftovers(case: Case) -> Iterator[Finding]:
    """Locks, leases and files of processes that were killed, and locks of such as hang."""
    now = case.clock()
    sweep = partial(Sweep, case.store, LeasedArtifacts(case.store.leases.folder), now, _let, dry_run=False)
    locks = [
        each
        for shard in fsio.names_in(case.store.locks.folder, SHARD)
        for each in _locks(case.store.locks.folder / shard, _DIGEST, now)
    ]
    limit = max(case.settings.lock_timeout, GRACE_SECONDS)
    hanging = [each for each in locks if each.is_held and each.age > limit]
    if hanging:
        longest = max(hanging, key=lambda each: each.age)
        key = os.path.basename(longest.path)
        pid = case.store.lock(key).holder()
        yield Finding(
            "lock-held",
            f"process {pid} has compiled {key[:12]} for {report.period(longest.age)}; who needs that waits for it, "
            f"up to lock_timeout ({case.settings.lock_timeout:g} s)",
            f"look at it: ps -fp {pid}",
        )
    yield from _of_killed_processes(
        "locks", "lock file", [each for each in locks if not each.is_held], lambda: sweep().locks()
    )
    leases = [each for each in _locks(case.store.leases.folder, _LEASE, now) if not each.is_held]
    yield from _of_killed_processes("leases", "lease", leases, lambda: _drop_leases(case))
    found = Sweep(case.store, LeasedArtifacts(case.store.leases.folder), now, _let, dry_run=True)
    found.staging()
    found.downloads()
    if found.removed:
        kinds = " and ".join(f"{count} {kind}" for kind, count in sorted(found.removed.items()))
        yield Finding(
            "unfinished", f"killed processes have left {kinds}", to_type("gc"), lambda: _sweep(sweep()), "remove these"
        )


def _of_killed_processes(
    check: str, kind: str, files: list[_LockFile], repair: Callable[[], object]
) -> Iterator[Finding]:
    old = [each for each in files if each.age > GRACE_SECONDS]
    if old:
        count = number_of(len(old), kind)
        yield Finding(check, f"killed processes have left {count}", to_type("gc"), repair, f"remove {count}")


def _locks(folder: str | os.PathLike[str], form: str, now: float) -> Iterator[_LockFile]:
    for name in fsio.names_in(folder, form):
        path = os.path.join(folder, name)
        state = fsio.identity_if_there(path)
        if state is not None:
            yield _LockFile(path, now - state.mtime_ns / 1e9, not fsio.is_abandoned(path))


def _drop_leases(case: Case) -> None:
    with collecting(case.store.leases.folder) as held:
        held.drop_dead()


def _sweep(sweep: Sweep) -> None:
    sweep.staging()
    sweep.downloads()


def _let(fault: Fault, detail: str) -> None:
    """What could not be removed is found again."""


def weights(case: Case) -> Iterator[Finding]:
    """Records of weights: a damaged one keeps ``gc`` from removing anything."""
    damaged: list[str] = []
    try:
        WeightStore(case.store).list_needed(damaged.append)
    except (StoreFault, WeightError) as error:
        damaged.append(str(error))
    if damaged:
        yield Finding(
            "weights",
            f"a record of weights is damaged, so that gc removes nothing that it may name: {damaged[0]}",
            f"{to_type('weights ls')} names it; {to_type('weights rm NAME')}, and add them again",
        )


def index_facts(case: Case) -> dict[str, Any]:
    """What is told of the database, wrong or not."""
    import sqlite3

    found = fsio.identity_if_there(case.folder / "index" / "cache.db")
    return {
        "sqlite": sqlite3.sqlite_version,
        "size": 0 if found is None else found.size,
        "whole": is_read_whole(case),
        "version": RECORD_VERSION,
        "others": _other_versions(case),
    }


def _other_versions(case: Case) -> list[int]:
    """The versions of records of other cachecs that use this store; none where the index can't be read."""
    try:
        return [version for version in case.index.versions() if version != RECORD_VERSION]
    except StoreFault:
        return []  # ``database`` finds it
