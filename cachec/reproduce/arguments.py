"""The arguments of a call as data: programs and weight sets by digest, plain values by value, code by its name.

What is none of these is kept in words only. Contents that are needed to make an argument again go into ``Contents``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import msgspec

from cachec.base.display_text import is_secret
from cachec.base.hashing import digest_bytes
from cachec.base.instances import attribute, function_of
from cachec.codecs.json_data import SCALARS, decode_inline, encode_scalar
from cachec.errors import ReproducerError
from cachec.key.describe import describe
from cachec.model import ArtifactRef, Digest, Inline
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec.weights.formats import WEIGHT_SUFFIXES
from cachec.weights.manifest import Manifest
from cachec.weights.pytree import taken_apart

#: Digest -> bytes.
Contents = dict[str, bytes]

#: Text, bytes and files above this size are stored as a description only.
MAX_STORED = 4 << 20
_DEPTH = 20
_MAX_ITEMS = 10_000

#: The placeholder for a value with a secret's name.
SECRET = "a secret, left out"


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    """None, a bool, a number, a short text or short bytes."""

    inline: Inline


class Long(msgspec.Struct, frozen=True, tag="long"):
    """A longer text (UTF-8) or longer bytes. kind: ``str`` or ``bytes``."""

    kind: str
    digest: Digest


class Items(msgspec.Struct, frozen=True, tag="items"):
    """A list or a tuple; ``kind`` says which."""

    kind: str
    items: tuple[Value, ...]


class NamedValues(msgspec.Struct, frozen=True, tag="named"):
    """A dict with string keys."""

    items: dict[str, Value]


class ProgramOf(msgspec.Struct, frozen=True, tag="program"):
    """A ``Program``."""

    format: str
    ir: Digest
    manifest: Digest


class WeightsOf(msgspec.Struct, frozen=True, tag="weights"):
    """A ``WeightSet``, by its specs. tree: what it hangs in, as ``repr`` writes it, with names for leaves; or empty."""

    manifest: Digest
    rank: int | None = None
    tree: str = ""


class FileOf(msgspec.Struct, frozen=True, tag="file"):
    """A ``File`` or a plain path to a file. form: ``File`` or ``Path``. manifest: of a File, or empty."""

    form: str
    name: str
    digest: Digest
    nbytes: int
    kind: str = ""
    manifest: str = ""


class CodeOf(msgspec.Struct, frozen=True, tag="code"):
    """A function or a class, by its name: a replay imports it."""

    module: str
    qualname: str


class Words(msgspec.Struct, frozen=True, tag="words"):
    """Anything else: what it was, for a person."""

    text: str


Value = Scalar | Long | Items | NamedValues | ProgramOf | WeightsOf | FileOf | CodeOf | Words


def leaves(arguments: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """What arguments are made of: each value that holds no others, behind its place, ``name`` or ``name-0-2``."""
    for name, value in arguments.items():
        if isinstance(value, Items | NamedValues):
            inner = value.items if isinstance(value, Items) else value.items.values()
            yield from leaves({f"{name}-{number}": item for number, item in enumerate(inner)})
        else:
            yield name, value


def describe_value(value: Any, contents: Contents, name: str = "") -> Value:
    """``value`` as data; what it needs is added to ``contents``. name: of the parameter; a text that goes by a name
    like a secret's is left out.
    """
    return _Describer(contents).describe(value, name, _DEPTH)


class _Describer:
    """Describes one argument, up to ``_MAX_ITEMS`` values in it."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._remaining = _MAX_ITEMS

    def describe(self, value: Any, name: str, depth: int) -> Value:
        """``value``, which goes by ``name``."""
        cls = type(value)
        contents = self._contents
        self._remaining -= 1
        if cls in SCALARS:
            return Words(SECRET) if cls in {str, bytes} and is_secret(name) else _scalar(value, contents)
        if isinstance(value, Program):
            contents.setdefault(value.ir_digest, value.ir)
            return ProgramOf(value.format, value.ir_digest, store_manifest(value.manifest, contents))
        if isinstance(value, WeightSet):
            nesting = value.layout.nesting
            if nesting is not None and not nesting.is_plain:
                return Words("weights in a tree of other containers than dicts, lists and tuples")
            tree = "" if nesting is None else repr(nesting.form)
            return WeightsOf(store_manifest(value.manifest, contents), value.rank, tree)
        if isinstance(value, File | PurePath):
            return _file(value, contents)
        if cls in {list, tuple, dict} and depth and len(value) <= self._remaining:
            if cls is not dict:
                return Items(cls.__name__, tuple(self.describe(item, name, depth - 1) for item in value))
            if all(type(key) is str for key in value):
                return NamedValues({key: self.describe(item, key, depth - 1) for key, item in value.items()})
        # A stage too, which is called by the name of its function.
        module, qualname = attribute(function_of(value), "__module__"), attribute(function_of(value), "__qualname__")
        if callable(value) and isinstance(module, str) and isinstance(qualname, str) and "<" not in qualname:
            return CodeOf(module, qualname)
        return Words(describe(value, 200))


