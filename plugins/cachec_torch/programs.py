"""The format ``torch:export``: torch's own JSON of an exported program, constants by value, no weights, no pickle.

The IR is eight bytes (little-endian) with the length of a JSON object, that object (``_ProgramHead``), and the bytes of
the constants, row-major. What counts in keys is torch's canonical form of the program, without the metadata of its
nodes (positions, module paths, stack traces) and without the version of torch, which is that of a tool; the constants;
and how names in the module lead to weights. Imports torch.
"""

from __future__ import annotations

import io
import json
import math
import mmap
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, _to_json_bytes, canonicalize
from torch.utils import _pytree as pytree

from cachec.base.hashing import Hasher
from cachec.errors import PluginError
from cachec.programs.program import Program
from cachec.weights.manifest import Manifest
from cachec_torch.seams import program_json, program_of_json

#: What the format of a program says.
FORMAT = "torch:export"

_LENGTH = 8

#: Of mmap(2) on Linux: Python 3.11 has no name for it.
_NORESERVE = 0x4000


class ConstantForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that no name of a weight stands for. shape, stride: in elements. offset, nbytes: in the blob."""

    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int
    nbytes: int


class _ProgramHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """names: of parameters and buffers in the module -> of weights."""

    program: msgspec.Raw
    constants: dict[str, ConstantForm]
    names: dict[str, str]


def stored_program(program: Any, names: Mapping[str, str], manifest: Manifest) -> Program:
    """An ``ExportedProgram`` of torch's without weights. Raises PluginError for a constant without bytes."""
    forms, blob = _constants(program.constants)
    plain = _sorted_json(_without_metadata(json.loads(program_json(program))))
    head = msgspec.json.encode(_ProgramHead(msgspec.Raw(plain), forms, dict(sorted(names.items()))))
    hasher = Hasher(FORMAT)
    hasher.part("program", _canonical(plain, set(forms)))
    hasher.part("constants", msgspec.json.encode(forms))
    hasher.part("bytes", blob)
    hasher.part("names", _sorted_json(dict(names)))
    ir = len(head).to_bytes(_LENGTH, "little") + head + blob
    return Program(ir, format=FORMAT, manifest=manifest, canonical=hasher.digest())


def _canonical(plain: bytes, constants: set[str]) -> bytes:
    form = json.loads(_to_json_bytes(canonicalize(program_of_json(plain), constants)))
    del form["torch_version"]
    return _sorted_json(_without_metadata(form))


def _without_metadata(form: Any) -> Any:
    if isinstance(form, dict):
        return {key: {} if key == "metadata" else _without_metadata(value) for key, value in form.items()}
    return [_without_metadata(each) for each in form] if isinstance(form, list) else form


def _sorted_json(form: Any) -> bytes:
    return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


def _constants(constants: Mapping[str, Any]) -> tuple[dict[str, ConstantForm], bytes]:
    forms, blob = {}, bytearray()
    for name, tensor in sorted(constants.items()):
        data = _bytes_of(name, tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        forms[name] = ConstantForm(dtype, list(tensor.shape), list(tensor.stride()), len(blob), len(data))
        blob += data
    return forms, bytes(blob)


def _bytes_of(name: str, tensor: Any) -> bytes:
    """Row-major. Raises PluginError for what has no bytes of its own."""
    if type(tensor) not in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer} or tensor.layout != torch.strided:
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise PluginError(f"constant {name!r} of the module is a {kind}, which has no value that can be stored")
    if tensor.is_meta or tensor.device.type != "cpu":
        raise PluginError(
            f"constant {name!r} of the module is on {tensor.device}, so it has no value here: a plain tensor, or one "
            "made of a weight; make it on the CPU, or of weights in forward"
        )
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


class LoadedProgram:
    """A program as torch has it, for its compilers.

    exported: the ``ExportedProgram``, with weights of the right shape that have memory and no values (reading gives
    zeros, and shows in ``touched``). names: of parameters and buffers -> of weights. forms, blob: its constants.
    """

    def __init__(self, program: Program) -> None:
        """Raises PluginError for a program of another format, and where the IR is malformed."""
        if program.format != FORMAT:
            raise PluginError(f"torch takes programs of format {FORMAT!r}; this one is {program.format!r}")
        ir = program.ir
        end = _LENGTH + int.from_bytes(ir[:_LENGTH], "little")
        try:
            head = msgspec.json.decode(ir[_LENGTH:end], type=_ProgramHead)
        except msgspec.DecodeError as error:
            raise PluginError(f"the IR of {program!r} is malformed: {error}") from error
        self.names, self.forms, self.blob = head.names, head.constants, ir[end:]
        self._memory = _UnreadMemory(program.manifest)
        serialized = program_of_json(bytes(head.program))
        constants = {name: restored_tensor(form, self.blob) for name, form in self.forms.items()}
        # A size that is computed of another (twice a dimension) has the range that follows. Given one of its own, torch
        # takes it for a symbol, and fails when it looks for those.
        ranges = serialized.range_constraints
        serialized.range_constraints = {name: ranges[name] for name in ranges if name.isidentifier()}
        signature = serialized.graph_module.signature
        signature.input_specs = [_as_buffer(spec) for spec in signature.input_specs]
        state = {}
        for spec in signature.input_specs:
            if spec.type == "parameter":
                name = spec.parameter.parameter_name
                state[name] = torch.nn.Parameter(self._memory.tensor(self.names[name]), requires_grad=False)
            elif spec.type == "buffer" and spec.buffer.buffer_name not in constants:
                name = spec.buffer.buffer_name
                state[name] = self._memory.tensor(self.names[name])
        self.exported = ExportedProgramDeserializer().deserialize(serialized, state, constants, None)
        self.exported._example_inputs = _example(self.exported)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a weight's memory."""
        return self._memory.holds(tensor)

    def touched(self) -> list[str]:
        """The weights whose values were looked at."""
        return self._memory.touched()


