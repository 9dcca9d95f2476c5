"""Programs to IREE's VM bytecode, by the real ``iree-compile``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cachec.artifact import File
from cachec.errors import PluginError, UsageError
from cachec.topology import Program

#: The kind of the files made here.
KIND = "iree:vmfb"

#: Format of a program -> ``--iree-input-type``.
_INPUT_TYPES = {"jax:stablehlo": "stablehlo"}

#: Backends that make code for the CPU that IREE's ``local`` devices run on.
_TARGETS = ("llvm-cpu", "vmvx")

#: Where pip puts the compiler below a folder of ``sys.path``. ``bin/iree-compile`` is a script that ends here.
_EXECUTABLE = os.path.join("iree", "compiler", "_mlir_libs", "iree-compile")

#: Without these two, the input's file name, lines and columns come into the module, which then differs from run to run.
_REPRODUCIBLE = ("--iree-vm-bytecode-module-strip-source-map", "--iree-llvmcpu-debug-symbols=false")

#: Bytes of the end of what iree-compile wrote that an error shows.
_SHOWN = 8192

_INPUT, _OUTPUT = "program.mlir", "program.vmfb"


def compile(program: Program, *, target: str = "llvm-cpu", cpu: str = "host", options: Sequence[str] = ()) -> File:
    """Compile ``program`` to a ``File`` of kind ``iree:vmfb`` that inherits its manifest.

    target: ``llvm-cpu`` or ``vmvx``. cpu: what LLVM is to generate code for; ``host`` is this machine's CPU, which the
    platform part of a stage's key stands for: name one in a stage with ``portable=True``. options: further flags of
    iree-compile, by value in the key where they are an argument of the stage.

    The file is in a temporary folder that goes when the returned object does. Raises subprocess.CalledProcessError,
    with what iree-compile wrote as a note, where it fails; PluginError where the program is of a format that IREE does
    not take, or iree-compile is not installed.
    """
    import subprocess
    import tempfile
    import weakref

    from cachec.command import run

    input_type = _INPUT_TYPES.get(program.format)
    if input_type is None:
        raise PluginError(f"iree-compile takes {', '.join(_INPUT_TYPES)}; this program is {program.format!r}")
    if target not in _TARGETS:
        raise UsageError(f"target expected one of {', '.join(_TARGETS)}, found {target!r}")
    if isinstance(options, str):
        raise UsageError(f"options expected a sequence of flags, found one string {options!r}; write [{options!r}]")
    executable = find_iree_compile()
    flags = [
        f"--iree-input-type={input_type}",
        "--iree-hal-target-device=local",
        f"--iree-hal-local-target-device-backends={target}",
        *([f"--iree-llvmcpu-target-cpu={cpu}"] if target == "llvm-cpu" else []),
        *_REPRODUCIBLE,
        *options,
    ]
    folder = Path(tempfile.mkdtemp(prefix="cachec-iree-"))
    output = File(folder / _OUTPUT, kind=KIND, manifest=program.manifest)
    weakref.finalize(output, _remove, folder, os.getpid())
    # Fixed names in a folder of its own: a path that came into the output would be the same each time.
    (folder / _INPUT).write_bytes(program.ir)
    try:
        run([executable, _INPUT, "-o", _OUTPUT, *flags], tools=_helpers(executable), cwd=folder)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr[-_SHOWN:].decode(errors="replace"))
        raise
    return output


def _helpers(executable: Path) -> list[Path]:
    """What iree-compile starts by itself: the linker beside it."""
    linker = executable.with_name("iree-lld")
    return [linker] if linker.is_file() else []


def _remove(folder: Path, owner: int) -> None:
    """Remove a scratch folder, but not from a process that was forked off its owner."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder)


def find_iree_compile(path: Sequence[str] | None = None) -> Path:
    """The executable in the installed compiler, which is not imported for it; else ``iree-compile`` on PATH.

    path: folders to look in instead of ``sys.path``. Raises PluginError where there is none.
    """
    for folder in sys.path if path is None else path:
        found = Path(folder or os.curdir, _EXECUTABLE)
        if found.is_file() and os.access(found, os.X_OK):
            return found.absolute()
    from shutil import which

    script = which("iree-compile")
    if script is None:
        raise PluginError("iree-compile is not installed; install it with: pip install 'cachec[iree]'")
    return Path(script)
