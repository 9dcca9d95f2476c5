"""A runner for programs that XLA compiled for one CPU: jaxlib with NumPy arrays, without an import of JAX.

The import of JAX takes longer than all other work of a new process up to the first result of such a program. The runner
makes the calls to jaxlib that JAX 0.10 makes (``jax/_src/interpreters/pxla.py``, ``jax/_src/xla_bridge.py``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cachec.errors import PluginError, UnusableHere
from cachec.programs.supported_versions import compare, version_of
from cachec_jax.program_format import (
    AvalForm,
    LayoutForm,
    ProgramForm,
    ShardingForm,
    Toolchain,
    TreeForm,
    check_toolchain,
    uses_lapack,
)

if TYPE_CHECKING:
    from jaxlib._jax import ArrayImpl, Client, SingleDeviceSharding
    from jaxlib.xla_client import DeviceList

#: Dtypes with the same size in NumPy or ml_dtypes as in XLA.
_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
    | {"complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz"}
)

#: Type of a Python number -> the dtypes that JAX accepts it for.
_NUMBERS: Mapping[type, frozenset[str]] = {
    bool: frozenset({"bool"}),
    int: frozenset({"int32", "int64"}),
    float: frozenset({"float32", "float64"}),
    complex: frozenset({"complex64", "complex128"}),
}

_KINDS: Mapping[str, type] = {"none": type(None), "dict": dict, "list": list, "tuple": tuple}

_KEYS = frozenset({str, int, float, bool})

#: Supported releases of jaxlib. Older ones place arrays and name processor features differently, newer ones ask for
#: more; there JAX runs the program.
_RELEASES = ">=0.10,<0.11"


def runs_without_jax(form: ProgramForm, data: bytes) -> bool:
    """Whether a compiled program, serialised by XLA as ``data``, can run without JAX.

    It can if it is for one CPU, has plain arrays in trees of dicts, lists and tuples, and calls neither LAPACK nor
    functions that a module registers.
    """
    places = (*form.in_shardings, *form.out_shardings)
    layouts = (*form.in_layouts, *form.out_layouts, *form.dispatch_layouts)
    return (
        form.kind == "compiled"
        and compare(version_of("jaxlib"), _RELEASES) == 0
        and form.toolchain.platform == "cpu"
        and len(form.toolchain.devices) == 1
        and all(map(_is_plain, (*form.arguments, *form.results)))
        and all(map(_is_on_device, places))
        and all(map(_is_row_major, layouts))
        and _leaf_count(form.in_tree) == len(form.arguments)
        and _leaf_count(form.out_tree) == len(form.results)
        and [child.kind for child in form.in_tree.children] == ["tuple", "dict"]
        and not form.targets
        and not uses_lapack(data)
    )


def _is_plain(aval: AvalForm) -> bool:
    return aval.dtype in _DTYPES and not aval.axes


def _is_on_device(place: ShardingForm) -> bool:
    return place.kind in {"single", "unspecified"} and place.memory in {None, "device"}


def _is_row_major(layout: LayoutForm | None) -> bool:
    return layout is None or (layout.order == tuple(range(len(layout.order))) and not layout.tiling and not layout.bits)


def _leaf_count(tree: TreeForm) -> float:
    """Return the number of leaves; NaN for a tree with other nodes, or a malformed one."""
    if tree.kind in {"leaf", "none"}:
        return tree.kind == "leaf"
    if tree.kind == "node" or (tree.kind == "dict" and not _has_plain_keys(tree)):
        return math.nan
    return sum(map(_leaf_count, tree.children))


def _has_plain_keys(tree: TreeForm) -> bool:
    keys = tree.data.get("tuple") if type(tree.data) is dict else None
    return type(keys) is list and len(keys) == len(tree.children) and all(type(key) in _KEYS for key in keys)


class JaxlibProgram:
    """A program that jaxlib runs, linked to its weights.

    weights: its first arguments, each of the program's type. They are used in place. Raises PluginError for a program
    of another release of JAX or another kind of device.
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
        self._executable = _load_executable(data, device.id)
        self._weights = [self._put(array, aval) for array, aval in zip(weights, form.arguments, strict=False)]
        self._handlers = [
            cpu.handler(_Aval.of(aval), self._sharding, committed=True, _skip_checks=True) for aval in form.results
        ]

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Run the program to its end, and return its results as read-only arrays.

        Raises TypeError for inputs of another tree, shape or dtype. A Python number is accepted for a dtype of its
        kind.
        """
        form = self._form
        positional, keywords = form.in_tree.children
        given = [None] * len(self._weights)
        given += _flatten(TreeForm("tuple", None, positional.children[1:]), inputs, "the arguments")
        given += _flatten(keywords, dict(named), "the keywords")
        arrays = list(self._weights)
        for index in range(len(arrays), len(form.arguments)):
            array = _checked_array(given[index], form.arguments[index], form.argument_names[index])
            arrays.append(self._put(array, form.arguments[index], copied=index in form.donated))
        execution = self._executable.execute_sharded([arrays[index] for index in form.kept])
        results = execution.consume_with_handlers(self._handlers)
        leaves = (_result_array(result, aval) for result, aval in zip(results, form.results, strict=True))
        return _unflatten(form.out_tree, leaves)

    def _put(self, array: np.ndarray[Any, Any], aval: AvalForm, copied: bool = False) -> Any:
        """Put an array on the device, in place unless ``copied``: XLA may write to donated arrays."""
        return self._cpu.put(
            _Aval.of(aval), self._sharding, [array], [self._device], force_copy=copied, enable_x64=True
        )


@dataclass(frozen=True)
class _Cpu:
    """The objects of jaxlib for the CPU, by their use."""

    #: One for the process, as JAX has one.
    client: Client
    device_list: type[DeviceList]
    sharding: type[SingleDeviceSharding]
    handler: Callable[..., Any]
    put: Callable[..., ArrayImpl]

    def devices(self) -> dict[int, Any]:
        return {device.id: device for device in self.client.local_devices()}


@lru_cache(maxsize=1)
def _cpu() -> _Cpu:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax/__init__.py: jaxlib says what it finds otherwise
    from jaxlib import _jax, xla_client

    class Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc]
        """The class with the two attributes that JAX's class of this name adds."""

        memory_kind = "device"

        def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
            return xla_client.HloSharding.replicate()

    client = xla_client.make_cpu_client()
    return _Cpu(client, xla_client.DeviceList, Sharding, _jax.array_result_handler, _jax.batched_device_put)


