"""Compilation of MLIR to native code: a function for each of ``mlir-opt``, ``mlir-translate`` and ``clang``.

Use each function in its own stage:

    @cache.stage
    def lowered(program: cachec.Program) -> cachec.Program:
        return native.to_llvm_dialect(program)

    @cache.stage
    def translated(program: cachec.Program) -> cachec.Program:
        return native.to_llvm_ir(program)

    @cache.stage
    def library(program: cachec.Program, *, level: int = 2) -> cachec.File:
        return native.to_library(program, options=[f"-O{level}"])

A weight is a ``memref.global`` of its name without initialiser (``strip(..., to="undefined")``), and so an undefined
symbol of the library. ``cachec.link`` sets its address; see ``cachec_native.linker``.

The tools read a program under a fixed file name. The running stage records the tools with all that they load, and files
that an option names by an absolute path. A tool's name includes its version (Debian's ``mlir-opt-19``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cachec.commands.run import host_processor, run, scratch
from cachec.errors import LinkError, PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec_mlir.compilers import check_list, check_unnamed, file_in_new_folder, run_tool
from cachec_native.llvm_globals import External, external_weights, section_of_needs
from cachec_native.plugin import KIND

#: The format of ``to_llvm_ir``.
LLVM_IR = "native:llvm-ir"

#: The formats that ``to_llvm_dialect`` and ``to_llvm_ir`` accept.
FORMATS = ("mlir:text", "mlir:bytecode")

#: From linalg on buffers down to the LLVM dialect, with plain loops.
PASSES = (
    "--convert-linalg-to-loops",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--expand-strided-metadata",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--convert-cf-to-llvm",
    "--reconcile-unrealized-casts",
)

#: Libraries that the code may call, and that each process loads.
_RUNTIME = ("libm.so.6", "libc.so.6")

#: -Bsymbolic: calls within the library use its own functions, not those of the process with the same name (``main``!).
#: --build-id=none and -s keep unused digests and symbols out of the file.
_LINKING = ("-shared", "-nostdlib", "-Wl,-Bsymbolic", "-Wl,-z,now", "-Wl,--build-id=none", "-Wl,-s")

#: Passes and options of mlir-opt that keep locations or names, or read comments.
_DEBUG_INFO = re.compile("debug-?info|emit-bytecode|nameloc|snapshot-op-locations|split-input-file|verify-diagnostics")

#: An attribute, in text and in bytecode: with one, mlir-translate keeps the locations of a function.
_SUBPROGRAM = b"di_subprogram"

#: Flags with which clang reads the processor of this machine.
_HOST = frozenset({"-march=native", "-mcpu=native", "-mtune=native"})

_INPUT = "program.mlir"
_OUTPUT = "program.out"


def to_llvm_dialect(program: Program, *, passes: Sequence[str] = PASSES, tool: str = "mlir-opt-19") -> Program:
    """Lower a program of format ``mlir:text`` or ``mlir:bytecode`` with mlir-opt; the result is ``mlir:text``.

    passes: its options, in order. Raises subprocess.CalledProcessError if the tool fails, with its output as a note;
    FileNotFoundError if it is not installed; PluginError for a program of another format.
    """
    _check_format(program, FORMATS, "mlir-opt")
    check_list("passes", passes)
    check_unnamed(program, filter(_DEBUG_INFO.search, passes))
    return Program(_run_tool(tool, program.ir, [*passes]), format="mlir:text", manifest=program.manifest)


def to_llvm_ir(program: Program, *, tool: str = "mlir-translate-19") -> Program:
    """Translate a program in the LLVM dialect to LLVM IR (text), of format ``native:llvm-ir``.

    Raises as above, and UsageError for debug information in a program that is keyed without locations.
    """
    _check_format(program, FORMATS, "mlir-translate")
    check_unnamed(program, ["debug information (#llvm.di_subprogram)"] if _SUBPROGRAM in program.ir else [])
    return Program(_run_tool(tool, program.ir, ["--mlir-to-llvmir"]), format=LLVM_IR, manifest=program.manifest)


def to_library(
    program: Program,
    *,
    cpu: str = "host",
    options: Sequence[str] = ("-O2",),
    libraries: Sequence[str | os.PathLike[str]] = (),
    tool: str = "clang-19",
    linker: str = "ld",
) -> File:
    """Compile LLVM IR to a shared library of kind ``native:library``, with its weights as undefined symbols.

    cpu: the target CPU; with ``host`` the result depends on this machine's processor, in stages with ``portable=True``,
    too. options: more flags of clang. libraries: files that the code calls, in addition to the C and the mathematical
    library. linker: a program with GNU ld's options.

    The file is in a temporary folder, which is removed with the returned object.

    Raises subprocess.CalledProcessError as above; PluginError if the program has a weight's bytes, or a weight of
    another type than in the manifest, or if the code needs a missing symbol.
    """
    _check_format(program, (LLVM_IR,), "clang")
    check_list("options", options)
    check_unnamed(program, (option for option in options if option.startswith("-g")))
    weights = external_weights(program.text, program.manifest.weights)
    linker_path = _linker(linker)
    with scratch() as folder:
        (folder / _INPUT).write_bytes(program.ir + section_of_needs(weights))
        inputs = [*_runtime(tool), *map(Path, libraries)]
        flags = [_cpu_flag(cpu), "-fPIC", *options]
        if _HOST.intersection(flags):
            host_processor()
        command: list[str | os.PathLike[str]] = [
            tool,
            "--no-default-config",
            *flags,
            "-Wno-override-module",
            f"--ld-path={linker_path}",
            *_LINKING,
            *("-x", "ir", _INPUT, "-x", "none"),
            *inputs,
            *("-o", _OUTPUT),
        ]
        run_tool(command, options, cwd=folder, tools=[linker_path], inputs=inputs, outputs=[_OUTPUT])
        _check_library(folder / _OUTPUT, weights)
        library = file_in_new_folder("program.so", kind=KIND, manifest=program.manifest)
        library.path.write_bytes((folder / _OUTPUT).read_bytes())  # kilobytes
        return library


def _run_tool(tool: str, data: bytes, options: Sequence[str]) -> bytes:
    """Run a tool on a module, and return its output. It runs in a new folder, so that no path can be in the result."""
    with scratch() as folder:
        (folder / _INPUT).write_bytes(data)
        run_tool([tool, _INPUT, "-o", _OUTPUT, *options], options, cwd=folder, outputs=[_OUTPUT])
        return (folder / _OUTPUT).read_bytes()


def _linker(name: str) -> str:
    from shutil import which

    executable = which(name)
    if executable is None:
        raise PluginError(f"linker {name!r} is not in PATH; install binutils, or name another with linker=")
    return executable


def _runtime(tool: str) -> list[Path]:
    """Return the runtime libraries of clang, and its builtins (half precision for processors without it)."""
    files = []
    for name in _RUNTIME:
        path = Path(os.fsdecode(run([tool, "--no-default-config", f"--print-file-name={name}"]).stdout.strip()))
        if not path.is_file():
            raise PluginError(f"{tool} finds no {name}; install the C library")
        files.append(path)
    builtins = Path(os.fsdecode(run([tool, "--no-default-config", "--print-libgcc-file-name"]).stdout.strip()))
    return [*files, builtins] if builtins.is_file() else files


def _cpu_flag(cpu: str) -> str:
    """Return the flag for the CPU: ``-march`` on x86, ``-mcpu`` on others (clang's reference manual)."""
    name = "native" if cpu == "host" else cpu
    return f"-march={name}" if os.uname().machine in {"x86_64", "i686"} else f"-mcpu={name}"


def _check_library(path: Path, weights: Sequence[External]) -> None:
    """Raise PluginError now for a library that could not be linked later."""
    from cachec_native.elf import Library
    from cachec_native.linker import check

    library = Library(path.read_bytes(), "the library")
    try:
        check(library, {weight.name: weight for weight in weights}, "the library")
    except LinkError as error:
        raise PluginError(str(error)) from error


def _check_format(program: Program, wanted: Sequence[str], tool: str) -> None:
    if program.format not in wanted:
        raise PluginError(f"{tool} takes {' or '.join(wanted)}; this program is {program.format!r}")
