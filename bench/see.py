"""What is seen of a cache: the page of a store of 10,000 entries and 100,000 calls."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec

from bench.filled import NOW, fill, key_and_stage
from bench.harness import Row, against, interleaved
from cachec.base.fsio import make_dir
from cachec.maintain.maintainer import Maintainer
from cachec.model import RECORD_VERSION, Outcome, Reason
from cachec.store.store import Store
from cachec.views.page import page
from cachec.views.report_data import gather

#: Calls of a build, and the days over which builds are spread.
_BUILD, _DAYS = 500, 30

#: Bytes of a page, at most.
_MOST = 3_000_000

_OTHERS = [reason for reason in Reason if reason.kind == "miss" and reason.cause != "asked"]
_OTHERS += [Reason.MODE_OFF, Reason.STAGE_RAISED]


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of entries and calls."""
    entries, calls = max(100, int(10_000 * scale)), max(1000, int(100_000 * scale))
    store = Store(folder / "store")
    fill(store, range(entries), files=True)
    _log(store.folder, entries, calls)
    maintainer = Maintainer(store, max_size=20 << 30)
    maintainer.measure()  # as whoever published would have
    pages: list[str] = []

    def made() -> None:
        pages[:] = [page(gather(maintainer, None, _refused))]

    times = interleaved({"page": made, "floor": lambda: _floor(store)}, max(3, int(7 * scale)), clock=time.process_time)
    size = len(pages[0].encode())
    return [
        against(
            f"`cachec report`, {entries:,} entries, {calls:,} calls (CPU)",
            times["page"],
            3.0,
            "json.loads of each call, SELECT of each row",
            times["floor"],
        ),
        Row("its page", size / 1e6, "MB", f"<= {_MOST / 1e6:g} MB", size <= _MOST),
    ]


def _refused(fault: object, detail: str) -> None:
    raise AssertionError(f"{fault}: {detail}")


def _floor(store: Store) -> int:
    """As little as can be done with what the page is made of, by the standard library."""
    reasons: Counter[str] = Counter()
    for path in sorted((store.folder / "log").iterdir()):
        with path.open("rb") as file:
            for line in file:
                reasons[json.loads(line)["reason"]] += 1
    with closing(sqlite3.connect(store.folder / "index" / "cache.db")) as table:
        between = f"{RECORD_VERSION}:entry:", f"{RECORD_VERSION}:entry;"
        rows = table.execute("SELECT key, value FROM Cache WHERE key >= ? AND key < ?", between)
        return sum(len(value) for _, value in rows) + reasons.total()


def _log(folder: Path, entries: int, calls: int) -> None:
    """Builds of eight processes each, of which nine calls in ten are hits."""
    rng = random.Random(0)
    builds = -(-calls // _BUILD)
    days: dict[str, list[bytes]] = {}
    for number in range(calls):
        build, at = divmod(number, _BUILD)
        key, stage = key_and_stage(rng.randrange(entries))
        is_hit = rng.random() < 0.9
        ended = NOW + (build - builds) * _DAYS * 86400 / builds + at / 2
        outcome = Outcome(
            reason=Reason.HIT if is_hit else rng.choice(_OTHERS),
            stage=stage,
            key=key,
            detail="" if is_hit else f"level: {rng.randrange(9)} -> {rng.randrange(9)} in /src/project/module{at}.py",
            seconds=rng.random() / 100 if is_hit else rng.expovariate(1 / 8),
            saved=5.0 if is_hit else 0.0,
            stored=not is_hit,
            time=ended,
            pid=1000 + 10 * build + at % 8,
        )
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(ended)), []).append(msgspec.json.encode(outcome) + b"\n")
    make_dir(folder / "log")
    for day, lines in days.items():
        (folder / "log" / f"{day}.jsonl").write_bytes(b"".join(lines))
