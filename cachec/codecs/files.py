"""Files, folders and programs: their content as artifacts, returned as paths into the store or read on demand.

A leaf ``file`` holds the content, then the manifest if the file has one of its own; ``dir`` the regular files in the
order of their paths, then the manifest; ``program`` the IR, then the manifest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from cachec.base.audit_events import announce_output
from cachec.base.display_text import is_text
from cachec.codecs.base import corrupt, meta_of, reader, unstorable
from cachec.model import ArtifactRef, Leaf
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program
from cachec.weights.manifest import Folded, Manifest

if TYPE_CHECKING:
    from cachec.store.artifacts import ArtifactSink, ArtifactSource


class _OwnMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """callers, folded: of the value's own manifest."""

    callers: dict[str, str] = {}
    folded: dict[str, tuple[str, ...]] = {}


class _FileMeta(_OwnMeta, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: str = ""


class _DirMeta(_OwnMeta, frozen=True, forbid_unknown_fields=True):
    """files: relative path -> executable, in the order of the artifacts."""

    name: str
    kind: str = ""
    files: dict[str, bool] = {}
    links: dict[str, str] = {}
    folders: tuple[str, ...] = ()


class _ProgramNodeMeta(_OwnMeta, frozen=True, forbid_unknown_fields=True):
    """canonical: see Program, empty for none."""

    format: str
    canonical: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""


_MISSING: Final = "a stage returns files that exist when it returns"


class Manifests:
    """The manifests of one result, each asked of the store once."""

    def __init__(
        self,
        source: ArtifactSource,
        inherited: ArtifactRef | None,
        callers: Mapping[str, str] | None = None,
        folded: Folded | None = None,
    ) -> None:
        """inherited: what the stage says for files that have none of their own. callers, folded: see Manifest; of the
        call."""
        self._source = source
        self._inherited = inherited
        self._callers = callers or {}
        self._folded = folded or {}
        self._known: dict[ArtifactRef, Manifest] = {}

    def of(self, ref: ArtifactRef, own: _OwnMeta | None = None) -> Manifest:
        """Return the manifest, read on first use. ``own``: the value's additional data about it.

        Raises StoreFault where its artifact is gone or altered.
        """
        if own is not None and (own.callers or own.folded):
            load = reader(self._source, ref)
            return Manifest(ref.digest, load, own.callers, own.folded).for_caller(self._callers, self._folded)
        manifest = self._known.get(ref)
        if manifest is None:
            load = reader(self._source, ref)
            manifest = self._known[ref] = Manifest(ref.digest, load, self._callers, self._folded)
        return manifest

    def own_or_inherited(self, own: tuple[ArtifactRef, ...], meta: _OwnMeta) -> Manifest | None:
        """``own`` holds a manifest, of which ``meta`` tells, or nothing."""
        if own:
            return self.of(own[0], meta)
        return None if self._inherited is None else self.of(self._inherited)


def _add(path: str | os.PathLike[str], sink: ArtifactSink, value: object, where: str) -> ArtifactRef:
    try:
        return sink.add_file(path)
    except (OSError, ValueError) as error:
        raise unstorable(value, where, _MISSING, f"the file {os.fspath(path)}, which can't be read: {error}") from error


def _manifest(value: File | Dir, sink: ArtifactSink) -> tuple[ArtifactRef, ...]:
    return () if value.manifest is None else (sink.add_bytes(value.manifest.encode()),)


def _named_fields(value: File | Dir, where: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": value.name, "kind": value.kind}
    for what, text in meta.items():
        if type(text) is not str or not is_text(text):
            raise unstorable(value, where, "name it in Unicode", f"a {type(value).__name__} with the {what} {text!a}")
    return {what: content for what, content in meta.items() if content or what == "name"} | _own(value.manifest)


def _own(manifest: Manifest | None) -> dict[str, Any]:
    """What of a manifest is not in its stored form, as a leaf keeps it."""
    if manifest is None:
        return {}
    folded = {name: list(digests) for name, digests in sorted(manifest.folded.items())}
    return {what: value for what, value in {"callers": dict(manifest.callers), "folded": folded}.items() if value}


def files_size(value: object, depth: int = 4) -> int:
    """Bytes of the files and folders in a result, as far as lists, tuples and dicts hold them ``depth`` deep. None of
    one that can't be looked at: who encodes it says so."""
    if depth and isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return sum(files_size(item, depth - 1) for item in items)
    with suppress(OSError):
        if isinstance(value, File):
            return os.stat(value.path).st_size
        if isinstance(value, Dir):
            paths = (os.path.join(folder, name) for folder, _, names in os.walk(value.path) for name in names)
            return sum(os.lstat(path).st_size for path in paths)
    return 0


def encode_file(value: File, sink: ArtifactSink, where: str) -> Leaf:
    """A copy of the file as it is now. Raises UnstorableResult where it is no regular file that can be read."""
    if os.path.isdir(value.path):
        raise unstorable(
            value, where, "return cachec.Dir(path) for a folder", f"a File that is the folder {value.path}"
        )
    content = _add(value.path, sink, value, where)
    announce_output(value.path)
    return Leaf("file", (content, *_manifest(value, sink)), _named_fields(value, where))


def decode_file(leaf: Leaf, source: ArtifactSource, manifests: Manifests) -> File:
    """The file in the store."""
    meta = meta_of(leaf, _FileMeta, artifacts=None)
    if not 1 <= len(leaf.artifacts) <= 2:
        raise corrupt(f"codec 'file' has {len(leaf.artifacts)} artifacts, expected 1 or 2")
    path = source.path(leaf.artifacts[0])
    return File(path, meta.kind, manifests.own_or_inherited(leaf.artifacts[1:], meta), meta.name).holding(source)


def encode_dir(value: Dir, sink: ArtifactSink, where: str) -> Leaf:
    """A copy of the folder as it is now: files, their executable bit, folders, relative links that stay inside.

    Raises UnstorableResult, naming the path, for anything else in it.
    """
    top = os.fspath(value.path)
    if not os.path.isdir(top):
        raise unstorable(value, where, _MISSING, f"a Dir, but {top} is no folder")
    artifacts: list[ArtifactRef] = []
    files: dict[str, bool] = {}
    links: dict[str, str] = {}
    folders: list[str] = []
    for name, entry in _walk(top, value, where):
        if entry.is_symlink():
            links[name] = _link_target(value, where, name, os.readlink(entry.path))
        elif entry.is_dir():
            folders.append(name)
        elif entry.is_file():
            artifacts.append(_add(entry.path, sink, value, where))
            announce_output(entry.path)
            files[name] = bool(entry.stat().st_mode & stat.S_IXUSR)
        else:
            raise unstorable(value, where, "remove it", f"a Dir where {name!r} is no file, folder or link")
    meta = {**_named_fields(value, where), "files": files, "links": links, "folders": folders}
    return Leaf("dir", (*artifacts, *_manifest(value, sink)), meta)


def _walk(top: str, value: Dir, where: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in a folder with its path relative to ``top``, folders before what is in them."""
    pending = [""]
    while pending:
        folder = pending.pop()
        announce_output(os.path.join(top, folder) if folder else top)
        try:
            with os.scandir(os.path.join(top, folder)) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise unstorable(value, where, _MISSING, f"a Dir that can't be listed: {error}") from error
        for entry in ordered:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not is_text(name):
                raise unstorable(value, where, "name its files in Unicode", f"a Dir with the name {name!a}")
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
            yield name, entry


def _link_target(value: Dir, where: str, name: str, target: str) -> str:
    """Links may climb only first and never out of the folder: then no chain of them can lead out either."""
    # "./a//b" is "a/b"; a link to its own folder stays as it is, and is refused
    parts = [part for part in target.split("/") if part not in {"", "."}] if not target.startswith("/") else [""]
    climbs = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    if not all(parts) or not parts or climbs > name.count("/") or ".." in parts[climbs:] or not is_text(target):
        raise unstorable(
            value,
            where,
            "use a relative link of the form ../../a/b that stays inside",
            f"a Dir where the link {name!r} leads to {target!a}",
        )
    return "/".join(parts)


def decode_dir(leaf: Leaf, source: ArtifactSource, manifests: Manifests) -> Dir:
    """The folder in the store."""
    meta, files = _contents(leaf)
    path = source.tree(files, meta.links, meta.folders)
    folder: Dir = Dir(path, meta.kind, manifests.own_or_inherited(leaf.artifacts[len(files) :], meta), meta.name)
    return folder.holding(source)


def _contents(leaf: Leaf) -> tuple[_DirMeta, dict[str, tuple[ArtifactRef, bool]]]:
    meta = meta_of(leaf, _DirMeta, artifacts=None)
    count = len(meta.files)
    if not count <= len(leaf.artifacts) <= count + 1:
        raise corrupt(f"codec 'dir' has {len(leaf.artifacts)} artifacts for {count} files")
    named = zip(meta.files.items(), leaf.artifacts, strict=False)
    return meta, {name: (ref, executable) for (name, executable), ref in named}


def tree_of(leaf: Leaf) -> str:
    """The name of the tree that a stored folder is handed out as. Raises StoreFault where the leaf is malformed."""
    meta, files = _contents(leaf)
    from cachec.store.trees import tree_name  # of folders alone

    return tree_name(files, meta.links, meta.folders)


def encode_program(value: Program, sink: ArtifactSink, where: str) -> Leaf:
    """IR and manifest."""
    artifacts = (sink.add_bytes(value.ir), sink.add_bytes(value.manifest.encode()))
    meta: dict[str, Any] = {"format": value.format}
    if value.canonical is not None:
        meta["canonical"] = value.canonical
    return Leaf("program", artifacts, meta | _own(value.manifest))


def decode_program(leaf: Leaf, source: ArtifactSource, manifests: Manifests) -> Program:
    """Return the program; its IR and its manifest are read on first use."""
    meta = meta_of(leaf, _ProgramNodeMeta, artifacts=2)
    ir, manifest = leaf.artifacts
    return Program.stored(
        format=meta.format,
        manifest=manifests.of(manifest, meta),
        ir_digest=ir.digest,
        load=reader(source, ir),
        canonical=meta.canonical or None,
    )
