"""What stands for what ``torch.compile`` has wrapped, and for parts of models that generate text: imports no torch."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any


def describe(value: Any) -> Any:
    """The function or module itself, the backend with its options, and whether it must be one graph; of a class whether
    it is a pytree."""
    kind = type(value)
    if issubclass(kind, type):
        trees = getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", ())
        return "pytree" if value in trees else NotImplemented
    if kind is FunctionType and "_torchdynamo_orig_callable" in vars(value):
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        if "callback" in cells:
            return "compiled", value._torchdynamo_orig_callable, *_compiler(cells["callback"].cell_contents)
    if kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame":
        return "compiled", vars(value)["_modules"]["_orig_mod"], *_compiler(value.dynamo_ctx.callback)
    if kind.__name__ == "GenerationConfig" and kind.__module__ == "transformers.generation.configuration_utils":
        attributes = {name: part for name, part in vars(value).items() if name != "_original_object_hash"}
        return "generation", attributes  # that is another in each process
    return NotImplemented


def _compiler(callback: Any) -> tuple[Any, bool]:
    """Inside of all that Dynamo wraps it in."""
    is_one_graph = False
    while hasattr(callback, "_torchdynamo_orig_backend"):
        for part in (callback, getattr(callback, "_inner_convert", None)):
            is_one_graph = is_one_graph or bool(getattr(part, "_one_graph", False))
        callback = callback._torchdynamo_orig_backend
    return callback, is_one_graph
