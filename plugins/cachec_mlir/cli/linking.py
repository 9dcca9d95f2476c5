"""``cachec mlir link`` and ``relink``: weights back into a module, as bytes or by reference."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cachec.base.display_text import clean
from cachec.errors import UsageError
from cachec_mlir.cli.shared import MODULE, check_paths, few, json_option, module_file, print_json

_REFERENCES = click.Choice(["resource", "parameter", "external", "undefined"])


@click.command("link")
@click.argument("file", type=MODULE)
@click.argument("weights", type=click.Path())
@click.option("-o", "--output", required=True, metavar="FILE", help="The module to write.")
@click.option("--name", "names", multiple=True, metavar="THERE=HERE", help="The name THERE is the weight HERE.")
@click.option("--references", type=_REFERENCES, help="What stands for a weight in FILE; a resource by default.")
@click.option("--scope", help="The scope of --references parameter.")
@click.option("--by-reference", is_flag=True, help="Leave the weights in their file, and write references to them.")
@click.option("--inline", multiple=True, metavar="NAME", help="Write this one as a constant again, not as a resource.")
@click.option(
    "--alignment",
    type=click.IntRange(min=1),
    help="Of all weights, in bytes: a power of two. Else each has the one that it had, or that of its type.",
)
@json_option
def link(
    file: str,
    weights: str,
    output: str,
    names: Sequence[str],
    references: Any,
    scope: str | None,
    by_reference: bool,
    inline: Sequence[str],
    alignment: int | None,
    as_json: bool,
) -> None:
    """Put weights into a module that lacks them: from a checkpoint, or from the resources of another module.

    From a .safetensors file that `strip` wrote, each weight has the alignment that it had. From other files it has that
    of its type, or --alignment. Bytecode says no types: any weight with enough bytes is taken.

    MLIR's tools read bytecode with an alignment of more than 16 from a file only, and with more than 4096 not at all.

    With --by-reference no byte of them is copied where one .safetensors, .irpa or .gguf file has them all; else an
    archive is written to the output's folder. That is for --references parameter (the default then), external,
    undefined.

    \b
    Examples:
      cachec mlir link small.mlir model.safetensors -o whole.mlir
      cachec mlir link small.mlir model.safetensors -o whole.mlir --name w0=layers.0.weight --json
      cachec mlir link small.mlir model.safetensors -o bound.mlir --by-reference

    \b
    JSON: {"output", "nbytes", "archive": the file with the weights, or null,
           "unused": [names that were offered and not asked for]}
    """
    from cachec.weights import open_weights
    from cachec_mlir import link as put_in
    from cachec_mlir import refer
    from cachec_mlir import strip as take_out
    from cachec_mlir.linking.alignments import saved_alignments
    from cachec_mlir.text.stripper import SCOPE

    renamed = _pairs(names) or None
    if weights == "-":
        raise UsageError("WEIGHTS expected to be a file, found - (stdin); only FILE can be stdin")
    check_paths({"-o": output}, {"WEIGHTS": weights})  # -o may be FILE: the linked module then takes its place
    if by_reference:
        if inline or alignment is not None or output == "-" or _is_module(weights):
            raise UsageError("--by-reference takes a checkpoint and a file to write; no --inline, --alignment or -o -")
        with module_file(file) as source, open_weights(weights) as opened:
            made = refer(source, opened, output, to=references or "parameter", scope=scope or SCOPE, names=renamed)
        _print_linked(output, made.nbytes, made.archive, made.unused, as_json)
        return
    is_module = _is_module(weights)
    offered: Any = take_out(weights).resources if is_module else open_weights(weights)
    with module_file(file) as source, _target(output) as target:
        linked = put_in(
            source,
            offered,
            target,
            references=references or "resource",
            scope=scope or SCOPE,
            names=renamed,
            inline=tuple(inline),
            alignment=alignment or (None if is_module else saved_alignments(weights)),
        )
    _print_linked(output, linked.nbytes, None, linked.unused, as_json)
    _warn_of_pipe(output, linked.is_file_only)


@click.command("relink")
@click.argument("file", type=MODULE)
@click.argument("older", type=MODULE)
@click.option("-o", "--output", required=True, metavar="FILE", help="The module to write.")
@click.option("--name", "names", multiple=True, metavar="NEW=OLD", help="The name NEW was OLD in the older module.")
@click.option("--renames", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="A record of the names.")
@click.option("--by-reference", is_flag=True, help="Copy nothing: write FILE.irpa, which says where the bytes are.")
@json_option
def relink(
    file: str,
    older: str,
    output: str,
    names: Sequence[str],
    renames: str | None,
    by_reference: bool,
    as_json: bool,
) -> None:
    """Give a new module the resources of an older one, by name.

    A name that a compiler may have changed (w0 into w0_2) is refused, and never guessed: say --name w0_2=w0, or give
    the record that cachec_mlir.mark(...).find_renames(...).encode() returned.

    \b
    Examples:
      cachec mlir relink lowered.mlir original.mlirbc -o whole.mlir
      cachec mlir relink lowered.mlir original.mlirbc -o whole.mlir --name w0_2=w0 --json

    \b
    JSON: {"output", "nbytes", "archive": the file that says where the bytes are, or null,
           "unused": [resources of the older module that the new one does not name]}
    """
    from cachec_mlir import Renames, relink_by_reference, strip
    from cachec_mlir import relink as put_in

    if names and renames is not None:
        raise UsageError("give --name or --renames, not both: a record has every name")
    inputs = {"OLDER": older, "--renames": renames}
    if by_reference:
        if "-" in {output, older}:
            raise UsageError("--by-reference needs a file to write and a file to refer to, found -")
        check_paths({"-o": output, "the archive of -o": f"{output}.irpa"}, {"FILE": file, **inputs})
    elif file == older == "-":
        raise UsageError("FILE and OLDER: one only can be stdin")
    check_paths({"-o": output}, inputs)
    with module_file(file) as source, module_file(older) as older_source:
        matched: Any = None
        if renames is not None:
            matched = Renames.decode(Path(renames).read_bytes())
        elif names:
            matched = _complete_names(source, strip(older_source).resources, _pairs(names))
        if by_reference:
            made = relink_by_reference(source, older, output, renames=matched)
            _print_linked(output, made.nbytes, made.archive, made.unused, as_json)
            return
        with _target(output) as target:
            linked = put_in(source, older_source, target, renames=matched)
    _print_linked(output, linked.nbytes, None, linked.unused, as_json)
    _warn_of_pipe(output, linked.is_file_only)


def _complete_names(source: str, older: Collection[str], given: dict[str, str]) -> dict[str, str]:
    """The names that were given, and of the others those that can't be another's: relink refuses what is left."""
    from cachec_mlir.linking.relinker import without_suffix
    from cachec_mlir.strip_and_link import open_unlinked

    return {**{name: name for name in open_unlinked(source).wanted if without_suffix(name, older) is None}, **given}


@contextmanager
def _target(output: str) -> Iterator[str]:
    """Where to write: the file itself, or one that goes to stdout afterwards."""
    if output != "-":
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="cachec-mlir-") as folder:
        target = os.path.join(folder, "linked")
        yield target
        with open(target, "rb") as made:
            shutil.copyfileobj(made, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()


def _print_linked(output: str, nbytes: int, archive: Path | None, unused: Sequence[str], as_json: bool) -> None:
    if as_json and output != "-":
        where = None if archive is None else str(archive)
        print_json({"output": output, "nbytes": nbytes, "archive": where, "unused": list(unused)})
        return
    archive_note = "" if archive is None else f", weights in {clean(str(archive))}"
    click.echo(f"{clean(output)}: {nbytes:,} bytes{archive_note}", err=output == "-")
    if unused:
        click.echo(f"not asked for: {few(unused)}", err=True)


def _warn_of_pipe(output: str, is_file_only: bool) -> None:
    """Say where what went to stdout can't be read."""
    if output == "-" and is_file_only and not stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
        click.echo(
            "its resources are aligned to more than 16 bytes, so MLIR's tools read it from a file only, not from a "
            "pipe: say -o FILE, or --alignment 16 (of link)",
            err=True,
        )


def _pairs(values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        there, equals, here = value.partition("=")
        if not there or not equals or not here:
            raise UsageError(f"--name {value!r}: two names with = between expected")
        if there in pairs:
            raise UsageError(f"--name {value!r}: {there!r} was said before")
        pairs[there] = here
    return pairs


def _is_module(path: str) -> bool:
    """Whether a path is a module rather than a checkpoint: by its first bytes, or its suffix."""
    from cachec_mlir import is_bytecode

    return Path(path).suffix in {".mlir", ".mlirbc"} or (os.path.isfile(path) and is_bytecode(path))
