"""``cachec invalidate``: forget entries."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from cachec import report
from cachec.base.display_text import SHOWN_KEY, number_of
from cachec.cli.selectors import selector_options
from cachec.cli.session import (
    Session,
    clean,
    json_option,
    pass_session,
    print_as_json,
    print_table,
    print_wrapped,
    wants_json,
)
from cachec.errors import StoreFault, UsageError
from cachec.maintain.plans import InvalidationPlan, PlanResult
from cachec.maintain.selector import Selector
from cachec.model import Entry, Fault

#: Entries of a plan that are listed.
_LISTED = 20


@click.command("invalidate")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@selector_options
@click.option("--pinned", is_flag=True, help="Pinned entries too, which stay otherwise.")
@click.option("--remote", "remotely", is_flag=True, help="In the remotes that are written, too.")
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, and forget nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def command(session: Session, selector: Selector, pinned: bool, remotely: bool, dry_run: bool, yes: bool) -> None:
    """Forget entries, so that their next call misses. Their files stay until `cachec gc`.

    Entries are chosen by key or by what is known of them; everything that is given must hold, of several KEYs and of
    several --stage one. The plan is shown before anything is done. Keys that are typed are not asked about.

    Nothing is removed where one of the keys is malformed or ambiguous.

    Other machines may still fetch what was sent to a remote, unless --remote removes it there. What they have stays.

    \b
    Examples:
      cachec invalidate 3fa9c2
      cachec invalidate --stage lower --older-than 30d --dry-run
      cachec invalidate --tool "iree-base-compiler==3.12*" --yes
      cachec invalidate --option target=cuda --weight "decoder.*"
      cachec invalidate --stale
      cachec invalidate --stage lower --remote --yes
      cachec ls --json --tag nightly | cachec invalidate --stdin --yes --json

    \b
    JSON: {"dry_run", "removed": [{"key", "stage"}], "not_found": [key as given], "pinned": [key], "changed": [key],
           "entries", "size", "seconds", "unmatched": [{"option", "given", "near": [text]}],
           "remote": {"removed", "left", "left_at": {URL: count}, "faults": {fault: text}} with --remote}
    stage is empty where the row was damaged. With --dry-run, removed says what would be. pinned and changed stay: the
    one are pinned, the other were made anew meanwhile. size is the bytes on disk that no other entry needs, seconds the
    time that compiling it all again takes. left: runs that may still be at a remote, as it is only read or did not
    remove them; with --dry-run no remote is asked. unmatched: where nothing is meant, what no entry has at all, and
    what comes near to it. Exit code 1: one of the keys was not found, something is unmatched, or a remote has left what
    it had.
    """
    if selector.is_empty:
        raise UsageError(
            "nothing says which entries: give a KEY, or an option such as --stage, --stale or --older-than"
        )
    if remotely and not session.settings.remote:
        raise UsageError("no remote is configured; set CACHEC_REMOTE (see docs/reference/remotes.md)")
    whole = {key: _whole(session, key) for key in selector.keys}
    only_keys = selector == Selector(keys=selector.keys)
    # A beginning that no key has goes into the plan as it is: it means none.
    plan = session.maintainer.plan(
        msgspec.structs.replace(selector, keys=tuple(meant or key for key, meant in whole.items())), force=pinned
    )
    missing = [key for key, meant in whole.items() if meant not in plan.known]
    strange = [] if plan.chosen or plan.pinned or only_keys else session.maintainer.unmatched(selector)
    if not wants_json() and (not only_keys or dry_run) and (plan.known or not selector.keys):
        _show(plan, selector.stale)
    done = PlanResult((), (), ())
    chosen = _entries_here(session, plan) if remotely and not dry_run else []
    if plan.chosen and not dry_run:
        if not (yes or only_keys):
            _ask(len(plan))
        done = plan.apply()
    gone = frozenset(done.removed)
    removed = [(each.key, each.stage) for each in plan.chosen if dry_run or each.key in gone]
    document = {**_document(plan, done, removed, missing, dry_run), "unmatched": [each.plain() for each in strange]}
    there: _There | None = None
    if remotely:
        there = _forgotten_there(session, [entry for entry in chosen if entry.key in gone])
        document["remote"] = {
            "removed": there.removed,
            "left": there.remaining.total(),
            "left_at": dict(there.remaining),
            "faults": there.faults,
        }
    if not print_as_json(document):
        if not dry_run:
            _tell(removed, plan, done, short=not only_keys)
        if there is not None:
            _tell_there(there, dry_run)
    for fault, detail in there.faults.items() if there is not None else ():
        click.echo(f"cachec: {fault}: {clean(detail)}", err=True)
    for each in strange:
        click.echo(f"cachec: {clean(each.words)}{session.if_none}", err=True)
    if strange or (there is not None and there.remaining):
        click.get_current_context().exit(1)
    if missing:
        session.fail(f"no entry has a key that begins with {', '.join(missing)}")


def _whole(session: Session, key: str) -> str:
    """Return the whole key of a prefix; empty for an unknown one. Raises CachecError for an ambiguous one."""
    if len(key) == 64:
        return key.lower()
    entries = session.matches(key)
    return entries[0].key if entries else ""


def _entries_here(session: Session, plan: InvalidationPlan) -> list[Entry]:
    """The entries of a plan, but for damaged ones."""
    entries = []
    for each in plan.chosen:
        with contextlib.suppress(StoreFault):
            entries.append(session.store.lookup(each.key))
    return [entry for entry in entries if entry is not None]


class _There(NamedTuple):
    """What came of having remotes forget."""

    removed: int
    remaining: Counter[str]
    faults: dict[str, str]
    #: With ``read_only``: their URLs, as they are shown.
    written: list[str]
    read_only: list[str]


def _forgotten_there(session: Session, entries: Sequence[Entry]) -> _There:
    """What came of having remotes forget these entries."""
    from cachec.remote.chain import Remotes

    outcomes: dict[str, str] = {}

    def on_fault(fault: Fault, detail: str) -> None:
        outcomes.setdefault(fault.value, detail)

    remotes = Remotes(session.settings.remote, session.store, on_fault)
    try:
        counts = [remotes.forget(entry) for entry in entries]
        written = [remote.address.shown for remote in remotes.all if remote.address.is_written]
        read_only = remotes.read_only()
    finally:
        remotes.close()
    remaining = sum((remaining for _, remaining in counts), Counter[str]())
    return _There(sum(one for one, _ in counts), remaining, outcomes, written, read_only)


def _tell_there(there: _There, dry_run: bool) -> None:
    if dry_run:
        if there.written:
            print_wrapped(clean(f"would be removed from {', '.join(there.written)}, too"), indent=0)
        for url in there.read_only:
            print_wrapped(clean(f"what {url} has would stay there: it is only read"), indent=0)
        return
    if there.written:
        click.echo(f"removed {there.removed:,} from remotes" + ("" if there.remaining else ", none is left there"))
    for url, count in there.remaining.items():
        why = ", which is only read" if url in there.read_only else ""
        print_wrapped(clean(f"{count:,} may still be at {url}{why}"), indent=0)


def _ask(count: int) -> None:
    if wants_json() or not sys.stdin.isatty():
        raise UsageError("nobody can be asked here; give --yes to forget these entries, or --dry-run to look only")
    click.confirm(f"forget {number_of(count, 'entry')}?", abort=True, err=True)


def _show(plan: InvalidationPlan, stale: bool) -> None:
    now = time.time()
    listed = sorted(plan.chosen, key=lambda each: -each.seconds)[:_LISTED]
    rows = [
        (
            each.key[:SHOWN_KEY],
            each.stage or "(damaged)",
            report.age(each.created, now),
            report.size(each.size),
            report.period(each.seconds),
            *((each.why,) if stale else ()),
        )
        for each in listed
    ]
    if rows:
        columns = ("key", "stage", "created", "size", "took", *(("why",) if stale else ()))
        print_table(columns, rows, right=("size", "took"), tells="stage", detail="why" if stale else "")
    if len(plan) > len(rows):
        click.echo(f"and {len(plan) - len(rows):,} more")
    print_wrapped(
        f"{number_of(len(plan), 'entry')}; {report.size(plan.nbytes)} that no other entry needs; "
        f"{report.period(plan.seconds)} to compile again",
        indent=0,
    )
    if plan.pinned:
        print_wrapped(
            f"{number_of(len(plan.pinned), 'entry')} pinned, left as they are (--pinned takes them too)", indent=0
        )


def _tell(removed: Sequence[tuple[str, str]], plan: InvalidationPlan, done: PlanResult, *, short: bool) -> None:
    if short:
        click.echo(f"removed {number_of(len(removed), 'entry')}")
    else:
        for key, stage in removed:
            click.echo(f"removed {key[:SHOWN_KEY]} ({clean(stage) or 'its row was damaged'})")
        for key in plan.pinned:
            click.echo(f"left {key[:SHOWN_KEY]}: it is pinned (--pinned takes it too)")
    for key in (*done.changed, *done.pinned):
        click.echo(f"left {key[:SHOWN_KEY]}: it was made anew, pinned or removed meanwhile")


def _document(
    plan: InvalidationPlan, done: PlanResult, removed: Sequence[tuple[str, str]], missing: Sequence[str], dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [{"key": key, "stage": stage} for key, stage in removed],
        "not_found": list(missing),
        "pinned": [*plan.pinned, *done.pinned],
        "changed": list(done.changed),
        "entries": len(removed),
        "size": plan.nbytes,
        "seconds": plan.seconds,
    }
