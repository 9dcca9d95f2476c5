"""MLIR's Python bindings, where they are installed: they read what only MLIR can read, and print it in one notation.

A compiler brings its own MLIR: ``iree`` (``iree.compiler.ir``), ``jax`` (``jaxlib.mlir.ir``). Importing this module
imports none of them. Objects of two bindings do not mix, nor does bytecode of two LLVM versions; text does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cachec.base.display_text import module_of
from cachec.errors import CheckpointError, PluginError, UsageError

#: The class of a live module, in each of the bindings -> their name.
MODULES = {
    "iree.compiler._mlir_libs._mlir.ir.Module": "iree",
    "jaxlib.mlir._mlir_libs._mlir.ir.Module": "jax",
}


def _iree() -> Any:
    from iree.compiler import ir

    return ir


def _jax() -> Any:
    from jaxlib.mlir import ir

    return ir


_PACKAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "iree": (_iree, "iree.compiler.ir, from pip install 'cachec[iree]'"),
    "jax": (_jax, "jaxlib.mlir.ir, from pip install 'cachec[jax]'"),
}

#: Bytes of MLIR's own message that an error repeats.
_SHOWN = 2000


class Bindings:
    """One compiler's MLIR."""

    def __init__(self, name: str) -> None:
        """name: ``iree`` or ``jax``. Raises UsageError for another, PluginError where it is not installed."""
        if name not in _PACKAGES:
            raise UsageError(f"bindings expected one of {', '.join(map(repr, _PACKAGES))}, found {name!r}")
        load, package = _PACKAGES[name]
        try:
            self._ir = load()
        except ImportError as error:
            raise PluginError(f"MLIR's bindings {name!r} can't be imported ({error}): {package}") from error
        self.name = name

    def parse(self, data: bytes, label: str = "the module") -> Any:
        """A module of its own context, from text or bytecode in memory; operations of unknown dialects are taken.

        Resources without bytes stay without. Raises CheckpointError, naming ``label``, with what MLIR says of it.
        """
        return self._parse(lambda context: self._ir.Module.parse(data, context), label)

    def parse_file(self, path: str | os.PathLike[str]) -> Any:
        """Parse a file, which LLVM maps: it uses aligned resources of bytecode in place."""
        return self._parse(lambda context: self._ir.Module.parseFile(os.fspath(path), context), os.fspath(path))

    @property
    def resource(self) -> Any:
        """The class of attributes that are resources."""
        return self._ir.DenseResourceElementsAttr

    def _parse(self, parse: Callable[[Any], Any], label: str) -> Any:
        context = self._context()
        try:
            return parse(context)
        except (self._ir.MLIRError, ValueError) as error:
            message = str(error)[:_SHOWN]
            raise CheckpointError(
                f"{label}: the MLIR of {self.name!r} can't read it (text travels between LLVM versions, bytecode does "
                f"not): {message}"
            ) from error

    def _context(self) -> Any:
        # A context has threads of its own, and one for each parse is made.
        context = self._ir.Context()
        context.enable_multithreading(False)
        if self.name == "jax":
            _load_jax_dialects(context, self._ir)
        context.allow_unregistered_dialects = True
        return context


def bindings_of(value: Any) -> str | None:
    """Which bindings a live module belongs to; None for any other value."""
    for base in type(value).__mro__:
        name = MODULES.get(f"{module_of(base)}.{base.__qualname__}")
        if name is not None:
            return name
    return None


def generic(module: Any, *, locations: bool = False) -> bytes:
    """A live module in MLIR's generic notation: aliases spelt out, values and blocks numbered in the order of the text,
    constants by value, resources by name alone. locations: print them too.
    """
    get_asm = module.operation.get_asm
    text: bytes = get_asm(
        binary=True,
        print_generic_op_form=True,
        use_local_scope=True,
        assume_verified=True,
        enable_debug_info=locations,
        # Before LLVM 21 there is no such limit, and the bytes are printed to be cut off below.
        **({"large_resource_limit": 0} if "large_resource_limit" in (get_asm.__doc__ or "") else {}),
    )
    # Resources stand in a trailer. No line of the generic notation begins so, and no string has lines.
    return text.partition(b"\n{-#")[0].rstrip() + b"\n"


def write_bytecode(module: Any, path: str | os.PathLike[str]) -> None:
    """Write a live module with its resources; no byte of them passes through Python. Raises OSError, PluginError."""
    try:
        # Given a path, MLIR writes the file by itself.
        done = module.operation.write_bytecode(os.fspath(path))
    except (ValueError, RuntimeError) as error:
        raise PluginError(f"MLIR can't write the module as bytecode to {os.fspath(path)}: {error}") from error
    if done is False:
        raise PluginError(f"MLIR can't write the module as bytecode to {os.fspath(path)}")


def _load_jax_dialects(context: Any, ir: Any) -> None:
    """What JAX itself loads (``jax/_src/interpreters/mlir.py``, ``make_ir_context``), without importing JAX."""
    try:
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext as extension
    except ImportError:  # before JAX 0.7
        from jaxlib.mlir._mlir_libs import register_jax_dialects as extension  # type: ignore[no-redef]
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (sdy, chlo, stablehlo):
        dialect.register_dialect(context)
