"""The outcome log: one record for every call, and the line that says why a call missed.

Format, version 1: ``log/<YYYY-MM-DD>.jsonl`` in the store, one file a UTC day. A line is one JSON object of at most
``MAX_LINE`` bytes with its newline: either an outcome, ``{"reason", "stage", "key", ...}`` (the fields of
``model.Outcome``; absent ones have their defaults), or a fault of the cache itself, ``{"fault", "detail", "time"}``.
Each is appended by one ``write`` to an ``O_APPEND`` descriptor, which Linux does not interleave with another's on a
local file, so the log needs no lock. A reader skips and counts what it can't read.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from cachec.base import fsio
from cachec.base.append_file import Appender, create_once
from cachec.base.display_text import clean
from cachec.base.tracer_hiding import unseen
from cachec.model import MALFORMED_JSON, Fault, Outcome, Reason

#: Bytes in a record, its newline included: one page.
MAX_LINE = 4096

#: Characters of a line on the terminal.
_MAX_SHOWN = 500


_DAY = 86400

_FILE_NAME = r"(\d{4}-\d{2}-\d{2})\.jsonl"

#: Misses and faults are logged at the level that is shown by default (``logging.WARNING``), hits at ``INFO``.
_WARNING, _INFO = 30, 20


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something failed in the cache itself, at Unix time ``time``."""

    fault: Fault
    detail: str = ""
    time: float = 0.0


