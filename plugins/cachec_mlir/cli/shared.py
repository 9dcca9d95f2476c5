"""What the commands of ``cachec mlir`` share: modules from stdin, and printing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import click
import msgspec

#: A module as an argument: a file, or - for stdin.
MODULE = click.Path(dir_okay=False, allow_dash=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
bindings_option = click.option(
    "--bindings", type=click.Choice(["iree", "jax"]), help="Let this compiler's MLIR read the module."
)


class ModuleFile:
    """The path of a module; stdin is a temporary file meanwhile, so that nothing large is kept in memory."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._folder: str | None = None

    def __enter__(self) -> str:
        if self._file != "-":
            return self._file
        self._folder = tempfile.mkdtemp(prefix="cachec-mlir-")
        path = os.path.join(self._folder, "stdin")
        with open(path, "wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
        return path

    def __exit__(self, *unused: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def few(names: Sequence[str]) -> str:
    """The first names, for a person."""
    return ", ".join(map(clean, names[:8])) + (", …" if len(names) > 8 else "")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def clean(text: str) -> str:
    """Without control characters, which a terminal might obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
