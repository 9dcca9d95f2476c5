"""A run as a reproducer: what goes into the zip, from an entry of the store or from a run that has just failed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cachec.base.display_text import to_type
from cachec.base.hashing import digest_bytes
from cachec.errors import PluginError, ReproducerError, StoreFault
from cachec.model import Entry, Inline, Leaf, Node, Part, PartKind, Record, Trace, WeightSpec, artifacts, from_json
from cachec.model import Sequence as Several
from cachec.programs import ir
from cachec.reproduce.archive import write_archive
from cachec.reproduce.arguments import FileOf, Long, ProgramOf, WeightsOf, leaves
from cachec.reproduce.metadata import About, ExpectedArtifact, Failure
from cachec.reproduce.readme import readme
from cachec.reproduce.recipe import VERSION, FileRef, Recipe, RecordedCommand, digests_of_reads, folder_name
from cachec.store.store import Store
from cachec.weights import WeightSet
from cachec.weights.manifest import Manifest

#: Names of members.
README, ABOUT, RECIPE = "README.md", "reproducer.json", "recipe.json"
WEIGHTS, STDERR = "weights.safetensors", "stderr.txt"


class PackedReproducer(NamedTuple):
    """A reproducer. data: of the zip."""

    data: bytes
    about: About


def pack_entry(
    store: Store, entry: Entry, weights: WeightSet | None = None, names: Sequence[str] = (), *, seed: int = 0
) -> PackedReproducer:
    """The reproducer of the newest run of an entry.

    weights, names: a set, and patterns of the names in it whose bytes go in as they are. seed: for the others.
    Raises ReproducerError where the entry has no recipe, or the set is not of the weights that the run had.
    """
    trace = entry.traces[0]
    raw = store.recipe(entry)
    if raw is None:
        raise ReproducerError(
            f"entry {entry.key[:12]} of {entry.stage} was stored without saying how it was called; a stage that this "
            f"cachec runs does: forget the entry with `{to_type(f'invalidate {entry.key[:12]}')}` and run it again"
        )
    fetch = _fetch_from(store, trace)
    recipe = decode_recipe(raw, "the recipe")
    expected = tuple(expected_of(trace.value))
    about = About(
        version=VERSION,
        key=entry.key,
        stage=entry.stage,
        mode=_mode(recipe, expected),
        recipe=digest_bytes(raw),
        parts=_without_values(store.parts(entry)),
        expected=expected,
        seed=seed,
        reads={read.name: read.digest for read in trace.reads if read.kind == "weight"},
    )
    return _pack(about, raw, recipe, fetch, weights, names)


def pack_failure(
    key: str, parts: tuple[Part, ...], raw: bytes, contents: Mapping[str, bytes], failure: Failure
) -> PackedReproducer:
    """The reproducer of a run that failed. raw: its encoded recipe."""
    recipe = decode_recipe(raw, "the recipe")
    failed = bool(recipe.commands) and recipe.commands[-1].returncode != 0
    if failed:  # the exception's own text has the paths of this machine in it
        last = recipe.commands[-1]
        how = "did not come to its end" if last.returncode is None else f"ended with exit code {last.returncode}"
        failure = Failure(failure.error, f"{last.tool.name} {how}")
    about = About(
        version=VERSION,
        key=key,
        stage=recipe.stage,
        mode="command" if failed else "python",
        recipe=digest_bytes(raw),
        parts=_without_values(parts),
        failure=failure,
    )
    return _pack(about, raw, recipe, contents.get, None, ())


def _without_values(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts, without the words for values of the project: there may be a secret deep in one, which ``why`` shows on
    this machine alone. Arguments are in the recipe.
    """
    return tuple(
        Part(part.kind, part.name, part.digest) if part.kind in {PartKind.ARGUMENT, PartKind.CODE} else part
        for part in parts
    )


def decode_recipe(raw: bytes, what: str) -> Recipe:
    """A recipe, validated. Raises ReproducerError."""
    recipe = from_json(raw, Recipe, ReproducerError, f"{what} is malformed")
    if recipe.version != VERSION:
        raise ReproducerError(f"{what} is of version {recipe.version}, this cachec reads {VERSION}; use the other one")
    return recipe


def expected_of(node: Node) -> Iterator[ExpectedArtifact]:
    """The artifacts that a run made itself: not the manifest that a file inherits."""
    if isinstance(node, Several | Record):
        for item in node.items:
            yield from expected_of(item)
    elif isinstance(node, Leaf):
        refs = node.artifacts
        if node.codec == "file":
            refs = refs[:1]
        elif node.codec == "dir":
            refs = refs[: len(node.meta.get("files", ()))]
        yield from (ExpectedArtifact(node.codec, ref.digest, ref.size) for ref in refs)
    elif isinstance(node, Inline):
        stored = msgspec.json.encode(node)
        yield ExpectedArtifact("inline", digest_bytes(stored), len(stored))
    else:
        yield from (ExpectedArtifact("weight", ref.digest, ref.size) for ref in artifacts(node))


def manifests(recipe: Recipe) -> list[str]:
    """Digests of the manifests of the programs, weight sets and weight files of a run, each once."""
    digests = [each.manifest for _, each in leaves(recipe.arguments) if isinstance(each, ProgramOf | WeightsOf)]
    digests += [each.manifest for command in recipe.commands for each in command.weights if each.manifest]
    return list(dict.fromkeys(digests))


