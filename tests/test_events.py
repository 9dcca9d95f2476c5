"""The outcome log: what is written, what is told, and what a damaged log still gives."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachec.events import MAX_LINE, EventLog, describe, read_log
from cachec.model import Fault, Outcome, Reason
from tests.effort import rounds

DAY = 86400.0
NOON = 20_000 * DAY + DAY / 2  # 2024-10-04 12:00 UTC


def outcome(reason: Reason = Reason.HIT, stage: str = "lower", **fields: object) -> Outcome:
    return Outcome(reason=reason, stage=stage, key="ab" * 32, **fields)  # type: ignore[arg-type]


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest gives the root logger handlers; take logging away as in a program that never imported it."""
    monkeypatch.delitem(sys.modules, "logging")


def only_file(store: Path) -> Path:
    (file,) = (store / "log").iterdir()
    return file


# --- records


def test_round_trip(tmp_path: Path) -> None:
    log = EventLog(tmp_path, log="off", clock=Clock())
    written = [
        outcome(seconds=37e-6, saved=0.42),
        outcome(
            Reason.OPTION_CHANGED, detail='seq: 16 -> 32 "x" \n é', seconds=1.5, stored=True, fault=Fault.STORE_FULL
        ),
        *[outcome(reason) for reason in Reason],
    ]
    for each in written:
        log.emit(each)
    recorded = [msgspec.structs.replace(each, time=NOON, pid=os.getpid()) for each in written]
    assert list(read_log(tmp_path)) == recorded
    assert log.dropped == 0
    assert log.counts[Reason.HIT] == 2
    assert only_file(tmp_path).name == "2024-10-04.jsonl"


def test_a_record_is_one_line_of_json(tmp_path: Path) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome(seconds=0.25, time=5.0))
    (line,) = only_file(tmp_path).read_text().splitlines()
    fields = {"reason": "hit", "stage": "lower", "key": "ab" * 32, "seconds": 0.25, "time": 5.0, "pid": os.getpid()}
    assert json.loads(line) == fields
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("filler", ["x", "\0", '"', "é", "𝄞", "\udc80"])
def test_long_records_are_cut_to_one_page(tmp_path: Path, filler: str) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome(Reason.FIRST_RUN, detail=filler * 10_000))
    log.emit(outcome(Reason.FIRST_RUN, stage=filler * 10_000))
    log.note_fault(Fault.IO_ERROR, filler * 10_000)
    lines = only_file(tmp_path).read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    assert all(256 < len(line) <= MAX_LINE for line in lines)
    reader = read_log(tmp_path)
    assert [each.reason for each in reader] == [Reason.FIRST_RUN] * 2
    assert (reader.damaged, reader.faults) == (0, Counter({Fault.IO_ERROR: 1}))


def test_a_name_that_is_not_utf8_is_still_recorded(tmp_path: Path) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome(Reason.FILE_CHANGED, detail="file a\udcffb"))
    (found,) = read_log(tmp_path)
    assert found.detail == "file a\\udcffb"


def test_the_day_changes_both_ways(tmp_path: Path) -> None:
    clock = Clock()
    log = EventLog(tmp_path, log="off", clock=clock)
    for day in (0, 1, 0):
        clock.now = NOON + day * DAY
        log.emit(outcome(detail=str(day)))
    clock.now = NOON + DAY / 2 - 0.001
    log.emit(outcome(detail="last"))
    clock.now = NOON + DAY / 2
    log.emit(outcome(detail="midnight"))
    files = {file.name: file.read_text().count("\n") for file in (tmp_path / "log").iterdir()}
    assert files == {"2024-10-04.jsonl": 3, "2024-10-05.jsonl": 2}


def test_since(tmp_path: Path) -> None:
    clock = Clock()
    log = EventLog(tmp_path, log="off", clock=clock)
    for hour in range(0, 72, 12):
        clock.now = NOON + hour * 3600
        log.emit(outcome(detail=str(hour)))
        log.note_fault(Fault.INDEX_BUSY, "")
    reader = read_log(tmp_path, since=NOON + 36 * 3600)
    assert [each.detail for each in reader] == ["36", "48", "60"]
    assert reader.faults == Counter({Fault.INDEX_BUSY: 3})


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    reader = read_log(tmp_path / "nothing")
    assert (list(reader), reader.damaged) == ([], 0)


