"""Figures of earlier runs: kept, used for estimates, and never in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cachec.errors import StoreFault
from cachec.events import EventLog
from cachec.model import Outcome, Reason
from cachec.warm import Row
from cachec.warm.history import History
from cachec.warm.model import Result, Status


def row(name: str) -> Row:
    return Row(id=name, target=name.partition("[")[0], axes={})


def miss(stage: str) -> Outcome:
    return Outcome(reason=Reason.FIRST_RUN, stage=stage, key="0" * 64, seconds=20.0)


def test_estimates(tmp_path: Path) -> None:
    history = History(tmp_path, "/p/cachec.toml")
    assert history.estimate([row("a")], {}, 1, time.time()) is None
    history.note(Result(id="a[n=1]", status=Status.COMPILED, seconds=4.0))
    history.note(Result(id="a[n=2]", status=Status.COMPILED, seconds=8.0))
    history.note(Result(id="b", status=Status.HIT, seconds=100.0))
    history.save()
    again = History(tmp_path, "/p/cachec.toml")
    now = time.time()
    assert again.estimate([row("a[n=1]"), row("a[n=2]")], {}, 1, now) == 12
    assert again.estimate([row("a[n=1]"), row("a[n=2]")], {}, 2, now) == 8, "never under the longest"
    assert again.estimate([row("a[n=3]")], {}, 1, now) == 6, "the other rows of its target"
    assert again.estimate([row("b")], {}, 1, now) is None
    EventLog(tmp_path, log="off").emit(miss("pkg.build"))
    assert again.estimate([row("b")], {"b": miss("pkg.build")}, 1, now) == 20, "from the outcome log"
    assert again.estimate([row("b")], {"b": miss("pkg.other")}, 1, now) is None
    assert again.estimate([row("a[n=1]"), row("c")], {}, 1, now) == 8, "the mean of the rest"
    assert History(tmp_path, "/q/cachec.toml").estimate([row("a[n=1]")], {}, 1, now) is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 2, "config": "c"}', b'{"version": 1, "config": "d"}'])
def test_damage_counts_as_nothing(tmp_path: Path, damage: bytes) -> None:
    history = History(tmp_path, "c")
    history.note(Result(id="a", status=Status.COMPILED, seconds=4.0))
    history.save()
    (path,) = (tmp_path / "warm").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert History(tmp_path, "c").estimate([row("a")], {}, 1, time.time()) is None
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert History(tmp_path, "c").estimate([row("a")], {}, 1, time.time()) is None


def test_a_store_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    history = History(tmp_path / "store", "c")
    history.save()  # nothing to say
    history.note(Result(id="a", status=Status.COMPILED, seconds=4.0))
    with pytest.raises(StoreFault):
        history.save()
    assert os.listdir(tmp_path) == ["store"]


def test_nothing_waits_for_a_file_that_is_none(tmp_path: Path) -> None:
    history = History(tmp_path, "c")
    history.note(Result(id="a", status=Status.COMPILED, seconds=4.0))
    history.save()
    [file] = (tmp_path / "warm").iterdir()
    file.unlink()
    os.mkfifo(file)
    assert History(tmp_path, "c").estimate([row("a")], {}, 1, 0.0) is None