def _mode(recipe: Recipe, expected: Sequence[ExpectedArtifact]) -> str:
    if recipe.line is not None:
        return "line"
    made = {each.digest for command in recipe.commands for each in command.outputs}
    return "command" if expected and all(each.digest in made for each in expected) else "python"


def _fetch_from(store: Store, trace: Trace) -> Callable[[str], bytes | None]:
    """Contents by digest: from the store, else from the file that had it, if it still has."""
    places = digests_of_reads(trace.reads)

    def fetch(digest: str) -> bytes | None:
        try:
            content = store.content(digest)
        except StoreFault:
            content = None  # damaged, and counted elsewhere: it is listed as missing
        if content is None and digest in places:
            try:
                data = Path(places[digest]).read_bytes()
            except OSError:
                return None
            content = data if digest_bytes(data) == digest else None
        return content

    return fetch


def _pack(
    about: About,
    raw: bytes,
    recipe: Recipe,
    fetch: Callable[[str], bytes | None],
    weights: WeightSet | None,
    names: Sequence[str],
) -> PackedReproducer:
    members: dict[str, bytes] = {RECIPE: raw}
    missing: list[str] = []

    def put(name: str, digest: str) -> None:
        data = fetch(digest)
        if data is None:
            missing.append(f"{name} (content {digest})")
        else:
            members[name] = data

    specs: dict[str, WeightSpec] = {}
    for number, digest in enumerate(manifests(recipe)):
        name = f"manifests/{number}.json"
        put(name, digest)
        if name in members:
            data = members[name]
            specs.update(Manifest(digest, lambda data=data: data).weights)  # type: ignore[misc]
    for command_number, command in enumerate(recipe.commands):
        for each in needed_inputs(recipe.commands, command_number):
            put(f"{folder_name(each.folder)}/{each.path}", each.digest)
        if command.stdin is not None and command.stdin not in {digest_bytes(data) for data in members.values()}:
            put(f"stdin/{command_number}", command.stdin)
    digests = {digest_bytes(data) for data in members.values()}
    for name, digest in _contents(recipe):
        if digest not in digests:
            put(name, digest)
    if recipe.commands and recipe.commands[-1].stderr and about.failure is not None:
        members[STDERR] = recipe.commands[-1].stderr.encode()
    usages = _add_reproducers(recipe, members, missing)
    given = _make_weights(weights, names, specs, about.reads)
    if given is not None:
        members[WEIGHTS] = _save_weights(given)
    about = msgspec.structs.replace(about, missing=tuple(missing), given=() if given is None else tuple(sorted(given)))
    members[ABOUT] = msgspec.json.format(msgspec.json.encode(about, order="sorted"), indent=1)
    members[README] = readme(about, recipe, specs, usages).encode()
    return PackedReproducer(write_archive(members), about)


def needed_inputs(commands: Sequence[RecordedCommand], number: int) -> Iterator[FileRef]:
    """The inputs of a command that no earlier one makes."""
    made = {(each.folder, each.path, each.digest) for command in commands[:number] for each in command.outputs}
    for each in commands[number].inputs:
        if (each.folder, each.path, each.digest) not in made:
            yield each


def _contents(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Name and digest of what the arguments need, but for manifests."""
    for path, value in leaves(recipe.arguments):
        if isinstance(value, ProgramOf):
            yield f"arguments/{path}{_suffix(value.format)}", value.ir
        elif isinstance(value, Long | FileOf):
            yield f"arguments/{path}", value.digest


def _suffix(format: str) -> str:
    try:
        return ir.suffix(format)
    except PluginError:  # the name is for people; the format is in the recipe
        return ".ir"


def _add_reproducers(recipe: Recipe, members: dict[str, bytes], missing: list[str]) -> list[str]:
    """Put in the inputs in the forms that their compilers have for reproducers; a command line for each."""
    usages: list[str] = []
    for command in recipe.commands:
        words = [command.tool.name, *(arg for arg in command.args if isinstance(arg, str))]
        for name in [f"{folder_name(each.folder)}/{each.path}" for each in command.inputs]:
            if name not in members:
                continue
            forms, refused = ir.reproducers(words, members[name])
            for form in forms:
                members[name + form.suffix] = form.data
                usages.append(shlex.join([command.tool.name, form.option, name + form.suffix]))
            missing += [f"{name} with the options of {command.tool.name} inside: {each}" for each in refused]
    return usages


def _make_weights(
    weights: WeightSet | None, names: Sequence[str], specs: Mapping[str, WeightSpec], reads: Mapping[str, str]
) -> WeightSet | None:
    if not names:
        return None
    if weights is None:
        raise ReproducerError("--with-weights takes bytes from a checkpoint, and none was given; say --weights SOURCE")
    chosen = weights.select(list(names))
    for name, spec in chosen.specs.items():
        wanted = specs.get(name)
        if wanted is None:
            raise ReproducerError(f"weight {name!r} is none of those that the run had ({len(specs)})")
        if (wanted.dtype, wanted.shape) != (spec.dtype, spec.shape):
            raise ReproducerError(
                f"weight {name!r}: {wanted.dtype} {list(wanted.shape)} expected, found {spec.dtype} {list(spec.shape)}"
            )
        digest = reads.get(name)
        if digest is not None and chosen[name].digest() != digest:
            raise ReproducerError(
                f"weight {name!r}: the run read other bytes of it ({digest[:12]}); give the checkpoint that it had"
            )
    return chosen


def _save_weights(weights: WeightSet) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cachec-repro-") as folder:
        path = os.path.join(folder, WEIGHTS)
        weights.save(path)
        return Path(path).read_bytes()
