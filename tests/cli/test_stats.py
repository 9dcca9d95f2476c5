"""`cachec stats` for one build: its own file, a bound for CI, and a table for its summary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cachec.cli.cmd_stats import parse_bound
from cachec.events import EventLog
from cachec.model import Fault, Outcome, Reason

from .conftest import Shell


def outcome(reason: Reason, stage: str = "exec:clang", time: float = 0.0, saved: float = 2.0) -> Outcome:
    return Outcome(reason=reason, stage=stage, key="k", seconds=0.5, saved=saved, time=time)


@pytest.fixture
def build(shell: Shell) -> Path:
    """What one build wrote to its stats file, in a store that has seen more."""
    EventLog(shell.dir, log="off").emit(outcome(Reason.FIRST_RUN, "before"))
    file = shell.dir.parent / "stats.jsonl"
    log = EventLog(shell.dir, log="off", stats_file=file)
    for _ in range(3):
        log.emit(outcome(Reason.HIT))
    log.emit(outcome(Reason.OPTION_CHANGED, "exec:a|b_*c*"))
    log.emit(outcome(Reason.BUILD_HELPER, "exec:cmake"))
    log.note_fault(Fault.STORE_FULL, "no room")
    return file


def test_a_stats_file_is_one_build(shell: Shell, build: Path) -> None:
    found = shell.json("stats", "--stats-file", str(build))
    assert (found["calls"], found["hits"], found["misses"], found["bypasses"]) == (5, 3, 1, 1)
    assert found["hit_rate"] == 0.75
    assert found["file"] == str(build)
    assert "dir" not in found
    assert "store" not in found
    assert found["faults"] == {"store-full": 1}
    assert shell.json("stats")["calls"] == 6  # the store's own log has the other one too
    text = shell.run("stats", "--stats-file", str(build)).output
    assert text.startswith("5 calls, 3 hits (75.0%)")
    assert "before" not in text


def test_since_holds_for_a_stats_file(shell: Shell, build: Path) -> None:
    with build.open("a") as file:
        file.write(json.dumps({"reason": "hit", "stage": "old", "key": "k", "time": 1000.0}) + "\n")
    assert shell.json("stats", "--stats-file", str(build))["calls"] == 6
    assert shell.json("stats", "--stats-file", str(build), "--since", "1h")["calls"] == 5


def test_a_stats_file_that_is_not_there(shell: Shell) -> None:
    result = shell.run("stats", "--stats-file", "nowhere")
    assert result.exit_code == 2
    assert "'nowhere' is not there; set CACHEC_STATS_FILE to it for the build" in result.stderr


def test_a_damaged_stats_file(shell: Shell, build: Path) -> None:
    with build.open("ab") as file:
        file.write(b"\xff\n{}\n[]\n")
    assert shell.json("stats", "--stats-file", str(build))["damaged_lines"] == 3


@pytest.mark.parametrize(
    ("bound", "code"), [("75%", 0), ("75.0%", 0), ("75", 0), ("0%", 0), ("75.1%", 1), ("80%", 1), ("100%", 1)]
)
def test_a_bound_for_the_hit_rate(shell: Shell, build: Path, bound: str, code: int) -> None:
    result = shell.run("stats", "--stats-file", str(build), "--fail-under", bound)
    assert result.exit_code == code
    assert result.stdout.startswith("5 calls")  # it is printed all the same
    said = f"cachec: the hit rate is 75.0%; --fail-under wants {parse_bound(bound):.1%}\n"
    assert result.stderr == ("" if code == 0 else said)


def test_a_bound_holds_for_json_and_markdown_too(shell: Shell, build: Path) -> None:
    assert shell.json("stats", "--stats-file", str(build), "--fail-under", "80%", code=1)["hits"] == 3
    assert shell.run("stats", "--stats-file", str(build), "--fail-under", "80%", "--markdown").exit_code == 1


def test_a_build_that_called_nothing_keeps_no_bound(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    result = shell.run("stats", "--stats-file", str(tmp_path / "empty"), "--fail-under", "1%")
    assert result.exit_code == 1
    assert "no call counts in the hit rate" in result.stderr


def test_a_bypass_counts_as_a_call(shell: Shell) -> None:
    """Three of four commands that were not cached were 100 % before."""
    log = EventLog(shell.dir, log="off")
    log.emit(outcome(Reason.HIT))
    log.emit(Outcome(reason=Reason.UNTRACED, stage="exec:cc", key="", seconds=1.5))
    for _ in range(2):  # passed on: the command took the place of the process, and its seconds are not known
        log.emit(Outcome(reason=Reason.NOT_UNDERSTOOD, stage="exec:cc", key=""))
    found = shell.json("stats", "--fail-under", "80%", code=1)
    assert (found["calls"], found["counted"], found["bypasses"], found["untimed"]) == (4, 4, 3, 2)
    assert found["hit_rate"] == 0.25
    assert found["reason_seconds"] == {"bypass:not-understood": 0.0, "bypass:untraced": 1.5, "hit": 0.5}
    text = shell.run("stats").output
    assert text.startswith("4 calls, 1 hit (25.0%), ")
    assert "3 bypasses, 1.50 s; the seconds of 2 are not known\n" in text
    assert "not in the rate" not in text
    assert re.search(r"^bypass:not-understood +2 +-$", text, re.MULTILINE)
    markdown = shell.run("stats", "--markdown").output
    assert "| bypass:not-understood | 2 | - |" in markdown
    assert "The seconds of 2 bypasses are not known." in markdown


@pytest.mark.parametrize("reason", Reason)
def test_which_calls_count_in_the_rate(shell: Shell, reason: Reason) -> None:
    """All but errors, and calls for which the cache was not asked."""
    log = EventLog(shell.dir, log="off")
    log.emit(outcome(Reason.HIT, "other"))
    log.emit(outcome(reason))
    found = shell.json("stats")
    counts = reason.kind != "error" and reason.value not in {"bypass:mode-off", "bypass:build-helper"}
    assert (found["calls"], found["counted"]) == (2, 1 + counts)
    assert found["hit_rate"] == (0.5 if counts and reason is not Reason.HIT else 1.0)
    assert found["stages"]["exec:clang"]["counted"] == counts
    words = f"1 call not in the rate: 1 {reason.value.partition(':')[2]}\n"
    assert (words in shell.run("stats").output) == (not counts)


@pytest.mark.parametrize("text", ["0.8", "101%", "-1%", "many", "", "80%%", "8e1"])
def test_a_bound_that_is_none(shell: Shell, text: str) -> None:
    result = shell.run("stats", "--fail-under", text)
    assert result.exit_code == 2
    assert "such as 80%" in result.stderr


def test_since_with_a_bound(shell: Shell, build: Path) -> None:
    assert shell.run("stats", "--since", "2999-01-01", "--fail-under", "10%").exit_code == 1
    assert shell.run("stats", "--since", "1h", "--fail-under", "60%").exit_code == 0  # 3 of 5


def test_markdown(shell: Shell, build: Path) -> None:
    lines = shell.run("stats", "--stats-file", str(build), "--markdown").output.splitlines()
    assert lines[0] == "### cachec: 75.0% hits"
    header, rule, *rows = lines[2:7]
    assert header == "| stage | calls | hits | misses | bypasses | errors | hit rate | saved | spent |"
    assert rule == "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    assert r"| exec:a\|b\_\*c\* | 1 | 0 | 1 | 0 | 0 | 0.0% | 0.00 s | 0.50 s |" in rows
    assert rows[-1] == "| exec:cmake | 1 | 0 | 0 | 1 | 0 | - | 0.00 s | 0.50 s |"
    assert lines[7] == "| **all** | 5 | 3 | 1 | 1 | 0 | 75.0% | 4.50 s | 1.00 s |"
    assert "| miss:option-changed | 1 | 0.50 s |" in lines
    assert "| fault: store-full | 1 |  |" in lines
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:8]}
    assert cells == {10}


def test_markdown_of_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    lines = shell.run("stats", "--stats-file", str(tmp_path / "empty"), "--markdown").output.splitlines()
    assert lines[0] == "### cachec: - hits"
    assert lines[-1] == "| **all** | 0 | 0 | 0 | 0 | 0 | - | 0.00 s | 0.00 s |"


def test_markdown_and_json_exclude_each_other(shell: Shell) -> None:
    result = shell.run("stats", "--markdown", "--json")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
