"""Resources of a live module by reference: it uses the bytes where a file has them, mapped, and nothing is copied.

MLIR's bindings make a resource over a buffer of Python's (``DenseResourceElementsAttr.get_from_buffer``), and hold the
buffer for as long as the module's context lives. A context gives a resource the name that is asked for only where
nothing was parsed with it, so the module is read with other names, and each use of one is replaced.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from cachec.programs.weight_files import Extent, OpenedFile, map_untracked
from cachec_mlir.live.bindings import generic
from cachec_mlir.weight_binding import BoundResource

_USE = re.compile(r'dense_resource<"?([^">]*)"?>')


def placeholders(names: Mapping[str, BoundResource]) -> dict[str, str]:
    """Name -> one that no other resource has, and that is in no string of an attribute by chance."""
    prefix = "cachec-resource-"
    while any(name.startswith(prefix) for name in names):
        prefix += "-"
    return {name: f"{prefix}{number}" for number, name in enumerate(names)}


def views_in_place(bound: Mapping[str, BoundResource]) -> dict[str, memoryview] | None:
    """Return read-only views of the bytes in place; None unless all are in files, unencoded and aligned."""
    maps: dict[OpenedFile, memoryview] = {}
    views: dict[str, memoryview] = {}
    for name, each in bound.items():
        place = each.blob.place
        if not isinstance(place, Extent) or each.blob.hexadecimal or each.alignment > mmap.PAGESIZE:
            return None
        if place.offset % each.alignment:
            return None
        mapped = maps.get(place.file)
        if mapped is None:
            mapped = maps[place.file] = map_untracked(place.fd, 0, place.file.identity.size)
        place.check()
        views[name] = mapped[place.offset : place.offset + place.nbytes]
    return views


def attach(
    resource_type: Any,
    module: Any,
    names: Mapping[str, str],
    bound: Mapping[str, BoundResource],
    views: Mapping[str, memoryview],
) -> bool:
    """Attach resources to a live module with placeholders for their names. names: name -> placeholder.

    resource_type: the class of a resource in its bindings. False where a use stands within another attribute, or a
    resource is of two types: the module is of no use then.
    """
    from_placeholder = {placeholder: name for name, placeholder in names.items()}
    made: dict[str, Any] = {}
    for operation, key, attribute in _resources(module.operation):
        match = _USE.match(str(attribute))
        name = None if match is None else from_placeholder.get(match[1])
        if name is None:
            continue
        resource = made.get(name)
        if resource is None:
            resource = made[name] = resource_type.get_from_buffer(
                views[name], name, attribute.type, alignment=bound[name].alignment, context=module.context
            )
        if resource.type != attribute.type:
            return False
        operation.attributes[key] = resource
    remaining = generic(module, locations=True)
    return not any(placeholder.encode() in remaining for placeholder in names.values())


class _Operation(Protocol):
    """What is used of an ``ir.Operation``, whichever of the bindings of MLIR it is of."""

    attributes: _Attributes
    regions: Iterable[Iterable[_Block]]


class _Attributes(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, name: str) -> Any: ...

    def __setitem__(self, name: str, value: object) -> None: ...


class _Block(Protocol):
    operations: Iterable[_Located]


class _Located(Protocol):
    operation: _Operation


def _resources(operation: _Operation) -> Iterator[tuple[_Operation, str, Any]]:
    """Operation, name and value of each attribute that the bindings have no class for; resources are among these."""
    stack = [operation]
    while stack:
        here = stack.pop()
        for each in list(here.attributes):
            key = each if isinstance(each, str) else each.name
            attribute = here.attributes[key]
            if type(attribute).__name__ == "Attribute":
                yield here, key, attribute
        stack += [inner.operation for region in here.regions for block in region for inner in block.operations]
