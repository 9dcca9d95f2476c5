"""``cachec mlir``: look into MLIR modules, take their weights out and put them back. Printing never dumps a weight."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cachec.base.display_text import clean
from cachec.errors import UsageError
from cachec_mlir.cli.linking import link, relink
from cachec_mlir.cli.shared import MODULE, bindings_option, check_paths, few, json_option, module_file, print_json

if TYPE_CHECKING:
    from cachec.cli.session import Session

#: Resources and changes that text output lists; --json has all.
_LISTED = 40


@click.group("mlir")
def command() -> None:
    """Look into MLIR modules, text or bytecode, and take weights out of them or put them back.

    A module may be - for stdin, and -o - is stdout. Output files are whole or not there.

    \b
    Examples:
      cachec mlir inspect big.mlir
      cachec mlir strip big.mlir                      a bug report that can be pasted
      cachec mlir strip big.mlir -o small.mlir --weights w.safetensors
      cachec mlir link small.mlir tuned.safetensors -o tuned.mlir
      cachec mlir diff old.mlir new.mlir

    Every one of them has --json; its help shows the JSON. Exit codes: 0 done (diff: equal), 1 not found (diff:
    different), 2 wrong use or an error.
    """


@command.command("inspect")
@click.argument("file", type=MODULE)
@bindings_option
@json_option
def inspect(file: str, bindings: str | None, as_json: bool) -> None:
    """Say what a module is: its kind, size, operations, resources and largest constants. Nothing is dumped.

    \b
    Examples:
      cachec mlir inspect big.mlir
      cachec mlir inspect model.mlirbc --json

    \b
    JSON: {"path", "kind": "text" or "bytecode", "size", "version", "producer", "stripped_size", "topology",
           "operations": count or null, "dialects": {name: count} or null, "operation_names": {name: count} or null,
           "unread": why these are null, or null,
           "resources": [{"name", "type", "nbytes", "alignment", "lifted"}], "resource_bytes",
           "declared": [names without bytes], "constants": [{"line", "type", "characters"}]}
    """
    from cachec_mlir import topology
    from cachec_mlir.explain.summary import summarize

    with module_file(file) as source:
        figures = summarize(source, bindings=bindings) | {"path": file, "topology": topology(source)}
    if as_json:
        print_json(figures)
        return
    kind = (
        f"bytecode version {figures['version']} of {figures['producer']}" if figures["version"] is not None else "text"
    )
    click.echo(
        f"{clean(file)}: {clean(kind)}, {figures['size']:,} bytes, {figures['stripped_size']:,} without resources"
    )
    click.echo(f"topology   {figures['topology']}")
    if figures["operations"] is None:
        click.echo(f"operations unknown: {clean(figures['unread'])}")
    else:
        click.echo(f"operations {figures['operations']:,}")
        for name, count in list(figures["operation_names"].items())[:_LISTED]:
            click.echo(f"  {count:>7,} {clean(name)}")
    click.echo(f"resources  {len(figures['resources']):,}, {figures['resource_bytes']:,} bytes")
    for each in figures["resources"][:_LISTED]:
        lifted = ", a constant" if each["lifted"] else ""
        type_ = f" {each['type']}" if each["type"] else ""
        click.echo(
            f"  {clean(each['name'])}{clean(type_)}: {each['nbytes']:,} bytes, alignment {each['alignment']}{lifted}"
        )
    _say_more(len(figures["resources"]))
    if figures["declared"]:
        click.echo(f"declared   {len(figures['declared']):,} without bytes: {few(figures['declared'])}")
    for each in figures["constants"]:
        click.echo(f"constant   line {each['line']}: {clean(each['type'])}, {each['characters']:,} characters")


@command.command("hash")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=MODULE)
@bindings_option
@click.option("--locations", is_flag=True, help="Names and places count too: for a compiler that keeps them.")
@json_option
@click.pass_obj
def hash_(session: Session | None, files: Sequence[str], bindings: str | None, locations: bool, as_json: bool) -> None:
    """Print the topology hash of each module: the same for other weight bytes, names of values, places and spaces.

    Of a module whose bytes any process has hashed before it is remembered in the store, if there is one.

    \b
    Examples:
      cachec mlir hash a.mlir b.mlir
      cachec mlir hash --bindings iree a.mlir a.mlirbc     alike, whatever the notation

    \b
    JSON: [{"path", "topology"}]
    """
    from cachec_mlir import Topologies

    digests = None
    if session is not None and session.settings.store_folder is not None and session.store.folder.is_dir():
        digests = session.store.digests
    known = Topologies(digests)
    hashes = []
    for file in files:
        with module_file(file) as source:
            hashes.append({"path": file, "topology": known.of(source, bindings=bindings, locations=locations)})
        if not as_json:
            click.echo(f"{hashes[-1]['topology']}  {clean(file)}")
    if as_json:
        print_json(hashes)


@command.command("strip")
@click.argument("file", type=MODULE)
@click.option("-o", "--output", metavar="FILE", help="Write the stripped module there, in the form that it has.")
@click.option("--weights", metavar="FILE", help="Write the weights there: .safetensors or .irpa.")
@click.option("--to", type=click.Choice(["resource", "parameter", "external", "undefined"]), default="resource")
@click.option("--scope", help="The scope of --to parameter.")
@click.option("--minimum", type=click.IntRange(min=1), help="Bytes from which a constant of a text is taken out.")
@json_option
def strip(
    file: str,
    output: str | None,
    weights: str | None,
    to: Any,
    scope: str | None,
    minimum: int | None,
    as_json: bool,
) -> None:
    """Take the weights out of a module.

    Without -o the module is printed as text under a comment that says what it is: a bug report that can be pasted.
    --to says what stands for a weight in a text: a resource, an IREE parameter, an external of ml_program, or an
    undefined symbol (memref.global).

    \b
    Examples:
      cachec mlir strip big.mlir
      cachec mlir strip big.mlir -o small.mlir --weights w.safetensors
      cachec mlir strip big.mlir -o small.mlir --to parameter --json

    \b
    JSON: {"path", "output", "size", "stripped_size", "weights": [{"name", "dtype", "shape", "nbytes"}],
           "lifted": [names that were invented], "ir": text where there is no -o}
    """
    from cachec.programs.weight_files import WRITTEN_SUFFIXES
    from cachec_mlir import MINIMUM
    from cachec_mlir import strip as take_out
    from cachec_mlir.cli.report import WHOLE, bug_report
    from cachec_mlir.explain.readable_text import make_readable, typed_resources
    from cachec_mlir.file_writer import write
    from cachec_mlir.linking.alignments import alignment_metadata
    from cachec_mlir.text.stripper import SCOPE

    if weights is not None and (weights == "-" or Path(weights).suffix not in WRITTEN_SUFFIXES):
        raise UsageError(f"--weights {weights}: a name that ends with {' or '.join(WRITTEN_SUFFIXES)} expected")
    check_paths({"--weights": weights}, {"FILE": file})
    check_paths({"-o": output}, {"--weights": weights})  # -o may be FILE: the stripped module then takes its place
    with module_file(file) as source:
        size = os.stat(source).st_size
        stripped = take_out(source, to=to, scope=scope or SCOPE, minimum=minimum or MINIMUM)
        module_text = make_readable(stripped.ir, limit=WHOLE) if output is None else None
        typed = typed_resources(stripped, module_text)
        text = None if module_text is None else bug_report(file, size, typed, module_text)
        specs = {each.name: each.spec() for each in typed}
        if weights is not None:
            metadata = alignment_metadata(typed) if Path(weights).suffix == ".safetensors" else {}
            stripped.resources.weights(specs).save(weights, metadata=metadata)
        if output is not None and output != "-":
            write(output, [stripped.ir])
    if output == "-":
        _to_stdout(stripped.ir)
    if as_json:
        print_json(
            {
                "path": file,
                "output": output,
                "size": size,
                "stripped_size": len(stripped.ir),
                "weights": [
                    {"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "nbytes": each.nbytes}
                    for each in specs.values()
                ],
                "lifted": list(stripped.lifted),
                "ir": text,
            }
        )
    elif text is not None:
        click.echo(text, nl=False)


@command.command("diff")
@click.argument("old", type=MODULE)
@click.argument("new", type=MODULE)
@click.option("--values", is_flag=True, help="Compare the bytes of the weights too, not only their specs.")
@bindings_option
@json_option
def diff(old: str, new: str, values: bool, bindings: str | None, as_json: bool) -> None:
    """Say which operations and weights differ. Names of values and places are no difference.

    \b
    Examples:
      cachec mlir diff old.mlir new.mlir
      cachec mlir diff --bindings iree old.mlir new.mlirbc --json

    \b
    JSON: {"same": bool, "old": topology hash, "new": topology hash, "notation",
           "operations": [{"kind": "added", "removed", "changed" or "connected", "function", "old_line", "new_line",
                           "old", "new", "after"}],
           "weights": [{"kind": "added", "removed", "changed" or "values", "name", "old", "new"}]}
    Exit code 0: the same, 1: different.
    """
    from cachec_mlir.explain.module_diff import difference

    if old == new == "-":
        raise UsageError("only one of the two can be stdin")
    with module_file(old) as one, module_file(new) as other:
        result = difference(one, other, values=values, bindings=bindings)
    if as_json:
        print_json(msgspec.to_builtins(result))
    else:
        from cachec_mlir.cli.report import difference_lines

        for line in difference_lines(result, _LISTED):
            click.echo(clean(line))
    if not result.same:
        click.get_current_context().exit(1)


def _to_stdout(data: bytes) -> None:
    if data.startswith(b"ML\xefR") and sys.stdout.isatty():
        raise UsageError("bytecode is not for a terminal; say -o FILE, or | another program")
    stream = sys.stdout.buffer
    stream.write(data)
    stream.flush()


def _say_more(count: int) -> None:
    if count > _LISTED:
        click.echo(f"  and {count - _LISTED:,} more (--json has all)")


command.add_command(link)
command.add_command(relink)
