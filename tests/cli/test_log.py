"""``cachec log``: which calls, as lines, as data, as a trace; and as they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachec.events import EventLog
from cachec.model import Outcome, Reason

from .conftest import Shell


def emit(log: EventLog, stage: str, reason: Reason, ago: float, **fields: object) -> None:
    key = fields.pop("key", "ab" * 32)
    log.emit(Outcome(reason=reason, stage=stage, key=key, time=time.time() - ago, pid=5, **fields))  # type: ignore[arg-type]


@pytest.fixture
def calls(shell: Shell) -> Shell:
    log = EventLog(shell.dir, log="off")
    emit(log, "pkg.lower", Reason.FIRST_RUN, 7200, seconds=2.0)
    emit(log, "pkg.lower", Reason.HIT, 30, seconds=0.5, saved=2.0)
    emit(log, "pkg.build", Reason.OPTION_CHANGED, 20, seconds=4.0, detail="level: 1 -> 2\n\x1b[2J", key="cd" * 32)
    emit(log, "pkg.build", Reason.ENTRY_GONE, 10, seconds=3.0)
    emit(log, "flower", Reason.MODE_OFF, 5)
    return shell


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ("", "lower lower build build flower"),
        ("-n 2", "build flower"),
        ("-n 0", ""),
        ("--stage lower", "lower lower"),
        ("--stage pkg.build --stage flower", "build build flower"),
        ("--outcome miss", "lower build build"),
        ("--outcome changed", "build"),
        ("--outcome new --outcome lost", "lower build"),
        ("--outcome option-changed", "build"),
        ("--outcome miss:entry-gone", "build"),
        ("--outcome bypass", "flower"),
        ("--stage lower --outcome hit", "lower"),
        ("--key cdcdcd", "build"),
        ("--since 1h", "lower build build flower"),
        ("--build", "lower build build flower"),
        ("--build --outcome miss -n 1", "build"),
        ("--stage nothing", ""),
    ],
)
def test_which_calls(calls: Shell, options: str, stages: str) -> None:
    found = calls.json("log", *options.split())["calls"]
    assert [each["stage"].removeprefix("pkg.") for each in found] == stages.split()
    shown = calls.run("log", *options.split()).output.splitlines()
    if stages:
        assert len(shown) == len(found)
    else:
        assert shown == [f"no calls that fit are recorded in {calls.dir}"]


def test_a_call_as_data(calls: Shell) -> None:
    (found,) = calls.json("log", "--key", "cdcdcd")["calls"]
    assert found.pop("time") == pytest.approx(time.time() - 20, abs=600)
    assert found == {
        "stage": "pkg.build", "reason": "miss:option-changed", "seconds": 4.0, "saved": 0.0, "stored": False,
        "key": "cd" * 32, "detail": "level: 1 -> 2\n\x1b[2J", "fault": None, "pid": 5,
    }  # fmt: skip


def test_a_call_is_a_line_that_fits(calls: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(EventLog(calls.dir, log="off"), "pkg." + "x" * 300, Reason.HIT, 1, saved=1.0)
    monkeypatch.setenv("COLUMNS", "80")
    lines = calls.run("log").output.splitlines()
    assert len(lines) == 6
    assert all(len(line) <= 80 and line.isprintable() for line in lines)
    assert lines[2].split()[1:5] == ["option-changed", "4.00", "s", "pkg.build:"]
    monkeypatch.delenv("COLUMNS")
    assert "x" * 300 in calls.run("log", "-n", "1").output, "whole where no terminal is"


def test_a_word_that_no_call_ends_with_names_a_near_one(calls: Shell) -> None:
    result = calls.run("log", "--outcome", "option-chnaged")
    assert result.exit_code == 2
    assert "did you mean option-changed?" in result.stderr


@pytest.mark.parametrize(
    "line", ["-f --trace x", "-f --build", "-f --stats-file x", "--stats-file nothing", "--key xyz"]
)
def test_what_does_not_go_together(calls: Shell, line: str) -> None:
    assert calls.run("log", *line.split()).exit_code == 2


def test_no_store(shell: Shell) -> None:
    assert shell.run("log").output == f"no calls are recorded in {shell.dir}\n"
    assert shell.json("log")["calls"] == []
    assert not shell.dir.exists()


def test_a_stats_file(calls: Shell, tmp_path: Path) -> None:
    emit(EventLog(tmp_path / "other", log="off", stats_file=tmp_path / "stats"), "alone", Reason.HIT, 1)
    assert [each["stage"] for each in calls.json("log", "--stats-file", "stats")["calls"]] == ["alone"]


def test_a_trace(calls: Shell, tmp_path: Path) -> None:
    assert calls.run("log", "--build", "--trace", "t.json").output == "4 calls: t.json\n"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [each["name"] for each in events if each["ph"] == "X"] == ["pkg.lower", "pkg.build", "pkg.build", "flower"]
    assert calls.json("log", "--outcome", "hit", "--trace", "t.json") == {"trace": "t.json", "calls": 1}
    assert json.loads(calls.run("log", "--build", "--trace", "-").stdout)["traceEvents"] == events


def test_stats_as_text_for_prometheus(calls: Shell) -> None:
    text = calls.run("stats", "--prometheus").output
    assert 'cachec_calls_total{stage="pkg.build",outcome="miss",reason="entry-gone"} 1\n' in text
    assert "\ncachec_store_bytes 0\n" in text
    assert calls.run("stats", "--prometheus", "--json").exit_code == 2
    assert calls.run("stats", "--prometheus", "--fail-under", "90").exit_code == 1


@pytest.mark.parametrize("is_json", [False, True])
def test_calls_are_shown_as_they_end(calls: Shell, is_json: bool) -> None:
    """What the log has first, then what comes; and nothing is said when it is ended by hand."""
    line = [sys.executable, "-m", "cachec", "--dir", str(calls.dir), "log", "-f", "-n", "1", "--outcome", "miss"]
    log = EventLog(calls.dir, log="off")
    with subprocess.Popen(
        [*line, *(["--json"] if is_json else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "entry-gone" in process.stdout.readline()
        emit(log, "late", Reason.HIT, 0)
        emit(log, "later", Reason.CODE_CHANGED, 0)
        told = process.stdout.readline()
        assert "later" in told
        assert not is_json or json.loads(told)["reason"] == "miss:code-changed"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_reader_that_goes_ends_it(calls: Shell) -> None:
    line = [sys.executable, "-m", "cachec", "--dir", str(calls.dir), "log", "-f"]
    reading, writing = os.pipe()
    with subprocess.Popen(line, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        os.read(reading, 10)
        os.close(reading)
        emit(EventLog(calls.dir, log="off"), "late", Reason.HIT, 0)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (1, b"")
