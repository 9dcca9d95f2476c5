"""A log as it grows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachec.events import EventLog
from cachec.model import Fault, Outcome, Reason
from cachec.views.tail import Follower


def call(stage: str, time: float = 1e9) -> Outcome:
    return Outcome(reason=Reason.HIT, stage=stage, key="", time=time)


def names(follower: Follower) -> list[str]:
    return [each.stage for each in follower.new()]


def test_each_call_is_handed_out_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    assert names(follower) == []
    log = EventLog(tmp_path, log="off")
    log.emit(call("a"))
    log.note_fault(Fault.STORE_FULL, "no room")
    log.emit(call("b"))
    assert names(follower) == ["a", "b"]
    assert names(follower) == []
    EventLog(tmp_path, log="off").emit(call("c"))
    assert names(follower) == ["c"]


def test_what_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    file = tmp_path / "log" / "2026-01-01.jsonl"
    line = msgspec.json.encode(call("a")) + b"\n"
    follower = Follower(tmp_path)
    for size in range(len(line)):
        file.write_bytes(line[:size])
        assert names(follower) == []
    file.write_bytes(line + b"{torn\n\n" + line[:9])
    assert names(follower) == ["a"]
    file.write_bytes(line + b"{torn\n\n" + line)
    assert names(follower) == ["a"]


def test_a_new_day_a_file_that_is_replaced_and_one_that_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    first, second = (tmp_path / "log" / f"2026-01-0{day}.jsonl" for day in (1, 2))
    lines = {name: msgspec.json.encode(call(name)) + b"\n" for name in "abcdef"}
    follower = Follower(tmp_path)
    first.write_bytes(lines["a"] + lines["b"])
    assert names(follower) == ["a", "b"]
    second.write_bytes(lines["c"])
    assert names(follower) == ["c"]
    first.unlink()
    assert names(follower) == []
    other = tmp_path / "other"
    other.write_bytes(lines["d"] + lines["e"])
    other.rename(second)
    assert names(follower) == ["d", "e"]
    second.write_bytes(lines["f"])
    assert names(follower) == ["f"]


def test_since(tmp_path: Path) -> None:
    follower = Follower(tmp_path, 2e9)
    log = EventLog(tmp_path, log="off", clock=lambda: 2e9)
    log.emit(call("old", 1e9))
    log.emit(call("new", 3e9))
    assert names(follower) == ["new"]


def test_a_line_without_an_end_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    line = msgspec.json.encode(call("a")) + b"\n"
    (tmp_path / "log" / "2026-01-01.jsonl").write_bytes(b"x" * (3 << 20) + b"\n" + line)
    assert names(Follower(tmp_path)) == ["a"]
