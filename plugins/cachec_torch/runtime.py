"""Libraries of AOTInductor bound to weights: through torch's C ABI without importing torch, else by torch's loader."""

from __future__ import annotations

import ctypes
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachec.errors import LinkError, UsageError
from cachec.programs.artifact import File
from cachec.weights import WeightSet
from cachec.weights.dtypes import numpy_dtype
from cachec_torch.calls import ValueForm, taken_inputs
from cachec_torch.libraries import LibraryForm, PlacedForm, read
from cachec_torch.shim import DTYPES, Block, LibraryConstant, ModelContainer, torch_version
from cachec_torch.trees import built, leaves_of


def linked(file: File, weights: WeightSet) -> LinkedLibrary | LoadedLibrary:
    """See ``cachec_torch.compile_aoti``. Raises LinkError where the library does not fit torch or the weights."""
    form, constants = read(file.path)
    version = torch_version()
    if form.torch != version:
        raise LinkError(f"{file!r} was compiled with torch {form.torch}; this one is {version}")
    if not form.by_torch:
        return LinkedLibrary(file, form, constants, weights)
    warnings.warn(f"torch's own loader runs this program: {form.by_torch}", stacklevel=4)
    return LoadedLibrary(file, form, constants, weights)


class LinkedLibrary:
    """A program bound to weights, called like the module: numpy arrays in, numpy arrays out (of bfloat16 and float8 by
    ml_dtypes), in the trees that the module had. ``torch()`` is the same for tensors of torch.

    It holds on to the memory of its weights. A call copies its results, and an input that is not dense in the order of
    the example's axes. Calls from several threads wait for one another.
    """

    def __init__(self, file: File, form: LibraryForm, constants: Any, weights: WeightSet) -> None:
        self._form = form
        self._container = ModelContainer(file.path)
        wanted = self._container.constants()
        self._container.bind([(each.name, _bound(each, form, constants, weights)) for each in wanted])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UsageError for arguments of another tree, shape or dtype than the program's, or beyond its ranges."""
        return self._called(args, kwargs, from_numpy, _to_numpy)

    def torch(self) -> Callable[..., Any]:
        """The same for tensors of torch on the CPU. Imports torch."""
        from cachec_torch.tensors import from_torch, to_torch

        return lambda *args, **kwargs: self._called(args, kwargs, from_torch, to_torch)

    def _called(self, args: Any, kwargs: Any, take: Callable[..., Block], give: Callable[[Block], Any]) -> Any:
        form = self._form
        if form.arguments is None or form.results is None:
            raise LinkError("the library says nothing of its trees")
        blocks = list(taken_inputs(form, list(leaves_of(form.arguments, (args, kwargs), "arguments")), take))
        results = self._container.run(blocks, give)
        values = (
            each.value if isinstance(each, ValueForm) else result
            for each, result in zip(form.outputs, results, strict=True)
        )
        return built(form.results, values)