def test_stats_file_gets_a_copy(tmp_path: Path) -> None:
    copy = tmp_path / "stats.jsonl"
    log = EventLog(tmp_path, log="off", stats_file=copy)
    log.emit(outcome())
    log.note_fault(Fault.STORE_FULL, "no room")
    assert copy.read_bytes() == only_file(tmp_path).read_bytes()
    assert copy.read_bytes().count(b"\n") == 2


# --- damage


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xfe\0",
        b"null",
        b"[]",
        b"{}",
        b'{"reason":"hit"}',
        b'{"reason":"miss:from-the-future","stage":"s","key":"k"}',
        b'{"reason":"hit","stage":3,"key":"k"}',
        b'{"reason":"hit","stage":"\xff","key":"k"}',
        b'{"fault":"odd"}',
        b'{"reason":"x","fault":"store-full"}',
        b"[" * 50_000,
        b'{"x":' + b"[" * 50_000,
        b"x" * 70_000,
    ],
)
def test_garbage_is_skipped_and_counted(tmp_path: Path, garbage: bytes) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome(detail="before"))
    with only_file(tmp_path).open("ab") as file:
        file.write(garbage + b"\n\n \n")
    log.emit(outcome(detail="after"))
    reader = read_log(tmp_path)
    assert [each.detail for each in reader] == ["before", "after"]
    assert reader.damaged >= 1
    assert not reader.faults


@pytest.mark.timeout(20)
def test_a_log_with_a_hole_of_a_tebibyte(tmp_path: Path) -> None:
    EventLog(tmp_path, log="off").emit(outcome(detail="before"))
    os.truncate(only_file(tmp_path), 1 << 40)
    reader = read_log(tmp_path)
    assert [each.detail for each in reader] == ["before"]
    assert reader.damaged >= 1


def test_a_log_cut_at_every_byte(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "whole", log="off")
    details = ["one", "two", "é€"]
    for detail in details:
        log.emit(outcome(Reason.FIRST_RUN, detail=detail))
    data = only_file(tmp_path / "whole").read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    file = tmp_path / "cut" / "log" / "2024-10-04.jsonl"
    file.parent.mkdir(parents=True)
    for length in range(len(data) + 1):
        file.write_bytes(data[:length])
        reader = read_log(tmp_path / "cut")
        whole = sum(1 for end in ends if end - 1 <= length)  # a record without its newline is whole
        assert [each.detail for each in reader] == details[:whole]
        assert reader.damaged == (length not in {0, *ends, *(end - 1 for end in ends)})


def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path: Path) -> None:
    first = EventLog(tmp_path, log="off")
    first.emit(outcome(detail="whole"))
    file = only_file(tmp_path)
    file.write_bytes(file.read_bytes() + b'{"reason":"hit","sta')
    EventLog(tmp_path, log="off").emit(outcome(detail="next"))
    reader = read_log(tmp_path)
    assert ([each.detail for each in reader], reader.damaged) == (["whole", "next"], 1)


@settings(max_examples=rounds(100), deadline=None)
@given(data=st.binary(max_size=400))
def test_no_bytes_stop_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = tmp_path_factory.mktemp("store")
    (store / "log").mkdir()
    (store / "log" / "2024-10-04.jsonl").write_bytes(data)
    reader = read_log(store)
    assert len(list(reader)) + reader.damaged <= data.count(b"\n") + 1


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    EventLog(tmp_path, log="off").emit(outcome())
    (tmp_path / "log" / "notes.txt").write_text("hello\n")
    (tmp_path / "log" / "2024-10-03.jsonl").mkdir()
    reader = read_log(tmp_path)
    assert (len(list(reader)), reader.damaged) == (1, 1)


