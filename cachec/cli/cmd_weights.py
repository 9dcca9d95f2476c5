"""``cachec weights``: the weights that the store owns or knows, and files of weights."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY, is_url, number_of, to_type
from cachec.cli import weight_sources as sources
from cachec.cli.meter import Meter, throughput
from cachec.cli.session import LazyGroup, Session, json_option, pass_session, print_as_json, print_table
from cachec.cli.weight_sources import SHOWN_REVISION, say
from cachec.errors import UsageError

#: More weights than these are shown by kind, and so many kinds of them: both fit a screen of 24 lines.
_SHOWN_WEIGHTS = 20
_SHOWN_KINDS = 16

#: Subcommand -> where it is, in the order of the help; "" for those below.
_COMMANDS = {
    "add": "",
    "ls": "",
    "show": "",
    "diff": "cachec.cli.cmd_weights_diff:diff",
    "verify": "",
    "export": "cachec.cli.cmd_weights_files:export",
    "shard": "cachec.cli.cmd_weights_files:shard",
    "push": "cachec.cli.cmd_weights_remote:push",
    "pull": "cachec.cli.cmd_weights_remote:pull",
    "rm": "",
}


@click.group("weights", cls=LazyGroup, homes=_COMMANDS)
def command() -> None:
    """Keep, look at, compare and write weights, without loading them.

    Weights are named in the store, or are a checkpoint: a file (safetensors, GGUF, IRPA, ONNX, .npy, .npz, TVM, .pt),
    an index, or a folder. A revision may be cut to its first 4 digits or more. What begins with . or / is a path;
    anything else is a name in the store, if there is one, and a path otherwise.

    \b
    Examples:
      cachec weights add model.safetensors base            note where it is; nothing is copied
      cachec weights add tuned/ tuned --own                copy what the store does not have yet
      cachec weights diff base tuned                       by digest where both are owned
      cachec weights diff --fit base tuned/                would it run with what was compiled for base?
      cachec weights export tuned out.irpa
      cachec weights push tuned                            to the remotes: the tensors that they do not have
      cachec weights rm tuned

    Every one of them has --json; its help shows the JSON. Exit codes: 0 done (diff: equal), 1 not found (diff:
    different, verify: damaged), 2 wrong use or an error.
    """


@command.command("add")
@click.argument("source")
@click.argument("name", required=False)
@click.option("--own", is_flag=True, help="Copy the bytes into the store, each tensor once. A URL is always owned.")
@click.option("--expect", metavar="DIGEST", help="What the file must hold: sha256:<64 hex digits>, or blake3:...")
@click.option("--replace", is_flag=True, help="Let a name that is taken stand for these from now on.")
@json_option
@pass_session
def add(session: Session, source: str, name: str | None, own: bool, expect: str | None, replace: bool) -> None:
    """Keep weights under NAME (by default after the file or its folder): in place, or owned.

    In place, the store notes which files they are and in which state; it notices when one changes. Owned, every tensor
    is a file of the store, named by its content, so weights that share tensors share disk. After a kill, a full disk or
    a broken connection run it again: what was done is not done again.

    \b
    Examples:
      cachec weights add model.safetensors
      cachec weights add tuned/ llama/tuned --own --json
      cachec weights add https://example.org/m.safetensors m --expect sha256:<64 hex digits>

    \b
    JSON: {"name", "revision", "owned", "weights", "size", "created", "source", "seconds"}
    size is bytes, created is Unix time.
    """
    store = sources.weight_store(session)
    name = sources.default_name(source) if name is None else name
    started = time.monotonic()
    with Meter(f"add {name}") as meter:
        if is_url(source):
            if replace:
                raise UsageError(f"--replace goes with a path; remove the name first: {to_type('weights rm NAME')}")
            from cachec.base.distributions import Distributions
            from cachec.weights.library import resolver

            resolvers = resolver.Resolvers.discover(Distributions().plugin_entry_points(resolver.GROUP))
            wanted = sources.identifier(source, expect)
            revision = resolver.resolve(store, wanted, name, resolvers, progress=meter)
        else:
            _check_there(session, source)
            with sources.opened_as_expected(source, expect, meter) as weights:
                path = os.path.abspath(source)
                revision = store.add(weights, name, own=own, source=path, replace=replace, progress=meter)
    seconds = time.monotonic() - started
    if print_as_json({**sources.summary(revision), "seconds": seconds}):
        return
    how = f"owned, {throughput(revision.nbytes, seconds)}" if revision.owned else "in place"
    say(
        f"added {name}: {number_of(revision.count, 'weight')}, {report.size(revision.nbytes)}, {how}, "
        f"revision {revision.id[:SHOWN_REVISION]}"
    )


def _check_there(session: Session, source: str) -> None:
    if not os.path.exists(source):
        session.fail(f"there is no file or folder {source!r}")


@command.command("ls")
@json_option
@pass_session
def ls(session: Session) -> None:
    """List what has a name in the store.

    \b
    Examples:
      cachec weights ls
      cachec weights ls --json

    \b
    JSON: {"dir", "weights": [{"name", "revision", "owned", "weights", "size", "created", "source"}]}
    """
    store = sources.weight_store(session)
    summaries = [sources.summary(revision) for revision in store.revisions()]
    if print_as_json({"dir": str(store.folder), "weights": summaries}):
        return
    if not summaries:
        say(f"no weights in {store.folder}{session.if_none}")
        return
    now = time.time()
    rows = [
        (
            each["name"],
            each["revision"][:SHOWN_REVISION],
            "owned" if each["owned"] else "in place",
            str(each["weights"]),
            report.size(each["size"]),
            report.age(each["created"], now),
            each["source"] or "-",
        )
        for each in summaries
    ]
    columns = ("name", "revision", "bytes", "weights", "size", "added", "source")
    print_table(columns, rows, right=("weights", "size"), detail="source")


@command.command("show")
@click.argument("what", metavar="NAME-or-PATH")
@click.option("--digests", "with_digests", is_flag=True, help="Hash weights that are not owned; reads all of them.")
@click.option("--full", is_flag=True, help="Each weight on a line, however many there are.")
@click.option("--rank", type=int, help="Whose shards to show, from 0.")
@click.option("--world-size", type=int, help="How many workers the shards are for.")
@json_option
@pass_session
def show(session: Session, what: str, with_digests: bool, full: bool, rank: int | None, world_size: int | None) -> None:
    """Show each weight: dtype, shape, size, digest where it is known. Never a value.

    Of many weights those that differ by numbers in their names alone, as those of layers do, are one line, unless
    --full or --digests is given.

    \b
    Examples:
      cachec weights show base
      cachec weights show model.safetensors --digests --json
      cachec weights show sharded/ --rank 0 --world-size 8

    \b
    JSON: {"name" or null, "path" or null, "revision" or null, "owned", "source", "files": [path], "size", "stored",
           "weights": [{"name", "dtype", "shape", "size", "layout", "alias", "shard": [axis, count], "digest"}]}
    size is bytes; stored is bytes in the store, each content once. files: of weights in place. alias, shard and digest
    may be null. Exit code 1: no such weights.
    """
    store = sources.weight_store(session)
    source = sources.locate_weights(session, store, what)
    with source.open(store, rank=rank, world_size=world_size) as weights:
        specs = weights.specs
        digests = dict(source.revision.digests) if source.revision is not None else {}
        if with_digests and not digests:
            with Meter("hash") as meter:
                done = 0
                for name, weight in weights.items():
                    digests[name] = weight.digest()
                    done += weight.nbytes
                    meter(done, weights.nbytes)
    details = sources.details(source, specs, digests)
    if print_as_json(details):
        return
    for field in ("name", "path", "revision", "source"):
        if details[field]:
            say(f"{field:<9}{details[field]}")
    for path in details["files"]:
        say(f"file     {path}")
    stored = f", {report.size(details['stored'])} in the store" if details["owned"] else ""
    say(f"size     {report.size(details['size'])} in {number_of(len(specs), 'weight')}{stored}")
    click.echo()
    if len(specs) > _SHOWN_WEIGHTS and not full and not with_digests:
        _print_kinds(details["weights"])
        return
    rows = [
        (
            each["name"],
            each["dtype"],
            sources.shape_text(each),
            report.size(each["size"]),
            (each["digest"] or "-")[:SHOWN_KEY],
        )
        for each in details["weights"]
    ]
    print_table(("weight", "dtype", "shape", "size", "digest"), rows, right=("size",))


def _print_kinds(weights: list[dict[str, Any]]) -> None:
    """Print one line for all weights with names that differ only in numbers, the largest first."""
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for each in weights:
        kind = re.sub(r"\d+", "*", each["name"]), each["dtype"], sources.shape_text(each)
        kinds.setdefault(kind, []).append(each["size"])
    largest = sorted(kinds.items(), key=lambda item: -sum(item[1]))
    rows = [(*kind, str(len(sizes)), report.size(sum(sizes))) for kind, sizes in largest[:_SHOWN_KINDS]]
    print_table(("weight", "dtype", "shape", "count", "size"), rows, right=("count", "size"))
    rest = f"and {number_of(len(kinds) - _SHOWN_KINDS, 'more kind')}; " if len(kinds) > _SHOWN_KINDS else ""
    click.echo(f"\n{rest}--full lists each of the {len(weights)} weights")


@command.command("verify")
@click.argument("what", metavar="NAME-or-PATH")
@json_option
@pass_session
def verify(session: Session, what: str) -> None:
    """Look whether weights are what they should be.

    Owned: all bytes are hashed again. What is damaged is refused from then on, until the same weights are added again,
    which repairs it. In place: the files have to be as they were added. A path: its structure has to be valid. For the
    last two, the checksums that a checkpoint states are computed (ONNX external data, TVM, the members of .npz and
    .pt); no other format states any.

    \b
    Examples:
      cachec weights verify base
      cachec weights verify model.onnx --json

    \b
    JSON: {"name" or null, "path" or null, "revision" or null, "owned", "checksums", "seconds",
           "damaged": [{"path", "weights": [name], "words"}]}
    checksums: how many files had one that was computed. Exit code 1: something is damaged or changed, or there are no
    such weights.
    """
    store = sources.weight_store(session)
    source = sources.locate_weights(session, store, what)
    started = time.monotonic()
    with Meter(f"verify {what}") as meter:
        result = sources.verify_weights(source, store, meter)
    seconds = time.monotonic() - started
    if not print_as_json(sources.verdict(source, result, seconds)):
        for words in sources.verdict_lines(source, result, seconds):
            say(words)
    if result.damages:
        way = "; add the weights again" if source.revision is not None else ""
        session.fail(f"{what}: {number_of(len(result.damages), 'file')} not as it should be{way}")


@command.command("rm")
@click.argument("name")
@json_option
@pass_session
def rm(session: Session, name: str) -> None:
    """Forget a name, and remove what nothing needs any more, as `cachec gc` does without a limit.

    Tensors that other weights or results of stages use stay, and so does all that an open process uses: that goes with
    a later rm or gc. Files of weights in place are the user's, and stay.

    \b
    Examples:
      cachec weights rm tuned
      cachec weights rm tuned --json

    \b
    JSON: {"name", "revision", "freed", "files", "in_use": [revision], "postponed"}
    freed is bytes on disk, files the artifacts removed. in_use: revisions without a name that open processes keep.
    postponed: another process is cleaning the store, so nothing was removed now. Exit code 1: no such name.
    """
    store = sources.weight_store(session)
    revision = sources.find_revision(session, store, name)
    if revision.name != name:
        raise UsageError(f"{name!r} is a revision; rm takes its name, {revision.name!r}")
    store.remove(name)
    done = session.maintainer.collect(limit=0)
    if print_as_json(
        {
            "name": name,
            "revision": revision.id,
            "freed": done.freed,
            "files": done.artifacts,
            "in_use": done.weights_in_use,
            "postponed": bool(done.postponed_by),
        }
    ):
        return
    say(f"removed {name}: freed {report.size(done.freed)} in {number_of(done.artifacts, 'file')}")
    if not revision.owned:
        say("its files were in place, and are untouched")
    if revision.id in done.weights_in_use:
        say("an open process uses it; its bytes go with a later rm or gc")
    if done.postponed_by:
        say(f"process {done.postponed_by} is cleaning the store; what nothing needs goes with a later rm or gc")
