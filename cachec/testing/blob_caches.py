"""The tests that every cache of bytes inherits which keeps what it stores in a cachec store under keys of its own.

    class TestMine(ForeignConformance):
        name = "mine"
        def make(self, cache): return MyCache(cache.foreign("mine"))

A seam has ``get(key) -> bytes | None`` and ``put(key, data)``: ``cache.foreign`` itself, or what wraps it for JAX,
torch or Triton. Run with pytest. Everything happens in a store of its own below ``tmp_path``.
"""

from __future__ import annotations

import multiprocessing
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

import cachec
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector
from cachec.model import Entry, Fault, Inline, Leaf, Reason, Record, Trace, artifacts
from cachec.store.row_codec import pack


class Seam(Protocol):
    """A cache of bytes."""

    def get(self, key: Any) -> bytes | None: ...

    def put(self, key: Any, data: bytes) -> None: ...


class ForeignConformance:
    """Hooks first; ``make`` has to be filled in. No hook may put anything into the store."""

    #: The name that was given to ``cache.foreign``: entries and outcomes are those of a stage of this name.
    name: str = ""

    #: Whether it was made as ``selective``.
    selective: bool = False

    def make(self, cache: cachec.Cache) -> Seam:
        """The seam over an opened cache: called again with one on the same folder, another view of the same values."""
        raise NotImplementedError

    def key(self, number: int) -> Any:
        """A key, another one for each number."""
        return f"module_{number}-{number:064x}"

    def data(self, number: int, nbytes: int = 1000) -> bytes:
        """A value of about ``nbytes``, another one for each number."""
        return (b"%d." % number) * (nbytes // 2) + b"\0\xff"

    # --- the suite

    @pytest.fixture
    def open_cache(self, tmp_path: Path) -> Callable[..., tuple[cachec.Cache, Seam]]:
        def open_cache(**settings: Any) -> tuple[cachec.Cache, Seam]:
            cache = cachec.Cache(**{"dir": tmp_path / "store", "log": "off", "mode": "on", **settings})
            return cache, self.make(cache)

        return open_cache

    def test_what_was_put_comes_back(self, open_cache: Any) -> None:
        _, seam = open_cache()
        values = {number: self.data(number, nbytes) for number, nbytes in enumerate((2, 600, 70_000, 3 << 20))}
        for number, value in values.items():
            assert seam.get(self.key(number)) is None
            seam.put(self.key(number), value)
        _, other = open_cache()
        for view in (seam, other):
            found = {number: view.get(self.key(number)) for number in values}
            assert found == values
            assert {type(each) for each in found.values()} == {bytes}
        assert seam.get(self.key(99)) is None

    def test_a_value_replaces_an_older_one(self, open_cache: Any) -> None:
        _, seam = open_cache()
        for number in (1, 2):
            seam.put(self.key(0), self.data(number))
            assert seam.get(self.key(0)) == self.data(number)

    def test_each_lookup_is_one_outcome(self, open_cache: Any) -> None:
        cache, seam = open_cache()
        seam.get(self.key(0))
        seam.put(self.key(0), self.data(0))
        seam.get(self.key(0))
        seam.get(self.key(1))
        assert dict(cache.events.counts) == {Reason.FIRST_RUN: 1 if self.selective else 2, Reason.HIT: 1}
        assert not cache.events.faults

    def test_what_is_stored_is_an_entry_like_any(self, open_cache: Any) -> None:
        cache, seam = open_cache()
        for number in range(3):
            seam.put(self.key(number), self.data(number, 70_000))
        assert {entry.stage for entry in cache.store.entries()} == {self.name}
        maintainer = Maintainer(cache.store, max_size=0)
        assert len(list(maintainer.find(Selector(stages=(self.name,))))) == 3
        stored_entry = self._entry(cache, seam, 1)
        maintainer.pins.add("key", stored_entry.key)
        maintainer.plan(Selector(stages=(self.name,))).apply()
        assert [seam.get(self.key(number)) for number in range(3)] == [None, self.data(1, 70_000), None]
        assert cache.events.counts[Reason.ENTRY_GONE] == 2

    @pytest.mark.parametrize("nbytes", [20, 70_000])
    def test_bytes_of_another_key_are_no_hit(self, open_cache: Any, nbytes: int) -> None:
        cache, seam = open_cache()
        for number in range(2):
            seam.put(self.key(number), self.data(number, nbytes))
        mine, other = self._entry(cache, seam, 0), self._entry(cache, seam, 1)
        counts = cache.events.counts.copy()
        taken = msgspec.structs.replace(mine, traces=other.traces)
        moved = msgspec.structs.replace(mine, traces=(_with_data(mine.traces[0], other.traces[0]),))
        for row, reason in ((other, Reason.ROW_FOREIGN), (taken, Reason.ROW_FOREIGN), (moved, Reason.ROW_FOREIGN)):
            cache.store.index.write(cache.store.entry_row(mine.key), pack(row), self.name)
            self._is_a_miss_that_heals(cache, seam, reason, nbytes)
            counts[reason] += 1
            assert cache.events.counts[reason] == counts[reason]
        assert seam.get(self.key(1)) == self.data(1, nbytes)

    @pytest.mark.parametrize("hidden", [False, True])
    def test_a_corrupt_artifact_is_not_a_hit(self, open_cache: Any, hidden: bool) -> None:
        """hidden: as a failing disk alters it, which changes no time."""
        cache, seam = open_cache()
        seam.put(self.key(0), self.data(0, 70_000))
        (ref,) = artifacts(self._entry(cache, seam, 0).traces[0].value)
        path = cache.store.objects.path(ref)
        before = path.stat()
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(ref.size // 2)
            byte = file.read(1)
            file.seek(ref.size // 2)
            file.write(bytes([byte[0] ^ 1]))
        path.chmod(stat.S_IMODE(before.st_mode))
        if hidden:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self._is_a_miss_that_heals(cache, seam, Reason.ARTIFACT_CORRUPT, 70_000)

    def test_an_artifact_that_is_gone_is_no_hit(self, open_cache: Any) -> None:
        cache, seam = open_cache()
        seam.put(self.key(0), self.data(0, 70_000))
        (ref,) = artifacts(self._entry(cache, seam, 0).traces[0].value)
        cache.store.objects.path(ref).unlink()
        self._is_a_miss_that_heals(cache, seam, Reason.ARTIFACT_MISSING, 70_000)

    @pytest.mark.parametrize("form", ["inline", "leaf", "list", "traces"])
    def test_a_row_of_another_kind_is_no_hit(self, open_cache: Any, form: str) -> None:
        cache, seam = open_cache()
        seam.put(self.key(0), self.data(0, 70_000))
        entry = self._entry(cache, seam, 0)
        stored = entry.traces[0].value
        assert isinstance(stored, Record)
        value = {"inline": Inline("str", "x"), "leaf": stored.items[0], "list": Record("", ("data",), stored.items)}
        traces = () if form == "traces" else (msgspec.structs.replace(entry.traces[0], value=value[form]),)
        damaged = msgspec.structs.replace(entry, traces=traces)
        cache.store.index.write(cache.store.entry_row(entry.key), pack(damaged), self.name)
        self._is_a_miss_that_heals(cache, seam, Reason.ROW_CORRUPT, 70_000)

    def test_modes(self, open_cache: Any) -> None:
        for mode in ("off", "read-only"):
            cache, seam = open_cache(mode=mode)
            assert seam.get(self.key(0)) is None
            seam.put(self.key(0), self.data(0))
            assert not list(cache.store.entries())
            assert dict(cache.events.counts) == {Reason.MODE_OFF if mode == "off" else Reason.FIRST_RUN: 1}
        cache, seam = open_cache(mode="require")
        if self.selective:
            assert seam.get(self.key(0)) is None
            assert not cache.events.counts
        with pytest.raises(cachec.CacheMissError, match=self.name):
            seam.put(self.key(0), self.data(0)) if self.selective else seam.get(self.key(0))
        assert dict(cache.events.counts) == {Reason.REQUIRED: 1}
        open_cache()[1].put(self.key(0), self.data(0))
        for mode in ("read-only", "require"):
            assert open_cache(mode=mode)[1].get(self.key(0)) == self.data(0)
        cache, seam = open_cache(mode="off")
        assert seam.get(self.key(0)) is None
        assert dict(cache.events.counts) == {Reason.MODE_OFF: 1}

    def test_a_refresh_replaces(self, open_cache: Any) -> None:
        open_cache()[1].put(self.key(0), self.data(0))
        cache, seam = open_cache(mode="refresh")
        assert seam.get(self.key(0)) is None
        seam.put(self.key(0), self.data(1))
        assert dict(cache.events.counts) == {Reason.REFRESH: 1}
        assert open_cache()[1].get(self.key(0)) == self.data(1)

    def test_a_verification_puts_away_what_differs(self, open_cache: Any) -> None:
        open_cache()[1].put(self.key(0), self.data(0))
        for number, reason, expected in ((0, Reason.VERIFIED, self.data(0)), (1, Reason.VERIFY_DIFFERS, None)):
            cache, seam = open_cache(mode="verify")
            assert seam.get(self.key(0)) is None
            seam.put(self.key(0), self.data(number))
            assert cache.events.counts[reason] == 1
            assert open_cache()[1].get(self.key(0)) == expected

    def test_a_store_that_fails_raises_nothing(self, open_cache: Any, tmp_path: Path) -> None:
        for name in ("index", "objects", "locks"):
            cache, seam = open_cache(dir=tmp_path / name)
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_bytes(b"no folder")
            seam.put(self.key(0), self.data(0, 70_000))
            assert cache.events.faults.total()
            assert seam.get(self.key(0)) is None
            seam.put(self.key(0), self.data(0, 70_000))
            assert cache.events.counts.total() == 1

    def test_a_value_that_is_larger_than_the_store_is_not_stored(self, open_cache: Any) -> None:
        cache, seam = open_cache(max_size=100_000)
        seam.put(self.key(0), self.data(0, 50_000))
        seam.put(self.key(1), self.data(1, 200_000))
        assert seam.get(self.key(0)) == self.data(0, 50_000)
        assert seam.get(self.key(1)) is None
        assert dict(cache.events.faults) == {Fault.STORE_FULL: 1}

    def test_the_store_stays_within_its_size_while_the_process_lives(self, open_cache: Any) -> None:
        cache, seam = open_cache(max_size=1_000_000)
        for number in range(20):
            seam.put(self.key(number), self.data(number, 100_000))
        stored = [number for number in range(20) if seam.get(self.key(number)) is not None]
        assert 3 < len(stored) < 15
        assert Maintainer(cache.store, max_size=0).measure().nbytes <= 1_000_000

    def test_threads(self, open_cache: Any) -> None:
        cache, seam = open_cache()
        wrong: list[object] = []

        def work() -> None:
            for number in range(12):
                found = seam.get(self.key(number % 4))
                if found not in {None, self.data(number % 4, 70_000)}:
                    wrong.append(number)
                seam.put(self.key(number % 4), self.data(number % 4, 70_000))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert not cache.events.faults
        assert len(list(cache.store.entries())) == 4

    def test_a_forked_child_reads_and_writes(self, open_cache: Any) -> None:
        cache, seam = open_cache()
        seam.put(self.key(0), self.data(0, 70_000))
        seam.get(self.key(1))

        def work() -> None:
            assert seam.get(self.key(0)) == self.data(0, 70_000)
            seam.put(self.key(1), self.data(1, 70_000))

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert seam.get(self.key(1)) == self.data(1, 70_000)
        assert not cache.events.faults

    # --- helpers

    def _entry(self, cache: cachec.Cache, seam: Seam, number: int) -> Entry:
        """The entry of a key: that which a hit is counted for."""
        heard: list[str] = []
        emit = cache.events.emit
        cache.events.emit = lambda outcome, **_: heard.append(outcome.key)  # type: ignore[method-assign]
        try:
            assert seam.get(self.key(number)) is not None
        finally:
            cache.events.emit = emit  # type: ignore[method-assign]
        entry = cache.store.lookup(heard[0])
        assert entry is not None
        return entry

    def _is_a_miss_that_heals(self, cache: cachec.Cache, seam: Seam, reason: Reason, nbytes: int) -> None:
        before = cache.events.counts[reason]
        assert seam.get(self.key(0)) is None
        assert cache.events.counts[reason] == before + 1
        assert cache.events.faults.total()
        assert seam.get(self.key(0)) is None
        assert cache.events.counts[reason] == before + 1, "what was found damaged was not taken away"
        seam.put(self.key(0), self.data(0, nbytes))
        assert seam.get(self.key(0)) == self.data(0, nbytes)


def _with_data(mine: Trace, other: Trace) -> Trace:
    """A trace with the data of another, and all else its own."""
    assert isinstance(mine.value, Record)
    assert isinstance(other.value, Record)
    data, seal = other.value.items[0], mine.value.items[1]
    assert isinstance(data, Inline | Leaf)
    return msgspec.structs.replace(mine, value=msgspec.structs.replace(mine.value, items=(data, seal)))
