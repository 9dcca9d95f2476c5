"""What a code key was made from, so that the next call checks in microseconds whether it still holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from operator import is_
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from cachec.base.fsio import Identity, identity_if_there

#: Stands for a name that is not there and for a cell that is empty.
MISSING: Final = object()


class _FolderStates:
    def __init__(self, paths: list[str], check: Callable[[], bool]) -> None:
        self._paths = paths
        self._check = check
        self._known = [identity_if_there(path) for path in paths]

    def hold(self) -> bool:
        now = [identity_if_there(path) for path in self._paths]
        if now == self._known:
            return True
        if not self._check():
            return False
        self._known = now
        return True


class Watch:
    """References to everything that was looked at. All objects are held, so identity can't be taken over by another."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], tuple[Mapping[str, Any], str, object]] = {}
        self._functions: dict[int, tuple[FunctionType, CodeType, object, object, str]] = {}
        self._cells: dict[int, tuple[CellType, object]] = {}
        self._sizes: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._mappings: dict[int, tuple[dict[Any, Any], tuple[Any, ...], tuple[Any, ...]]] = {}
        self._sequences: dict[int, tuple[list[Any], tuple[Any, ...]]] = {}
        self._instances: dict[int, tuple[object, type, dict[str, Any]]] = {}
        self._bases: list[tuple[type, tuple[type, ...]]] = []
        self._files: dict[str, Identity | None] = {}
        self._values: list[tuple[Callable[[], bytes], bytes]] = []
        self._folders: list[_FolderStates] = []
        self._search: list[str] | None = None
        self._owned: list[list[type]] = []
        self._lists: tuple[list[Any], ...] | None = None

    def name(self, namespace: Mapping[str, Any], name: str) -> Any:
        """What a namespace holds under a name now, or ``MISSING``; watched from here on."""
        value = namespace.get(name, MISSING)
        self._names[id(namespace), name] = (namespace, name, value)
        return value

    def attributes(self, cls: type) -> Mapping[str, Any]:
        """The attributes of a class; which there are, what each is, and the bases are watched."""
        attributes = vars(cls)
        self._sizes[id(cls)] = (attributes, len(attributes))
        # A fresh proxy at each `vars(cls)`: names are watched through this one, which shows the class as it is.
        self._names.update({(id(cls), name): (attributes, name, value) for name, value in attributes.items()})
        self._bases.append((cls, cls.__bases__))
        return attributes

    def subclasses(self, cls: type) -> list[type]:
        """The subclasses that a class has, in the order in which they were made."""
        subclasses: list[type] = type.__subclasses__(cls)
        self._owned.append(subclasses)
        self.value(
            lambda: repr(list(map(id, type.__subclasses__(cls)))).encode(), repr(list(map(id, subclasses))).encode()
        )
        return subclasses

    def mapping(self, mapping: dict[Any, Any]) -> None:
        """All that a dict holds, in its order."""
        self._mappings[id(mapping)] = (mapping, tuple(mapping), tuple(mapping.values()))

    def sequence(self, sequence: list[Any]) -> None:
        """The items of a list."""
        self._sequences[id(sequence)] = (sequence, tuple(sequence))

    def instance(self, value: object) -> None:
        """The class of an instance and what its ``__dict__`` holds."""
        attributes = vars(value)
        self._instances[id(value)] = (value, type(value), attributes)
        self.mapping(attributes)

    def function(self, function: FunctionType) -> None:
        """The code, name and defaults of a function, and what its cells hold."""
        named = function.__kwdefaults__
        self._functions[id(function)] = (function, function.__code__, function.__defaults__, named, function.__name__)
        if named:
            self.mapping(named)
        self.mapping(function.__dict__)

    def cell(self, cell: CellType) -> Any:
        """What a closure cell holds now, or ``MISSING``."""
        try:
            value = cell.cell_contents
        except ValueError:
            value = MISSING
        self._cells[id(cell)] = (cell, value)
        return value

    def file(self, path: str) -> None:
        """A file or folder, by its identity."""
        self._files[path] = identity_if_there(path)

    def folders(self, paths: list[str], check: Callable[[], bool]) -> None:
        """Folders of which only ``check`` matters: it is asked when one of them changed, and settles that state."""
        self._folders.append(_FolderStates(paths, check))

    def search_path(self) -> None:
        """The places where modules are looked for."""
        self._search = list(sys.path)

    def value(self, encode: Callable[[], bytes], known: bytes) -> None:
        """A value that can change without becoming another object: it is encoded again each time."""
        self._values.append((encode, known))

    def seal(self) -> None:
        """Make the lists that ``holds`` runs over."""
        self._lists = (
            list(self._names.values()),
            list(self._functions.values()),
            list(self._cells.values()),
            list(self._sizes.values()),
            list(self._mappings.values()),
            list(self._sequences.values()),
            list(self._instances.values()),
            self._bases,
            list(self._files.items()),
            self._values,
        )

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        assert self._lists is not None
        names, functions, cells, sizes, mappings, sequences, instances, bases, files, values = self._lists
        for namespace, name, value in names:
            if namespace.get(name, MISSING) is not value:
                return False
        for function, code, defaults, named, title in functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not named or function.__name__ != title:
                return False
        for cell, content in cells:
            try:
                if cell.cell_contents is not content:
                    return False
            except ValueError:
                if content is not MISSING:
                    return False
        for found, size in sizes:
            if len(found) != size:
                return False
        for mapping, keys, expected in mappings:
            if len(mapping) != len(keys) or not all(map(is_, tuple(mapping), keys)):
                return False
            if not all(map(is_, tuple(mapping.values()), expected)):
                return False
        for items, known_items in sequences:
            if len(items) != len(known_items) or not all(map(is_, items, known_items)):
                return False
        for value, kind, attributes in instances:
            if type(value) is not kind or vars(value) is not attributes:
                return False
        for cls, parents in bases:
            if cls.__bases__ != parents:
                return False
        if self._search is not None and self._search != sys.path:
            return False
        for path, known in files:
            if identity_if_there(path) != known:
                return False
        for each in self._folders:
            if not each.hold():
                return False
        try:
            return all(encode() == known for encode, known in values)
        except Exception:  # noqa: BLE001 - the key is made again, and that reports what the value raises
            return False
