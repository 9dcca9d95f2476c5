"""cachec for PyTorch: programs with weights by name, compiled ahead of time, linked without importing torch.

Importing this package does not import torch. ``install`` and ``uninstall`` are imported when they are first used: every
process that looks for plugins imports this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachec.base.lazy import lazily
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_torch.plugin import TorchPlugin

if TYPE_CHECKING:
    import torch

    from cachec_torch.ahead_of_time import aot
    from cachec_torch.persistent import install, uninstall

_HOMES = {"cachec_torch.persistent": ("install", "uninstall"), "cachec_torch.ahead_of_time": ("aot",)}

__all__ = ["TorchPlugin", "aot", "compile_aoti", "install", "plugin", "to_exported", "uninstall"]

#: The object behind the entry point ``torch`` of the group ``cachec.plugins``.
plugin = TorchPlugin()


def to_exported(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    weights: WeightSet,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    training: bool = False,
    strict: bool = False,
) -> Program:
    """Export a module with its weights by name to a ``Program`` of format ``torch:export``.

    module: a function without arguments that makes the module (its parameters then take no memory), or a module, which
    is left as it is. weights: only its specs are looked at; its names, shapes, dtypes and ties have to be those of the
    module's state dict, but for tied names that it may lack. args, kwargs: example inputs, of which values that are no
    tensors become part of the program. dynamic_shapes, strict: as for ``torch.export.export``. training: whether the
    module is put in training mode instead of evaluation mode.

    Persistent buffers are weights. Other buffers and plain tensors of the module are in the program, by value.

    Raises PluginError where the weights do not fit the module, where a constant has no value (made on meta, a tensor
    subclass), and where a module that was given reaches a weight by another way than its name; what torch raises for
    a module that it can't export, or that looks at the value of a weight, passes through.
    """
    from cachec_torch.exporting import exported

    return exported(module, weights, args, kwargs, dynamic_shapes, training=training, strict=strict)


def compile_aoti(program: Program, *, options: Mapping[str, Any] = MappingProxyType({})) -> File:
    """Compile a program of ``to_exported`` for the CPU by AOTInductor, to a ``File`` of kind ``torch:aoti``.

    options: Inductor's (``torch._inductor.config``), over those of the process. ``cachec.link`` gives a function that
    takes what the module took and returns what it returned, with numpy arrays for tensors; ``.torch()`` of it is the
    same for tensors. It needs torch's libraries and does not import torch, but where it warns that torch's own loader
    has to run the program. Weights that the program writes to (running statistics) are written in private memory.

    The C++ compiler and this machine's processor are recorded in the running stage. The file is in a temporary folder
    that goes when the returned object does. Raises UsageError for an option that would take weights into the library;
    PluginError where Inductor looks at the value of a weight, and for programs that write to inputs, or take or return
    sizes; what torch raises where it can't compile passes through.
    """
    from cachec_torch.aoti import compiled

    return compiled(program, options)


__getattr__, __dir__ = lazily(globals(), _HOMES)