@lru_cache(maxsize=8)
def _load_executable(data: bytes, device: int) -> Any:
    """Load a program once: this takes longer than linking it to other weights."""
    cpu = _cpu()
    try:
        return cpu.client.deserialize_executable(data, executable_devices=cpu.device_list((cpu.devices()[device],)))
    except (RuntimeError, ValueError) as error:
        raise UnusableHere(f"a stored program of JAX can't be loaded: {str(error)[:300]}") from error


@dataclass(frozen=True)
class _Aval:
    """An abstract value with the attributes that jaxlib reads."""

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


def _flatten(tree: TreeForm, value: Any, where: str) -> Iterator[Any]:
    """Return the leaves of ``value`` in JAX's order. Raises TypeError if its tree is not ``tree``."""
    if tree.kind == "leaf":
        yield value
        return
    wanted = tree.data["tuple"] if tree.kind == "dict" else range(len(tree.children))
    known = wanted if type(value) is dict and set(value) == set(wanted) else value  # in any order
    expected, found = _describe_node(wanted, _KINDS[tree.kind]), _describe_node(known, type(value))
    if expected != found:
        raise TypeError(f"{where}: expected {expected}, found {found}")
    for key, child in zip(wanted, tree.children, strict=True):
        yield from _flatten(child, value[key], f"{where}[{key!r}]")


def _describe_node(value: Any, kind: type) -> str:
    """Describe a node for an error message; equal nodes have equal descriptions."""
    if kind is dict:
        return f"a dict of {list(value)}"
    return f"a {kind.__name__} of {len(value)}" if kind in {list, tuple} else f"a {kind.__name__}"


def _checked_array(value: Any, aval: AvalForm, name: str) -> np.ndarray[Any, Any]:
    dtype = _dtype(aval.dtype)
    number = aval.dtype in _NUMBERS.get(type(value), ())
    array = np.asarray(value, dtype if number else None, order="C")
    if (array.shape, array.dtype) != (aval.shape, dtype) or isinstance(value, np.ma.MaskedArray):
        kind = "a masked " if isinstance(value, np.ma.MaskedArray) else ""
        raise TypeError(
            f"{name or 'an argument'}: expected {dtype}{list(aval.shape)}, found {kind}{array.dtype}{list(array.shape)}"
        )
    return array


class _ResultBuffer:
    """The memory of a result of XLA, which it keeps alive."""

    def __init__(self, result: ArrayImpl, nbytes: int) -> None:
        self._result = result
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (result.unsafe_buffer_pointer(), True),
        }


def _result_array(result: ArrayImpl, aval: AvalForm) -> np.ndarray[Any, Any]:
    result.block_until_ready()
    dtype = _dtype(aval.dtype)
    nbytes = math.prod(aval.shape) * dtype.itemsize
    if result.on_device_size_in_bytes() != nbytes:
        raise PluginError(
            f"a stored program gives {result.on_device_size_in_bytes()} bytes for {aval.dtype}{list(aval.shape)}"
        )
    if not nbytes:
        return np.empty(aval.shape, dtype)
    return np.asarray(_ResultBuffer(result, nbytes)).view(dtype).reshape(aval.shape)


def _unflatten(tree: TreeForm, leaves: Iterable[Any]) -> Any:
    """Build the tree with the given leaves."""
    given = iter(leaves)
    if tree.kind == "leaf":
        return next(given)
    if tree.kind == "none":
        return None
    children = [_unflatten(child, given) for child in tree.children]
    if tree.kind == "dict":
        return dict(zip(tree.data["tuple"], children, strict=True))
    return tuple(children) if tree.kind == "tuple" else children