# --- failing writes


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    log = EventLog(tmp_path, log="off")
    log.emit(outcome())
    log.emit(outcome(Reason.FIRST_RUN))
    assert (log.dropped, log.counts.total()) == (2, 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the next test covers it there")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir(mode=0o500)
    log = EventLog(tmp_path, log="off")
    log.emit(outcome())
    assert log.dropped == 1


def test_an_unwritable_log_folder_and_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path, log="off", stats_file=tmp_path / "no" / "such" / "folder")
    real = os.open

    def refuse(path: object, *args: object, **kwargs: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    log.emit(outcome())
    assert log.dropped == 2  # the log and the copy
    monkeypatch.setattr(os, "open", real)
    log.emit(outcome(detail="again"))
    assert [each.detail for each in read_log(tmp_path)] == ["again"]


def test_a_full_disk_tears_no_later_record(tmp_path: Path) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome(detail="first"))
    size = only_file(tmp_path).stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, old[1]))
    try:
        log.emit(outcome(detail="torn"))
        log.emit(outcome(detail="lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert log.dropped == 2
    log.emit(outcome(detail="last"))
    assert [each.detail for each in read_log(tmp_path)] == ["first", "last"]


def test_a_removed_log_is_found_at_a_miss(tmp_path: Path) -> None:
    log = EventLog(tmp_path, log="off")
    log.emit(outcome())
    only_file(tmp_path).unlink()
    (tmp_path / "log").rmdir()
    log.emit(outcome(Reason.FIRST_RUN))
    log.emit(outcome())
    assert [each.reason for each in read_log(tmp_path)] == [Reason.FIRST_RUN, Reason.HIT]


# --- processes and threads

WRITER = """
import sys
from cachec.events import EventLog
from cachec.model import Outcome, Reason
log = EventLog(sys.argv[1], log="off")
for n in range(500):
    reason = Reason.HIT if n % 3 else Reason.FIRST_RUN
    log.emit(Outcome(reason=reason, stage="s" + sys.argv[2], key="k", detail=str(n) * (n % 700)))
sys.exit(log.dropped)
"""


def test_eight_processes_append_at_once(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(n)]) for n in range(8)]
    assert [writer.wait(120) for writer in writers] == [0] * 8
    reader = read_log(tmp_path)
    found = Counter((each.stage, each.detail) for each in reader)
    assert reader.damaged == 0
    wanted = Counter((f"s{who}", str(n) * (n % 700)) for who in range(8) for n in range(500))
    assert found == wanted


def test_threads_across_midnight(tmp_path: Path) -> None:
    clock = Clock(NOON)
    log = EventLog(tmp_path, log="off", clock=clock)

    def work(who: int) -> None:
        for n in range(300):
            clock.now = NOON + (n % 2) * DAY
            log.emit(outcome(detail=f"{who}:{n}"))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = read_log(tmp_path)
    assert sorted(each.detail for each in reader) == sorted(f"{who}:{n}" for who in range(4) for n in range(300))
    assert (log.dropped, reader.damaged) == (0, 0)


