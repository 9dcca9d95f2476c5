"""``cachec doctor``: what is wrong with the store, the settings or this machine, and what to do about it."""

from __future__ import annotations

import time
from typing import Any

import click

from cachec import report
from cachec.base.texts import number_of, to_type
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_wrapped, wants_json


@click.command("doctor")
@click.option(
    "--fix", is_flag=True, help="Say what is changed, and do it: what is safe, or cachec would soon do itself."
)
@json_option
@pass_session
def command(session: Session, fix: bool) -> None:
    """Say what is wrong with the store, its settings or this machine, and what to do about it.

    Looked at are: who owns and can write the store, its file system and disk, the index, what killed processes have
    left, weights, settings, the clock, inotify, and the releases of compilers, with what their self-tests said. What it
    says of the platform tells why two machines do not share results: all of it is in each key.

    \b
    Examples:
      cachec doctor
      cachec doctor --fix
      cachec doctor --json > doctor.json       for a report of a bug; it names paths of yours

    \b
    JSON: {"dir", "findings": [{"check", "words", "fix", "safe", "does"}], "planned", "fixed": [as findings],
           "facts": {"disk", "index", "cachec", "python", "compilers", "platform", "inotify"}}
    safe: whether --fix does it; does: what that changes; planned: the findings that --fix repairs. Exit code: 0 nothing
    is wrong, or no more, 1 something is, 2 it can't be looked at.
    """
    from cachec.doctor import examine
    from cachec.doctor.case import Case
    from cachec.doctor.examination import repair
    from cachec.store.store import Store

    if session.settings.shared == "trusted" and session.settings.dir.is_dir():
        store = Store(session.settings.dir, session.settings.namespace, on_fault=session.note_fault)
        store.record_agreement()
    found = examine(Case(session.settings))
    fixed: list[Any] = []
    planned = [_plain(finding) for finding in found.findings if finding.repair is not None]
    if fix and planned:
        if not wants_json():
            _print_plan(planned)
        done = repair(found.findings)
        for finding, why in done:
            if why:
                click.echo(f"cachec: {finding.check} could not be fixed: {clean(why)}", err=True)
        found = examine(Case(session.settings))
        left = {(each.check, each.words) for each in found.findings}
        fixed = [finding for finding, why in done if not why and (finding.check, finding.words) not in left]
    document = {
        "dir": str(session.settings.dir),
        "findings": [_plain(each) for each in found.findings],
        "planned": planned,
        "fixed": [_plain(each) for each in fixed],
        "facts": found.facts,
    }
    if not print_as_json(document):
        _tell(document)
    if found.findings:
        click.get_current_context().exit(1)


def _plain(finding: Any) -> dict[str, Any]:
    return {
        "check": finding.check,
        "words": finding.words,
        "fix": finding.fix,
        "safe": finding.repair is not None,
        "does": finding.does if finding.repair is not None else "",
    }


def _print_plan(planned: list[dict[str, Any]]) -> None:
    """Say what ``--fix`` is about to change."""
    for each in planned:
        print_wrapped(f"to fix {each['check']}: {each['does']}", indent=0)
    click.echo()


def _tell(document: dict[str, Any]) -> None:
    for line in facts_lines(document["dir"], document["facts"]):
        print_wrapped(line, indent=0)
    click.echo()
    for each in document["fixed"]:
        print_wrapped(f"fixed: {each['words']}", indent=0)
    for each in document["findings"]:
        print_wrapped(f"{each['check']}: {each['words']}", indent=0)
        if each["safe"]:
            print_wrapped(f"{to_type('doctor --fix')} will {each['does']}; or: {each['fix']}", indent=4)
        else:
            print_wrapped(each["fix"], indent=4)
    count = len(document["findings"])
    click.echo("nothing is wrong" if not count else number_of(count, "finding"))


def facts_lines(folder: str, facts: dict[str, Any]) -> list[str]:
    """What there is, for a person: a line each."""
    disk, index, platform = facts["disk"], facts["index"], facts["platform"]
    size = "" if disk["size"] is None else f", {report.size(disk['size'])} of artifacts"
    limit = "" if disk["limit"] is None else f", limit {report.size(disk['limit'])}"
    reflink = {True: ", shares blocks", False: ", copies bytes", None: ""}[disk["reflink"]]
    compilers = {name: each for name, each in facts["compilers"].items() if each["version"]}
    installed = [f"{name} {each['version']} ({each['tried']})" for name, each in compilers.items()]
    passed = [
        f"{name} {each['version']} passed on {time.strftime('%Y-%m-%d', time.localtime(each['self_test']['time']))}"
        for name, each in compilers.items()
        if "self_test" in each and not each["self_test"]["failure"]
    ]
    told = f"{platform['machine']}, {platform['system']}, {platform['libc']}, {platform['python']} {platform['abi']}"
    features = f"{len(platform['cpu'])} features of {platform['processor'] or 'an unknown processor'}"
    unread = "" if index["whole"] else ", not read in full"
    others = f" (also {', '.join(map(str, index['others']))})" if index["others"] else ""
    records = f", records {index['version']}{others}"
    return [
        f"store      {folder}{size}{limit}",
        f"disk       {disk['kind']}{reflink}, {report.size(disk['free'])} free",
        f"index      SQLite {index['sqlite']}, {report.size(index['size'])}{unread}{records}",
        f"cachec     {facts['cachec']}, Python {facts['python']['version']}",
        f"compilers  {', '.join(installed) or 'none that a plugin knows'}",
        *([f"self-tests {', '.join(passed)}"] if passed else []),
        f"platform   {platform['digest'][:12]}: {told}; {features}",
        f"inotify    {facts['inotify']['instances']} instances, {facts['inotify']['watches']} watches",
    ]
