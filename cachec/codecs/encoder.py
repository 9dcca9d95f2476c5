"""A stage's result into nodes: which codec takes which value."""

from __future__ import annotations

import cmath
import enum
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cachec.codecs import arrays, files, json_data, records, weight_sets
from cachec.codecs.base import MAX_DEPTH, unstorable
from cachec.errors import CachecError, StoreFault, Uncacheable, UnstorableResult
from cachec.model import ArtifactRef, Leaf, Node, Record, Sequence
from cachec.programs.artifact import Dir, File
from cachec.programs.plugin import Plugin
from cachec.programs.program import Program
from cachec.programs.supported_versions import GONE, Asking
from cachec.store.artifacts import ArtifactSink
from cachec.weights import Weight, WeightSet

#: The plugin that handles values of a class, or None.
PluginFor = Callable[[type], Plugin | None]

_WAYS_OUT: Final = (
    "a stage returns None, numbers, text, bytes, numpy arrays, cachec.File, cachec.Dir, cachec.Program, weight sets, "
    "values of a plugin's types, and tuples, lists, dicts, dataclasses and named tuples of them. Return one of those, "
    "or install a plugin for this type"
)
#: What to return instead, for common values that have no codec on purpose.
_INSTEAD: Final[Mapping[type, str]] = {
    bytearray: "return bytes(...), which nobody can change",
    memoryview: "return bytes(...), which nobody can change",
    set: "return a sorted list: the order of a set differs from process to process",
    frozenset: "return a sorted list: the order of a set differs from process to process",
    OrderedDict: "return dict(...), which has the same order",
    Weight: "return the set, narrowed by weights.select([name])",
}


def encode(value: object, sink: ArtifactSink, plugins: PluginFor) -> Node:
    """The stored form of a stage's result; what is too large for a row becomes artifacts in ``sink``.

    Raises UnstorableResult, naming the place in the result, the type and the way out; StoreFault from ``sink``;
    Uncacheable.
    """
    return _Encoder(sink, plugins).node(value, "result", MAX_DEPTH)


class _Encoder:
    """Encodes results into one store."""

    def __init__(self, sink: ArtifactSink, plugins: PluginFor) -> None:
        self._sink = sink
        self._plugins = plugins

    def node(self, value: Any, path: str, depth: int) -> Node:
        """See ``encode``. path: how the value is called in messages. depth: how deep it may be."""
        cls = type(value)
        if cls in json_data.SCALARS:
            return json_data.encode_scalar(value, self._sink)
        if cls is File:
            return files.encode_file(value, self._sink, path)
        if cls is Program:
            return files.encode_program(value, self._sink, path)
        if cls is Dir:
            return files.encode_dir(value, self._sink, path)
        if isinstance(value, WeightSet):
            return weight_sets.encode_weights(value, self._sink, path)
        if arrays.is_array(cls):
            return arrays.encode_array(value, self._sink, path)
        if depth == 0:
            raise unstorable(value, path, f"return a flatter value: it contains itself or is over {MAX_DEPTH} deep")
        if cls in {list, tuple, dict}:
            whole = json_data.encode_data(value, self._sink, path)
            if whole is not None:
                return whole
            return self._mapping(value, path, depth) if cls is dict else self._sequence(value, path, depth)
        if cls in _INSTEAD:
            raise unstorable(value, path, _INSTEAD[cls])
        plugin = self._plugins(cls)
        if plugin is not None:
            return self._plugin(plugin, value, path)
        if isinstance(value, enum.Enum):
            return records.encode_member(value, path)
        if records.is_record(cls):
            return self._record(value, path, depth)
        if isinstance(value, os.PathLike):
            raise unstorable(value, path, "return cachec.File(path) or cachec.Dir(path), which store the content")
        raise unstorable(value, path, _WAYS_OUT)

    def _sequence(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> Sequence:
        items = tuple(self.node(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value))
        return Sequence(type(value).__name__, items)

    def _mapping(self, value: dict[Any, Any], path: str, depth: int) -> Record | Sequence:
        if any(type(key) is not str for key in value):
            return self._pairs(value, path, depth)
        for key in value:
            if not key.isascii() and key.encode(errors="replace").decode() != key:
                raise unstorable(key, f"a key of {path}", "use Unicode text", f"the text {key!a} with a lone surrogate")
        items = tuple(self.node(item, f"{path}[{key!r}]", depth - 1) for key, item in value.items())
        return Record("", tuple(value), items)

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> Sequence:
        """A dict with other keys than texts: keys and values in turn."""
        items: list[Node] = []
        for key, item in value.items():
            if not _is_plain_key(key):
                raise unstorable(key, f"a key of {path}", "use numbers, texts or tuples of them, or a list of pairs")
            items += (self.node(key, f"a key of {path}", depth - 1), self.node(item, f"{path}[{key!r}]", depth - 1))
        return Sequence("dict", tuple(items))

    def _record(self, value: object, path: str, depth: int) -> Record:
        name = records.class_name(value, path)
        fields = records.fields(value, path)
        items = tuple(self.node(item, f"{path}.{field}", depth - 1) for field, item in fields.items())
        return Record(name, tuple(fields), items)

    def _plugin(self, plugin: Plugin, value: object, path: str) -> Leaf:
        """Whatever the plugin raises says nothing against the result, which its caller gets."""
        out = _Writer(self._sink)
        with Asking(plugin):
            try:
                meta = plugin.encode(value, out)
            except (*GONE, StoreFault, Uncacheable):
                raise
            except Exception as error:
                words = str(error) if isinstance(error, CachecError) else f"plugin {plugin.name!r} met {error!r}"
                raise UnstorableResult(f"{path}: {words}") from error
        try:
            same = msgspec.json.decode(msgspec.json.encode(meta))
        except (TypeError, ValueError) as error:
            raise UnstorableResult(f"{path}: plugin {plugin.name!r} gives a meta that is no JSON: {error}") from error
        if type(meta) is not dict or same != meta:
            raise UnstorableResult(f"{path}: plugin {plugin.name!r} gives a meta that JSON does not give back")
        return Leaf(f"plugin:{plugin.name}", tuple(out.artifacts), same)


def _is_plain_key(key: object) -> bool:
    """Whether a key is found again by an equal one: a scalar, but no NaN, or a tuple of such."""
    if type(key) is tuple:
        return all(map(_is_plain_key, key))
    if isinstance(key, float | complex) and cmath.isnan(key):
        return False
    return type(key) in json_data.SCALARS


class _Writer:
    """The ArtifactWriter of one plugin value."""

    def __init__(self, sink: ArtifactSink) -> None:
        self._sink = sink
        self.artifacts: list[ArtifactRef] = []

    def write(self, data: bytes | memoryview) -> None:
        self.artifacts.append(self._sink.add_bytes(data))

    def copy(self, path: Path) -> None:
        self.artifacts.append(self._sink.add_file(path))
