"""What the commands of ``cachec mlir`` share: modules from stdin, and printing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from cachec.base.display_text import clean
from cachec.errors import UsageError
from cachec_mlir.file_writer import check_target

#: A module as an argument: a file, or - for stdin.
MODULE = click.Path(dir_okay=False, allow_dash=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
bindings_option = click.option(
    "--bindings", type=click.Choice(["iree", "jax"]), help="Let this compiler's MLIR read the module."
)


@contextmanager
def module_file(file: str) -> Iterator[str]:
    """Yield the path of a module. Stdin is copied to a temporary file, to save memory."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="cachec-mlir-") as folder:
        path = os.path.join(folder, "stdin")
        with open(path, "wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
        yield path


def check_paths(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Check the files of a command before it reads or writes one. The keys say what a file is called in the command.

    Raises UsageError for an output that is another output or an input too, whatever the path to it, and for one that
    can't be written. ``-`` and None are no files.
    """
    used = {os.path.realpath(path): name for name, path in inputs.items() if path is not None and path != "-"}
    for name, path in outputs.items():
        if path is None or path == "-":
            continue
        check_target(path)
        before = used.setdefault(os.path.realpath(path), name)
        if before != name:
            raise UsageError(f"{path} is given twice, as {before} and as {name}; give two files")


def few(names: Sequence[str]) -> str:
    """The first names, for a person."""
    return ", ".join(map(clean, names[:8])) + (", …" if len(names) > 8 else "")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
