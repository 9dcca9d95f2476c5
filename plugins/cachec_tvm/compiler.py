"""Compilation of programs to libraries, by TVM. Imports tvm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from cachec.commands.run import host_processor
from cachec.errors import PluginError, UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec_mlir.compilers import file_in_new_folder, run_tool
from cachec_tvm.kinds import EXPORTED, KIND, ONNX, RELAX, TORCH


def compile_program(program: Program, target: str) -> File:
    """See ``cachec_tvm.compile``."""
    if program.format not in {ONNX, RELAX, TORCH}:
        raise PluginError(
            "TVM takes programs of cachec_torch.to_exported, cachec_onnxruntime.strip and cachec_tvm.strip; this one "
            f"is {program.format!r}"
        )
    try:
        chosen = tvm.target.Target(target)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"target {target!r}: {error}") from error
    if chosen.kind.name != "llvm":
        raise UsageError(f"target expected one of kind llvm, found {chosen.kind.name!r}")
    host_processor()  # TVM uses this machine's if the target names none
    if program.format == TORCH:
        return _compile_torch(program, chosen)
    if program.format == RELAX:
        from cachec_tvm.relax_programs import import_program
    else:
        from cachec_tvm.onnx_importer import import_program
    module = import_program(program)
    _check(module["main"], program)
    file = file_in_new_folder("program.so", kind=KIND, manifest=program.manifest)
    _build(module, chosen, file)
    return file


def _compile_torch(program: Program, target: tvm.target.Target) -> File:
    from cachec_tvm.library_file import join_file
    from cachec_tvm.torch_importer import import_program

    module, form = import_program(program)
    file = file_in_new_folder("program.so", kind=EXPORTED, manifest=program.manifest)
    _build(module, target, file)
    file.path.write_bytes(join_file(file.path.read_bytes(), form))
    return file


def _build(module: tvm.IRModule, target: tvm.target.Target, file: File) -> None:
    tvm.compile(module, target=target).export_library(str(file.path), fcompile=_link)


def _check(main: Any, program: Program) -> None:
    """Raise PluginError unless the last parameters are the weights, in their order."""
    weights = [program.manifest.weights[name] for name in sorted(program.manifest.weights)]
    given = [parameter.ty for parameter in main.params][len(main.params) - len(weights) :]
    found = [(str(each.dtype), tuple(int(size) for size in each.shape)) for each in given]
    expected = [(each.dtype, each.shape) for each in weights]
    if found != expected:
        raise PluginError(f"TVM takes other weights than the program has: expected {expected}, found {found}")


def _link(output: str, objects: list[str], **options: Any) -> None:
    """Link as ``tvm.support.cc.create_shared`` does, recorded in the running stage, with fixed names of objects."""
    compiler = cc.get_cc()
    if compiler is None:
        raise PluginError("TVM links by a C++ compiler, and there is none in PATH")
    if options:
        raise PluginError(f"TVM links with options that are not known here: {sorted(options)}")
    folder = Path(output).parent
    names = []
    for number, each in enumerate(objects):
        names.append(f"{number}{Path(each).suffix}")
        (folder / names[-1]).write_bytes(Path(each).read_bytes())
    run_tool([compiler, "-shared", "-fPIC", "-o", Path(output).name, *names], [], cwd=folder)


_link.output_format = "so"  # type: ignore[attr-defined]  # export_library reads this attribute
_link.get_target_triple = cc.create_shared.get_target_triple  # type: ignore[attr-defined]
