"""ONNX models (onnx/onnx.proto) as bytes: initialisers become inputs of the graph, and external initialisers again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from cachec.errors import PluginError
from cachec_onnxruntime.wire import WireField, bytes_field, fields, number_field, numbers, text

#: ModelProto. What training tools write of themselves, where they ran, and of the training, does not count.
_IR_VERSION, _GRAPH, _FUNCTION, _METADATA = 1, 7, 25, 14
_LEFT_OUT = {2, 3, 6, 20}  # producer_name, producer_version, doc_string, training_info

#: GraphProto.
_NODE, _GRAPH_NAME, _INITIALIZER, _GRAPH_DOC, _INPUT, _OUTPUT, _SPARSE = 1, 2, 5, 10, 11, 12, 15

#: NodeProto: names, and which operation.
_NODE_INPUT, _NODE_NAME, _OP_TYPE = 1, 3, 4

#: What reads the values of its inputs when shapes are inferred, also of those that are no integers.
_SHAPED_BY_VALUE = ("Resize", "Upsample")

#: NodeProto: tracebacks of exporters are in its doc_string and in metadata whose keys begin so.
_NODE_DOC, _NODE_METADATA, _TRACES = 6, 9, b"pkg.torch."

#: TensorProto.
_DIMS, _DATA_TYPE, _TENSOR_NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14

#: Kind of message -> field -> the kind of message in it, on the way to every tensor outside of a graph's initializers.
_WITHIN = {
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
}

#: From this version of the IR an initializer that is no input of the graph is a constant (docs/IR.md).
_CONSTANTS = 4


class Initializer(NamedTuple):
    """An initializer of the main graph. data_type: TensorProto.DataType. whole: the message."""

    name: str
    data_type: int
    shape: tuple[int, ...]
    is_external: bool
    whole: memoryview


class NodeText(NamedTuple):
    """A node for a person. label: its operation and its name."""

    label: str
    whole: bytes


class Described(NamedTuple):
    """A model for a person. constants, inputs: by name."""

    nodes: list[NodeText]
    constants: dict[str, bytes]
    inputs: dict[str, bytes]


def described(model: memoryview) -> Described:
    """What is in the main graph. Raises PluginError."""
    found = Described([], {}, {})
    for field in fields(_graph(model)):
        if field.number == _NODE:
            label = f"{_first_text(field.data, _OP_TYPE)} {_first_text(field.data, _NODE_NAME)!r}"
            found.nodes.append(NodeText(label, bytes(field.data)))
        elif field.number == _INITIALIZER:
            found.constants[_first_text(field.data, _TENSOR_NAME)] = bytes(field.data)
        elif field.number == _INPUT:
            found.inputs[_first_text(field.data, 1)] = bytes(field.data)
    return found


def title(model: memoryview) -> str:
    """The name of the graph."""
    return _first_text(_graph(model), _GRAPH_NAME)


def initializers(model: memoryview) -> dict[str, Initializer]:
    """Those of the main graph, by name. Raises PluginError for a model that is none, or names one twice."""
    found: dict[str, Initializer] = {}
    for field in fields(_graph(model)):
        if field.number == _INITIALIZER:
            each = _initializer(field.data)
            if not each.name or each.name in found:
                raise PluginError(f"expected initializers with names of their own, found {each.name!r} again")
            found[each.name] = each
    return found


def shaping(model: memoryview) -> set[str]:
    """The names of tensors that say, whatever their type, which shape an operation gives."""
    graph = _graph(model)
    with_any = [each.data for each in fields(graph) if each.number == _NODE and _says(each.data, *_SHAPED_BY_VALUE)]
    nodes = [list(fields(node)) for each in with_any for node in _nodes(each, "node")]
    by_value = [
        node for node in nodes if any(each.number == _OP_TYPE and text(each) in _SHAPED_BY_VALUE for each in node)
    ]
    return {text(each) for node in by_value for each in [*_inputs(node)][1:]}


def withheld(
    model: memoryview,
    there: Mapping[str, Initializer],
    names: frozenset[str],
    values: Callable[[str], memoryview | None],
) -> bytes:
    """The model with these initializers as inputs of the graph, in the order of their names, without what does not
    count. there: its initializers. values: the bytes of another initializer, or None for those in the model.

    Raises PluginError where bytes would have to come from another file, and for an initializer that is sparse.
    """
    version = max(_ir_version(model), _CONSTANTS)
    # Before, every initializer had to be an input as well, and was a constant all the same.
    as_constants = there.keys() if _ir_version(model) < _CONSTANTS else names
    parts: list[bytes | memoryview] = [number_field(_IR_VERSION, version)]
    for field in fields(model):
        if field.number == _GRAPH:
            graph = b"".join(_withheld_graph(field.data, there, names, as_constants, values))
            parts.append(bytes_field(_GRAPH, graph))
        elif field.number not in {_IR_VERSION, *_LEFT_OUT}:
            if field.number == _FUNCTION:
                _refuse_external(field.data, "function")
            parts.append(field.whole)
    return b"".join(parts)


def given_back(model: memoryview, names: frozenset[str], notes: Mapping[str, str]) -> bytes:
    """The model with these inputs of the graph as initializers whose bytes are in no file that there is. Those that
    nothing uses are left out: a session has no place for their values.

    notes: what its metadata say beside. Raises PluginError where an input is missing.
    """
    used = {text(each) for node in _nodes(_graph(model), "graph") for each in _inputs(fields(node))}
    used |= {_first_text(each.data, 1) for each in fields(_graph(model)) if each.number == _OUTPUT}
    left = set(names)

    def changed(field: WireField) -> bytes | memoryview:
        name = _first_text(field.data, 1) if field.number == _INPUT else ""
        if name not in left:
            return field.whole
        left.remove(name)
        return bytes_field(_INITIALIZER, _absent(name, field.data)) if name in used else b""

    parts = _with_graph(model, changed)
    if left:
        raise PluginError(f"the optimised model has no input {min(left)!r} for a weight ({len(left)} are missing)")
    parts += [bytes_field(_METADATA, bytes_field(1, key) + bytes_field(2, value)) for key, value in notes.items()]
    return b"".join(parts)


def filled(model: memoryview, values: Mapping[str, memoryview]) -> bytes:
    """The model with the bytes of these initializers in it."""

    def changed(field: WireField) -> bytes | memoryview:
        name = _first_text(field.data, _TENSOR_NAME) if field.number == _INITIALIZER else ""
        there = _initializer(field.data) if name in values else None
        return field.whole if there is None else bytes_field(_INITIALIZER, _valued(there, values[name]))

    return b"".join(_with_graph(model, changed))


def _with_graph(model: memoryview, changed: Callable[[WireField], bytes | memoryview]) -> list[bytes | memoryview]:
    """The fields of a model, and of its graph what ``changed`` makes of each."""
    return [
        bytes_field(_GRAPH, b"".join(map(changed, fields(field.data)))) if field.number == _GRAPH else field.whole
        for field in fields(model)
    ]


def metadata(model: memoryview) -> dict[str, str]:
    """The entries of ``metadata_props``."""
    entries = [field.data for field in fields(model) if field.number == _METADATA]
    return {_first_text(entry, 1): _first_text(entry, 2) for entry in entries}


def _withheld_graph(
    graph: memoryview,
    there: Mapping[str, Initializer],
    names: frozenset[str],
    as_constants: Collection[str],
    values: Callable[[str], memoryview | None],
) -> Iterator[bytes | memoryview]:
    for field in fields(graph):
        if field.number == _NODE:
            _refuse_external(field.data, "node")
            yield bytes_field(_NODE, b"".join(each.whole for each in fields(field.data) if not _is_trace(each)))
        elif field.number == _SPARSE:
            raise PluginError("expected dense initializers, found a sparse one; save it dense")
        elif field.number == _INPUT:
            if _first_text(field.data, 1) not in as_constants:
                yield field.whole
        elif field.number not in {_INITIALIZER, _GRAPH_DOC}:
            yield field.whole
    for name in sorted(there):
        each = there[name]
        if name in names:
            yield bytes_field(_INPUT, bytes_field(1, name) + bytes_field(2, _type(each)))
        else:
            yield bytes_field(_INITIALIZER, _valued(each, values(name)))


def _valued(each: Initializer, value: memoryview | None) -> bytes | memoryview:
    """A constant that stays, with its bytes in the model."""
    if value is None:
        if each.is_external:
            raise PluginError(f"the values of {each.name!r} are in another file: give the model by its path")
        return each.whole
    return _tensor(each.name, each.data_type, each.shape) + bytes_field(_RAW, value)


def _absent(name: str, value_info: memoryview) -> bytes:
    """The initializer for an input, a ValueInfoProto."""
    (kind,) = [field.data for field in fields(value_info) if field.number == 2]
    (tensor,) = [field.data for field in fields(kind) if field.number == 1]
    data_type = 0
    shape: tuple[int, ...] = ()
    for field in fields(tensor):
        if field.number == 1:
            data_type = field.value
        elif field.number == 2:
            shape = tuple(_dimension(each.data) for each in fields(field.data) if each.number == 1)
    external = bytes_field(_EXTERNAL, bytes_field(1, "location") + bytes_field(2, "withheld"))
    return _tensor(name, data_type, shape) + external + number_field(_LOCATION, 1)


def _dimension(dimension: memoryview) -> int:
    (size,) = [field.value for field in fields(dimension) if field.number == 1]
    return size


def _type(each: Initializer) -> bytes:
    """The TypeProto of a tensor."""
    dims = b"".join(bytes_field(1, number_field(1, size)) for size in each.shape)
    return bytes_field(1, number_field(1, each.data_type) + bytes_field(2, dims))


def _tensor(name: str, data_type: int, shape: tuple[int, ...]) -> bytes:
    dims = b"".join(number_field(_DIMS, size) for size in shape)
    return dims + number_field(_DATA_TYPE, data_type) + bytes_field(_TENSOR_NAME, name)


def _initializer(message: memoryview) -> Initializer:
    name, data_type, external = "", 0, False
    shape: list[int] = []
    for field in fields(message):
        if field.number == _DIMS:
            shape += numbers(field)
        elif field.number == _DATA_TYPE:
            data_type = field.value
        elif field.number == _TENSOR_NAME:
            name = text(field)
        elif field.number == _LOCATION:
            external = field.value == 1
    return Initializer(name, data_type, tuple(shape), external, message)


def _graph(model: memoryview) -> memoryview:
    graphs = [field.data for field in fields(model) if field.number == _GRAPH]
    if len(graphs) != 1:
        raise PluginError(f"expected an ONNX model with one graph, found {len(graphs)}")
    return graphs[0]


def _ir_version(model: memoryview) -> int:
    return next((field.value for field in fields(model) if field.number == _IR_VERSION), 0)


def _first_text(message: memoryview, number: int) -> str:
    return next((text(field) for field in fields(message) if field.number == number), "")


def _nodes(message: memoryview, kind: str) -> Iterator[memoryview]:
    """Every node below, those of subgraphs too."""
    if kind == "node":
        yield message
    for field in fields(message):
        inner = _WITHIN[kind].get(field.number, "tensor")
        if inner in {"graph", "node", "attribute"}:
            yield from _nodes(field.data, inner)


def _says(message: memoryview, *words: str) -> bool:
    """Whether one of the words is anywhere in it: where none is, there is nothing to look for field by field."""
    data = bytes(message)
    return any(word.encode() in data for word in words)


def _inputs(node: Iterable[WireField]) -> Iterator[WireField]:
    return (each for each in node if each.number == _NODE_INPUT)


def _is_trace(field: WireField) -> bool:
    if field.number == _NODE_METADATA:
        return _first_text(field.data, 1).encode().startswith(_TRACES)
    return field.number == _NODE_DOC


def _refuse_external(message: memoryview, kind: str) -> None:
    """Raise PluginError where a tensor below has its values in another file, which no key would have."""
    if not _says(message, "location"):
        return
    if kind == "tensor":
        if any(field.number == _LOCATION and field.value == 1 for field in fields(message)):
            raise PluginError(
                f"{_first_text(message, _TENSOR_NAME)!r} of a node is in another file; save it in the model"
            )
        return
    for field in fields(message):
        inner = _WITHIN[kind].get(field.number)
        if inner is not None:
            _refuse_external(field.data, inner)
