"""Weights as a user sees them: an immutable mapping name -> weight, at one revision, without a byte touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from cachec.errors import UsageError
from cachec.hashing import FileDigests, Hasher
from cachec.model import WeightSpec
from cachec.topology import Manifest
from cachec.weights.checkpoints import AnyPath, opened_artifact, process_checkpoints
from cachec.weights.checkpoints import Source as Checkpoint
from cachec.weights.layout import Layout, Patterns, Ties
from cachec.weights.presharded import world
from cachec.weights.sources import (
    ComposedSource,
    FileSource,
    GuardSource,
    MemorySource,
    Origin,
    PlaceholderSource,
    Source,
)
from cachec.weights.weight import Weight

if TYPE_CHECKING:
    from cachec.recording import Recorder

D = TypeVar("D")


class WeightSet(Mapping[str, Weight]):
    """An immutable mapping name -> Weight at one revision, in the order of the names. Handles are made when asked for.

    Sets made from a set by ``select`` and ``rename`` share its source: releasing one releases all.
    """

    __slots__ = ("__weakref__", "_guarded", "_layout", "_old", "_rank", "_source")

    def __init__(
        self,
        layout: Layout,
        source: Source,
        *,
        rank: int | None = None,
        old: tuple[Mapping[str, str], ...] = (),
        guarded: Layout | None = None,
    ) -> None:
        """Use ``open_weights`` or one of the ``from_`` methods.

        old: one mapping new name -> old name for each rename since the source was opened, the latest first.
        guarded: the layout of the guarded set that this one came from.
        """
        self._layout = layout
        self._source = source
        self._rank = rank
        self._old = old
        self._guarded = guarded

    # --- making one

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], *, tied: Iterable[Iterable[str]] = ()) -> WeightSet:
        """Weights in memory, by reference: numpy arrays, or ``(bytes-like, WeightSpec)`` pairs.

        Raises UsageError for what is no row-major little-endian array of a known dtype.
        """
        from cachec.weights.memory import buffers_of

        tensors, buffers = buffers_of(arrays)
        return WeightSet(Layout(tensors).tied(tied), MemorySource(buffers))

    @staticmethod
    def from_weights(weights: Mapping[str, Weight], *, tied: Iterable[Iterable[str]] = ()) -> WeightSet:
        """Handles of any sets together under new names. Their guards, checks and releases go on to hold."""
        handles = dict(weights)
        for name, weight in handles.items():
            if not isinstance(weight, Weight):
                raise UsageError(f"from_weights: {name!r} expected a Weight, found {type(weight).__name__}")
        return WeightSet(Layout({n: w.tensor for n, w in handles.items()}).tied(tied), ComposedSource(handles))

    @staticmethod
    def from_files(files: Mapping[str, tuple[AnyPath, WeightSpec]]) -> WeightSet:
        """Weights of which each is all of one immutable file (row-major, little-endian bytes); ties as the specs say.

        For files that nobody writes again, such as artifacts: when bound, only inode and size are checked.
        Raises UsageError where a file has another size than the spec says, OSError where it is not there.
        """
        from cachec.weights.memory import checked_tensor, stated_ties

        opened = tuple(opened_artifact(path) for path, _ in files.values())
        tensors = {
            name: checked_tensor(name, spec, file.identity.size, file.path, number)
            for number, ((name, (_, spec)), file) in enumerate(zip(files.items(), opened, strict=True))
        }
        return WeightSet(Layout(tensors, stated_ties(spec for _, spec in files.values())), FileSource(opened))

    # --- the mapping

    def __getitem__(self, name: str) -> Weight:
        """The handle. Raises UnknownWeight (a KeyError) with the nearest name."""
        if name not in self._layout.tensors:
            raise self._layout.unknown(name)
        return Weight(name, self._layout, self._source, self._there(name))

    def get(self, name: str, default: D | None = None) -> Weight | D | None:  # type: ignore[override]
        """The handle, or ``default``."""
        return self[name] if name in self._layout.tensors else default

    def __contains__(self, name: object) -> bool:
        return name in self._layout.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.tensors)

    def __len__(self) -> int:
        return len(self._layout.tensors)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # --- what is known without a byte

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        """The specs by name, read-only."""
        return self._layout.specs

    @property
    def spec_digest(self) -> str:
        """64 hexadecimal characters over the specs: equal for equal names, types, shapes, ties and shards."""
        return self._layout.spec_digest

    @property
    def manifest(self) -> Manifest:
        """What an artifact compiled for these weights is to be linked with."""
        return self._layout.manifest

    @property
    def rank(self) -> int | None:
        """The worker whose shards these are, from 0, or None. In no spec: workers share what was compiled."""
        return self._rank

    @property
    def nbytes(self) -> int:
        """Bytes of all weights together."""
        return sum(tensor.nbytes for tensor in self._layout.tensors.values())

    @property
    def revision(self) -> str:
        """64 hexadecimal characters that change when a file is replaced or written; no content is read for it.

        Raises WeightReadError inside a stage: the revision is not in its key.
        """
        hasher = Hasher("weight-revision")
        hasher.part("specs", self._layout.spec_digest.encode())
        hasher.part("places", self._layout.place_digest.encode())
        hasher.part("source", self._source.state())
        return hasher.digest()

    # --- other sets of the same weights

    def select(self, include: Patterns = None, exclude: Patterns = None) -> WeightSet:
        """The weights whose names match ``include`` (all, if None) and not ``exclude``: names or fnmatch globs.

        Raises UnknownWeight for a name that is not here, or a glob of ``include`` that matches none.
        """
        return self._derived(self._layout.selected(include, exclude), self._old)

    def rename(self, rename: Mapping[str, str] | Callable[[str], str]) -> WeightSet:
        """The same weights under other names: a mapping old -> new (others stay), or a function of the name.

        Raises UnknownWeight for a name that is not here, UsageError where two weights would get one name.
        """
        layout, old = self._layout.renamed(rename)
        return self if layout is self._layout else self._derived(layout, (old, *self._old))

    def _derived(self, layout: Layout, old: tuple[Mapping[str, str], ...]) -> WeightSet:
        if layout is self._layout:
            return self
        return WeightSet(layout, self._source, rank=self.rank, old=old, guarded=self._guarded)

    def placeholders(self, stage: str = "") -> WeightSet:
        """The same specs without bytes: reading one raises WeightReadError, naming ``stage`` and the weight."""
        source = self._source
        stage = stage or (source.recorder.stage if isinstance(source, GuardSource) else "")
        return WeightSet(self._layout, PlaceholderSource(stage), rank=self.rank)

    # --- inside a stage

    def guarded(self, where: str, recorder: Recorder, digests: FileDigests) -> WeightSet:
        """What a stage is given for its argument at path ``where``: every exposure of bytes is recorded first."""
        source = GuardSource(self._source, self._there, where, recorder, digests)
        return WeightSet(self._layout, source, rank=self.rank, guarded=self._layout)

    def close_guard(self) -> None:
        """The stage has returned: exposures through this set, or one made from it, raise HandleClosed from now on.

        Raises UsageError for a set that was not made by ``guarded``.
        """
        if not isinstance(self._source, GuardSource):
            raise UsageError("close_guard: this weight set was not made by guarded()")
        self._source.release()

    def origin(self, name: str) -> Origin | None:
        """Which caller's weight ``name`` is: (argument path, name there); None for one that no stage was given.

        Raises UnknownWeight.
        """
        return self[name].origin()

    def whole_origin(self) -> str | None:
        """The argument path, if this is the whole of a guarded set, under the same names; else None."""
        if isinstance(self._source, GuardSource) and self._layout is self._guarded and not self._old:
            return self._source.where
        return None

    def unguarded(self, callers: Mapping[str, WeightSet]) -> WeightSet:
        """The same with each weight that came from an argument replaced by the caller's own.

        callers: the callers' sets by argument path. Weights from elsewhere, and of other paths, stay as they are.
        """
        handles: dict[str, Weight] = {}
        replaced = False
        for name, weight in self.items():
            origin = weight.origin()
            caller = callers.get(origin[0]) if origin is not None else None
            replaced = replaced or caller is not None
            handles[name] = caller[origin[1]] if caller is not None and origin is not None else weight
        if not replaced:
            return self
        layout = Layout({name: weight.tensor for name, weight in handles.items()}, self._layout.ties)
        return WeightSet(layout, ComposedSource(handles), rank=self.rank)

    def changed(self) -> str | None:
        """The path of a file that was bound and is not what was opened any more, or None."""
        return self._source.changed()

    def release(self) -> None:
        """Close the files. Later reads raise HandleClosed; arrays that were handed out stay valid."""
        self._source.release()

    def __enter__(self) -> WeightSet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _there(self, name: str) -> str:
        for old in self._old:
            name = old[name]
        return name

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a weight set holds open files and can't be pickled or copied; pass the path and open it there"
        )

    def __repr__(self) -> str:
        return f"WeightSet({len(self)} weights, {self.nbytes} bytes)"


def open_weights(
    source: Checkpoint,
    *,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    tied: Iterable[Iterable[str]] = (),
    rank: int | None = None,
    world_size: int | None = None,
    access: Literal["mmap", "read"] = "mmap",
) -> WeightSet:
    """The weights of a checkpoint, in place: headers are read and validated in full, no byte of data is.

    source: a ``.safetensors`` file, a ``*.safetensors.index.json``, a folder in Hugging Face's layout (symbolic links
    too), or a list of files. rename: see ``WeightSet.rename``. tied: groups of names that share one weight, by the
    names in the file; never inferred. rank, world_size: which shards to take of a checkpoint with names
    ``<name>_shard-<i>-of-<n>``. access: ``mmap`` hands out views of the file, ``read`` copies into memory.

    Raises CheckpointError (malformed; names file, tensor, expected, found), OSError (no such file), UnknownWeight,
    WeightError (tied weights that differ), UsageError.
    """
    if access not in {"mmap", "read"}:
        raise UsageError(f"open_weights: access expected 'mmap' or 'read', found {access!r}")
    ties: Ties = tuple(tuple(group) for group in tied) if tied else ()
    place = world(rank, world_size)
    found = process_checkpoints().open(source, ties=ties, world=place)
    weights = WeightSet(found.layout, FileSource(found.files, read_access=access == "read"), rank=rank)
    return weights if rename is None else weights.rename(rename)
