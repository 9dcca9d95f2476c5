"""Whether a result holds the path of the stage's project as text."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator

from cachec.model import ArtifactRef, Inline, Leaf, Node, Record, Sequence

#: Codecs whose artifacts are what the stage wrote: texts, bytes and files.
_WRITTEN = frozenset({"text", "bytes", "data", "file", "dir"})


def holds_path(
    node: Node, folder: str, place: Callable[[ArtifactRef], str | os.PathLike[str]], *, everywhere: bool
) -> bool:
    """Whether a stored result holds the path of a folder: in a value, a name, or the bytes of an artifact.

    place: returns the file of an artifact. everywhere: also in artifacts of compilers, whose debugging information
    names sources. The bytes of weights are not searched.
    """
    path = os.fsencode(folder)
    if any(path in text for text in _texts(node)):
        return True
    leaves = [each for each in _nodes(node) if isinstance(each, Leaf) and (everywhere or each.codec in _WRITTEN)]
    return any(_is_in_file(path, place(ref)) for ref in {ref for each in leaves for ref in each.artifacts})


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Sequence | Record):
        for item in node.items:
            yield from _nodes(item)


def _texts(node: Node) -> Iterator[bytes]:
    for each in _nodes(node):
        if isinstance(each, Inline):
            is_bytes = each.kind == "bytes"
            yield bytes.fromhex(each.value) if is_bytes else os.fsencode(each.value)
        elif isinstance(each, Record):
            yield from map(os.fsencode, each.names)
        elif isinstance(each, Leaf):
            yield from _plain_texts(each.meta)


def _plain_texts(value: object) -> Iterator[bytes]:
    if isinstance(value, str):
        yield os.fsencode(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _plain_texts(key)
            yield from _plain_texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _plain_texts(each)


def _is_in_file(path: bytes, place: str | os.PathLike[str]) -> bool:
    with open(place, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(path) >= 0
