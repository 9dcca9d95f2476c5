"""ONNX models (onnx/onnx.proto) as bytes: conversion of initialisers to inputs of the graph, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from cachec.errors import PluginError
from cachec_onnxruntime.protobuf import WireField, bytes_field, fields, number_field, numbers, text

#: ModelProto. Fields about the producer and the training do not count.
_IR_VERSION, _GRAPH, _FUNCTION, _METADATA = 1, 7, 25, 14
_OMITTED = {2, 3, 6, 20}  # producer_name, producer_version, doc_string, training_info

#: GraphProto.
_NODE, _GRAPH_NAME, _INITIALIZER, _GRAPH_DOC, _INPUT, _OUTPUT, _SPARSE = 1, 2, 5, 10, 11, 12, 15

#: NodeProto: names, and the operation.
_NODE_INPUT, _NODE_NAME, _OP_TYPE = 1, 3, 4

#: Operations with an output shape that depends on the values of inputs of any type.
_SHAPE_FROM_VALUE = ("Resize", "Upsample")

#: NodeProto: exporters write tracebacks to its doc_string, and to metadata with this prefix.
_NODE_DOC, _NODE_METADATA, _TRACES = 6, 9, b"pkg.torch."

#: TensorProto.
_DIMS, _DATA_TYPE, _TENSOR_NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14

#: Kind of message -> field -> the kind of message in it, for all tensors outside of a graph's initializers.
_CHILD_MESSAGES = {
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
}

#: From this version of the IR on, an initializer that is not an input of the graph is a constant (docs/IR.md).
_FIRST_VERSION_WITH_CONSTANTS = 4


class Initializer(NamedTuple):
    """An initializer of the main graph."""

    name: str
    #: TensorProto.DataType.
    data_type: int
    shape: tuple[int, ...]
    is_external: bool
    #: The whole message.
    whole: memoryview


class NodeText(NamedTuple):
    """A node, with a label for error messages and differences."""

    #: Operation and name.
    label: str
    whole: bytes


class ModelParts(NamedTuple):
    """The parts of a model's main graph."""

    nodes: list[NodeText]
    #: Constants and inputs by name.
    constants: dict[str, bytes]
    inputs: dict[str, bytes]


def split_model(model: memoryview) -> ModelParts:
    """Return the parts of the main graph. Raises PluginError."""
    found = ModelParts([], {}, {})
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
    """Return those of the main graph, by name. Raises PluginError for other files, and for two of the same name."""
    found: dict[str, Initializer] = {}
    for field in fields(_graph(model)):
        if field.number == _INITIALIZER:
            each = _initializer(field.data)
            if not each.name or each.name in found:
                raise PluginError(f"expected initializers with names of their own, found {each.name!r} again")
            found[each.name] = each
    return found


def shape_inputs(model: memoryview) -> set[str]:
    """Return the names of tensors of any type that decide the shape of an operation's result."""
    top = [each.data for each in fields(_graph(model)) if each.number == _NODE]
    with_any = [each for each in top if _contains_any(each, *_SHAPE_FROM_VALUE)]
    nodes = [list(fields(node)) for each in with_any for node in _nodes(each, "node")]
    by_value = [
        node for node in nodes if any(each.number == _OP_TYPE and text(each) in _SHAPE_FROM_VALUE for each in node)
    ]
    return {text(each) for node in by_value for each in [*_inputs(node)][1:]}


def initializers_to_inputs(
    model: memoryview,
    there: Mapping[str, Initializer],
    names: frozenset[str],
    values: Callable[[str], memoryview | None],
) -> bytes:
    """Return the model with the initializers ``names`` as inputs of the graph, sorted, without fields that do not
    count.

    there: all initializers. values: returns the bytes of another initializer, or None for those in the model.

    Raises PluginError for values in another file, and for a sparse initializer.
    """
    version = max(_ir_version(model), _FIRST_VERSION_WITH_CONSTANTS)
    # Before, every initializer had to be an input as well, and was a constant all the same.
    as_constants = there.keys() if _ir_version(model) < _FIRST_VERSION_WITH_CONSTANTS else names
    parts: list[bytes | memoryview] = [number_field(_IR_VERSION, version)]
    for field in fields(model):
        if field.number == _GRAPH:
            graph = b"".join(_convert_graph(field.data, there, names, as_constants, values))
            parts.append(bytes_field(_GRAPH, graph))
        elif field.number not in {_IR_VERSION, *_OMITTED}:
            if field.number == _FUNCTION:
                _refuse_external(field.data, "function")
            parts.append(field.whole)
    return b"".join(parts)


