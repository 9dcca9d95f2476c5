"""torch's values as arguments and results of stages: tensors, dtypes, devices, sizes. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from cachec.base.hashing import Hasher
from cachec.errors import PluginError
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec_torch.programs import ConstantForm, restored_tensor


class _TensorMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="torch", tag="tensor"):
    """As ``ConstantForm`` has it, which is what lies in the artifact."""

    form: ConstantForm
    parameter: bool
    requires_grad: bool


class _NameMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="torch", tag="name"):
    kind: Literal["dtype", "device"]
    name: str


class _SizeMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="torch", tag="size"):
    sizes: list[int]


def fingerprint(value: Any) -> Fingerprint:
    """Content, class, dtype, shape, strides and whether it takes part in gradients; of all else its text."""
    meta, data = _encode_parts(value)
    hasher = Hasher("torch")
    hasher.part("meta", msgspec.json.encode(meta))
    hasher.part("data", data)
    description = f"tensor {meta.form.dtype}{meta.form.shape}" if isinstance(meta, _TensorMeta) else str(value)
    return Fingerprint(hasher.digest(), description, len(data))


def encode(value: Any, out: ArtifactWriter) -> dict[str, Any]:
    """Raises PluginError for a tensor whose bytes are not all there is to it."""
    meta, data = _encode_parts(value)
    if isinstance(meta, _TensorMeta):
        out.write(data)
    plain: dict[str, Any] = msgspec.to_builtins(meta)
    return plain


def decode(meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
    try:
        kind = msgspec.convert(dict(meta), _TensorMeta | _NameMeta | _SizeMeta)
    except msgspec.ValidationError as error:
        raise PluginError(f"a stored value of torch has malformed meta data: {error}") from error
    if len(artifacts) != isinstance(kind, _TensorMeta):
        raise PluginError(f"a stored value of torch has {len(artifacts)} artifacts")
    if isinstance(kind, _SizeMeta):
        return torch.Size(kind.sizes)
    if isinstance(kind, _NameMeta):
        return _dtype(kind.name.removeprefix("torch.")) if kind.kind == "dtype" else torch.device(kind.name)
    form, data, dtype = kind.form, artifacts[0].read_bytes(), _dtype(kind.form.dtype)
    count = math.prod(form.shape)
    if not (_is_dense(form, count) and form.offset == 0 and len(data) == form.nbytes == count * dtype.itemsize):
        raise PluginError(f"a stored tensor has {len(data)} bytes, and is said to be {form}")
    if kind.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise PluginError(f"a stored tensor of {dtype} is said to take part in gradients")
    tensor = restored_tensor(form, data)
    if kind.parameter:
        return torch.nn.Parameter(tensor, requires_grad=kind.requires_grad)
    return tensor.requires_grad_(kind.requires_grad)


def compare(fresh: Any, stored: Any) -> str | None:
    """By numbers within the precision of single floats; by equality where there are none."""
    if not isinstance(fresh, torch.Tensor) or not isinstance(stored, torch.Tensor):
        return None if fresh == stored else f"{fresh} against {stored}"
    ours, theirs = (f"{each.dtype}{list(each.shape)}" for each in (fresh, stored))
    if ours != theirs:
        return f"{ours} against {theirs}"
    if not fresh.is_floating_point():
        return None if torch.equal(fresh, stored) else "the numbers differ"
    numbers = (each.to(torch.float64) for each in (fresh, stored))
    return None if torch.allclose(*numbers, rtol=1e-5, atol=1e-6, equal_nan=True) else "the numbers differ"


def _encode_parts(value: Any) -> tuple[_TensorMeta | _NameMeta | _SizeMeta, bytes | memoryview]:
    if isinstance(value, torch.dtype | torch.device):
        return _NameMeta("dtype" if isinstance(value, torch.dtype) else "device", str(value)), b""
    if isinstance(value, torch.Size):
        return _SizeMeta(list(value)), b""
    kind = type(value)
    if kind not in {torch.Tensor, torch.nn.Parameter}:
        raise PluginError(f"a {kind.__module__}.{kind.__qualname__} has more to it than bytes; give its parts")
    if value.layout != torch.strided or value.device.type != "cpu":
        raise PluginError(f"a tensor of layout {value.layout} on {value.device} can't be stored; make it dense, .cpu()")
    if value.is_quantized:
        raise PluginError("a quantised tensor can't be stored; return its int_repr(), q_scale() and q_zero_point()")
    if value.grad_fn is not None:
        raise PluginError("a tensor that gradients flow through can't be stored; detach() it")
    if value.grad is not None or vars(value):
        raise PluginError(
            "a tensor with a gradient or attributes of its own can't be stored; return them by themselves"
        )
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    stride = list(torch.empty_like(value, device="meta").stride())  # dense, in the order of the axes that it has
    form = ConstantForm(str(value.dtype).removeprefix("torch."), list(value.shape), stride, 0, len(data))
    return _TensorMeta(form, kind is torch.nn.Parameter, value.requires_grad), data


def _is_dense(form: ConstantForm, count: int) -> bool:
    if len(form.shape) != len(form.stride) or min((*form.shape, *form.stride), default=0) < 0:
        return False
    return not count or 1 + sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True)) == count


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise PluginError(f"{name!r} is no dtype of torch {torch.__version__}")
    return dtype
