"""What earlier runs took: one JSON file a configuration file, in the store. Losing it costs an estimate.

    warm/<16 hexadecimal digits>.json      named by the BLAKE3 of the path of the configuration file

    {"version": 1, "config": "/path/pyproject.toml", "seconds": {"minilm[batch=1]": 4.2}}

Replaced by a rename. Two runs at once may lose each other's figures, which is harmless.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import mean, median

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.hashing import digest_bytes
from cachec.events import read_log
from cachec.model import MALFORMED_JSON, Outcome
from cachec.warm.model import Result, Row, Status

VERSION = 1
_MAX_FILE = 1 << 24

#: The part of the outcome log for an estimate, in seconds before now.
_RECENT = 30 * 86400.0


class _StoredHistory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: int
    config: str
    seconds: dict[str, float] = {}


class History:
    """The figures of one configuration file."""

    def __init__(self, store: str | os.PathLike[str], config: str) -> None:
        """Read what there is; a file that can't be used counts as none."""
        self._store = Path(store)
        self._path = self._store / "warm" / f"{digest_bytes(os.fsencode(config))[:16]}.json"
        self._stored = _StoredHistory(version=VERSION, config=config)
        self._changed = False
        try:
            stored = msgspec.json.decode(file_ownership.read_regular(self._path, _MAX_FILE), type=_StoredHistory)
        except (OSError, *MALFORMED_JSON):
            return
        if stored.version == VERSION and stored.config == config:
            self._stored = stored

    def note(self, result: Result) -> None:
        """Remember what a row took to compile."""
        if result.status is Status.COMPILED:
            self._stored.seconds[result.id] = round(result.seconds, 3)
            self._changed = True

    def save(self) -> None:
        """Write what changed. Raises StoreFault where the store can't be written."""
        if not self._changed:
            return
        with fsio.faults(f"writing {self._path}"):
            fsio.make_dir(self._path.parent)
            with fsio.Staging(self._path.parent) as staged:
                staged.write(msgspec.json.encode(self._stored))
                staged.commit(self._path, mode=fsio.modes_below(self._path.parent)[1], fsync=False)
        self._changed = False

    def estimate(self, rows: list[Row], missed: dict[str, Outcome], jobs: int, now: float) -> float | None:
        """Seconds that compiling ``rows`` with ``jobs`` workers will take, from earlier runs; None where nothing tells.

        missed: the outcome that a check of the row gave. A row counts by its own last run, else by the other rows of
        its target, else by the misses of that stage in the outcome log of the last 30 days, else by the mean of the
        rest.
        """
        figures: list[float | None] = [self._own(row) for row in rows]
        if any(each is None for each in figures):
            by_stage = self._by_stage(now)
            for at, row in enumerate(rows):
                if figures[at] is None and row.id in missed:
                    figures[at] = by_stage.get(missed[row.id].stage)
        known = [each for each in figures if each is not None]
        if not known:
            return None
        rest = mean(known) * (len(figures) - len(known))
        return max((sum(known) + rest) / max(1, min(jobs, len(rows))), *known)

    def _own(self, row: Row) -> float | None:
        seconds = self._stored.seconds.get(row.id)
        if seconds is not None:
            return seconds
        kin = [taken for name, taken in self._stored.seconds.items() if name.partition("[")[0] == row.target]
        return mean(kin) if kin else None

    def _by_stage(self, now: float) -> dict[str, float]:
        taken: dict[str, list[float]] = {}
        for outcome in read_log(self._store, since=now - _RECENT):
            if outcome.reason.kind == "miss":
                taken.setdefault(outcome.stage, []).append(outcome.seconds)
        return {stage: median(figures) for stage, figures in taken.items()}
