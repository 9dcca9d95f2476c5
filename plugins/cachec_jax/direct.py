"""What XLA compiled for one CPU, run by jaxlib: takes and gives NumPy's arrays. Does not import JAX.

To import JAX takes longer than all else that a new process does before the first result of such a program. Of jaxlib
is used what JAX 0.10 itself calls (``jax/_src/interpreters/pxla.py``, ``jax/_src/xla_bridge.py``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cachec.errors import PluginError, UnusableHere
from cachec.programs.supported_versions import compare, version_of
from cachec_jax.forms import (
    AvalForm,
    LayoutForm,
    ProgramForm,
    ShardingForm,
    Toolchain,
    TreeForm,
    check_toolchain,
    uses_lapack,
)

#: NumPy and ml_dtypes have them in as many bytes as XLA.
_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
    | {"complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz"}
)

#: What a number of Python's can be given for, as JAX takes it.
_NUMBERS: Mapping[type, frozenset[str]] = {
    bool: frozenset({"bool"}),
    int: frozenset({"int32", "int64"}),
    float: frozenset({"float32", "float64"}),
    complex: frozenset({"complex64", "complex128"}),
}

_KINDS: Mapping[str, type] = {"none": type(None), "dict": dict, "list": list, "tuple": tuple}

_KEYS = frozenset({str, int, float, bool})

#: Of jaxlib. Older ones place arrays, and name what a processor can, in other ways; newer ones ask for more. There JAX
#: runs the program.
_RELEASES = ">=0.10,<0.11"


def is_direct(form: ProgramForm, data: bytes) -> bool:
    """Whether a compiled program needs nothing of JAX: one CPU, plain arrays in plain trees of dicts, lists, tuples, no
    function of LAPACK, and none that a module has to register. data: what XLA serialised of it."""
    places = (*form.in_shardings, *form.out_shardings)
    layouts = (*form.in_layouts, *form.out_layouts, *form.dispatch_layouts)
    return (
        form.kind == "compiled"
        and compare(version_of("jaxlib"), _RELEASES) == 0
        and form.toolchain.platform == "cpu"
        and len(form.toolchain.devices) == 1
        and all(map(_is_plain, (*form.arguments, *form.results)))
        and all(map(_is_here, places))
        and all(map(_is_row_major, layouts))
        and _leaves(form.in_tree) == len(form.arguments)
        and _leaves(form.out_tree) == len(form.results)
        and [child.kind for child in form.in_tree.children] == ["tuple", "dict"]
        and not form.targets
        and not uses_lapack(data)
    )


def _is_plain(aval: AvalForm) -> bool:
    return aval.dtype in _DTYPES and not aval.axes


def _is_here(place: ShardingForm) -> bool:
    return place.kind in {"single", "unspecified"} and place.memory in {None, "device"}


def _is_row_major(layout: LayoutForm | None) -> bool:
    return layout is None or (layout.order == tuple(range(len(layout.order))) and not layout.tiling and not layout.bits)


def _leaves(tree: TreeForm) -> float:
    """How many there are; NaN for a tree of other nodes, or one that is malformed."""
    if tree.kind in {"leaf", "none"}:
        return tree.kind == "leaf"
    if tree.kind == "node" or (tree.kind == "dict" and not _are_keys(tree)):
        return math.nan
    return sum(map(_leaves, tree.children))


def _are_keys(tree: TreeForm) -> bool:
    keys = tree.data.get("tuple") if type(tree.data) is dict else None
    return type(keys) is list and len(keys) == len(tree.children) and all(type(key) in _KEYS for key in keys)


class DirectProgram:
    """A program that is direct, bound to its weights.

    weights: its first arguments, each of the type that the program has for it; they are used where they are.
    Raises PluginError where another release of JAX, or one for another kind of device, made the program.
    """

    def __init__(self, form: ProgramForm, data: bytes, weights: Sequence[np.ndarray[Any, Any]]) -> None:
        self._form = form
        self._cpu = cpu = _cpu()
        device = cpu.devices().get(form.toolchain.devices[0])
        if device is None:
            raise PluginError(f"a stored program runs on device {form.toolchain.devices[0]}, of which there are none")
        client, kinds = cpu.client, (device.device_kind,)
        here = Toolchain(
            version_of("jax"), version_of("jaxlib"), client.platform, client.platform_version, (device.id,), kinds
        )
        check_toolchain(form.toolchain, here)
        self._device, self._sharding = device, cpu.sharding(device, memory_kind="device")
        self._executable = _loaded(data, device.id)
        self._weights = [self._placed(array, aval) for array, aval in zip(weights, form.arguments, strict=False)]
        self._handlers = [
            cpu.handler(_Aval.of(aval), self._sharding, committed=True, _skip_checks=True) for aval in form.results
        ]

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """What the program gives, as arrays that can't be written. Returns when it is computed.

        Raises TypeError for inputs of another tree, shape or dtype. A number of Python's is taken for one of its kind.
        """
        form = self._form
        positional, keywords = form.in_tree.children
        given = [None] * len(self._weights)
        given += _flat(TreeForm("tuple", None, positional.children[1:]), inputs, "the arguments")
        given += _flat(keywords, dict(named), "the keywords")
        arrays = list(self._weights)
        for index in range(len(arrays), len(form.arguments)):
            array = _array(given[index], form.arguments[index], form.argument_names[index])
            arrays.append(self._placed(array, form.arguments[index], copied=index in form.donated))
        ran = self._executable.execute_sharded([arrays[index] for index in form.kept])
        results = ran.consume_with_handlers(self._handlers)
        leaves = (_numpy(result, aval) for result, aval in zip(results, form.results, strict=True))
        return _tree(form.out_tree, leaves)

    def _placed(self, array: np.ndarray[Any, Any], aval: AvalForm, copied: bool = False) -> Any:
        """Where it is, unless it has to be copied: XLA may write to what is donated."""
        return self._cpu.put(
            _Aval.of(aval), self._sharding, [array], [self._device], force_copy=copied, enable_x64=True
        )


@dataclass(frozen=True)
class _Cpu:
    """jaxlib's own, by what it is here for. client: one for the process, as JAX has one."""

    client: Any
    device_list: Any
    sharding: Any
    handler: Any
    put: Any

    def devices(self) -> dict[int, Any]:
        return {device.id: device for device in self.client.local_devices()}


