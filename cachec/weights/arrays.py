"""Arrays of any library in this process's memory, taken by reference: numpy, jax, torch, DLPack, the buffer protocol.

It imports only numpy: the library of an array is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.dtypes import SIZES
from cachec.weights.layout import checked_name
from cachec.weights.sources import Buffer
from cachec.weights.tensor import Tensor, checked_tensor
from cachec.weights.weight import Weight

#: DLPack's device types (``DLDeviceType`` in dlpack.h), for messages; 1 is the CPU.
_DEVICES = {
    2: "CUDA",
    3: "CUDA (pinned host memory)",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    9: "VPI",
    10: "ROCm",
    11: "ROCm (pinned host memory)",
    13: "CUDA (managed memory)",
    14: "oneAPI",
    15: "WebGPU",
    16: "Hexagon",
    17: "MAIA",
}
_CPU = 1
#: What producers raise where they can't export an array.
_REFUSALS = (BufferError, TypeError, ValueError, RuntimeError, NotImplementedError)


def buffers_of(arrays: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Buffer]]:
    """Tensors and read-only bytes of arrays of any library and of ``(bytes-like, WeightSpec)`` pairs, by reference.

    Raises UsageError naming the weight, what was expected and what was found.
    """
    tensors: dict[str, Tensor] = {}
    buffers: dict[str, Buffer] = {}
    for name, value in arrays.items():
        checked_name(name, "from_arrays")
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], WeightSpec):
            tensors[name], buffers[name] = _of_bytes(name, *value)
        else:
            dtype, shape, buffer = describe(name, value)
            tensors[name], buffers[name] = Tensor(dtype, shape, buffer.view.nbytes, 0), buffer
    return tensors, buffers


class ArrayView(NamedTuple):
    """An array as a weight: a name of its dtype, its shape, and its bytes, which it keeps alive."""

    dtype: str
    shape: tuple[int, ...]
    buffer: Buffer


def describe(name: str, value: Any) -> ArrayView:
    """The weight ``name`` over the memory of ``value``: row-major and little-endian, on the CPU, never copied.

    Its digest may be cached only for immutable bytes, and only ``bytes`` are immutable: a jax array may share the
    memory of the numpy array or the torch tensor that it was made from.

    Raises UsageError naming the weight, what was expected, what was found, and what to call.
    """
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(name, np.asarray(value))
    if isinstance(value, Weight):
        raise UsageError(f"weight {name!r}: expected an array, found a weight of a set; use WeightSet.from_weights")
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    # Another thread may be importing one of them: what is not there yet has made no array.
    if isinstance(value, getattr(torch, "Tensor", ())):
        return _of_torch(name, value, torch)
    if isinstance(value, getattr(jax, "Array", ())):
        return _of_jax(name, value, jax)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(name, value)
    try:
        view = memoryview(value)
    except TypeError as error:
        raise UsageError(
            f"weight {name!r}: expected an array (numpy, jax, torch, anything with DLPack or the buffer protocol) or "
            f"(bytes-like, WeightSpec), found {type(value).__name__}; use numpy.asarray"
        ) from error
    return _of_buffer(name, view)


def _of_bytes(name: str, data: Any, spec: WeightSpec) -> tuple[Tensor, Buffer]:
    try:
        view = memoryview(data)
    except TypeError as error:
        raise UsageError(f"weight {name!r}: expected a bytes-like object, found {type(data).__name__}") from error
    if not view.c_contiguous:
        raise UsageError(f"weight {name!r}: expected contiguous bytes")
    tensor = checked_tensor(name, spec, view.nbytes, f"the {type(data).__name__}")
    flat = view.cast("B").toreadonly() if view.nbytes else memoryview(b"")
    return tensor, Buffer(flat, type(data) is bytes)


def _of_numpy(name: str, array: Any, *, fixed: bool = False) -> ArrayView:
    import numpy as np

    dtype = array.dtype
    if dtype.name not in SIZES:
        raise _no_weight(name, dtype.name)
    if dtype.byteorder == ">" or sys.byteorder != "little":
        raise UsageError(
            f"weight {name!r}: expected little-endian bytes, found dtype {dtype.str}; "
            f"use .astype({dtype.newbyteorder('<').str!r})"
        )
    if not array.flags.c_contiguous:
        raise _no_rows(name, array.shape, array.strides, "numpy.ascontiguousarray")
    # Through a read-only memoryview, so that no array over it can become writable again.
    flat = array.reshape(-1).view(np.uint8).data.toreadonly() if array.nbytes else memoryview(b"")
    return ArrayView(dtype.name, array.shape, Buffer(flat, fixed))


def _of_torch(name: str, array: Any, torch: Any) -> ArrayView:
    """numpy has none of torch's bf16 and fp8, so the bytes are taken, and the type by its name."""
    if array.device.type != "cpu":
        raise _elsewhere(name, str(array.device), "tensor.cpu()")
    if array.layout is not torch.strided:
        raise UsageError(f"weight {name!r}: expected a dense tensor, found {array.layout}; use tensor.to_dense()")
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype not in SIZES:
        raise _no_weight(name, f"torch.{dtype}")
    if array.is_conj() or array.is_neg():
        raise UsageError(
            f"weight {name!r}: expected the values in memory, found a view that changes them when they are read; "
            "use tensor.resolve_conj().resolve_neg()"
        )
    if not array.is_contiguous():
        strides = tuple(step * SIZES[dtype] for step in array.stride())
        raise _no_rows(name, tuple(array.shape), strides, "tensor.contiguous()")
    shape = tuple(array.shape)
    if array.numel() == 0:
        return ArrayView(dtype, shape, Buffer(memoryview(b""), fixed=False))
    try:
        flat = array.detach().reshape(-1).view(torch.uint8).numpy()
    except _REFUSALS as error:  # subclasses without memory of their own: fake, distributed, functional tensors
        raise UsageError(f"weight {name!r}: {type(array).__name__} does not hand out its memory: {error}") from error
    return ArrayView(dtype, shape, Buffer(flat.data.toreadonly(), fixed=False))