class EventLog:
    """Counts, records and tells outcomes. Safe to use from threads and across ``fork``; nothing here fails a call.

    counts: outcomes of this process by reason. faults: faults of the cache by kind. dropped: records that could not be
    written.
    """

    def __init__(
        self,
        dir: str | os.PathLike[str] | None,
        *,
        log: str = "miss",
        stats_file: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
        export: Callable[[Outcome], None] | None = None,
    ) -> None:
        """dir: the store, None where there is none. log: what is told: ``miss``, ``all`` or ``off``. stats_file: gets a
        copy of every record. export: is given every outcome too; when it has raised, no more."""
        self.counts: Counter[Reason] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.dropped = 0
        self._folder = None if dir is None else os.path.join(dir, "log")
        self._log = log
        self._stats_file = None if stats_file is None else os.fspath(stats_file)
        self._clock = clock
        self._export = export
        self._encode = msgspec.json.Encoder().encode
        self._day_begin = self._day_end = 0.0
        self._day_file: Appender | None = None
        self._copy: Appender | None = None
        self._pid = os.getpid()

    def tells(self, reason: Reason) -> bool:
        """Whether an outcome is reported: a miss and similar outcomes, or all outcomes."""
        return self._log == "all" or (self._log == "miss" and _is_news(reason))

    def emit(self, outcome: Outcome, *, is_reported: bool = True) -> None:
        """Count and record the outcome of a call; report it if it is a miss, or if all outcomes are reported.

        The record of an outcome whose ``time`` is 0 gets the time of now, and one without a ``pid`` that of this
        process. is_reported: False for what ``tell`` may be given later.
        """
        self.counts[outcome.reason] += 1
        now = self._clock()
        if not outcome.time or not outcome.pid:
            outcome = msgspec.structs.replace(outcome, time=outcome.time or now, pid=outcome.pid or os.getpid())
        with unseen():
            self._record(outcome, now, check_file=outcome.reason is not Reason.HIT)
        if self._export is not None:
            self._run_export(outcome, self._export)
        if is_reported or self._log == "all":
            self.tell(outcome)

    def _run_export(self, outcome: Outcome, export: Callable[[Outcome], None]) -> None:
        try:
            export(outcome)
        except Exception as error:  # noqa: BLE001 - of code of others, which no call is to fail for
            self._export = None
            if self._log != "off":
                self._tell(f"cachec: calls are exported no more: {type(error).__name__}: {error}", _WARNING)

    def tell(self, outcome: Outcome) -> None:
        """Report an outcome if the settings say so; nothing is counted or recorded."""
        hit = outcome.reason is Reason.HIT
        if outcome.reason in _REPORTED_ONCE and self.counts[outcome.reason] > 1 and self._log != "all":
            return
        if self._log == "all" or (not hit and self.tells(outcome.reason) and self._is_news_here(outcome)):
            self._tell(describe(outcome), _INFO if hit else _WARNING)

    def _is_news_here(self, outcome: Outcome) -> bool:
        """Whether this user has not heard the like before, in this store: a build has many commands."""
        if outcome.reason not in _REPORTED_ONCE_A_STORE or self._folder is None:
            return True
        kind = outcome.reason.value.partition(":")[2]
        # Behind the bracket stands what is this command's own; a file that may hold the time is such all the same.
        words = outcome.detail.partition(" (")[0] if outcome.reason is Reason.UNTRACED else ""
        try:
            return create_once(os.path.join(self._folder, f"{kind}-{os.geteuid()}-{zlib.crc32(words.encode()):08x}"))
        except OSError:
            return True

    def note_fault(self, fault: Fault, detail: str) -> None:
        """Count and record a fault of the cache itself. The first of each kind in a process is reported."""
        self.faults[fault] += 1
        now = self._clock()
        self._record(FaultRecord(fault=fault, detail=detail, time=now), now, check_file=True)
        if self._log == "all" or (self._log == "miss" and self.faults[fault] == 1):
            self._tell(f"cachec: cache fault {fault.value}: {detail}; going on without", _WARNING)

    def note_waiting(self, pid: int | None, seconds: float) -> None:
        """Tell that this call waits for another process to finish the same stage."""
        if self._log != "off":
            who = "another process" if pid is None else f"pid {pid}"
            self._tell(f"cachec: waiting for {who} ({seconds:.0f} s)", _WARNING)

    def note_running(self, words: str) -> None:
        """Tell that a stage still runs."""
        self._tell(words, _WARNING)

    def note_reproducer(self, words: str) -> None:
        """Report where the reproducer of a failed stage is, or why there is none."""
        if self._log != "off":
            self._tell(f"cachec: {words}", _WARNING)

    def _record(self, record: Outcome | FaultRecord, now: float, *, check_file: bool) -> None:
        """Append to the log of the day and to the copy. check_file: whether to look if the files are still in their
        place.
        """
        line = self._line(record)
        if self._pid != os.getpid():
            self._after_fork()
        if self._folder is not None:
            self._record_day(self._folder, line, now, check_file=check_file)
        if self._stats_file is not None:
            try:
                copy = self._copy
                if copy is None or (check_file and copy.is_replaced()):
                    copy = self._copy = Appender(self._stats_file)
                if not copy.append(line):
                    self.dropped += 1
                    self._copy = None
            except OSError:
                self.dropped += 1
                self._copy = None

    def _record_day(self, folder: str, line: bytes, now: float, *, check_file: bool) -> None:
        """Append a line to the log of the day."""
        try:
            file = self._day_file
            if file is None or not self._day_begin <= now < self._day_end or (check_file and file.is_replaced()):
                file = self._open_day(folder, now)
            if not file.append(line):
                self.dropped += 1
                self._day_file = None  # opening anew ends the torn line
        except OSError:
            self.dropped += 1
            self._day_file = None

    def _after_fork(self) -> None:
        for file in (self._day_file, self._copy):
            if file is not None:
                file.disown()
        self._day_file = self._copy = None
        self._pid = os.getpid()

    def _open_day(self, folder: str, now: float) -> Appender:
        begin = math.floor(now / _DAY) * _DAY
        path = os.path.join(folder, f"{_day(begin)}.jsonl")
        try:
            file = Appender(path)
        except FileNotFoundError:
            fsio.make_dir(folder)
            file = Appender(path)
        # The file last: a thread that sees the new bounds with the old file writes to yesterday's, which is harmless.
        self._day_begin, self._day_end = begin, begin + _DAY
        self._day_file = file
        return file

    def _line(self, record: Outcome | FaultRecord) -> bytes:
        try:
            line = inert(self._encode(record)) + b"\n"
        except UnicodeEncodeError:  # a path that is not UTF-8
            clean = {field: _printable(text) for field, text in _texts(record).items()}
            record = msgspec.structs.replace(record, **clean)
            line = inert(self._encode(record)) + b"\n"
        while len(line) > MAX_LINE:
            texts = _texts(record)
            longest = max(texts, key=lambda field: len(texts[field]))
            half = texts[longest][: len(texts[longest]) // 2]
            record = msgspec.structs.replace(record, **{longest: half + "…"})
            line = inert(self._encode(record)) + b"\n"
        return line

    def _tell(self, line: str, level: int) -> None:
        """To standard error, or to the logger ``cachec`` where that has handlers of its own. Those of the root logger,
        which any library sets up, would show other lines than the setting says."""
        shown = _printable(line)
        logging = sys.modules.get("logging")
        if logging is not None:
            logger = logging.getLogger("cachec")
            if logger.handlers:
                logger.log(level, "%s", shown.removeprefix("cachec: "))
                return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
            sys.stderr.write(shown + "\n")
            sys.stderr.flush()


def inert(line: bytes) -> bytes:
    """A line of JSON of which no shell expands and no terminal obeys anything, should it be given to one.

    Its strings hold all that could be: ``$`` and the backtick, which expand in double quotes too, and what JSON itself
    leaves as it is of control characters (DEL, C1) and marks that turn the direction of text.
    """
    if b"$" in line or b"`" in line or b"\x7f" in line:
        line = line.replace(b"$", b"\\u0024").replace(b"`", b"\\u0060").replace(b"\x7f", b"\\u007f")
    if line.isascii():
        return line
    return "".join(c if c.isprintable() else _escape_character(c) for c in line.decode()).encode()


def _escape_character(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _texts(record: Outcome | FaultRecord) -> dict[str, str]:
    if isinstance(record, FaultRecord):
        return {"detail": record.detail}
    return {"stage": record.stage, "key": record.key, "detail": record.detail}


#: Who asked for misses hears of these too: the call could have been stored.
_REPORTED_BYPASSES = frozenset(
    {
        *(Reason.INPUT_CHANGED, Reason.KEY_UNREADABLE, Reason.STALE_MEMO, Reason.UNNAMED_CODE, Reason.UNDESCRIBED),
        *(Reason.UNSUPPORTED_VERSION, Reason.NO_STORE_FOLDER, Reason.PROCESS_BOUND, Reason.UNRESOLVED_CODE),
        *(Reason.UNDECLARED_PROGRAM, Reason.UNSTORABLE, Reason.UNTRACED, Reason.NETWORK, Reason.VOLATILE_INPUT),
    }
)

#: The same for every call of a process, so each process reports it once.
_REPORTED_ONCE = frozenset({Reason.NO_STORE_FOLDER})

#: The same for many commands of a build, so each user of a store gets it once.
_REPORTED_ONCE_A_STORE = frozenset({Reason.UNTRACED, Reason.VOLATILE_INPUT})


def _is_news(reason: Reason) -> bool:
    """Whether a user who asked for misses is to hear of it. An error speaks for itself, ``mode off`` was asked for."""
    return reason.kind == "miss" or reason in _REPORTED_BYPASSES


def describe(outcome: Outcome) -> str:
    """``cachec: miss lower: option-changed: seq: 16 -> 32 (0.42 s)``."""
    reason = outcome.reason
    words = f"cachec: {reason.kind} {outcome.stage}"
    if not outcome.hit:
        words += f": {reason.value.partition(':')[2]}"
    if outcome.detail:
        words += f": {outcome.detail}"
    times = duration(outcome.seconds)
    if outcome.hit:
        times += f", saved {duration(outcome.saved)}"
    available = _MAX_SHOWN - len(times) - 40
    if len(words) > available:  # both ends are shown: a message starts with the thing and ends with the way out
        words = f"{words[: available // 2]}…{words[1 + available // 2 - available :]}"
    fault = f" [cache fault {outcome.fault.value}]" if outcome.fault is not None else ""
    return f"{words} ({times}){fault}"


def duration(value: float) -> str:
    """A time for a person: ``0.42 s``, ``75.0 µs``."""
    if abs(value) >= 0.005 or not value:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if abs(value) >= 0.0005 else f"{value * 1e6:.1f} µs"


def _printable(text: str) -> str:
    """One line without control characters: names come from checkpoints, which may carry terminal escapes."""
    return text if text.isprintable() else clean(re.sub(r"\s*\n\s*", "; ", text))


def _day(begin: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(begin))


#: Bytes of a line at most.
_PIECE = 1 << 16


class LogReader(Iterator[Outcome]):
    """The outcomes of a store's log, oldest day first. What can't be read is skipped and counted.

    damaged: lines that are no record. faults: faults of the cache met so far, by kind; those that an outcome carries
    were noted by themselves too, so they are not counted again.
    """

    def __init__(
        self, dir: str | os.PathLike[str], since: float | None = None, *, file: str | os.PathLike[str] | None = None
    ) -> None:
        """file: read this one alone, a ``stats_file``."""
        self.damaged = 0
        self.faults: Counter[Fault] = Counter()
        self._dir = dir
        self._file = None if file is None else os.fspath(file)
        self._since = since
        self._outcomes = self._run()

    def __next__(self) -> Outcome:
        return next(self._outcomes)

    def _run(self) -> Iterator[Outcome]:
        as_outcome = msgspec.json.Decoder(Outcome).decode
        as_fault = msgspec.json.Decoder(FaultRecord).decode
        since = self._since if self._since is not None else -math.inf
        for line in self._lines():
            try:
                outcome = as_outcome(line)
            except MALFORMED_JSON:
                pass  # a fault, or damage
            else:
                if outcome.time >= since:
                    yield outcome
                continue
            try:
                record = as_fault(line)
            except MALFORMED_JSON:
                self.damaged += 1
            else:
                if record.time >= since:
                    self.faults[record.fault] += 1

    def _lines(self) -> Iterator[bytes]:
        for path in self._files():
            try:
                with open(fsio.open_read(path), "rb") as file:
                    # A bounded read: garbage without a newline must not fill the memory.
                    while line := file.readline(_PIECE):
                        if line.strip():
                            yield line
                        if len(line) == _PIECE and not line.strip(b"\0"):  # a hole, which may have no end
                            file.seek(os.lseek(file.fileno(), file.tell(), os.SEEK_DATA))
            except OSError:  # removed meanwhile, or not ours to read, or nothing follows a hole
                self.damaged += 1

    def _files(self) -> list[str]:
        if self._file is not None:
            return [self._file] if os.path.exists(self._file) else []
        return day_files(self._dir, self._since)


def day_files(dir: str | os.PathLike[str], since: float | None = None) -> list[str]:
    """The files of a store's log that may have records since a Unix time, the oldest first."""
    folder = os.path.join(dir, "log")
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    first = "" if since is None else _day(max(since, 0.0))
    days = sorted(match[1] for name in names if (match := re.fullmatch(_FILE_NAME, name)) and match[1] >= first)
    return [os.path.join(folder, f"{day}.jsonl") for day in days]


def outcome_of(line: bytes) -> Outcome | None:
    """The call that a line of the log records; None for any other line."""
    try:
        return msgspec.json.decode(line, type=Outcome)
    except MALFORMED_JSON:
        return None


def read_log(dir: str | os.PathLike[str], since: float | None = None) -> LogReader:
    """Return the outcomes in a store's log since a Unix time (all, if None); none without a log."""
    return LogReader(dir, since)


def read_outcomes(stats_file: str | os.PathLike[str], since: float | None = None) -> LogReader:
    """Return the outcomes in a ``stats_file``, in the order of their writing; none without such a file."""
    return LogReader("", since, file=stats_file)
