"""A library of AOTInductor bound to the tensors of a live module, run by torch's own loader. Imports torch, and neither
Dynamo nor Inductor."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cachec.errors import LinkError, UsageError
from cachec.programs.artifact import File
from cachec_torch.calls import ValueForm, taken_inputs
from cachec_torch.libraries import read
from cachec_torch.runtime import check_block, placed_block
from cachec_torch.seams import give_weights
from cachec_torch.shim import Block, LibraryConstant, ModelContainer, torch_version
from cachec_torch.tensors import from_torch, tensor_at
from cachec_torch.trees import built, children_of, leaves_of


class LiveLibrary:
    """A compiled program that reads and writes the weights where they lie."""

    def __init__(self, file: File, weights: Mapping[str, torch.Tensor]) -> None:
        """Raises LinkError where the library does not fit torch or the weights."""
        self._file = file
        self._form, constants = read(file.path)
        by_value = sorted(set(self._form.mutated) - self._form.names.keys())
        if by_value:
            raise LinkError(f"the program writes to {by_value[0]!r}; register it as a buffer")
        if self._form.torch != torch_version():
            raise LinkError(f"{file!r} was compiled with torch {self._form.torch}; this one is {torch_version()}")
        self._folder = tempfile.TemporaryDirectory(prefix="cachec-")
        library = Path(self._folder.name, "model.so")
        library.symlink_to(file.path)
        if self._form.extern:
            library.with_suffix(".json").write_text(self._form.extern)
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        self._wanted = ModelContainer(file.path).constants()
        self._own = {
            constant.fqn: tensor_at(placed_block(self._form.constants[constant.fqn], constants[constant.fqn]))
            for constant in self._wanted
            if constant.fqn in self._form.constants
        }
        self._specs = tuple(map(pytree.treespec_loads, self._form.specs)) if self._form.specs[0] else None
        self.bind(weights)

    def bind(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take these weights from now on, in place."""
        self._tensors = {each.name.decode(): self._tensor(each, weights) for each in self._wanted}
        give_weights(self._runner, self._tensors)
        self._written = {_storage(weights[self._form.names[name]]) for name in self._form.mutated}
        self._shared = {_storage(tensor) for tensor in self._own.values()}

    def _tensor(self, constant: LibraryConstant, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        name = self._form.names.get(constant.fqn, "")
        tensor = self._own.get(constant.fqn, weights.get(name))
        if tensor is None:
            raise LinkError(f"the library wants {constant.fqn!r}, which no weight stands for")
        dtype = str(tensor.dtype).removeprefix("torch.")
        check_block(constant, Block(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor.stride()))
        return tensor.detach()

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call. Raises UsageError for arguments that the program was not compiled for."""
        leaves = self._leaves(args, kwargs)
        if torch.is_grad_enabled() and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            raise UsageError("an input takes part in gradients; detach it, or call under torch.no_grad()")
        tensors = [tensor_at(block) for block in taken_inputs(self._form, leaves, from_torch)]
        if self._written and not self._written.isdisjoint(map(_storage, tensors)):
            raise UsageError("an input lies in the memory of a buffer that the program writes to; clone it")
        return tensors

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if self._specs is None:
            assert self._form.arguments is not None  # where there are no specs
            return list(leaves_of(self._form.arguments, (args, kwargs), "arguments"))
        leaves: list[Any]
        names = list(children_of(self._specs[0])[1].context)
        if kwargs.keys() == set(names):
            kwargs = {name: kwargs[name] for name in names}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._specs[0]:
            raise UsageError(f"the arguments expected the tree {self._specs[0]}, found {spec}")
        return leaves

    def run(self, inputs: list[torch.Tensor]) -> Any:
        """The results, in the tree that the module returns."""
        with torch.no_grad():
            made = [self._owned(tensor) for tensor in self._runner.run(inputs)]
        values = (
            form.value if isinstance(form, ValueForm) else result
            for form, result in zip(self._form.outputs, made, strict=True)
        )
        if self._specs is None:
            assert self._form.results is not None  # where there are no specs
            return built(self._form.results, values)
        return pytree.tree_unflatten(list(values), self._specs[1])

    def _owned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of what lies in a constant of the program, which nobody may write to."""
        return tensor.clone() if _storage(tensor) in self._shared else tensor


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address
