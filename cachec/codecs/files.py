"""Files, folders and programs: their content as artifacts, handed back as paths into the store or read when looked at.

A leaf ``file`` holds the content, then the manifest if the file has one of its own; ``dir`` the regular files in the
order of their paths, then the manifest; ``program`` the IR, then the manifest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from cachec.codecs.base import Sink, Source, corrupt, meta_of, reader, unstorable
from cachec.model import ArtifactRef, Leaf
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program
from cachec.store.trees import tree_name
from cachec.weights.manifest import Manifest


class _FileMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """callers: of the file's own manifest."""

    name: str
    kind: str = ""
    callers: dict[str, str] = {}


class _DirMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """files: relative path -> executable, in the order of the artifacts. callers: of the folder's own manifest."""

    name: str
    kind: str = ""
    callers: dict[str, str] = {}
    files: dict[str, bool] = {}
    links: dict[str, str] = {}
    folders: tuple[str, ...] = ()


class _ProgramMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """canonical: see Program, empty for none. callers: of the manifest."""

    format: str
    canonical: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    callers: dict[str, str] = {}


_MISSING: Final = "a stage returns files that exist when it returns"


class Manifests:
    """The manifests of one result, each asked of the store once."""

    def __init__(self, source: Source, inherited: ArtifactRef | None, callers: Mapping[str, str] | None = None) -> None:
        """inherited: what the stage says for files that have none of their own. callers: see Manifest; of the call."""
        self._source = source
        self._inherited = inherited
        self._callers = callers or {}
        self._known: dict[ArtifactRef, Manifest] = {}

    def of(self, ref: ArtifactRef) -> Manifest:
        """The manifest, read when first looked at. Raises StoreFault where its artifact is gone or altered."""
        found = self._known.get(ref)
        if found is None:
            load = reader(self._source, ref)
            found = self._known[ref] = Manifest(ref.digest, load, self._callers)
        return found

    def own(self, ref: ArtifactRef, callers: Mapping[str, str]) -> Manifest:
        """The same, of a value that says names of its own (``callers``), which those of the call may explain."""
        found = self.of(ref)
        if not callers:
            return found
        return found.called({name: self._callers.get(there, there) for name, there in callers.items()})

    def own_or_inherited(self, own: tuple[ArtifactRef, ...], callers: Mapping[str, str]) -> Manifest | None:
        """``own`` holds a manifest, which has ``callers``, or nothing."""
        if own:
            return self.own(own[0], callers)
        return None if self._inherited is None else self.of(self._inherited)


def _add(path: str | os.PathLike[str], sink: Sink, value: object, where: str) -> ArtifactRef:
    try:
        return sink.add_file(path)
    except (OSError, ValueError) as error:
        raise unstorable(value, where, _MISSING, f"the file {os.fspath(path)}, which can't be read: {error}") from error


def _manifest(value: File | Dir, sink: Sink) -> tuple[ArtifactRef, ...]:
    return () if value.manifest is None else (sink.add_bytes(value.manifest.encoded()),)


def _named(value: File | Dir, where: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": value.name, "kind": value.kind}
    for what, text in meta.items():
        if type(text) is not str or not _is_text(text):
            raise unstorable(value, where, "name it in Unicode", f"a {type(value).__name__} with the {what} {text!a}")
    if value.manifest is not None:
        meta["callers"] = dict(value.manifest.callers)
    return {what: said for what, said in meta.items() if said or what == "name"}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_file(value: File, sink: Sink, where: str) -> Leaf:
    """A copy of the file as it is now. Raises UnstorableResult where it is no regular file that can be read."""
    if os.path.isdir(value.path):
        raise unstorable(
            value, where, "return cachec.Dir(path) for a folder", f"a File that is the folder {value.path}"
        )
    content = _add(value.path, sink, value, where)
    return Leaf("file", (content, *_manifest(value, sink)), _named(value, where))


def decode_file(leaf: Leaf, source: Source, manifests: Manifests) -> File:
    """The file in the store."""
    meta = meta_of(leaf, _FileMeta, artifacts=None)
    if not 1 <= len(leaf.artifacts) <= 2:
        raise corrupt(f"codec 'file' has {len(leaf.artifacts)} artifacts, expected 1 or 2")
    path = source.path(leaf.artifacts[0])
    return File(path, meta.kind, manifests.own_or_inherited(leaf.artifacts[1:], meta.callers), meta.name).holding(
        source
    )


def encode_dir(value: Dir, sink: Sink, where: str) -> Leaf:
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
            files[name] = bool(entry.stat().st_mode & stat.S_IXUSR)
        else:
            raise unstorable(value, where, "remove it", f"a Dir where {name!r} is no file, folder or link")
    meta = {**_named(value, where), "files": files, "links": links, "folders": folders}
    return Leaf("dir", (*artifacts, *_manifest(value, sink)), meta)


def _walk(top: str, value: Dir, where: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in a folder with its path relative to ``top``, folders before what is in them."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(top, folder)) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise unstorable(value, where, _MISSING, f"a Dir that can't be listed: {error}") from error
        for entry in found:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not _is_text(name):
                raise unstorable(value, where, "name its files in Unicode", f"a Dir with the name {name!a}")
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
            yield name, entry


def _link_target(value: Dir, where: str, name: str, target: str) -> str:
    """Links may climb only first and never out of the folder: then no chain of them can lead out either."""
    # "./a//b" is "a/b"; a link to its own folder stays as it is, and is refused
    parts = [part for part in target.split("/") if part not in {"", "."}] if not target.startswith("/") else [""]
    climbs = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    if not all(parts) or not parts or climbs > name.count("/") or ".." in parts[climbs:] or not _is_text(target):
        raise unstorable(
            value,
            where,
            "use a relative link of the form ../../a/b that stays inside",
            f"a Dir where the link {name!r} leads to {target!a}",
        )
    return "/".join(parts)


def decode_dir(leaf: Leaf, source: Source, manifests: Manifests) -> Dir:
    """The folder in the store."""
    meta, files = _contents(leaf)
    path = source.tree(files, meta.links, meta.folders)
    found: Dir = Dir(path, meta.kind, manifests.own_or_inherited(leaf.artifacts[len(files) :], meta.callers), meta.name)
    return found.holding(source)


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
    return tree_name(files, meta.links, meta.folders)


def encode_program(value: Program, sink: Sink, where: str) -> Leaf:
    """IR and manifest."""
    artifacts = (sink.add_bytes(value.ir), sink.add_bytes(value.manifest.encoded()))
    meta: dict[str, Any] = {"format": value.format}
    if value.canonical is not None:
        meta["canonical"] = value.canonical
    if value.manifest.callers:
        meta["callers"] = dict(value.manifest.callers)
    return Leaf("program", artifacts, meta)


def decode_program(leaf: Leaf, source: Source, manifests: Manifests) -> Program:
    """The program; its IR and its manifest are read when first looked at."""
    meta = meta_of(leaf, _ProgramMeta, artifacts=2)
    ir, manifest = leaf.artifacts
    return Program.stored(
        format=meta.format,
        manifest=manifests.own(manifest, meta.callers),
        ir_digest=ir.digest,
        load=reader(source, ir),
        canonical=meta.canonical or None,
    )