def _of_jax(name: str, array: Any, jax: Any) -> ArrayView:
    import numpy as np

    if isinstance(array, jax.core.Tracer):
        raise UsageError(f"weight {name!r}: expected an array with values, found {array!r}, which is being traced")
    if array.is_deleted():
        raise UsageError(f"weight {name!r}: the jax array was deleted, or donated to a call")
    devices = sorted(map(str, array.devices()))
    platforms = {device.platform for device in array.devices()}
    if platforms != {"cpu"} or len(devices) != 1:
        raise _elsewhere(name, ", ".join(devices), "jax.device_put(array, jax.devices('cpu')[0])")
    try:
        values = np.asarray(array)
    except _REFUSALS as error:
        raise UsageError(f"weight {name!r}: numpy can't see the jax array of {array.dtype}: {error}") from error
    return _of_numpy(name, values)


def _of_dlpack(name: str, value: Any) -> ArrayView:
    import numpy as np

    kind = type(value).__name__
    try:
        device, number = value.__dlpack_device__()
    except (AttributeError, *_REFUSALS) as error:
        raise UsageError(f"weight {name!r}: {kind} does not say where it is (__dlpack_device__): {error}") from error
    if int(device) != _CPU:
        where = _DEVICES.get(int(device), f"DLPack device type {int(device)}")
        raise _elsewhere(name, f"{where} {number}", "what its library has for that")
    try:
        values = np.from_dlpack(value)
    except _REFUSALS as error:
        raise UsageError(
            f"weight {name!r}: {kind} can't be taken by DLPack: {error}; pass (bytes-like, WeightSpec)"
        ) from error
    return _of_numpy(name, values)


def _of_buffer(name: str, view: memoryview) -> ArrayView:
    import numpy as np

    try:
        values = np.asarray(view)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"weight {name!r}: numpy has no dtype for a buffer of format {view.format!r}; pass (bytes-like, WeightSpec)"
        ) from error
    return _of_numpy(name, values, fixed=type(view.obj) is bytes)


def _no_weight(name: str, dtype: str) -> UsageError:
    return UsageError(f"weight {name!r}: dtype {dtype} can't be a weight; expected one of {', '.join(SIZES)}")


def _no_rows(name: str, shape: tuple[int, ...], strides: tuple[int, ...], copy: str) -> UsageError:
    return UsageError(
        f"weight {name!r}: expected a row-major array, found shape {list(shape)} with strides of {list(strides)} "
        f"bytes; use {copy}"
    )


def _elsewhere(name: str, device: str, copy: str) -> UsageError:
    return UsageError(f"weight {name!r}: expected an array on the CPU, found it on {device}; copy it with {copy}")