def _as_buffer(spec: schema.InputSpec) -> schema.InputSpec:
    """A constant as a buffer that is not persistent, which it is in effect: AOTInductor forgets the names of others."""
    if spec.type != "tensor_constant":
        return spec
    constant = spec.tensor_constant
    buffer = schema.InputToBufferSpec(arg=constant.arg, buffer_name=constant.tensor_constant_name, persistent=False)
    return schema.InputSpec.create(buffer=buffer)


def restored_tensor(form: ConstantForm, blob: bytes) -> torch.Tensor:
    """With the strides of then; its memory is its own."""
    dtype = getattr(torch, form.dtype)
    data = bytearray(blob[form.offset : form.offset + form.nbytes])
    rows = torch.frombuffer(data, dtype=dtype).reshape(form.shape) if data else torch.empty(form.shape, dtype=dtype)
    if list(rows.stride()) == form.stride or not data:
        return rows
    # Elements may lie in one place (expand): each is put where the strides say.
    span = 1 + sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True))
    places = torch.arange(span).as_strided(form.shape, form.stride)
    flat = torch.zeros(span, dtype=dtype)
    flat[places.reshape(-1)] = rows.reshape(-1)
    return flat.as_strided(form.shape, form.stride)


def _example(program: Any) -> Any:
    """Inputs of the right shapes, of which torch's compilers look at nothing else."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    flat: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            node = nodes.get(getattr(spec.arg, "name", ""))
            flat.append(_example_of(getattr(spec.arg, "value", None) if node is None else node.meta.get("val")))
    return pytree.tree_unflatten(flat, program.call_spec.in_spec)


def _example_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [hint_of(size) for size in value.shape]
        strides = [hint_of(step) for step in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return hint_of(value) if isinstance(value, torch.SymInt) else value


def hint_of(size: Any) -> int:
    """What a dynamic size was in the example that was traced."""
    return size if isinstance(size, int) else int(size.node.hint)


class _UnreadMemory:
    """Memory in the place of weights: each has pages of its own that nobody has looked at yet.

    Real memory, because Inductor takes weights without any (FakeTensors, meta) for one and the same: it tells them
    apart by address.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._specs = manifest.weights
        self._places: dict[str, int] = {}
        size = 0
        for name, spec in self._specs.items():
            self._places[name] = size
            size += -(-spec.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags)
        self._memory.madvise(mmap.MADV_NOHUGEPAGE)  # else one look would show as many
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()

    def tensor(self, name: str) -> torch.Tensor:
        spec = self._specs[self._specs[name].alias or name]
        dtype = getattr(torch, spec.dtype)
        if not spec.nbytes:
            return torch.empty(spec.shape, dtype=dtype)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=math.prod(spec.shape), offset=self._places[spec.name])
        return flat.reshape(spec.shape)

    def holds(self, tensor: torch.Tensor) -> bool:
        if tensor.layout != torch.strided:
            return False
        return bool(self._start <= tensor.data_ptr() < self._start + len(self._memory))

    def touched(self) -> list[str]:
        """Those of which a page is there now (``/proc/self/pagemap``, bits 63 and 62; proc(5))."""
        found = []
        with open("/proc/self/pagemap", "rb", buffering=0) as table:
            for name, place in self._places.items():
                pages = -(-self._specs[name].nbytes // mmap.PAGESIZE)
                table.seek((self._start + place) // mmap.PAGESIZE * 8)
                entries = _read_all(table, pages * 8)
                if any(entries[7::8][index] & 0xC0 for index in range(pages)):
                    found.append(name)
        return found


def _read_all(file: io.FileIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = file.read(count - len(data))
        if not piece:
            raise PluginError("which memory was looked at can't be told here: /proc/self/pagemap ends early")
        data += piece
    return data