def test_a_forked_child_that_reused_the_descriptor(tmp_path: Path) -> None:
    """A child that closes everything and opens its own files must not find log records in them."""
    script = f"""
import os
from cachec.events import EventLog
from cachec.model import Outcome, Reason
log = EventLog({str(tmp_path)!r}, log="off")
log.emit(Outcome(reason=Reason.HIT, stage="parent", key="k"))
pid = os.fork()
if pid == 0:
    os.closerange(3, 64)
    own = [os.open({str(tmp_path / "own")!r} + str(n), os.O_RDWR | os.O_CREAT) for n in range(16)]
    log.emit(Outcome(reason=Reason.HIT, stage="child", key="k"))
    assert all(os.fstat(fd).st_size == 0 for fd in own)
    os._exit(0)
_, status = os.waitpid(pid, 0)
log.emit(Outcome(reason=Reason.HIT, stage="parent", key="k"))
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert [each.stage for each in read_log(tmp_path)] == ["parent", "child", "parent"]


# --- what is told


@pytest.mark.usefixtures("no_logging")
def test_a_miss_is_one_line_and_a_hit_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path)
    log.emit(outcome())
    log.emit(outcome(Reason.OPTION_CHANGED, detail="seq: 16 -> 32", seconds=0.42))
    log.note_waiting(17, 3.2)
    out, err = capsys.readouterr()
    assert err == ("cachec: miss lower: option-changed: seq: 16 -> 32 (0.42 s)\ncachec: waiting for pid 17 (3 s)\n")
    assert out == ""


@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("off", set()),
        (
            "miss",
            {reason for reason in Reason if reason.kind == "miss"}
            | {Reason.INPUT_CHANGED, Reason.KEY_UNREADABLE, Reason.STALE_MEMO, Reason.UNNAMED_CODE, Reason.UNDESCRIBED}
            | {Reason.UNSUPPORTED_VERSION, Reason.NO_STORE_FOLDER, Reason.PROCESS_BOUND, Reason.UNRESOLVED_CODE}
            | {Reason.UNDECLARED_PROGRAM, Reason.UNSTORABLE, Reason.UNTRACED, Reason.NETWORK, Reason.VOLATILE_INPUT},
        ),
        ("all", set(Reason)),
    ],
)
def test_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str, told: set[Reason]) -> None:
    log = EventLog(tmp_path, log=level)
    found = set()
    for reason in Reason:
        log.emit(outcome(reason))
        if capsys.readouterr().err:
            found.add(reason)
    assert found == told
    log.note_waiting(None, 3)
    log.note_fault(Fault.STORE_FULL, "no room")
    assert bool(capsys.readouterr().err) == (level != "off")


@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize("mode", [0o700, 0o2770])
def test_why_nothing_is_traced_is_told_once_a_user_and_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log").chmod(mode)
    heard = []
    for detail in ("no tracer (a)", "no tracer (b)", "foreign calls (a)", "no tracer (a)"):
        EventLog(tmp_path).emit(outcome(Reason.UNTRACED, detail=detail))  # each is another process
        heard.append(bool(capsys.readouterr().err))
    for detail in ("a.c may hold the time", "b.c may hold the time"):
        EventLog(tmp_path).emit(outcome(Reason.VOLATILE_INPUT, detail=detail))
        heard.append(bool(capsys.readouterr().err))
    assert heard == [True, False, True, False, True, False]
    assert len(list(read_log(tmp_path))) == 6
    EventLog(tmp_path, log="all").emit(outcome(Reason.UNTRACED, detail="no tracer (a)"))
    assert capsys.readouterr().err


@pytest.mark.usefixtures("no_logging")
def test_each_kind_of_fault_is_told_once_and_counted_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path)
    for fault in (Fault.STORE_FULL, Fault.STORE_FULL, Fault.IO_ERROR):
        log.note_fault(fault, "why")
    assert capsys.readouterr().err.count("\n") == 2
    reader = read_log(tmp_path)
    assert list(reader) == []
    assert reader.faults == log.faults == Counter({Fault.STORE_FULL: 2, Fault.IO_ERROR: 1})


def test_lines_go_to_the_logger_where_it_has_handlers(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handlers of its own: what a library gives the root logger is no reason to print other lines."""
    log = EventLog(tmp_path, log="all")
    monkeypatch.setattr(logging.getLogger("cachec"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("cachec"), "propagate", True)
    assert logging.getLogger("cachec").hasHandlers(), "pytest gives the root logger some"
    log.emit(outcome(Reason.FIRST_RUN))
    log.emit(outcome())
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["miss", "hit"]
    assert caplog.records == []
    monkeypatch.setattr(logging.getLogger("cachec"), "handlers", [caplog.handler])
    monkeypatch.setattr(logging.getLogger("cachec"), "propagate", False)
    log.emit(outcome(Reason.CODE_CHANGED, detail="helper f changed %s"))
    assert capsys.readouterr().err == ""
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cachec", logging.WARNING)
    assert record.getMessage() == "miss lower: code-changed: helper f changed %s (0.00 s)"


@pytest.mark.usefixtures("no_logging")
def test_control_characters_are_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    EventLog(tmp_path).emit(outcome(Reason.FILE_CHANGED, detail="a\x1b[2Jb\nc\udcff" + "y" * 1000))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "a\\x1b[2Jb; c\\udcff" in err
    assert len(err) < 550


@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize("how", ["none", "closed"])
def test_no_stderr_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", None if how == "none" else closed)
    log = EventLog(tmp_path)
    log.emit(outcome(Reason.FIRST_RUN))
    assert len(list(read_log(tmp_path))) == 1


def test_describe() -> None:
    hit = outcome(seconds=37e-6, saved=0.42)
    assert describe(hit) == "cachec: hit lower (37.0 µs, saved 0.42 s)"
    both = outcome(Reason.FIRST_RUN, seconds=0.002, fault=Fault.STORE_FULL)
    assert describe(both) == "cachec: miss lower: first-run (2.00 ms) [cache fault store-full]"
