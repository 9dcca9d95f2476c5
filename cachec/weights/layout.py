"""What the names of a weight set mean: types, places, ties. Immutable, shared by every set opened on the same files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachec.base.bounded_dict import BoundedDict
from cachec.base.display_text import is_text, nearest
from cachec.base.hashing import Hasher
from cachec.errors import UnknownWeight, UsageError, WeightError
from cachec.model import WeightSpec
from cachec.weights.manifest import Manifest, renaming_hint
from cachec.weights.tensor import Tensor

if TYPE_CHECKING:
    from cachec.weights.pytree import Nesting

#: Derived layouts that one layout remembers. A program selects, renames and overlays in a handful of ways.
_REMEMBERED = 16

Patterns = str | Iterable[str] | None
Ties = tuple[tuple[str, ...], ...]


class Layout:
    """Tensors by name, sorted by name: the order in a file must not reach a compiler.

    ties: groups of names that share one weight, as stated by the caller, in whichever order: groups and the names in
    them are kept sorted, and the first is the group's alias. nesting: the tree that the weights hang in. Everything
    computed from a layout is kept on it, so opening the same files again computes nothing.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]],
        ties: Ties = (),
        nesting: Nesting | None = None,
    ) -> None:
        """tensors: a function of them is called when they are first asked for."""
        self._make = tensors if callable(tensors) else None
        if not callable(tensors):
            self.tensors = _in_order(tensors)
        self.ties = tuple(sorted(tuple(sorted(group)) for group in ties))
        self.nesting = nesting
        self._alias = {name: group[0] for group in self.ties for name in group}
        self._derived: BoundedDict[tuple[Layout, Mapping[str, str] | None]] = BoundedDict(_REMEMBERED)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, sorted."""
        assert self._make is not None
        return _in_order(self._make())

    def spec(self, name: str) -> WeightSpec:
        """The description of one weight, which must be here."""
        tensor = self.tensors[name]
        return WeightSpec(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            nbytes=tensor.nbytes,
            layout=tensor.layout,
            alias=self._alias.get(name),
            shard=tensor.shard,
        )

    def alias(self, name: str) -> str | None:
        """The first name of the group of tied weights that ``name`` is in."""
        return self._alias.get(name)

    @cached_property
    def specs(self) -> Mapping[str, WeightSpec]:
        """The description of every weight, by name."""
        return MappingProxyType({name: self.spec(name) for name in self.tensors})

    @cached_property
    def manifest(self) -> Manifest:
        """What an artifact compiled for these weights expects to be linked with."""
        return Manifest.of(self.specs)

    @cached_property
    def spec_digest(self) -> str:
        """64 hexadecimal characters over every field of every spec; no place, no order of a file."""
        hasher = Hasher("weight-specs")
        hasher.part("specs", self.manifest.encode())
        return hasher.digest()

    @cached_property
    def place_digest(self) -> str:
        """Over names and places within the opened source: part of a revision."""
        hasher = Hasher("weight-places")
        for name, tensor in self.tensors.items():
            hasher.part(name, f"{tensor.file}:{tensor.offset}:{tensor.nbytes}:{tensor.dtype}:{tensor.shape}".encode())
        return hasher.digest()

    def unknown(self, name: object, others: Collection[str] = ()) -> UnknownWeight:
        """The error for a name that is not here, with the nearest one that is.

        others: names that are wanted at the same time; where all differ by one prefix, the error says so.
        """
        missing = {each for each in (name, *others) if isinstance(each, str) and each not in self.tensors}
        renaming = renaming_hint(missing, self.tensors)
        if renaming:
            return UnknownWeight(f"no weight {name!r} among {len(self.tensors)}{renaming}")
        near = nearest(name, self.tensors) if isinstance(name, str) else ""
        hint = f"; did you mean {near!r}?" if near else ""
        return UnknownWeight(f"no weight {name!r} among {len(self.tensors)}{hint}")

    def with_ties(self, groups: Iterable[Iterable[str]]) -> Layout:
        """The same with these groups of names stated as tied.

        Raises UnknownWeight, UsageError for a group of one or a name in two groups, WeightError where shape or dtype
        differ within a group.
        """
        ties = tuple(tuple(group) for group in groups)
        if not ties:
            return self
        tied_names: set[str] = set()
        for group in ties:
            if len(group) < 2:
                raise UsageError(f"tied={group!r}: a group of tied weights has at least two names")
            for name in group:
                if name not in self.tensors:
                    raise self.unknown(name)
                if name in tied_names:
                    raise UsageError(f"tied=: {name!r} occurs twice; put all names of one weight into one group")
                tied_names.add(name)
                first, other = self.tensors[group[0]], self.tensors[name]
                same = (first.dtype, first.shape, first.shard) == (other.dtype, other.shape, other.shard)
                if not same or first.layout != other.layout:
                    raise WeightError(
                        f"tied weights {group[0]!r} and {name!r} expected to agree, found "
                        f"{first.dtype} {list(first.shape)} and {other.dtype} {list(other.shape)}"
                    )
        return Layout(self.tensors, ties, self.nesting)

    def with_nesting(self, nesting: Nesting) -> Layout:
        """The weights that hang in a tree of these, which must be here."""
        layout = self._select(tuple(nesting.names), None)
        return Layout(layout.tensors, layout.ties, nesting)

    def select(self, include: Patterns, exclude: Patterns) -> Layout:
        """The part with names that match ``include`` (all, if None) and not ``exclude``: names or fnmatch globs.

        Raises UnknownWeight for an exact name that is not here, and for a glob of ``include`` that matches nothing.
        """
        wanted = (_patterns(include), _patterns(exclude))
        return self._remember(("select", *wanted), lambda: (self._select(*wanted), None))[0]

    def rename(self, rename: Mapping[str, str] | Callable[[str], str]) -> tuple[Layout, Mapping[str, str]]:
        """The same under other names, and the old name of each new one.

        rename: old name -> new name (others stay), or a function. Raises UnknownWeight for a mapping's name that is
        not here, UsageError where two weights would get one name.
        """
        if callable(rename):
            # A function may answer differently each time, so its result is not remembered.
            return self._rename({name: rename(name) for name in self.tensors})
        pairs = tuple(sorted(rename.items()))
        layout, old = self._remember(("rename", pairs), lambda: self._rename(self._names(pairs)))
        return layout, old or {}

    def part(self, names: tuple[str, ...], old: tuple[str, ...], ties: Ties) -> tuple[Layout, Mapping[str, str]]:
        """The weights ``old`` under ``names``, which are different ones, with these groups tied; and ``old`` by name.

        Raises UnknownWeight, and what ``tied`` raises.
        """
        layout, back = self._remember(("part", names, old, ties), lambda: self._part(names, old, ties))
        return layout, back or {}

    def overlaid(self, over: Layout, *, replace: bool) -> Layout:
        """These tensors with those of ``over`` over them, and the ties of both.

        Raises WeightError for a changed weight with another dtype, shape or shard (unless ``replace``), and for a group
        of tied weights of which only some are changed, or all without being stated as tied.
        """
        # By content: each hit of a stage that returns such a set makes a new, equal ``over``.
        request = ("overlay", tuple(over.tensors.items()), over.ties, replace)
        return self._remember(request, lambda: (self._overlay(over, replace), None))[0]

    def _part(self, names: tuple[str, ...], old: tuple[str, ...], ties: Ties) -> tuple[Layout, Mapping[str, str]]:
        back = {checked_name(new, "part"): there for new, there in zip(names, old, strict=True)}
        for name in old:
            if name not in self.tensors:
                raise self.unknown(name)
        return Layout({new: self.tensors[name] for new, name in back.items()}).with_ties(ties), back

    def _overlay(self, over: Layout, replace: bool) -> Layout:
        changed = [name for name in over.tensors if name in self.tensors]
        for name in changed:
            old, new = self.tensors[name], over.tensors[name]
            if not replace and (old.dtype, old.shape, old.shard) != (new.dtype, new.shape, new.shard):
                raise WeightError(
                    f"overlay: {name!r} expected {old.dtype} {list(old.shape)}{_shard_label(old)}, found "
                    f"{new.dtype} {list(new.shape)}{_shard_label(new)}; pass replace=True where that is meant"
                )
        groups = {frozenset(group) for group in over.ties}
        selected_names = [group for group in self.ties if frozenset(group) not in groups]
        for group in selected_names:
            touched = [name for name in group if name in over.tensors]
            if touched:
                raise WeightError(
                    f"overlay: {touched[0]!r} is tied: {', '.join(map(repr, group))} are one weight; overlay all of "
                    "them and state tied=[...], or select the others away first"
                )
        nesting = self.nesting if over.tensors.keys() <= self.tensors.keys() else None  # else some would hang nowhere
        return Layout(self.tensors | over.tensors, (*selected_names, *over.ties), nesting)

    def _remember(
        self, request: object, derive: Callable[[], tuple[Layout, Mapping[str, str] | None]]
    ) -> tuple[Layout, Mapping[str, str] | None]:
        layout = self._derived.get(request)
        if layout is None:
            layout = derive()
            self._derived.put(request, layout)
        return layout

    def _select(self, include: tuple[str, ...] | None, exclude: tuple[str, ...] | None) -> Layout:
        names = list(self.tensors)
        if include is not None:
            selected_names = self._matching(include, must_match=True)
            names = [name for name in names if name in selected_names]
        if exclude is not None:
            dropped = self._matching(exclude, must_match=False)
            names = [name for name in names if name not in dropped]
        if len(names) == len(self.tensors):
            return self
        chosen = set(names)
        # A tie holds among the names that are left; a member left alone is tied to nothing.
        ties = (tuple(name for name in group if name in chosen) for group in self.ties)
        return Layout({name: self.tensors[name] for name in names}, tuple(group for group in ties if len(group) > 1))

    def _matching(self, patterns: tuple[str, ...], *, must_match: bool) -> set[str]:
        import fnmatch

        names: set[str] = set()
        for pattern in patterns:
            if pattern in self.tensors:
                names.add(pattern)
                continue
            if not any(mark in pattern for mark in "*?["):
                raise self.unknown(pattern, [each for each in patterns if not any(mark in each for mark in "*?[")])
            matches = [name for name in self.tensors if fnmatch.fnmatchcase(name, pattern)]
            if must_match and not matches:
                raise UnknownWeight(f"no weight among {len(self.tensors)} matches {pattern!r}")
            names.update(matches)
        return names

    def _names(self, pairs: Collection[tuple[str, str]]) -> dict[str, str]:
        names = {name: name for name in self.tensors}
        for old, new in pairs:
            if old not in names:
                raise self.unknown(old, [each for each, _ in pairs])
            names[old] = new
        return names

    def _rename(self, names: Mapping[str, str]) -> tuple[Layout, Mapping[str, str]]:
        if all(old == new for old, new in names.items()):
            return self, {}
        back: dict[str, str] = {}
        for old, new in names.items():
            checked_name(new, f"rename: {old!r}")
            if new in back:
                raise UsageError(f"rename: {back[new]!r} and {old!r} would both be named {new!r}")
            back[new] = old
        ties = tuple(tuple(names[name] for name in group) for group in self.ties)
        nesting = None if self.nesting is None else self.nesting.rename(names)
        return Layout({new: self.tensors[old] for new, old in back.items()}, ties, nesting), back


def _in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = sorted(tensors)
    return dict(zip(names, map(tensors.__getitem__, names), strict=True))


def stated_ties(specs: Iterable[WeightSpec]) -> Ties:
    """The groups of tied names that the specs state by their aliases, the first member first."""
    groups: dict[str, list[str]] = {}
    for spec in specs:
        if spec.alias is not None:
            groups.setdefault(spec.alias, []).append(spec.name)
    return tuple(
        (alias, *sorted(name for name in names if name != alias)) for alias, names in groups.items() if alias in names
    )


def checked_name(name: object, where: str) -> str:
    """A name that a weight can have. Raises UsageError, which begins with ``where``, for anything else."""
    if isinstance(name, str) and name and (name.isascii() or is_text(name)):
        return name
    raise UsageError(f"{where}: expected a name of a weight, a text that is not empty, found {name!r}")


def _shard_label(tensor: Tensor) -> str:
    return "" if tensor.shard is None else f", shard of {tensor.shard[1]} on axis {tensor.shard[0]}"


def _patterns(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise UsageError(f"select: expected names or globs, found {pattern!r}")
    return patterns
