"""gc and the launcher: memos go with their entries, and a command whose result is gone runs again."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from cachec.maintain.collect import CollectResult
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.sweep import GRACE_SECONDS, MEMO_SECONDS
from cachec.model import Fault
from cachec.store.store import Store

from .conftest import Launcher, wait_for_clock, write


def collect(launcher: Launcher, *, after: float, limit: int = 0, dry_run: bool = False) -> CollectResult:
    gc.collect()  # what this process was handed, as a command that has ended
    store = Store(launcher.store)
    done = Maintainer(store, clock=lambda: time.time() + after).collect(limit=limit, dry_run=dry_run)
    store.close()
    return done


def memos(launcher: Launcher) -> int:
    return sum(path.is_file() for path in (launcher.store / "direct").rglob("*"))


@pytest.mark.long
def test_memos_go_with_their_entries_and_when_they_are_old(launcher: Launcher) -> None:
    write("a.c", "text")
    wait_for_clock()
    line = ("fakecc", "a.c", "-o", "a.o")
    for _ in range(2):
        assert launcher.run(*line).code == 0
    assert launcher.direct(*line) is not None
    assert memos(launcher) == 1
    assert "memos" not in collect(launcher, after=GRACE_SECONDS + 5).swept
    assert collect(launcher, after=MEMO_SECONDS - 60).swept["memos"] == 0
    assert launcher.direct(*line) is not None
    assert collect(launcher, after=MEMO_SECONDS + 60, dry_run=True).swept["memos"] == 1
    assert collect(launcher, after=MEMO_SECONDS + 60).swept["memos"] == 1
    assert launcher.direct(*line) is None
    assert launcher.run(*line).code == 0
    assert (memos(launcher), launcher.compiled()) == (1, 1)
    assert collect(launcher, after=0, limit=1).entries == 1
    assert memos(launcher) == 1  # as young as one of an entry that is just being published
    assert launcher.direct(*line) is None
    assert collect(launcher, after=GRACE_SECONDS + 5).swept["memos"] == 1
    assert memos(launcher) == 0
    assert launcher.run(*line).code == 0
    assert launcher.compiled() == 2


def test_memos_of_another_store_and_foreign_files_stay(launcher: Launcher) -> None:
    write("a.c", "text")
    wait_for_clock()
    for _ in range(2):
        launcher.run("fakecc", "a.c", "-o", "a.o")
    (memo,) = (path for path in (launcher.store / "direct").rglob("*") if path.is_file())
    collect(launcher, after=0, limit=1)
    memo.write_bytes(memo.read_bytes().replace(bytes(launcher.store) + b"\0", b"/elsewhere\0"))
    notes = memo.with_name("notes")
    notes.write_text("x")
    collect(launcher, after=GRACE_SECONDS + 5)
    assert memo.exists()
    collect(launcher, after=MEMO_SECONDS + 60)
    assert (memo.exists(), notes.exists()) == (False, True)


def test_a_result_larger_than_the_store_is_left_to_the_command(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEC_MAX_SIZE", "200KB")
    write("small", "text")
    write("large", "text" * 60_000)
    for _ in range(2):
        for name in ("small", "large"):
            assert launcher.run("fakecc", name, "-o", f"{name}.o").code == 0
            assert Path(f"{name}.o").stat().st_size > Path(name).stat().st_size
    assert [each.fault for each in launcher.outcomes()] == [None, Fault.STORE_FULL] * 2
    assert [each.hit for each in launcher.outcomes()] == [False, False, True, False]
    assert Maintainer(Store(launcher.store)).measure_usage().nbytes < 100_000
