"""A reproducer that was read: validated in full, so that what follows can rely on it. Nothing is run here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.errors import LinkError, ReproducerError
from cachec.model import WeightSpec, from_json
from cachec.reproduce.archive import read_archive
from cachec.reproduce.metadata import About
from cachec.reproduce.pack import ABOUT, RECIPE, WEIGHTS, decode_recipe, manifests
from cachec.reproduce.recipe import VERSION, FileRef, Recipe, Text, WeightFile
from cachec.weights.manifest import Manifest

#: Bytes that synthetic weights may take.
MAX_WEIGHTS = 1 << 40


class LoadedReproducer(NamedTuple):
    """contents: every member by its digest. specs: of all weights. weights: the bytes of ``weights.safetensors``."""

    about: About
    recipe: Recipe
    contents: Mapping[str, bytes]
    specs: Mapping[str, WeightSpec]
    weights: bytes | None


def load(path: str | os.PathLike[str]) -> LoadedReproducer:
    """Read and check a reproducer. Raises ReproducerError (says what is wrong where), OSError."""
    members = read_archive(path)
    label = os.fspath(path)
    for name in (ABOUT, RECIPE):
        if name not in members:
            raise ReproducerError(f"{label}: member {name!r} expected, found none: this is no reproducer of cachec")
    words = f"{label}: {ABOUT} is malformed"
    made_by = from_json(members[ABOUT], _MadeBy, ReproducerError, words)  # the rest of another version may be another
    if made_by.version != VERSION or made_by.generator != 1:
        raise ReproducerError(
            f"{label}: a reproducer of version {made_by.version} (generator {made_by.generator}), this cachec reads "
            f"{VERSION} (1); use the cachec that made it"
        )
    about = from_json(members[ABOUT], About, ReproducerError, words)
    recipe = decode_recipe(members[RECIPE], f"{label}: {RECIPE}")
    if digest_bytes(members[RECIPE]) != about.recipe:
        raise ReproducerError(f"{label}: {RECIPE} is not the one that {ABOUT} names; get the file again")
    _check(recipe, label)
    contents = {digest_bytes(data): data for data in members.values()}
    return LoadedReproducer(about, recipe, contents, _specs(recipe, contents, label), members.get(WEIGHTS))


class _MadeBy(msgspec.Struct):
    version: int
    generator: int = 1


def _specs(recipe: Recipe, contents: Mapping[str, bytes], label: str) -> dict[str, WeightSpec]:
    specs: dict[str, WeightSpec] = {}
    for digest in manifests(recipe):
        data = contents.get(digest)
        if data is None:
            continue
        try:
            specs.update(Manifest(digest, lambda data=data: data).weights)  # type: ignore[misc]
        except LinkError as error:
            raise ReproducerError(f"{label}: {error}") from error
    total = sum(spec.nbytes for spec in specs.values())
    if total > MAX_WEIGHTS or any(spec.nbytes < 0 for spec in specs.values()):
        raise ReproducerError(f"{label}: weights of 0 to {MAX_WEIGHTS} bytes expected, found {total}")
    return specs


def _check(recipe: Recipe, label: str) -> None:
    for number, command in enumerate(recipe.commands):
        what = f"{label}: command {number}"
        name = command.tool.name
        if not name or "/" in name or name in {".", ".."} or not name.isprintable():
            raise ReproducerError(f"{what}: the name of a tool expected, found {name!r}")
        files: tuple[FileRef | WeightFile, ...] = (*command.inputs, *command.outputs, *command.weights)
        for each in files:
            parts = each.path.split("/")
            if any(part in {"", ".", ".."} for part in parts) or "\0" in each.path:
                raise ReproducerError(f"{what}: a path within its folder expected, found {each.path!r}")
            if not 0 <= each.folder < recipe.folders:
                raise ReproducerError(f"{what}: one of {recipe.folders} folders expected, found {each.folder}")
        for text in (command.cwd, *command.args):
            if "\0" in "".join(piece for piece in text if isinstance(piece, str)):
                raise ReproducerError(f"{what}: an argument with a NUL")
            for folder in _folders(text):
                if not 0 <= folder < recipe.folders:
                    raise ReproducerError(f"{what}: one of {recipe.folders} folders expected, found {folder}")
        cwd = (command.cwd,) if isinstance(command.cwd, str) else command.cwd
        if not cwd or not isinstance(cwd[0], int) or any(".." in str(piece).split("/") for piece in cwd):
            raise ReproducerError(f"{what}: one of the numbered folders expected to run in, found {command.cwd!r}")
        for variable in (*command.environ, *command.hidden):
            if not variable or "=" in variable or "\0" in variable:
                raise ReproducerError(f"{what}: the name of a variable expected, found {variable!r}")


def _folders(text: Text) -> Iterator[int]:
    if not isinstance(text, str):
        yield from (piece for piece in text if isinstance(piece, int))
