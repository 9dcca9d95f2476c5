"""Compilation of programs to IREE's VM bytecode, by ``iree-compile``, in one step or in several."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cachec.errors import PluginError, UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.supported_versions import compare, version_of
from cachec_iree.phases import CONST_EVAL, END, FORMAT, name_of, split

#: The kind of the files made here.
KIND = "iree:vmfb"

#: Format of a program -> ``--iree-input-type``.
_INPUT_TYPES = {"jax:stablehlo": "stablehlo", "mlir:text": "auto", "mlir:bytecode": "auto"}

#: Backends for the CPU of IREE's ``local`` devices.
_TARGETS = ("llvm-cpu", "vmvx")

#: The place of the compiler below a folder of ``sys.path``. ``bin/iree-compile`` is a script that starts it.
_EXECUTABLE = os.path.join("iree", "compiler", "_mlir_libs", "iree-compile")

#: Without these two, the input's file name, lines and columns come into the module, which then differs from run to run.
_REPRODUCIBLE = ("--iree-vm-bytecode-module-strip-source-map", "--iree-llvmcpu-debug-symbols=false")

#: Flags that keep names and locations of the program in the module (unless as in ``_REPRODUCIBLE``), or read comments.
_KEEPING = frozenset(
    {
        "emit-mlir-bytecode",
        "emit-mlir-bytecode-version",
        "iree-codegen-llvm-verbose-debug-info",
        "iree-hal-executable-debug-level",
        "iree-llvmcpu-debug-symbols",
        "iree-vm-bytecode-module-strip-source-map",
        "iree-vm-bytecode-source-listing",
        "mlir-print-debuginfo",
        "mlir-use-nameloc-as-prefix",
        "split-input-file",
    }
)

#: Flags with which LLVM reads the processor of this machine.
_HOST = ("iree-llvmcpu-target-cpu=host", "iree-llvmcpu-target-cpu-features=host")

#: Releases in which iree-compile evaluates constants without reading weights. Older ones fail: "required module
#: 'io_parameters' not registered".
_EVALUATES_WITHOUT_WEIGHTS = ">=3.7,<4"

_INPUT = "program.mlir"
_OUTPUT = "program.vmfb"


def compile(
    program: Program,
    *,
    target: str = "llvm-cpu",
    cpu: str = "host",
    options: Sequence[str] = (),
    phases: Sequence[str] = (),
    phase: Callable[[Program, str, tuple[str, ...]], Any] | None = None,
) -> File:
    """Compile ``program`` to a ``File`` of kind ``iree:vmfb`` that inherits its manifest.

    program: StableHLO of JAX, or MLIR of any dialect that IREE supports (``mlir:text``, ``mlir:bytecode``), with the
    weights as parameters of scope ``model``. target: ``llvm-cpu`` or ``vmvx``. cpu: LLVM's target CPU; with ``host``
    the result depends on this machine's processor, in stages with ``portable=True``, too. options: more flags of
    iree-compile. As an argument of the stage, they count by value; a file that one names by an absolute path counts by
    content.

    phases: names of phases (``cachec_iree.PHASES``) after which iree-compile stops, and a new one continues; the result
    is the same, byte for byte. phase: a stage of the caller around ``compile_phase``, which runs one part. Another
    value of an option then runs only the first part that it can affect, and the later ones (``cachec_iree.phases``).

    The file is in a temporary folder, which is removed with the returned object. Raises subprocess.CalledProcessError
    if iree-compile fails, with its output as a note; PluginError for a format that IREE does not support, and if
    iree-compile is not installed; UsageError for an unknown phase, and for an option that keeps names in the module if
    the program is keyed without them.
    """
    input_type = _INPUT_TYPES.get(program.format)
    if input_type is None:
        raise PluginError(f"iree-compile takes {', '.join(_INPUT_TYPES)}; this program is {program.format!r}")
    if target not in _TARGETS:
        raise UsageError(f"target expected one of {', '.join(_TARGETS)}, found {target!r}")
    from cachec_mlir.compilers import (
        check_list,
        check_unnamed,
    )  # imported here so that a hit does not import cachec_mlir

    check_list("options", options)
    check_list("phases", phases)
    check_unnamed(program, _keeping(options))
    flags = (
        f"--iree-input-type={input_type}",
        "--iree-hal-target-device=local",
        f"--iree-hal-local-target-device-backends={target}",
        *([f"--iree-llvmcpu-target-cpu={cpu}"] if target == "llvm-cpu" else []),
        *_REPRODUCIBLE,
        *([f"--{CONST_EVAL}=false"] if _evaluates_weights() and CONST_EVAL not in map(name_of, options) else []),
        *options,
    )
    run_phase = compile_phase if phase is None else phase
    parts = split(flags, phases) if phases else [(END, flags)]
    made: Any = program
    for until, some in parts:
        made = run_phase(made, until, some)
    if not isinstance(made, File):
        raise PluginError(f"phase= returned {made!r} for the last phase, expected the File of compile_phase")
    return made


def compile_phase(program: Program, until: str, flags: tuple[str, ...]) -> Program | File:
    """Run one part of a compilation, from the phase of ``program`` to the end of the phase ``until``.

    program: for ``compile``, or a result of this function, of format ``iree:PHASE``. until: a phase, or ``end`` for a
    File of kind ``iree:vmfb``. flags: all flags of this part. Raises as ``compile`` does.
    """
    from cachec.commands.run import host_processor
    from cachec_mlir.compilers import check_unnamed, file_in_new_folder, run_tool

    missing_flags = [f"iree-compile without {flag}" for flag in _REPRODUCIBLE if until == END and flag not in flags]
    check_unnamed(program, [*_keeping(flags), *missing_flags])
    executable = find_iree_compile()
    flags = (*flags, *_from_to(program, until))
    if any(flag.lstrip("-") in _HOST for flag in flags):
        host_processor()
    output = file_in_new_folder(_OUTPUT, kind=KIND, manifest=program.manifest)
    folder = output.path.parent
    # Fixed names in a new folder, so that a path in the output would be the same each time.
    (folder / _INPUT).write_bytes(program.ir)
    run_tool([executable, _INPUT, "-o", _OUTPUT, *flags], flags, cwd=folder, tools=_helpers(executable))
    if until == END:
        return output
    return Program(output.read_bytes(), format=FORMAT + until, manifest=program.manifest)


def _keeping(flags: Sequence[str]) -> list[str]:
    """Return the flags that keep names and locations, or read comments."""
    return [flag for flag in flags if name_of(flag) in _KEEPING and flag not in _REPRODUCIBLE]


def _from_to(program: Program, until: str) -> list[str]:
    flags = [] if until == END else [f"--compile-to={until}"]
    if program.format.startswith(FORMAT):
        flags.append(f"--compile-from={program.format.removeprefix(FORMAT)}")
    return flags


def _evaluates_weights() -> bool:
    version = version_of("iree-base-compiler")
    return bool(version) and compare(version, _EVALUATES_WITHOUT_WEIGHTS) < 0


def _helpers(executable: Path) -> list[Path]:
    """Return the programs that iree-compile starts: the linker in its folder."""
    linker = executable.with_name("iree-lld")
    return [linker] if linker.is_file() else []


def find_iree_compile(path: Sequence[str] | None = None) -> Path:
    """Return the executable of the installed compiler, or ``iree-compile`` on PATH. Does not import the compiler.

    path: folders to search instead of ``sys.path``. Raises PluginError if there is no executable.
    """
    for folder in sys.path if path is None else path:
        candidate = Path(folder or os.curdir, _EXECUTABLE)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    from shutil import which

    script = which("iree-compile")
    if script is None:
        raise PluginError("iree-compile is not installed; install it with: pip install 'cachec[iree]'")
    return Path(script)