def _scalar(value: Any, contents: Contents) -> Value:
    if type(value) in {str, bytes} and len(value) > MAX_STORED:
        return Words(describe(value, 200))
    pieces: list[bytes] = []

    class _MemorySink:
        def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
            pieces.append(bytes(data))
            return ArtifactRef(digest_bytes(data), len(data))

        def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
            raise AssertionError(pieces)

        def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
            raise AssertionError(path)

    node = encode_scalar(value, _MemorySink())
    if isinstance(node, Inline):
        return Scalar(node)
    ref = node.artifacts[0]
    contents.setdefault(ref.digest, pieces[0])
    return Long(type(value).__name__, ref.digest)


def store_manifest(manifest: Manifest, contents: Contents) -> str:
    """The digest of a manifest, which is among the contents then."""
    contents.setdefault(manifest.digest, manifest.encode())
    return manifest.digest


def _file(value: File | PurePath, contents: Contents) -> Value:
    place = os.fspath(value)
    if os.path.splitext(place)[1] in WEIGHT_SUFFIXES:
        return Words(f"the weights {os.path.basename(place)!r}")
    try:
        nbytes = os.stat(place).st_size
        if not os.path.isfile(place) or nbytes > MAX_STORED:
            return Words(f"the file or folder {os.path.basename(place)!r} of {nbytes} bytes")
        data = Path(place).read_bytes()
    except OSError as error:
        return Words(f"the file {os.path.basename(place)!r}, which can't be read: {error.strerror}")
    digest = digest_bytes(data)
    contents.setdefault(digest, data)
    if not isinstance(value, File):
        return FileOf("Path", os.path.basename(place), digest, len(data))
    manifest = "" if value.manifest is None else store_manifest(value.manifest, contents)
    return FileOf("File", os.path.basename(place), digest, len(data), value.kind, manifest)


def _tree(text: str) -> Any:
    """Containers and names of weights, as ``repr`` writes them."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ReproducerError(f"a tree of weights is malformed in the reproducer: {error}") from error


class Maker:
    """Makes arguments again from their data."""

    def __init__(
        self,
        contents: Mapping[str, bytes],
        folder: Path,
        weights: Callable[[Manifest, str], WeightSet],
        load: Callable[[str, str], Any],
    ) -> None:
        """folder: where files are put. weights: a set for a manifest and an argument's path. load: what a module and a
        name lead to.
        """
        self._contents = contents
        self._folder = folder
        self._weights = weights
        self._load = load

    def make(self, value: Value, path: str) -> Any:
        """The argument at ``path``. Raises ReproducerError where it can't be made, StoreFault for malformed data."""
        if isinstance(value, Scalar):
            return decode_inline(value.inline)
        if isinstance(value, Long):
            data = self._content(value.digest, path)
            return data if value.kind == "bytes" else data.decode("utf-8", "surrogatepass")
        if isinstance(value, Items):
            items = [self.make(item, f"{path}[{number}]") for number, item in enumerate(value.items)]
            return tuple(items) if value.kind == "tuple" else items
        if isinstance(value, NamedValues):
            return {key: self.make(item, f"{path}[{key!r}]") for key, item in value.items.items()}
        if isinstance(value, ProgramOf):
            manifest = self._manifest(value.manifest, path)
            return Program(self._content(value.ir, path), format=value.format, manifest=manifest)
        if isinstance(value, WeightsOf):
            weights = self._weights(self._manifest(value.manifest, path), path)
            return weights.tree(like=(tree := _tree(value.tree)), names=taken_apart(tree)[1]) if value.tree else weights
        if isinstance(value, FileOf):
            return self._file(value, path)
        if isinstance(value, CodeOf):
            return self._load(value.module, value.qualname)
        raise ReproducerError(
            f"argument {path} was {value.text}, which a reproducer does not hold; call the stage yourself with one"
        )

    def _content(self, digest: str, path: str) -> bytes:
        content = self._contents.get(digest)
        if content is None:
            raise ReproducerError(
                f"argument {path}: its content {digest[:12]} is not in the reproducer; make a new one"
            )
        return content

    def _manifest(self, digest: str, path: str) -> Manifest:
        data = self._content(digest, path)
        return Manifest(digest, lambda: data)

    def _file(self, value: FileOf, path: str) -> Any:
        name = os.path.basename(value.name)
        if name != value.name or name in {"", ".", ".."}:
            raise ReproducerError(f"argument {path}: the name of a file expected, found {value.name!r}")
        folder = self._folder / value.digest[:12]
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(self._content(value.digest, path))
        if value.form == "Path":
            return folder / name
        manifest = self._manifest(value.manifest, path) if value.manifest else None
        return File(folder / name, kind=value.kind, manifest=manifest, name=name)