@lru_cache(maxsize=1)
def _cpu() -> _Cpu:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax/__init__.py: jaxlib says what it finds otherwise
    from jaxlib import _jax, xla_client

    class Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc]
        """JAX's class of this name adds these."""

        memory_kind = "device"

        def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
            return xla_client.HloSharding.replicate()

    client = xla_client.make_cpu_client()
    return _Cpu(client, xla_client.DeviceList, Sharding, _jax.array_result_handler, _jax.batched_device_put)


@lru_cache(maxsize=8)
def _loaded(data: bytes, device: int) -> Any:
    """Once for a program: that takes longer than to give it other weights."""
    cpu = _cpu()
    try:
        return cpu.client.deserialize_executable(data, executable_devices=cpu.device_list((cpu.devices()[device],)))
    except (RuntimeError, ValueError) as error:
        raise UnusableHere(f"a stored program of JAX can't be loaded: {str(error)[:300]}") from error


@dataclass(frozen=True)
class _Aval:
    """What jaxlib asks of an abstract value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    weak_type: bool

    @classmethod
    def of(cls, form: AvalForm) -> _Aval:
        return cls(form.shape, _dtype(form.dtype), form.weak)


def _dtype(name: str) -> np.dtype[Any]:
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    made: np.dtype[Any] = np.dtype(name)
    return made


def _flat(tree: TreeForm, value: Any, where: str) -> Iterator[Any]:
    """The leaves of ``value`` in JAX's order. Raises TypeError where it is no such tree."""
    if tree.kind == "leaf":
        yield value
        return
    wanted = tree.data["tuple"] if tree.kind == "dict" else range(len(tree.children))
    known = wanted if type(value) is dict and set(value) == set(wanted) else value  # whatever their order
    expected, found = _shape(wanted, _KINDS[tree.kind]), _shape(known, type(value))
    if expected != found:
        raise TypeError(f"{where}: expected {expected}, found {found}")
    for key, child in zip(wanted, tree.children, strict=True):
        yield from _flat(child, value[key], f"{where}[{key!r}]")


def _shape(value: Any, kind: type) -> str:
    """In words: two that are the same have the same."""
    if kind is dict:
        return f"a dict of {list(value)}"
    return f"a {kind.__name__} of {len(value)}" if kind in {list, tuple} else f"a {kind.__name__}"


def _array(value: Any, aval: AvalForm, name: str) -> np.ndarray[Any, Any]:
    dtype = _dtype(aval.dtype)
    number = aval.dtype in _NUMBERS.get(type(value), ())
    array = np.asarray(value, dtype if number else None, order="C")
    if (array.shape, array.dtype) != (aval.shape, dtype) or isinstance(value, np.ma.MaskedArray):
        kind = "a masked " if isinstance(value, np.ma.MaskedArray) else ""
        raise TypeError(
            f"{name or 'an argument'}: expected {dtype}{list(aval.shape)}, found {kind}{array.dtype}{list(array.shape)}"
        )
    return array


class _Held:
    """Memory of a result of XLA, which lives as long as this."""

    def __init__(self, result: Any, nbytes: int) -> None:
        self._result = result
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (result.unsafe_buffer_pointer(), True),
        }


def _numpy(result: Any, aval: AvalForm) -> np.ndarray[Any, Any]:
    result.block_until_ready()
    dtype = _dtype(aval.dtype)
    nbytes = math.prod(aval.shape) * dtype.itemsize
    if result.on_device_size_in_bytes() != nbytes:
        raise PluginError(
            f"a stored program gives {result.on_device_size_in_bytes()} bytes for {aval.dtype}{list(aval.shape)}"
        )
    if not nbytes:
        return np.empty(aval.shape, dtype)
    return np.asarray(_Held(result, nbytes)).view(dtype).reshape(aval.shape)


def _tree(tree: TreeForm, leaves: Iterable[Any]) -> Any:
    """The tree again, its leaves taken from ``leaves``."""
    given = iter(leaves)
    if tree.kind == "leaf":
        return next(given)
    if tree.kind == "none":
        return None
    children = [_tree(child, given) for child in tree.children]
    if tree.kind == "dict":
        return dict(zip(tree.data["tuple"], children, strict=True))
    return tuple(children) if tree.kind == "tuple" else children