class LoadedLibrary:
    """The same by torch's own loader, for what its C ABI can't do. Imports torch."""

    def __init__(self, file: File, form: LibraryForm, constants: Any, weights: WeightSet) -> None:
        import torch

        self._form = form
        self._folder = tempfile.TemporaryDirectory(prefix="cachec-")
        library = Path(self._folder.name, "model.so")
        library.symlink_to(file.path)
        if form.extern:  # torch reads the file if there is one, and takes none that is empty
            library.with_suffix(".json").write_text(form.extern)
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        self._tensors = {}
        for constant in ModelContainer(file.path).constants():
            from cachec_torch.tensors import tensor_at

            self._tensors[constant.name.decode()] = tensor_at(_bound(constant, form, constants, weights))
        from cachec_torch.seams import give_weights

        give_weights(self._runner, self._tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of a ``LinkedLibrary``."""
        from cachec_torch.tensors import as_array, tensor_at

        return self._called(args, kwargs, from_numpy, tensor_at, as_array)

    def torch(self) -> Callable[..., Any]:
        """The same for tensors of torch on the CPU."""
        from cachec_torch.tensors import from_torch, tensor_at

        # A copy: torch gives the memory of weights and of inputs, and of one result twice, as they are.
        return lambda *args, **kwargs: self._called(args, kwargs, from_torch, tensor_at, lambda tensor: tensor.clone())

    def _called(
        self,
        args: Any,
        kwargs: Any,
        take: Callable[..., Block],
        tensor: Callable[[Block], Any],
        give: Callable[[Any], Any],
    ) -> Any:
        from torch.utils import _pytree as pytree

        arguments, results = map(pytree.treespec_loads, self._form.specs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != arguments:
            raise UsageError(f"the arguments expected the tree {arguments}, found {spec}")
        given = [tensor(block) for block in taken_inputs(self._form, leaves, take)]
        made = self._runner.run(given)
        values = [
            each.value if isinstance(each, ValueForm) else give(result)
            for each, result in zip(self._form.outputs, made, strict=True)
        ]
        return pytree.tree_unflatten(values, results)


def _bound(constant: LibraryConstant, form: LibraryForm, constants: Any, weights: WeightSet) -> Block:
    """The memory of a constant of a library, checked: AOTInductor itself checks nothing."""
    placed = form.constants.get(constant.fqn)
    if placed is not None:
        block = placed_block(placed, constants[constant.fqn])
    else:
        name = form.names.get(constant.fqn)
        if name is None or name not in weights:
            raise LinkError(f"the library wants {constant.fqn!r}, which no weight stands for")
        weight = weights[name]
        array = weight.private() if constant.fqn in form.mutated else weight.read()
        block = Block(array.ctypes.data, weight.dtype, weight.shape, _row_major(weight.shape), array)
    check_block(constant, block)
    return block


def check_block(constant: LibraryConstant, block: Block) -> None:
    """Raise LinkError where memory is not what a constant of a library needs."""
    size = 0 if 0 in block.shape else 1 + sum((n - 1) * s for n, s in zip(block.shape, block.strides, strict=True))
    nbytes = size * numpy_dtype(block.dtype).itemsize
    is_of_size = constant.nbytes is None or 0 <= constant.nbytes - nbytes < _PADDING  # which may be padded
    if DTYPES.get(block.dtype) != constant.dtype or not is_of_size:
        raise LinkError(
            f"{constant.fqn!r}: the library has {constant.nbytes} bytes of type {constant.dtype}, the weight {nbytes} "
            f"of {block.dtype}"
        )


#: Bytes that AOTInductor aligns constants to.
_PADDING = 64


def placed_block(placed: PlacedForm, memory: memoryview) -> Block:
    """A constant of the program, where it lies in the file."""
    held = np.frombuffer(memory, np.uint8) if memory else np.empty(0, np.uint8)
    return Block(held.ctypes.data, placed.dtype, placed.shape, placed.stride, held)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps))[: len(shape)]


def from_numpy(value: Any, order: Sequence[int], number: int) -> Block:
    """Memory of what ``numpy.asarray`` takes, dense in the order of its axes. Raises UsageError for another type."""
    array = np.asarray(value)
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise UsageError(f"input {number} is an array of {array.dtype}; expected one of {', '.join(DTYPES)}")
    if len(order) == array.ndim and array.ndim:
        array = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    strides = tuple(step // array.itemsize for step in array.strides)
    return Block(array.ctypes.data, array.dtype.name, array.shape, strides, array)


def _to_numpy(block: Block) -> Any:
    """A copy: the memory may be a weight's, or an input's."""
    dtype = numpy_dtype(block.dtype)
    if 0 in block.shape:
        return np.empty(block.shape, dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(block.shape, block.strides, strict=True))
    flat = np.empty(span, dtype)
    ctypes.memmove(flat.ctypes.data, block.address, flat.nbytes)
    strides = [step * dtype.itemsize for step in block.strides]
    return np.lib.stride_tricks.as_strided(flat, block.shape, strides)
