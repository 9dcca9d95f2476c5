"""``cachec weights export`` and ``shard``: weights as files."""

from __future__ import annotations

import time
from typing import Literal

import click

from cachec import config, report
from cachec.base.display_text import number_of
from cachec.cli import weight_sources as sources
from cachec.cli.meter import Meter, throughput
from cachec.cli.session import Session, json_option, pass_session, print_as_json
from cachec.cli.weight_sources import say
from cachec.errors import UsageError


@click.command("export")
@click.argument("what", metavar="NAME-or-PATH")
@click.argument("out", type=click.Path())
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "irpa", "ptd"]),
    help="By default what the suffix of OUT says; safetensors where there is none.",
)
@click.option("--shard-size", metavar="SIZE", help="Write several files of at most so many bytes, and an index: 5GB.")
@json_option
@pass_session
def export(
    session: Session, what: str, out: str, kind: Literal["safetensors", "irpa", "ptd"] | None, shard_size: str | None
) -> None:
    """Write weights to OUT, in bounded memory; equal weights give equal bytes. A file that is there is replaced.

    Whoever has mapped the file that was there keeps its bytes. Owned weights are hashed on the way, and damaged ones
    are not written. After a kill run it again: what was done is not done again, unless the weights have changed.

    \b
    Examples:
      cachec weights export tuned tuned.safetensors
      cachec weights export model.gguf model.irpa
      cachec weights export tuned out/model.safetensors --shard-size 5GB --json

    \b
    JSON: {"path", "format", "weights", "size", "seconds"}
    size is bytes of the weights. Exit code 1: no such weights.
    """
    from cachec.weights.formats import format_to_write

    limit = None
    if shard_size is not None:
        try:
            limit = config.parse_size(shard_size)
        except ValueError:
            raise UsageError(f"--shard-size: expected a size such as 5GB or 500MiB, found {shard_size!r}") from None
    chosen = format_to_write(out, kind).name
    store = sources.weight_store(session)
    source = sources.locate_weights(session, store, what)
    started = time.monotonic()
    with source.open(store) as weights, Meter(f"export {what}") as meter:
        weights.save(out, format=kind, shard_size=limit, progress=meter)
        count, nbytes = len(weights), weights.nbytes
    seconds = time.monotonic() - started
    if not print_as_json({"path": out, "format": chosen, "weights": count, "size": nbytes, "seconds": seconds}):
        say(f"wrote {out}: {number_of(count, 'weight')}, {report.size(nbytes)}, {throughput(nbytes, seconds)}")


@click.command("shard")
@click.argument("what", metavar="NAME-or-PATH")
@click.argument("out", metavar="FOLDER", type=click.Path())
@click.option(
    "--spec",
    "specs",
    metavar="PATTERN=AXIS",
    multiple=True,
    required=True,
    help="Cut what matches along an axis from 0, or none; the first that matches decides. May be repeated.",
)
@click.option("--world-size", type=click.IntRange(min=1), required=True, help="How many workers.")
@click.option("--pad", is_flag=True, help="Fill slices up with zeros where an axis does not divide.")
@json_option
@pass_session
def shard(session: Session, what: str, out: str, specs: tuple[str, ...], world_size: int, pad: bool) -> None:
    """Cut weights up for workers: FOLDER gets one file a worker, with its slices and a copy of what is not cut.

    After a kill run it again, as with export; slices of an axis other than the first are cut anew.

    \b
    Examples:
      cachec weights shard llama sharded/ --world-size 8 --spec '*.q_proj.weight=0' --spec '*.o_proj.weight=1'
      cachec weights shard model.safetensors sharded/ --world-size 2 --spec 'lm_head.weight=0' --pad --json

    \b
    JSON: {"path", "world_size", "cut": {name: axis}, "weights", "size", "seconds"}
    size is bytes of all files' weights. A worker opens its own: open_weights(FOLDER, rank=0, world_size=8).
    Exit code 1: no such weights.
    """
    from cachec.weights.shards import matching_axes

    store = sources.weight_store(session)
    source = sources.locate_weights(session, store, what)
    patterns = sources.parse_axes(specs)
    total = 0

    started = time.monotonic()
    with source.open(store) as weights, Meter(f"shard {what}") as meter:

        def note_progress(done: int, in_all: int) -> None:
            nonlocal total
            total = in_all
            meter(done, in_all)

        cut = matching_axes(weights.layout.tensors, patterns, "shard")
        weights.save_shards(out, patterns, world_size, pad=pad, progress=note_progress)
        count = len(weights)
    seconds = time.monotonic() - started
    if not print_as_json(
        {
            "path": out,
            "world_size": world_size,
            "cut": cut,
            "weights": count,
            "size": total,
            "seconds": seconds,
        }
    ):
        say(
            f"wrote {out}: {len(cut)} of {number_of(count, 'weight')} cut for {number_of(world_size, 'worker')}, "
            f"{report.size(total)}, {throughput(total, seconds)}"
        )
