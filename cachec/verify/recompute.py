"""Recompute: some random entries are compiled again from their recipes, and compared with the stored results."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cachec.base import fsio
from cachec.errors import ReproducerError, StoreFault
from cachec.model import Entry, from_json
from cachec.reproduce.archive import write
from cachec.reproduce.failures import file_name
from cachec.reproduce.pack import PackedReproducer, pack_entry
from cachec.store.store import Store
from cachec.verify.replay_worker import WorkerReplay

#: How many are tried for each that is asked for: most of a store may be of code that is another by now.
_TRIES = 10

#: Characters of what a process wrote before it died.
_TAIL = 400

#: Settings that are not those of the shell: nothing is logged, shown, or left by a stage that fails.
_QUIET = {"CACHEC_LOG": "off", "CACHEC_PROGRESS": "off", "CACHEC_REPRO_DIR": "", "CACHEC_STATS_FILE": ""}


class RecomputeResult(NamedTuple):
    """An entry that was compiled again. result and words: as of ``ReplayResult``. reproducer: its path, if
    one was left."""

    key: str
    stage: str
    result: str
    words: str
    reproducer: str = ""


class Recompute:
    """Compiles entries of a store again. skipped: of those that can't be, how many by why."""

    def __init__(self, store: Store, reproducers: Path, path: Sequence[str]) -> None:
        """reproducers: the folder in which they are left. path: folders to import the project's code from."""
        self.skipped: Counter[str] = Counter()
        self._store = store
        self._reproducers = reproducers
        self._path = [os.path.abspath(each) for each in path]

    def run(self, count: int, on_begin: Callable[[Entry], None]) -> Iterator[RecomputeResult]:
        """Compile ``count`` entries again, one by one. ``on_begin`` gets each before. Raises StoreFault, OSError."""
        fsio.make_dir(self._reproducers)
        entries = [entry for entry in self._store.entries() if entry.traces]
        random.shuffle(entries)
        tries = count * _TRIES
        for entry in entries:
            if not count or not tries:
                return
            packed = self._pack_reproducer(entry)
            if packed is None:
                continue
            tries -= 1
            on_begin(entry)
            ended = self._replay(packed)
            if ended.result == "skipped":
                self.skipped[ended.words] += 1
                continue
            count -= 1
            yield self._result_of(entry, packed, ended)

    def _pack_reproducer(self, entry: Entry) -> PackedReproducer | None:
        """The reproducer of an entry that can be compiled again."""
        try:
            if self._store.recipe(entry) is None:
                why = "no recipe: of an older cachec"
            elif any(read.kind == "weight" for read in entry.traces[0].reads):
                why = "its run read bytes of weights"
            else:
                return pack_entry(self._store, entry)
        except ReproducerError as error:
            why = str(error)
        except StoreFault as fault:
            why = f"its recipe can't be read ({fault.fault.value})"
        self.skipped[why] += 1
        return None

    def _replay(self, packed: PackedReproducer) -> WorkerReplay:
        with tempfile.TemporaryDirectory(prefix="cachec-verify-") as temporary:
            folder = Path(os.path.realpath(temporary))
            (folder / "work").mkdir()
            (folder / "run.zip").write_bytes(packed.data)
            result = folder / "result"
            store = {"CACHEC_DIR": str(self._store.folder), "CACHEC_NAMESPACE": self._store.namespace}
            with open(folder / "output", "w+b") as output:
                ended = subprocess.run(
                    [sys.executable, "-m", __name__.rpartition(".")[0] + ".replay_worker",
                     folder / "run.zip", folder / "work", result, *self._path],
                    env={**os.environ, **_QUIET, **store},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                )  # fmt: skip
            if result.exists():
                return from_json(
                    result.read_bytes(), WorkerReplay, ReproducerError, "what a run wrote of itself is malformed"
                )
            text = (folder / "output").read_text(errors="replace")[-_TAIL:].strip()
            return WorkerReplay("failed", f"its process ended with {ended.returncode}: {text}")

    def _result_of(self, entry: Entry, packed: PackedReproducer, ended: WorkerReplay) -> RecomputeResult:
        if ended.result == "same":
            return RecomputeResult(entry.key, entry.stage, *ended)
        if ended.result == "differs":
            self._store.quarantine(entry.key, ended.words)  # where the engine has not: of commands alone
        if packed.about.mode == "line":
            return RecomputeResult(
                entry.key, entry.stage, *ended
            )  # it is run where its files are, not from a reproducer
        path = self._reproducers / file_name(entry.stage, entry.key)
        write(path, packed.data)
        return RecomputeResult(entry.key, entry.stage, *ended, str(path))
