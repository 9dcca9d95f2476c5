"""``cachec log``: the calls one by one, as they are recorded, and as a trace."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable

import click

from cachec import report
from cachec.base.display_text import key_prefix, nearest, number_of
from cachec.cli.cmd_stats import parse_since
from cachec.cli.screen import cut, width
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, wants_json, write_file
from cachec.events import read_log, read_outcomes
from cachec.maintain.selector import is_stage
from cachec.model import Outcome, Reason

#: Seconds between two reads of a log that is followed, and the number of earlier calls that are shown.
_PAUSE, _BEFORE = 0.5, 10

#: Seconds for which the time of day says when a call was.
_DAY = 72000.0


def _words_of(reason: Reason) -> set[str]:
    """By which a reason is asked for: ``miss``, ``changed``, ``option-changed``."""
    return {reason.kind, reason.cause, reason.value.partition(":")[2]} - {""}


_WORDS: dict[str, set[Reason]] = {}
for _each in Reason:
    for _word in _words_of(_each):
        _WORDS.setdefault(_word, set()).add(_each)


def _reasons(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> frozenset[Reason]:
    """What the words mean, each of them or all of ``miss:option-changed``; empty for none. Raises BadParameter."""
    meant: set[Reason] = set()
    for word in words:
        known = _WORDS.get(word.rpartition(":")[2])
        if known is None:
            near = nearest(word, _WORDS)
            hint = f"; did you mean {near}?" if near else ": give hit, miss, new, changed, lost, or a reason of `stats`"
            raise click.BadParameter(f"no call ends as {word!r}{hint}")
        meant |= known
    return frozenset(meant)


@click.command("log")
@click.option("-f", "--follow", is_flag=True, help="Go on, and show calls as they end.")
@click.option(
    "-n", "--last", type=click.IntRange(min=0), metavar="COUNT", help="The newest ones; with -f, of those before, 10."
)
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Of this stage: its name, or the end of it.")
@click.option(
    "--outcome",
    "reasons",
    multiple=True,
    metavar="WORD",
    callback=_reasons,
    help="That ended so: hit, miss, bypass, error; new, changed, lost; or a reason, such as option-changed.",
)
@click.option("--key", metavar="KEY", help="Of this key, which may be cut.")
@click.option("--since", metavar="WHEN", help="Since then: 30m, 24h, 7d, or a date such as 2026-01-31.")
@click.option("--build", is_flag=True, help="Of the last build: what had no minute without a call in it.")
@click.option("--stats-file", "file", metavar="FILE", help="In this file, which CACHEC_STATS_FILE named.")
@click.option(
    "--trace", metavar="FILE", help="Write them as a trace, which Perfetto and chrome://tracing open; - for stdout."
)
@json_option
@pass_session
def command(
    session: Session,
    follow: bool,
    last: int | None,
    stages: tuple[str, ...],
    reasons: frozenset[Reason],
    key: str | None,
    since: str | None,
    build: bool,
    file: str | None,
    trace: str | None,
) -> None:
    """Show the calls one by one, oldest first: when each ended, how, how long it took, and why it was no hit.

    Of several --stage one must hold, and of several --outcome; everything else that is given must hold too.

    \b
    Examples:
      cachec log -n 20
      cachec log -f --outcome miss
      cachec log --since 24h --stage lower --outcome changed --json
      cachec log --build --trace build.json    then open it in https://ui.perfetto.dev

    \b
    JSON: {"dir" or "file", "calls": [{"time", "stage", "reason", "seconds", "saved", "stored", "key", "detail",
           "fault", "pid"}]}; with -f one such call a line.
    time is Unix time of the end, saved seconds that the stage took when it was stored, fault null or what failed in the
    cache meanwhile, pid 0 where it was not recorded. With --trace: {"trace": FILE, "calls": how many}.
    """
    if follow and (trace or build or file):
        raise click.UsageError("-f shows what is still to come; --trace, --build and --stats-file are about what was")
    if file is not None and not os.path.isfile(file):
        raise click.BadParameter(f"{file!r} is not there", param_hint="--stats-file")
    start = None if since is None else parse_since(since, time.time())
    fits = _filter(stages, reasons, None if key is None else key_prefix(key))
    if follow:
        _follow(session, start, fits, _BEFORE if last is None else last)
        return
    log: Iterable[Outcome] = read_log(session.settings.dir, start) if file is None else read_outcomes(file, start)
    if build:
        log = report.last_build(log)
    calls = deque(filter(fits, log), maxlen=last)
    if trace is not None:
        _write_trace(trace, calls)
        return
    where = {"dir": str(session.settings.dir)} if file is None else {"file": file}
    if print_as_json({**where, "calls": [report.call_details(each) for each in calls]}):
        return
    if not calls:
        asked = any((stages, reasons, key, since, build, last == 0))
        click.echo(f"no calls {'that fit ' if asked else ''}are recorded in {clean(file or str(session.settings.dir))}")
    for each in calls:
        click.echo(_line(each))


def _filter(stages: tuple[str, ...], reasons: frozenset[Reason], key: str | None) -> Callable[[Outcome], bool]:
    def fits(outcome: Outcome) -> bool:
        if (reasons and outcome.reason not in reasons) or (key is not None and not outcome.key.startswith(key)):
            return False
        return not stages or any(is_stage(outcome.stage, name) for name in stages)

    return fits


def _follow(session: Session, start: float | None, fits: Callable[[Outcome], bool], before: int) -> None:
    """Follow the log until the user ends it."""
    import msgspec

    from cachec.views.tail import Follower

    follower = Follower(session.settings.dir, start)
    calls: Iterable[Outcome] = deque(filter(fits, follower.new()), maxlen=before)
    try:
        while True:
            for each in calls:
                line = msgspec.json.encode(report.call_details(each)).decode() if wants_json() else _line(each)
                click.echo(line)
            time.sleep(_PAUSE)
            calls = filter(fits, follower.new())
    except KeyboardInterrupt:
        return


def _line(outcome: Outcome) -> str:
    words = f"{outcome.stage}: {outcome.detail}" if outcome.detail else outcome.stage
    took = f"saved {report.period(outcome.saved)}" if outcome.hit else report.period(outcome.seconds)
    ended = outcome.reason.value.rpartition(":")[2]
    line = f"{_when(outcome.time):<11}  {ended:<16} {took:>11}  {clean(words)}"
    return cut(line, 0) if width() is not None else line


def _when(moment: float) -> str:
    is_near = abs(time.time() - moment) < _DAY
    try:
        return time.strftime("%H:%M:%S" if is_near else "%m-%d %H:%M", time.localtime(moment))
    except (OverflowError, ValueError, OSError):  # a damaged log, or a clock that was wrong
        return "?"


def _write_trace(path: str, calls: Iterable[Outcome]) -> None:
    import msgspec

    from cachec.views.trace import trace

    document = trace(calls)
    if path == "-":
        click.echo(msgspec.json.encode(document).decode())
        return
    write_file(path, msgspec.json.encode(document))
    count = sum(event["ph"] == "X" for event in document["traceEvents"])
    if not print_as_json({"trace": path, "calls": count}):
        click.echo(f"{number_of(count, 'call')}: {clean(path)}")
