"""A trace, held against what the format's viewers ask for."""

from __future__ import annotations

import json

import msgspec

from cachec.model import Outcome, Reason
from cachec.views.trace import trace


def call(begin: float, end: float, pid: int, stage: str, reason: Reason = Reason.HIT) -> Outcome:
    return Outcome(reason=reason, stage=stage, key="k", seconds=end - begin, time=end, pid=pid, detail="d", saved=3.0)


def test_every_call_is_a_complete_event_in_its_process() -> None:
    calls = [call(100, 104, 7, "inner"), call(99, 105, 7, "outer", Reason.NEW_INPUT), call(103, 106, 7, "beside")]
    calls.append(call(101, 102, 8, "</script>\u202e"))
    document = json.loads(msgspec.json.encode(trace(calls)))
    assert document["otherData"]["began"] == 99
    events = document["traceEvents"]
    placed = {each["name"]: each for each in events if each["ph"] == "X"}
    assert [(name, e["pid"], e["tid"], e["ts"], e["dur"]) for name, e in placed.items()] == [
        ("outer", 7, 0, 0, 6_000_000),
        ("inner", 7, 0, 1_000_000, 4_000_000),
        ("beside", 7, 1, 4_000_000, 3_000_000),
        ("</script>\u202e", 8, 0, 2_000_000, 1_000_000),
    ]
    assert placed["outer"]["cat"] == "miss"
    assert placed["outer"]["args"] == {
        "outcome": "miss:new-input", "detail": "d", "key": "k", "saved": 3.0, "stored": False
    }  # fmt: skip
    names = {(each["name"], each["pid"], each["tid"]): each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names == {
        ("process_name", 7, 0): "cachec, pid 7",
        ("process_name", 8, 0): "cachec, pid 8",
        ("thread_name", 7, 0): "calls 1",
        ("thread_name", 7, 1): "calls 2",
        ("thread_name", 8, 0): "calls 1",
    }


def test_events_of_a_thread_are_apart_or_within_to_the_microsecond() -> None:
    """A viewer refuses what overlaps by one."""
    calls = [call(0.0, 10.0, 1, "outer"), call(0.1234567, 5.7654321, 1, "first"), call(5.7654321, 10.0004, 1, "second")]
    first, second, third = (each for each in trace(calls)["traceEvents"] if each["ph"] == "X")
    assert second["ts"] + second["dur"] <= third["ts"]
    assert third["ts"] + third["dur"] <= first["ts"] + first["dur"]


def test_no_calls() -> None:
    assert trace([])["traceEvents"] == []
