"""Records the kernels that ``torch.library.Library`` is given, because torch's dispatcher gives none of them back.

This module stands apart from ``operations``: ``install`` needs it before the first compile, and it imports no Inductor.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import library

from cachec_torch.seams import operator_name

#: Files of torch that register an operation for their caller.
FOR_CALLERS = ("torch/library.py", "torch/_library/custom_ops.py")


class RecordedKernel(NamedTuple):
    """A kernel. key: as ``Library`` notes it. is_fallback: torch does not note those.
    caller: the file whose code registered it."""

    key: str
    function: Any
    caller: str
    is_fallback: bool


class KernelRecorder:
    """Stands in place of ``Library.define``, ``impl`` and ``fallback``, and records their functions in order.

    Of kernels that were registered earlier, only the places of their libraries are known.
    """

    def __init__(self) -> None:
        self.earlier = frozenset(library._impls)
        self._kernels: list[RecordedKernel] = []
        #: The file that defined an operation, by the name that torch notes.
        self.definers: dict[str, str] = {}

    def define(self, original: Callable[..., str]) -> Callable[..., str]:
        """A function in place of ``Library.define``."""

        @functools.wraps(original)
        def define(lib: Any, schema: str, *arguments: Any, **options: Any) -> str:
            done = original(lib, schema, *arguments, **options)
            self.definers[f"{lib.ns}::{schema.split('(', maxsplit=1)[0]}"] = _caller()
            return done

        return define

    def impl(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function in place of ``Library.impl``."""

        @functools.wraps(original)
        def impl(lib: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
            done = original(lib, op_name, fn, dispatch_key, **options)
            name = operator_name(lib, op_name).split("::")[-1]
            # torch notes the key as its caller gave it, or the key of the library.
            key = f"{lib.ns}/{name}/{dispatch_key or lib.dispatch_key}"
            self._kernels.append(RecordedKernel(key, fn, _caller(), is_fallback=False))
            return done

        return impl

    def fallback(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function in place of ``Library.fallback``."""

        @functools.wraps(original)
        def fallback(lib: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
            done = original(lib, fn, dispatch_key, **options)
            self._kernels.append(
                RecordedKernel(f"_//{dispatch_key or lib.dispatch_key}", fn, _caller(), is_fallback=True)
            )
            return done

        return fallback

    def kernels(self) -> list[RecordedKernel]:
        """The kernels that are registered now, in the order of their registration."""
        self._kernels = [each for each in self._kernels if each.is_fallback or each.key in library._impls]
        return list(self._kernels)


def record() -> None:
    """Record what is registered with torch from now on, before ``install``, which goes on with this recorder."""
    recorder = KernelRecorder()
    for name in ("define", "impl", "fallback"):
        replacement = getattr(recorder, name)(getattr(library.Library, name))
        replacement.cachec_recorder = recorder
        setattr(library.Library, name, replacement)


def installed_recorder() -> KernelRecorder | None:
    """The recorder of ``record``; None where that was not called."""
    return getattr(library.Library.impl, "cachec_recorder", None)


def _caller() -> str:
    """The file of the code that called ``Library``, without the functions of torch that call it for others."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.endswith((*FOR_CALLERS, "/functools.py")):
        frame = frame.f_back
    return frame.f_code.co_filename
