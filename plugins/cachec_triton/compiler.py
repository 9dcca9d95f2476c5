"""Ahead-of-time compilation of kernels to folders, by Triton. Imports triton."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import JITFunction

from cachec.commands.run import run
from cachec.errors import UsageError
from cachec.programs.artifact import Dir
from cachec_mlir.compilers import file_in_new_folder

KIND = "triton:kernel"

#: One compilation at a time: Triton's settings are for the whole process.
_COMPILING = threading.Lock()

#: The files of a kernel that are stored. Triton's other files have paths of sources in them.
_STORED_KINDS = ("cubin", "ptx")

#: Triton's metadata of a kernel that depend on the machine, or on the kernel's place in its file.
_UNSTABLE = frozenset({"hash", "target", "extern_libs"})


def compile_kernel(
    kernel: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any], target: str, options: Mapping[str, Any]
) -> Dir:
    """See ``cachec_triton.compile``."""
    if not isinstance(kernel, JITFunction):
        inner = getattr(kernel, "fn", None)
        hint = "; give the function that it tunes, its .fn" if isinstance(inner, JITFunction) else ""
        raise UsageError(f"kernel expected a function with @triton.jit, found {type(kernel).__qualname__}{hint}")
    capability = re.fullmatch(r"cuda:(\d+)", target)
    if capability is None:
        raise UsageError(f"target expected one such as 'cuda:90', found {target!r}")
    missing = [name for name in kernel.arg_names if name not in signature]
    if missing:
        raise UsageError(f"signature expected a type of parameter {missing[0]!r}; 'constexpr' for one with a value")
    source = ASTSource(
        kernel, dict(signature), {(kernel.arg_names.index(name),): constexprs[name] for name in constexprs}
    )
    _record_assembler()
    with _COMPILING, tempfile.TemporaryDirectory(prefix="cachec-") as scratch:
        with knobs.cache.scope(), knobs.compilation.scope():
            knobs.cache.dir, knobs.cache.manager_class = scratch, FileCacheManager
            knobs.compilation.disable_line_info = True
            knobs.compilation.store_binary_only = False
            made = triton.compile(source, target=GPUTarget("cuda", int(capability[1]), 32), options=dict(options))
        described = {name: value for name, value in made.metadata._asdict().items() if name not in _UNSTABLE}
        described |= {"target": target, "extern_libs": [name for name, _ in made.metadata.extern_libs]}
        output = file_in_new_folder("kernel", kind=KIND, manifest=None)
        folder = Path(output.path)
        folder.mkdir()
        for kind in _STORED_KINDS:
            content = made.asm[kind]
            (folder / f"{made.name}.{kind}").write_bytes(content if isinstance(content, bytes) else content.encode())
        text = json.dumps(described, default=vars, sort_keys=True, indent=1)
        (folder / f"{made.name}.json").write_text(text + "\n")
    return _dir_with_owner(folder, output)


def _dir_with_owner(folder: Path, owner: object) -> Dir:
    """Return the folder as a ``Dir`` that keeps ``owner``, and so the folder, alive."""
    made = Dir(folder, kind=KIND)
    made.__dict__["_owner"] = owner
    return made


def _record_assembler() -> None:
    """Record the version of Triton's assembler, unless it is part of the triton package, which counts as a tool."""
    package = os.path.dirname(os.path.abspath(triton.__file__))
    for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell):
        path = os.path.abspath(tool.path)
        if not path.startswith(package + os.sep):
            run([path, "--version"])
