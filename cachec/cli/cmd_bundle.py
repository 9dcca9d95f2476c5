"""``cachec bundle``: entries, artifacts and weights as one file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from cachec import config, report
from cachec.base.display_text import number_of
from cachec.cli.selectors import selector_options
from cachec.cli.session import (
    LazyGroup,
    Session,
    check_output,
    json_option,
    pass_session,
    print_as_json,
    print_table,
    print_wrapped,
)
from cachec.errors import UsageError

if TYPE_CHECKING:
    from cachec.bundle import BundleReader
    from cachec.maintain.selector import Selector

trust_option = click.option(
    "--trust",
    "trust",
    multiple=True,
    metavar="KEY",
    help="Refuse what is not signed by this public key, or file of one.",
)


@click.group("bundle", cls=LazyGroup, homes={"create": "", "add": "", "show": ""})
def command() -> None:
    """Entries, their artifacts and weights as one file, for another folder, user or machine.

    A bundle is a tar that is checked in full, to its last byte, before anything of it is stored. One content of a store
    has one bundle. Whoever makes a bundle decides what hits: add what you have made, or what is signed by whom you
    trust.

    \b
    Examples:
      cachec bundle create -o warm.cachec
      cachec bundle show warm.cachec
      cachec bundle add warm.cachec

    Every one of them has --json; its help shows the JSON. Exit codes: 0 done, 1 nothing to put in, 2 wrong use, an
    error, or a bundle that is refused.
    """


@command.command("create")
@click.option(
    "-o", "--output", "path", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="The bundle."
)
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@selector_options
@click.option("--with-weights", "names", multiple=True, metavar="NAME", help="Owned weights that come along.")
@click.option("--max-size", metavar="SIZE", help="Such as 2GiB; what saves least seconds a byte is left out.")
@click.option("--sign", metavar="FILE", help="Sign it with the secret key in this file (cachec remote keygen).")
@json_option
@pass_session
def create(
    session: Session, selector: Selector, path: str, names: tuple[str, ...], max_size: str | None, sign: str | None
) -> None:
    """Write the entries that a selector means, or all, to FILE, with everything that they need.

    The store may be one that can't be written. FILE is readable by you alone, for it holds what your stages returned.

    \b
    Examples:
      cachec bundle create -o warm.cachec
      cachec bundle create -o release.cachec --tag release --with-weights llama/tuned
      cachec bundle create -o warm.cachec --stage lower --newer-than 7d --max-size 2GiB --json
      cachec bundle create -o warm.cachec --sign release.key

    \b
    JSON: {"path", "entries", "objects", "weights", "left_out", "unusable", "size", "signer"}
    left_out: entries that did not fit; unusable: those whose artifacts are damaged or gone; size is bytes of FILE;
    signer: the public key, or empty. Exit code 1: there is nothing to put in.
    """
    from cachec import bundle
    from cachec.remote.keys import Signer, from_file

    check_output(path, "-o", {"--sign": sign})
    signer = None if sign is None else Signer(from_file(sign, "--sign"), f"--sign {sign}")
    keys = [item.entry.key for item in session.maintainer.find(selector) if item.entry.traces]
    if not keys and not names:
        session.fail(
            f"no entries that this selector means in {session.settings.dir}{session.if_none}; no bundle is made"
        )
    made = bundle.create(session.store, keys, path, weights=names, max_size=_limit(max_size), signer=signer)
    public = "" if signer is None else signer.public
    if print_as_json({"path": path, **made._asdict(), "signer": public}):
        return
    words = f"{path}: {number_of(made.entries, 'entry')}, {number_of(made.weights, 'revision')} of weights, "
    print_wrapped(f"{words}{number_of(made.objects, 'object')}, {report.size(made.size)}", indent=0)
    if made.left_out:
        print_wrapped(f"{number_of(made.left_out, 'entry')} left out by the limit", indent=0)
    if made.unusable:
        print_wrapped(f"{number_of(made.unusable, 'entry')} left out: artifacts are damaged or gone", indent=0)


@command.command("add")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@trust_option
@click.option("--replace", is_flag=True, help="Let names of weights that are taken stand for those of FILE.")
@json_option
@pass_session
def add(session: Session, path: str, trust: tuple[str, ...], replace: bool) -> None:
    """Add what is in FILE to the store, which then hits as the one that it was made of.

    All of it is checked before any of it is stored. What the store has already stays as it is.

    \b
    Examples:
      cachec bundle add warm.cachec
      cachec --dir /opt/cachec bundle add warm.cachec     in the build of a container image
      cachec bundle add warm.cachec --trust release.key.pub --json

    \b
    JSON: {"path", "entries", "objects", "weights", "signer"}
    objects: those that were not there yet; signer: the public key, or empty.
    """
    from cachec import bundle

    added = bundle.add(session.store, path, trusted=_trusted_keys(trust), replace=replace)
    session.store.settle()
    if print_as_json({"path": path, **added._asdict()}):
        return
    words = (
        f"{number_of(added.entries, 'entry')} and {number_of(added.weights, 'revision')} of weights added from {path}"
    )
    print_wrapped(f"{words}, {number_of(added.objects, 'object')} new", indent=0)


@command.command("show")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@trust_option
@json_option
@pass_session
def show(session: Session, path: str, trust: tuple[str, ...]) -> None:
    """Check all of FILE, and say what is in it. Nothing is stored.

    \b
    Examples:
      cachec bundle show warm.cachec
      cachec bundle show warm.cachec --trust release.key.pub --json

    \b
    JSON: {"path", "size", "signer", "is_checked", "objects", "entries": [{"key", "stage", "tags", "created", "traces",
           "size", "seconds"}], "weights": [{"revision", "names", "weights", "size"}]}
    is_checked: whether the signature was looked at, which needs the package cryptography.
    """
    from cachec.bundle import BundleReader
    from cachec.bundle.transfer import for_each

    del session
    with BundleReader(path, _trusted_keys(trust)) as reader:
        for_each(lambda member, _: reader.check_object(member), reader.plan.objects)
        details = _details(reader)
    if not print_as_json(details):
        _print(details)


def _trusted_keys(given: tuple[str, ...]) -> tuple[str, ...]:
    from cachec.remote.keys import public_key

    return tuple(public_key(each, "--trust") for each in given)


def _details(reader: BundleReader) -> dict[str, Any]:
    weights = [
        {
            "revision": revision,
            "names": names,
            "weights": len(details_held.record.owned),
            "size": sum(r.size for r in details_held.refs),
        }
        for revision, (names, details_held) in reader.weights.items()
    ]
    return {
        "path": reader.path,
        "size": reader.plan.size,
        "signer": reader.table.signer,
        "is_checked": reader.is_checked,
        "objects": len(reader.plan.objects),
        "entries": [report.entry_summary(entry) for entry in reader.entries],
        "weights": weights,
    }


def _print(details: dict[str, Any]) -> None:
    whole = f"{details['path']} is whole: {number_of(len(details['entries']), 'entry')}, "
    print_wrapped(f"{whole}{number_of(details['objects'], 'object')}, {report.size(details['size'])}", indent=0)
    by = f"signed by {details['signer']}" if details["signer"] else "not signed"
    note = "" if details["is_checked"] or not details["signer"] else ", not looked at (pip install 'cachec[sign]')"
    print_wrapped(by + note, indent=0)
    stages = Counter[str]()
    sizes = Counter[str]()
    for entry in details["entries"]:
        stages[entry["stage"]] += 1
        sizes[entry["stage"]] += entry["size"]
    if stages:
        click.echo()
        rows = [(stage, str(count), report.size(sizes[stage])) for stage, count in stages.most_common()]
        print_table(("stage", "entries", "size"), rows, right=("entries", "size"))
    if details["weights"]:
        click.echo()
        named = [
            (", ".join(each["names"]), each["revision"][:12], str(each["weights"]), report.size(each["size"]))
            for each in details["weights"]
        ]
        print_table(("name", "revision", "weights", "size"), named, right=("weights", "size"))


def _limit(text: str | None) -> int:
    try:
        return 0 if text is None else config.parse_size(text)
    except ValueError:
        raise UsageError(f"--max-size {text!r}: give a number of bytes, or a size such as 500MB or 2GiB") from None
