"""Weights as a user sees them: an immutable mapping name -> weight, at one revision, without a byte touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cachec.base.hashing import FileDigests
from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.formats.opening import AnyPath, label_of, opened_artifact, process_checkpoints
from cachec.weights.formats.opening import Source as Checkpoint
from cachec.weights.handles import Handles, WorkerRank
from cachec.weights.layout import Layout, Patterns, Ties, checked_name, stated_ties
from cachec.weights.manifest import Manifest
from cachec.weights.sources import FileSource, MemorySource, PlaceholderSource
from cachec.weights.tensor import checked_tensor
from cachec.weights.weight import Weight
from cachec.weights.wrappers import ComposedSource, GuardSource

if TYPE_CHECKING:
    from cachec.recording import ReadRecorder
    from cachec.weights.io.copying import Progress
    from cachec.weights.overlay import ComputedWeight
    from cachec.weights.shards import AxisPatterns


class WeightSet(Handles):
    """An immutable mapping name -> Weight at one revision, in the order of the names. Handles are made when asked for.

    Sets made from a set by ``select`` and ``rename`` share its source: releasing one releases all.
    """

    __slots__ = ()

    # --- making one

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], *, tied: Iterable[Iterable[str]] = ()) -> WeightSet:
        """Weights in memory, by reference, never copied: arrays of numpy, jax or torch, anything on the CPU with DLPack
        or the buffer protocol, and ``(bytes-like, WeightSpec)`` pairs.

        Raises UsageError for what is no row-major little-endian array of a known dtype on the CPU.
        """
        from cachec.weights.arrays import buffers_of

        tensors, buffers = buffers_of(arrays)
        return WeightSet(Layout(tensors).with_ties(tied), MemorySource(buffers))

    @staticmethod
    def from_tree(tree: Any, *, tied: Iterable[Iterable[str]] = ()) -> WeightSet:
        """The arrays of a tree of dicts (ordered and default ones too), lists, tuples and whatever JAX knows as nodes
        (dataclasses, modules, states), by reference. Names are paths, as ``jax.tree_util.keystr`` writes them:
        ``['layers'][0].w``.

        What is made with the set gets the tree again, with the same containers (``unflatten``), which count in keys.
        One array that hangs in several places is one weight: its names are tied. Raises UsageError as ``from_arrays``
        does, and where the tree is a leaf.
        """
        from cachec.weights.pytree import taken_apart

        nesting, leaves = taken_apart(tree)
        places: dict[int, list[str]] = {}
        for name, leaf in leaves.items():
            places.setdefault(id(leaf), []).append(name)
        stated = tuple(tuple(group) for group in tied)
        elsewhere = {name for group in stated for name in group}
        shared = (names for names in places.values() if len(names) > 1 and elsewhere.isdisjoint(names))
        flat = WeightSet.from_arrays(leaves, tied=(*stated, *shared))
        return WeightSet(flat.layout.with_nesting(nesting), flat.source)

    @staticmethod
    def from_weights(
        weights: Mapping[str, Weight], *, tied: Iterable[Iterable[str]] = (), rank: int | WorkerRank | None = None
    ) -> WeightSet:
        """Handles of any sets together under new names. Their guards, checks and releases go on to hold."""
        handles = dict(weights)
        for name, weight in handles.items():
            checked_name(name, "from_weights")
            if not isinstance(weight, Weight):
                raise UsageError(f"from_weights: {name!r} expected a Weight, found {type(weight).__name__}")
        layout = Layout({name: weight.tensor for name, weight in handles.items()}).with_ties(tied)
        return WeightSet(layout, ComposedSource(handles), rank=rank)

    @staticmethod
    def from_files(files: Mapping[str, tuple[AnyPath, WeightSpec]]) -> WeightSet:
        """Weights of which each is all of one immutable file (row-major, little-endian bytes); ties as the specs say.

        For files that nobody writes again, such as artifacts: when bound, only inode and size are checked.
        Raises UsageError where a file has another size than the spec says, OSError where it is not there.
        """
        for name in files:
            checked_name(name, "from_files")
        opened = tuple(opened_artifact(path) for path, _ in files.values())
        tensors = {
            name: checked_tensor(name, spec, file.identity.size, file.path, number)
            for number, ((name, (_, spec)), file) in enumerate(zip(files.items(), opened, strict=True))
        }
        return WeightSet(Layout(tensors, stated_ties(spec for _, spec in files.values())), FileSource(opened))

    # --- other sets of the same weights

    def select(self, include: Patterns = None, exclude: Patterns = None) -> WeightSet:
        """The weights whose names match ``include`` (all, if None) and not ``exclude``: names or fnmatch globs.

        Raises UnknownWeight for a name that is not here, or a glob of ``include`` that matches none.
        """
        return self._derive(self._layout.select(include, exclude), self._old)

    def rename(self, rename: Mapping[str, str] | Callable[[str], str]) -> WeightSet:
        """The same weights under other names: a mapping old -> new (others stay), or a function of the name.

        Raises UnknownWeight for a name that is not here, UsageError where two weights would get one name.
        """
        layout, old = self._layout.rename(rename)
        return self if layout is self._layout else self._derive(layout, (old, *self._old))

    def part(
        self, names: tuple[str, ...], old: tuple[str, ...], *, tied: Ties = (), rank: int | None = None
    ) -> WeightSet:
        """The weights ``old`` under ``names``: ``from_weights`` of one set's own, at no cost a weight when repeated.

        Raises UnknownWeight, and what ``from_weights`` raises.
        """
        layout, back = self._layout.part(names, old, tied)
        return WeightSet(layout, self._source, rank=rank, old=(back, *self._old))

    def _derive(self, layout: Layout, old: tuple[Mapping[str, str], ...]) -> WeightSet:
        if layout is self._layout:
            return self
        return WeightSet(layout, self._source, rank=self._worker, old=old, guarded=self._guarded)

    def tree(self, *, like: Any, names: Mapping[str, str] | Callable[[str], str] | None = None) -> WeightSet:
        """The weights that hang in a tree such as ``like``, under their own names. What is made with them gets it.

        like: as ``from_tree`` takes it, with anything for leaves (``jax.eval_shape(init)``, say); shape and dtype are
        compared where a leaf has them. names: from a leaf's path (``['layers'][0].w``) to its weight's name, a mapping
        or a function; by default the paths themselves, or with dots (``layers.0.w``).

        Raises UnknownWeight, WeightError for another shape or dtype, UsageError as ``from_tree``.
        """
        from cachec.weights.pytree import named_like

        layout = self._layout.with_nesting(named_like(like, self._layout.specs, names))
        return WeightSet(layout, self._source, rank=self._worker, old=self._old, guarded=self._guarded)

    def unflatten(self, leaf: Callable[[Weight], Any] = Weight.read) -> Any:
        """The tree again, each leaf made of its weight: by default a read-only array in place. Without one, a dict.

        Tied weights give one leaf. Raises what ``leaf`` raises, as ``Weight.read`` does.
        """
        layout = self._layout
        made: dict[str, Any] = {}

        def once(name: str) -> Any:
            first = layout.alias(name) or name
            if first not in made:
                made[first] = leaf(self[name])
            return made[first]

        return {name: once(name) for name in self} if layout.nesting is None else layout.nesting.build(once)

    def placeholders(self, stage: str = "") -> WeightSet:
        """The same specs without bytes: reading one raises WeightReadError, naming ``stage`` and the weight."""
        source = self._source
        stage = stage or (source.recorder.stage if isinstance(source, GuardSource) else "")
        return WeightSet(self._layout, PlaceholderSource(stage), rank=self._worker)

    def shard(self, patterns: AxisPatterns, rank: int, world_size: int, *, pad: bool = False) -> WeightSet:
        """What worker ``rank`` (from 0) of ``world_size`` needs of these whole weights, without a file being written.

        patterns: name, glob or compiled regular expression -> axis that is cut into equal slices, None for whole; the
        first that matches decides, and what none matches is whole. A slice of axis 0 is handed out in place; of another
        axis, only its own pieces are read, into memory. The specs say axis and count, not the rank, so all workers
        share what is compiled. pad: slices of an axis that does not divide are filled up with zeros, on every worker.

        Raises UnknownWeight for a pattern that matches nothing, UsageError for an axis that is not there, does not
        divide, or belongs to a weight that is a shard already.
        """
        from cachec.weights.shards import shard

        return WeightSet(*shard(self, patterns, rank, world_size, pad=pad), rank=rank)

    def save_shards(
        self,
        folder: AnyPath,
        patterns: AxisPatterns,
        world_size: int,
        *,
        pad: bool = False,
        progress: Progress | None = None,
        fsync: bool = False,
    ) -> None:
        """Write ``folder`` for ``open_weights(folder, rank=, world_size=)``: one safetensors file a worker, with all
        that it needs, so that no file is opened by two. Arguments and errors as for ``shard`` and ``save``.
        """
        from cachec.weights.shards import save_shards

        save_shards(self, folder, patterns, world_size, pad=pad, progress=progress, fsync=fsync)

    def overlay(
        self, other: Mapping[str, Any], *, tied: Iterable[Iterable[str]] = (), replace: bool = False
    ) -> WeightSet:
        """These weights with those of ``other`` over them: changed ones by their names, new ones beside them.

        other: a weight set, or a mapping of weights, arrays and ``(bytes-like, WeightSpec)`` pairs. tied: groups of
        names in ``other`` that share one weight, where it is no set. Nothing is copied or written. replace: a changed
        weight may have another dtype, shape or shard.

        Raises WeightError where a spec differs otherwise, or where a part of a group of tied weights would change.
        """
        from cachec.weights.overlay import overlay

        if not isinstance(other, WeightSet):
            over = _set_of(other, tied)
        elif tied:
            raise UsageError("overlay: tied= goes with a mapping; a weight set states its ties itself")
        else:
            over = other
        return WeightSet(*overlay(self, over, replace=replace), rank=self.worker)

    def derive(
        self, made: Mapping[str, ComputedWeight | Callable[[Weight], Any]], *, tied: Iterable[Iterable[str]] = ()
    ) -> WeightSet:
        """These weights with some that are computed when they are looked at, one at a time, and never kept.

        made: name -> ``ComputedWeight(dtype, shape, function of this set)`` for any weight, new or changed; or a
        function of the weight of that name, for another value of the same dtype and shape. A stage
        that returns the set has each made once, straight into the store, and shares all others with its caller. Each
        look makes it again.

        Raises UnknownWeight, UsageError; when looked at, WeightError where a result is not what was stated.
        """
        from cachec.weights.overlay import derive

        return WeightSet(*derive(self, made, tied), rank=self.worker)

    def pad_rank(self, rank: int, patterns: AxisPatterns | None = None) -> WeightSet:
        """Low-rank adapters padded with zeros to one rank, so that adapters of any lower rank share one program.

        patterns: name, glob or compiled regular expression -> the axis that is the rank; by default as PEFT lays out
        LoRA: axis 0 of ``lora_A``, axis 1 of ``lora_B``. B @ A stays what it was; a scale that divides by the rank has
        to go on with the old one. Raises UsageError for an adapter of a higher rank.
        """
        from cachec.weights.overlay import LORA, pad_rank

        padded = pad_rank(self, LORA if patterns is None else patterns, rank)
        return self if padded is None else WeightSet(*padded, rank=self.worker)

    def stream(self, read_ahead: int = 1) -> Iterator[Weight]:
        """The weights one after another in the order of the files, with at most two in memory: hand one over, go on.

        A weight is good until the next one is asked for; arrays taken from it stay valid, but hold their memory. The
        next weight is read meanwhile; with ``read_ahead=0`` it is not. Inside a stage each weight that is handed over
        counts as read, and they come by name: the order of a file is in no key. Raises as ``Weight.read`` does, when
        the weight's turn comes.
        """
        from cachec.weights.io.streaming import stream

        return stream(self, read_ahead)

    # --- inside a stage

    def guard(self, where: str, recorder: ReadRecorder, digests: FileDigests, *, per_rank: bool = False) -> WeightSet:
        """What a stage is given for its argument at path ``where``: every exposure of bytes is recorded first.

        per_rank: whether the rank is in the stage's key, so that it may be seen.
        """
        source = GuardSource(self._source, self._there, where, recorder, digests)
        worker = self._worker
        if worker is not None and not per_rank:
            worker = WorkerRank(worker.rank, recorder.stage)
        return WeightSet(self._layout, source, rank=worker, guarded=self._layout)

    def close_guard(self) -> None:
        """The stage has returned: exposures through this set, or one made from it, raise HandleClosed from now on.

        Raises UsageError for a set that was not made by ``guarded``.
        """
        if not isinstance(self._source, GuardSource):
            raise UsageError("close_guard: this weight set was not made by guarded()")
        self._source.release()

    def unguard(self, callers: Mapping[str, WeightSet]) -> WeightSet:
        """The same with each weight that came from an argument replaced by the caller's own, also within parts of it.

        callers: the callers' sets by argument path. Weights from elsewhere, and of other paths, stay as they are.
        """
        handles: dict[str, Weight] = {}
        replaced = False
        for name, weight in self.items():
            handles[name] = weight.unguard(callers)
            replaced = replaced or handles[name] is not weight
        if not replaced:
            return self
        tensors = {name: weight.tensor for name, weight in handles.items()}
        layout = Layout(tensors, self._layout.ties, self._layout.nesting)
        return WeightSet(layout, ComposedSource(handles), rank=self._worker)

    def save(
        self,
        path: AnyPath,
        *,
        format: Literal["safetensors", "irpa", "ptd"] | None = None,
        shard_size: int | None = None,
        metadata: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        fsync: bool = False,
    ) -> None:
        """Write all weights to a file, or to shards of at most ``shard_size`` bytes; see ``writing.save``.

        The suffix says in which format. Raises UsageError where none of that suffix can be written.
        """
        from cachec.weights.io.writing import save

        save(self, path, format=format, shard_size=shard_size, metadata=metadata, progress=progress, fsync=fsync)


def _set_of(other: Mapping[str, Any], tied: Iterable[Iterable[str]]) -> WeightSet:
    """Weights and arrays of a mapping as one set."""
    if not isinstance(other, Mapping):
        raise UsageError(f"overlay: expected a weight set or a mapping name -> weight, found {type(other).__name__}")
    handles = {name: value for name, value in other.items() if isinstance(value, Weight)}
    arrays = {name: value for name, value in other.items() if name not in handles}
    if not handles:
        return WeightSet.from_arrays(arrays, tied=tied)
    return WeightSet.from_weights({**handles, **WeightSet.from_arrays(arrays)}, tied=tied)


def open_weights(
    source: Checkpoint,
    *,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    tied: Iterable[Iterable[str]] = (),
    rank: int | None = None,
    world_size: int | None = None,
    access: Literal["mmap", "read"] = "mmap",
    specs: Mapping[str, WeightSpec] | Manifest | None = None,
) -> WeightSet:
    """The weights of a checkpoint, in place: headers are read and validated in full, no byte of data is.

    source: a file (safetensors, GGUF, IRPA, ONNX, .npy, .npz, TVM's ``tensor-cache.json``, PyTorch's ``.pt``,
    ExecuTorch's ``.ptd``: by its first bytes, then by its suffix), a ``*.safetensors.index.json``, a folder in Hugging
    Face's layout (symbolic links too) or with a tensor cache, or a list of files. rename: see ``WeightSet.rename``.
    tied: groups of names that share one weight, by the names in the file; never inferred. rank, world_size: which
    shards to take of a checkpoint with names ``<name>_shard-<i>-of-<n>``. access: ``mmap`` hands out views of the file,
    ``read`` copies into memory. specs: what the weights are expected to be, before ``rename``. It gives types to those
    of an IRPA archive, which are uint8 vectors without it; any other has to agree. Its aliases are the ties where
    ``tied`` is left out.

    Raises CheckpointError (malformed; names file, tensor, expected, found), OSError (no such file), UnknownWeight,
    WeightError (tied weights that differ), UsageError.
    """
    if access not in {"mmap", "read"}:
        raise UsageError(f"open_weights: access expected 'mmap' or 'read', found {access!r}")
    ties: Ties = tuple(tuple(group) for group in tied) if tied else ()
    place = expected = None
    if rank is not None or world_size is not None:
        from cachec.weights.formats.presharded import world

        place = world(rank, world_size, label_of(source))
    if specs is not None:
        from cachec.weights.formats.declared_specs import manifest_of

        expected = manifest_of(specs)
    checkpoint = process_checkpoints().open(source, ties=ties, world=place, specs=expected)
    weights = WeightSet(checkpoint.layout, checkpoint.source(read_access=access == "read"), rank=rank)
    return weights if rename is None else weights.rename(rename)
