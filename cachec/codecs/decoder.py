"""Nodes back into a stage's result. Nothing that a row says is trusted before it is validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cachec.base.lazy import later
from cachec.codecs import files
from cachec.codecs.base import corrupt
from cachec.errors import ClassNotLoaded, PluginError, ResultUnusableHere, UnusableHere
from cachec.model import MALFORMED_JSON, ArtifactRef, CallerSet, Fault, Inline, Leaf, Node, Record, Sequence, Weights

if TYPE_CHECKING:  # a result is of one kind, or of two
    from cachec.codecs import arrays, json_data, records, weight_sets
    from cachec.codecs.weight_sets import Caller
    from cachec.programs import supported_versions
    from cachec.programs.plugin import Plugin
    from cachec.store.artifacts import ArtifactSource
    from cachec.weights.manifest import Folded
else:
    supported_versions = later("cachec.programs.supported_versions")
    arrays, json_data = later("cachec.codecs.arrays"), later("cachec.codecs.json_data")
    records, weight_sets = later("cachec.codecs.records"), later("cachec.codecs.weight_sets")

#: Returns the plugin of a name. Raises PluginError for an unknown one.
PluginNamed = Callable[[str], "Plugin"]


def decode(
    node: Node,
    source: ArtifactSource,
    plugins: PluginNamed,
    caller: Caller,
    manifest: ArtifactRef | None = None,
    *,
    names: Mapping[str, str] | None = None,
    folded: Folded | None = None,
    importing: records.Importing | None = None,
) -> Any:
    """Return the result: each call makes new mutable parts; arrays and files stay in place in the store.

    caller: the weight sets of this call by argument path. manifest: what File and Dir results without a manifest of
    their own are to be linked with. names, folded: of the call, see ``callers`` and ``folded`` of Manifest. importing:
    is asked for a module of a class that is not imported; without it none is. Raises StoreFault: ROW_CORRUPT for what
    can't be, ARTIFACT_... for content that is not there, ClassNotLoaded, ResultUnusableHere.
    """
    manifests = files.Manifests(source, manifest, names, folded)
    return _Decoder(source, plugins, caller, manifests, importing or _not_imported).decode(node)


def _not_imported(module: str) -> None:
    raise ClassNotLoaded(Fault.ROW_CORRUPT, f"a class of {module[:200]!r} is stored, which is not imported")


class _Decoder(msgspec.Struct, frozen=True, eq=False):
    """Decodes the result of one call."""

    source: ArtifactSource
    plugins: PluginNamed
    caller: Caller
    manifests: files.Manifests
    importing: records.Importing

    def decode(self, node: Node) -> Any:
        if isinstance(node, Leaf):
            decode = _LEAVES.get(node.codec)
            return decode(self, node) if decode is not None else self._plugin(node)
        if isinstance(node, Inline):
            is_member = node.kind == "enum"
            return records.decode_member(node.value, self.importing) if is_member else json_data.decode_inline(node)
        if isinstance(node, CallerSet):
            return weight_sets.decode_caller_set(node, self.caller)
        if isinstance(node, Weights):
            return weight_sets.decode_weights(node, self.source, self.caller)
        if isinstance(node, Sequence):
            items = [self.decode(item) for item in node.items]
            if node.kind == "dict":
                return _mapping(items)
            if node.kind not in {"list", "tuple"}:
                raise corrupt(f"unknown kind of sequence {node.kind!r}")
            return items if node.kind == "list" else tuple(items)
        return self._record(node)

    def _record(self, node: Record) -> Any:
        if len(node.names) != len(node.items) or len(set(node.names)) != len(node.names):
            raise corrupt(f"a record {node.dataclass!r} with a name twice, or with too few of them")
        fields = {name: self.decode(item) for name, item in zip(node.names, node.items, strict=True)}
        return records.make(node.dataclass, fields, self.importing) if node.dataclass else fields

    def _plugin(self, leaf: Leaf) -> Any:
        kind, _, name = leaf.codec.partition(":")
        if kind != "plugin":
            raise corrupt(f"unknown codec {leaf.codec!r}")
        paths = [self.source.path(ref) for ref in leaf.artifacts]
        try:
            # A copy: what the plugin makes of the meta must not be shared with the next hit.
            meta = msgspec.json.decode(msgspec.json.encode(leaf.meta))
            plugin = self.plugins(name)
            with supported_versions.Asking(plugin):
                return plugin.decode(meta, paths)
        except UnusableHere as error:
            raise ResultUnusableHere(Fault.ROW_CORRUPT, str(error)) from error
        except (PluginError, *MALFORMED_JSON, ValueError, LookupError) as error:
            raise corrupt(f"codec {leaf.codec!r}: {error}") from error


def _mapping(items: list[Any]) -> dict[Any, Any]:
    """A dict of keys and values in turn."""
    try:
        found = dict(zip(items[::2], items[1::2], strict=True))
    except (TypeError, ValueError) as error:  # no hash, or a key without a value
        raise corrupt(f"a mapping: {error}") from error
    if len(found) * 2 != len(items):
        raise corrupt("a mapping with a key twice")
    return found


_LEAVES: Final[dict[str, Callable[[_Decoder, Leaf], Any]]] = {
    "array": lambda self, leaf: arrays.decode_array(leaf, self.source),
    "bytes": lambda self, leaf: json_data.decode_bytes(leaf, self.source),
    "text": lambda self, leaf: json_data.decode_text(leaf, self.source),
    "data": lambda self, leaf: json_data.decode_data(leaf, self.source),
    "file": lambda self, leaf: files.decode_file(leaf, self.source, self.manifests),
    "dir": lambda self, leaf: files.decode_dir(leaf, self.source, self.manifests),
    "program": lambda self, leaf: files.decode_program(leaf, self.source, self.manifests),
}