def inputs_to_initializers(model: memoryview, names: frozenset[str], notes: Mapping[str, str]) -> bytes:
    """Return the model with the inputs ``names`` as external initializers, without the location of their bytes.

    Unused ones are omitted, because a session does not accept their values. notes: additional metadata. Raises
    PluginError for a missing input.
    """
    used = {text(each) for node in _nodes(_graph(model), "graph") for each in _inputs(fields(node))}
    used |= {_first_text(each.data, 1) for each in fields(_graph(model)) if each.number == _OUTPUT}
    remaining = set(names)

    def convert(field: WireField) -> bytes | memoryview:
        name = _first_text(field.data, 1) if field.number == _INPUT else ""
        if name not in remaining:
            return field.whole
        remaining.remove(name)
        return bytes_field(_INITIALIZER, _without_bytes(name, field.data)) if name in used else b""

    parts = _with_graph(model, convert)
    if remaining:
        raise PluginError(
            f"the optimised model has no input {min(remaining)!r} for a weight ({len(remaining)} are missing)"
        )
    parts += [bytes_field(_METADATA, bytes_field(1, key) + bytes_field(2, value)) for key, value in notes.items()]
    return b"".join(parts)


def insert_values(model: memoryview, values: Mapping[str, memoryview]) -> bytes:
    """Return the model with the bytes of these initializers in it."""

    def convert(field: WireField) -> bytes | memoryview:
        name = _first_text(field.data, _TENSOR_NAME) if field.number == _INITIALIZER else ""
        there = _initializer(field.data) if name in values else None
        return field.whole if there is None else bytes_field(_INITIALIZER, _with_value(there, values[name]))

    return b"".join(_with_graph(model, convert))


def _with_graph(model: memoryview, convert: Callable[[WireField], bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the fields of a model, with each field of the graph converted by ``convert``."""
    return [
        bytes_field(_GRAPH, b"".join(map(convert, fields(field.data)))) if field.number == _GRAPH else field.whole
        for field in fields(model)
    ]


def metadata(model: memoryview) -> dict[str, str]:
    """The entries of ``metadata_props``."""
    entries = [field.data for field in fields(model) if field.number == _METADATA]
    return {_first_text(entry, 1): _first_text(entry, 2) for entry in entries}


def _convert_graph(
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
            yield bytes_field(_INITIALIZER, _with_value(each, values(name)))


def _with_value(each: Initializer, value: memoryview | None) -> bytes | memoryview:
    """Return a constant with its bytes in the model."""
    if value is None:
        if each.is_external:
            raise PluginError(f"the values of {each.name!r} are in another file: pass the path of the model")
        return each.whole
    return _tensor(each.name, each.data_type, each.shape) + bytes_field(_RAW, value)


def _without_bytes(name: str, value_info: memoryview) -> bytes:
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
        inner = _CHILD_MESSAGES[kind].get(field.number, "tensor")
        if inner in {"graph", "node", "attribute"}:
            yield from _nodes(field.data, inner)


def _contains_any(message: memoryview, *words: str) -> bool:
    """Whether one of the words is anywhere in a message. If not, the fields need no search."""
    data = bytes(message)
    return any(word.encode() in data for word in words)


def _inputs(node: Iterable[WireField]) -> Iterator[WireField]:
    return (each for each in node if each.number == _NODE_INPUT)


def _is_trace(field: WireField) -> bool:
    if field.number == _NODE_METADATA:
        return _first_text(field.data, 1).encode().startswith(_TRACES)
    return field.number == _NODE_DOC


def _refuse_external(message: memoryview, kind: str) -> None:
    """Raise PluginError if a tensor below has its values in another file, which would be in no key."""
    if not _contains_any(message, "location"):
        return
    if kind == "tensor":
        if any(field.number == _LOCATION and field.value == 1 for field in fields(message)):
            raise PluginError(
                f"{_first_text(message, _TENSOR_NAME)!r} of a node is in another file; save it in the model"
            )
        return
    for field in fields(message):
        inner = _CHILD_MESSAGES[kind].get(field.number)
        if inner is not None:
            _refuse_external(field.data, inner)
