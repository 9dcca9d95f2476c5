"""The phases of iree-compile, and which of them an option can affect first.

``--compile-to=PHASE`` stops after a phase and prints the module, ``--compile-from=PHASE`` goes on from there
(``IREEVMPipelinePhase`` in compiler/src/iree/compiler/Pipelines/Pipelines.h). With every phase a cached stage,

    @cache.stage(tools=["iree-base-compiler"])
    def phase(program: cachec.Program, until: str, flags: tuple[str, ...]) -> cachec.Program | cachec.File:
        return cachec_iree.compile_phase(program, until, flags)

    @cache.stage(tools=["iree-base-compiler"])
    def build(program: cachec.Program, *, options: tuple[str, ...] = ()) -> cachec.File:
        return cachec_iree.compile(program, options=options, phases=("flow", "hal"), phase=phase)

another value of an option runs only later parts: *a part gets an option, and is keyed by it, if it runs the first phase
that the option can affect, or a later one*. An option that is not in the table below can affect all phases.

The table is from IREE 3.13. The tests compare the output of each phase with and without each option. The reasons:

- Options of the serialiser (``BytecodeTargetOptions``) are read after the last phase, those of the VM
  (``VM::TargetOptions``) in ``vm``. The driver passes both structures to these phases only. The
  compiler also compiles programs for itself, to evaluate constants in ``global-optimization``, with default options.
- The same is true of ``SchedulingOptions`` (``stream``; except the execution model, which the ABI needs) and
  ``DispatchCreationOptions`` (``dispatch-creation``).
- Options for tile sizes are variables of KernelDispatch.cpp only, which runs in ``executable-configurations``. It also
  runs for those constants, so these options can affect ``global-optimization`` without
  ``--iree-opt-const-eval=false``.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachec.errors import UsageError

#: In order.
PHASES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
)

#: The end of the compilation, where the module is serialised.
END = "end"

#: The format of a program after a phase: this prefix and the phase.
FORMAT = "iree:"

#: Whether the compiler evaluates constants, by running a program of its own.
CONST_EVAL = "iree-opt-const-eval"

_ORDER = (*PHASES, END)

#: Option -> the first phase that it can affect. Options that write additional files are absent.
_FIRST = {
    "iree-dispatch-creation-enable-aggressive-fusion": "dispatch-creation",
    "iree-dispatch-creation-enable-aggressive-reshape-movement": "dispatch-creation",
    "iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops": "dispatch-creation",
    "iree-dispatch-creation-enable-split-reduction": "dispatch-creation",
    "iree-dispatch-creation-fuse-multi-use": "dispatch-creation",
    "iree-scheduling-initialization-mode": "stream",
    "iree-scheduling-optimize-bindings": "stream",
    "iree-llvmcpu-disable-vector-peeling": "executable-configurations",
    "iree-llvmcpu-distribution-size": "executable-configurations",
    "iree-llvmcpu-matmul-tile-bytes": "executable-configurations",
    "iree-llvmcpu-matmul-tile-undercount-whole-matrix": "executable-configurations",
    "iree-llvmcpu-number-of-threads": "executable-configurations",
    "iree-llvmcpu-vector-pproc-strategy": "executable-configurations",
    "iree-vm-target-extension-f32": "vm",
    "iree-vm-target-extension-f64": "vm",
    "iree-vm-target-index-bits": "vm",
    "iree-vm-target-optimize-for-stack-size": "vm",
    "iree-vm-target-truncate-unsupported-floats": "vm",
    "iree-vm-bytecode-module-output-format": END,
    "iree-vm-bytecode-module-strip-debug-ops": END,
    "iree-vm-bytecode-module-strip-source-map": END,
    "iree-vm-emit-polyglot-zip": END,
}


def first_phase(option: str, *, const_eval: bool = True) -> str:
    """Return the first phase that an option can affect, or ``end``. const_eval: if the compiler evaluates constants."""
    phase = _FIRST.get(name_of(option), PHASES[0])
    if phase == "executable-configurations" and const_eval:
        return "global-optimization"
    return phase


def split(flags: Sequence[str], phases: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the parts of a compilation that stops after each of ``phases``: the end and the flags of each part.

    Raises UsageError for an unknown phase, for phases out of order, and for an option with its value in a separate
    word, because only iree-compile knows which options have values.
    """
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown:
        raise UsageError(f"phases expected some of {', '.join(PHASES)}; found {unknown[0]!r}")
    if list(phases) != sorted(set(phases), key=PHASES.index):
        raise UsageError(f"phases expected each once and in the order of the compiler, found {list(phases)}")
    loose = [flag for flag in flags if not flag.startswith("-")]
    if loose:
        raise UsageError(f"options expected --NAME or --NAME=VALUE where phases are given, found {loose[0]!r}")
    const_eval = not any(flag.lstrip("-") in {f"{CONST_EVAL}=false", f"{CONST_EVAL}=0"} for flag in flags)
    const_eval = const_eval or sum(name_of(flag) == CONST_EVAL for flag in flags) > 1
    first = {flag: _ORDER.index(first_phase(flag, const_eval=const_eval)) for flag in flags}
    return [(until, tuple(flag for flag in flags if first[flag] <= _ORDER.index(until))) for until in (*phases, END)]


def name_of(option: str) -> str:
    """Return the name of an option that is written as ``--NAME`` or ``--NAME=VALUE``."""
    return option.lstrip("-").partition("=")[0]
