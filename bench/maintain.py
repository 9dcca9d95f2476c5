"""Maintenance: hits in a large store, searches over 100,000 entries, gc beside hits, and what eviction loses."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

import cachec
from bench.filled import MANIFEST, NOW, fill, key_and_stage
from bench.harness import Row, against, interleaved, settle
from cachec.base.hashing import digest_bytes
from cachec.events import read_log
from cachec.maintain.eviction_score import worth
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.plans import BATCH
from cachec.maintain.selector import Selector
from cachec.model import RECORD_VERSION, Entry
from cachec.store.leases import Leases
from cachec.store.row_codec import body
from cachec.store.store import Store, references


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of entries and rounds."""
    rows = _hits(folder, scale)
    rows += _searches(folder / "searches", scale)
    rows += _gc(folder / "gc", scale)
    rows += _eviction(scale)
    return rows + _beside(folder / "beside", scale)


# --- hits


def _hits(folder: Path, scale: float) -> list[Row]:
    """The same 1,000 results in a store with nothing else, and scattered among a million entries."""
    keys, many = max(10, int(1000 * scale)), max(100, int(1_000_000 * scale))
    calls: dict[str, Callable[[int], object]] = {}
    for name, others in (("small", 0), ("large", many)):
        cache = cachec.Cache(folder / name, log="off", mode="on", max_size=0)

        @cache.stage
        def build(number: int) -> bytes:
            return f"{number:08}".encode() * 1000

        for part in range(10):  # so that they do not lie side by side
            if others:
                fill(cache.store, range(part * others // 10, (part + 1) * others // 10), files=False)
            for number in range(part * keys // 10, (part + 1) * keys // 10):
                build(number)
        calls[name] = build
    settle(folder / "small" / "objects")
    settle(folder / "large" / "objects")
    for call in calls.values():
        for number in range(keys):
            call(number)
    rng = random.Random(0)
    order = [rng.randrange(keys) for _ in range(64)]
    tasks = {name: lambda call=call: [call(number) for number in order] for name, call in calls.items()}
    times = interleaved(tasks, max(3, int(200 * scale)), warmup=2)
    ratio = times["large"] / times["small"]
    return [
        Row(
            f"hit p50, random keys, {many:,} entries over {keys:,}",
            ratio,
            "x",
            "<= 1.5",
            ratio <= 1.5,
            f"{times['small'] / len(order) * 1e6:.0f} µs and {times['large'] / len(order) * 1e6:.0f} µs",
            ratio,
        ),
        _first_hits(folder / "small", calls["small"], keys),
    ]


def _first_hits(folder: Path, stage: Callable[[int], object], keys: int) -> Row:
    """Hits of another process, so to speak: each artifact is leased, then looked at; no later hit does so."""
    call = cachec.Cache(folder, log="off", mode="on", max_size=0).stage(stage.__wrapped__)  # type: ignore[attr-defined]
    call(0)
    leases = Leases(folder.with_name("leases"))
    taken: dict[str, list[float]] = {"hit": [], "lease": []}
    for number in range(1, keys):
        started = time.perf_counter()
        call(number)
        done = time.perf_counter()
        leases.take((digest_bytes(b"%d" % number),))
        taken["lease"].append(time.perf_counter() - done)
        taken["hit"].append(done - started)
    hit, lease = (statistics.median(each) * 1e6 for each in taken.values())
    return Row("first hit of an artifact in a process", hit, "µs", peer=f"of which its lease {lease:.0f} µs")


# --- searches


def _searches(folder: Path, scale: float) -> list[Row]:
    count = max(300, int(100_000 * scale))
    store = Store(folder)
    fill(store, range(count), files=False)
    store.objects.add_bytes(MANIFEST)
    maintainer = Maintainer(store, clock=lambda: NOW)
    selectors = {
        "stage": Selector(stages=("stage3",)),
        "tag": Selector(tags=("nightly",)),
        "tool and version": Selector(tools=("jaxlib==0.3*",)),
        "weight name": Selector(weights=("layers.17.*",)),
        "option value": Selector(options=("batch=77",)),
        "source file": Selector(sources=("/src/header7.h",)),
        "age": Selector(older_than=1_000_000.0),
        "key prefix": Selector(keys=(key_and_stage(5)[0][:8],)),
        "10,000 keys": Selector(keys=tuple(key_and_stage(number)[0] for number in range(count // 10))),
        "stale": Selector(stale=True),
        "all of them": Selector(stages=("stage3",), tools=("jaxlib",), options=("target=cuda",), newer_than=9e9),
    }
    slowest = {"ls": (0.0, ""), "invalidate": (0.0, "")}
    for name, selector in selectors.items():
        started = time.perf_counter()
        found = sum(1 for _ in maintainer.find(selector))
        listed = time.perf_counter()
        plan = maintainer.plan(selector)
        planned = time.perf_counter()
        assert len(plan) == found, name
        assert found > 0 or name == "stale", name
        slowest["ls"] = max(slowest["ls"], (listed - started, name))
        slowest["invalidate"] = max(slowest["invalidate"], (planned - listed, name))
    peer, scan = "SQLite reading every row", _read(folder / "index" / "cache.db")
    rows = [
        against(f"{command} by the slowest selector ({name}), {count:,} entries", value, 30, peer, scan)
        for command, (value, name) in slowest.items()
    ]
    started = time.perf_counter()
    removed = maintainer.plan(Selector(stages=("stage3",))).apply().removed
    taken = time.perf_counter() - started
    assert len(removed) == len(range(3, count, 10))
    rows.append(against(f"invalidate {len(removed):,} of {count:,} entries, applied", taken, 30, peer, scan))
    left = count - len(removed)
    printed, taken = _command(folder, "ls", "--json")
    assert len(msgspec.json.decode(printed)["entries"]) == left
    rows.append(against(f"cachec ls --json, {left:,} entries, whole process", taken, 30, peer, scan))
    said, taken = _command(folder, "invalidate", "--stdin", "--tag", "nightly", "--dry-run", "--json", stdin=printed)
    assert 0 < msgspec.json.decode(said)["entries"] < left
    name = f"cachec invalidate --stdin --tag nightly --dry-run, {left:,} keys, whole process"
    rows.append(against(name, taken, 30, peer, scan))
    store.close()
    shutil.copytree(folder / "index", folder / "peer")
    plan = maintainer.plan(Selector(newer_than=9e9))
    started = time.perf_counter()
    removed = plan.apply().removed
    taken = time.perf_counter() - started
    assert len(removed) == left
    theirs = _deleted(folder / "peer" / "cache.db", removed)
    name, ratio = f"invalidate all {left:,} of them, applied", taken / theirs
    rows.append(
        Row(name, taken, "s", "<= 1.5x of SQLite", ratio <= 1.5, f"as many rows deleted: {theirs:.2f} s", ratio)
    )
    store.close()
    return rows


def _read(database: Path) -> float:
    """The seconds that SQLite takes to read all that is in an index."""
    with closing(sqlite3.connect(database)) as connection:
        started = time.perf_counter()
        assert sum(len(value or b"") for (value,) in connection.execute("SELECT value FROM Cache WHERE key LIKE '%:%'"))
        return time.perf_counter() - started


def _deleted(database: Path, keys: Sequence[str]) -> float:
    """The seconds that SQLite takes for the rows of these entries, in transactions as large as ours."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = 1")
        started = time.perf_counter()
        for at in range(0, len(keys), BATCH):
            connection.execute("BEGIN IMMEDIATE")
            for kind in ("entry", "summary"):
                names = [(f"{RECORD_VERSION}:{kind}:default:{key}",) for key in keys[at : at + BATCH]]
                found = connection.executemany("DELETE FROM Cache WHERE key = ? AND raw = 1", names)
                assert found.rowcount == len(names)
            connection.execute("COMMIT")
        return time.perf_counter() - started


def _command(folder: Path, *words: str, stdin: bytes = b"") -> tuple[bytes, float]:
    """What ``cachec`` prints, and how long it takes from start to end."""
    command = [sys.executable, "-m", "cachec", "--dir", str(folder), *words]
    started = time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True, input=stdin).stdout
    return out, time.perf_counter() - started


# --- gc


def _gc(folder: Path, scale: float) -> list[Row]:
    count = max(300, int(100_000 * scale))
    cache = cachec.Cache(folder, log="off", mode="on", max_size=0)

    @cache.stage
    def build(number: int) -> bytes:
        return f"{number:08}".encode() * 1000

    fill(cache.store, range(count), files=True)
    for number in range(16):
        build(number)
    settle(folder)  # before, the artifacts are hashed again at each hit
    for number in range(16):
        build(number)
    alone = interleaved({"hit": lambda: [build(number) for number in range(16)]}, max(3, int(200 * scale)))["hit"] / 16
    half = Maintainer(cache.store).measure().nbytes // 2
    cache.close()
    started = time.process_time()
    assert len(_ranked(folder)) == count + 16
    theirs = time.process_time() - started
    done, wait = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(done)
            started, used = time.perf_counter(), time.process_time()
            found = Maintainer(Store(folder), clock=lambda: NOW).collect(limit=half)
            used = time.process_time() - used
            os.write(wait, msgspec.json.encode((time.perf_counter() - started, used, found.entries, found.after)))
            code = 0
        finally:
            os._exit(code)
    os.close(wait)
    beside: list[float] = []
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        started = time.perf_counter()
        for number in range(16):
            build(number)
        beside.append((time.perf_counter() - started) / 16)
    with os.fdopen(done, "rb") as pipe:
        seconds, used, evicted, after = msgspec.json.decode(pipe.read())
    assert after <= half
    assert evicted > count // 3
    assert cache.events.faults == {}
    during = statistics.median(beside or [alone])
    rest = _ranked(folder)[:evicted]  # as many as gc has taken, which are the other half
    started = time.process_time()
    removed = _evicted(folder, rest)
    theirs += time.process_time() - started
    assert removed > evicted
    name = f"gc of {count:,} entries to a half, {evicted:,} evicted, in {seconds:.1f} s: time of the processor"
    return [
        against(name, used, 2.0, "as many rows and files, ranked and removed by hand", theirs),
        Row(
            "hit p50 beside that gc",
            during * 1e6,
            "µs",
            peer=f"alone {alone * 1e6:.0f} µs",
            ratio=during / alone,
        ),
    ]


def _ranked(folder: Path) -> list[tuple[float, str, list[str]]]:
    """The least that knows whom to evict: what a byte of each entry saves, its key and its artifacts, in that order."""
    sizes = {
        file.name: file.stat().st_size for shard in os.scandir(folder / "objects") for file in os.scandir(shard.path)
    }
    found = []
    with closing(sqlite3.connect(folder / "index" / "cache.db")) as connection:
        entries = f"{RECORD_VERSION}:entry:", f"{RECORD_VERSION}:entry;"
        for name, row in connection.execute("SELECT key, value FROM Cache WHERE key >= ? AND key < ?", entries):
            entry = msgspec.json.decode(body(row, name), type=Entry)
            needs = [ref.digest for ref in references(entry)]
            seconds = max(trace.seconds for trace in entry.traces)
            found.append((seconds / sum(sizes[digest] for digest in needs), entry.key, needs))
    return sorted(found)


def _evicted(folder: Path, entries: Sequence[tuple[float, str, list[str]]]) -> int:
    """The least that evicts these entries: their rows, then their files in the order of the folders; how many."""
    _deleted(folder / "index" / "cache.db", [key for _, key, _ in entries])
    doomed = sorted({digest for _, _, needs in entries for digest in needs})
    for digest in doomed:
        os.unlink(folder / "objects" / digest[:2] / digest)
    return len(doomed)


# --- eviction


@dataclass
class _Result:
    nbytes: int
    seconds: float
    last: int = 0
    uses: int = 0
    level: float = 0.0


def _eviction(scale: float) -> list[Row]:
    """A trace of requests, popular ones more often, compile times of 0.1 to 1,000 s, room for a tenth of the bytes."""
    requests = max(500, int(10_000 * scale))
    rng = random.Random(7)
    programs = requests // 5
    catalogue = [
        (int(2 ** rng.uniform(12, 26)), 10 ** rng.uniform(-1, 3)) for _ in range(programs)
    ]  # bytes: 4 KiB to 64 MiB
    weights = [1 / (rank + 1) ** 0.8 for rank in range(programs)]
    trace = rng.choices(range(programs), weights, k=requests)
    room = sum(nbytes for nbytes, _ in catalogue) // 10
    lost = {name: _replay(trace, catalogue, room, by_worth=name == "worth") for name in ("worth", "LRU")}
    ratio = lost["LRU"] / lost["worth"]
    return [
        Row(
            f"compile seconds lost over {requests:,} requests, evicted by worth",
            lost["worth"],
            "s",
            peer=f"LRU {lost['LRU']:,.0f} s",
            ratio=ratio,
        )
    ]


def _replay(trace: list[int], catalogue: list[tuple[int, float]], room: int, *, by_worth: bool) -> float:
    """The seconds of runs that a cache without a bound would have saved, with gc as it works: in batches."""
    held: dict[int, _Result] = {}
    seen: set[int] = set()
    used, level, lost = 0, 0.0, 0.0
    for turn, program in enumerate(trace):
        nbytes, seconds = catalogue[program]
        result = held.get(program)
        if result is None:
            lost += seconds if program in seen else 0.0
            seen.add(program)
            result = held[program] = _Result(nbytes, seconds)
            used += nbytes
        result.last, result.uses, result.level = turn, result.uses + 1, level
        if used <= room:
            continue

        def rank(item: tuple[int, _Result]) -> tuple[float, int]:
            each = item[1]
            return (worth(each.level, each.uses, each.seconds, each.nbytes) if by_worth else 0.0, each.last)

        for victim, each in sorted(held.items(), key=rank):
            if used <= room * 0.9:
                break
            level = max(level, rank((victim, each))[0])
            used -= each.nbytes
            del held[victim]
    return lost


# --- everything at once


def _beside(folder: Path, scale: float) -> list[Row]:
    """Eight processes for a minute: six call stages and look at all they were given, two clean; nothing is wrong."""
    seconds = max(0.5, 60 * scale)
    pinned = cachec.Cache(folder, log="off", mode="on", max_size=0)

    @pinned.stage(tags=["pinned"])
    def keep(value: int) -> bytes:
        return f"{value}".encode() * 4000

    Maintainer(pinned.store).pins.add("tag", "pinned")
    for value in range(20):
        keep(value)
    pinned.store.release()  # they are pinned, not in use
    children = [_forked(partial(_user, folder, seconds, n)) for n in range(6)]
    children += [_forked(partial(_cleaner, folder, seconds, n)) for n in range(2)]
    wrong = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)
    lost = sum(not pinned.call(keep, value)[1].hit for value in range(20))
    outcomes = [outcome.reason.kind for outcome in read_log(folder)]
    hits, misses = outcomes.count("hit"), outcomes.count("miss")
    name = f"gc and invalidation beside hits and misses, 8 processes, {seconds:.1f} s: processes that saw a fault"
    return [
        Row(name, wrong, "", "0", wrong == 0, f"{hits:,} hits, {misses:,} misses"),
        Row("pinned entries that were lost beside them", lost, "", "0", lost == 0),
    ]


def _forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:  # noqa: BLE001 - said, and counted by the parent
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def _user(folder: Path, seconds: float, number: int) -> None:
    cache = cachec.Cache(folder, log="off", mode="on", max_size=0)

    @cache.stage(tags=["churn"])
    def build(value: int) -> cachec.File:
        with cachec.scratch() as scratch:
            (scratch / "out").write_bytes(f"{value} ".encode() * 4000)
            return cachec.File(scratch / "out")

    rng, held = random.Random(number), {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = rng.randrange(60)
        held[value], outcome = cache.call(build, value)
        assert outcome.reason.kind in {"hit", "miss"}, outcome
        for kept, file in held.items():
            assert file.read_bytes() == f"{kept} ".encode() * 4000
        if len(held) > 12:
            held.clear()
            cache.store.release()


def _cleaner(folder: Path, seconds: float, number: int) -> None:
    store = Store(folder)
    maintainer = Maintainer(store)
    rng = random.Random(number)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if rng.random() < 0.7:
            maintainer.collect(limit=rng.choice([1, 500_000, 1_000_000]))
        else:
            chosen = tuple(entry.key for entry in store.entries() if rng.random() < 0.2)
            maintainer.plan(Selector(keys=chosen)).apply()
        time.sleep(0.01)
