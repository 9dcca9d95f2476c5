"""The phases of iree-compile, and which of them an option can affect first.

``--compile-to=PHASE`` stops after a phase and prints the module, ``--compile-from=PHASE`` goes on from there
(``IREEVMPipelinePhase`` in compiler/src/iree/compiler/Pipelines/Pipelines.h). With every phase a cached stage,

    @cache.stage(tools=["iree-base-compiler"])
    def phase(program: cachec.Program, until: str, flags: tuple[str, ...]) -> cachec.Program | cachec.File:
        return cachec_iree.compile_phase(program, until, flags)

    @cache.stage(tools=["iree-base-compiler"])
    def build(program: cachec.Program, *, options: tuple[str, ...] = ()) -> cachec.File:
        return cachec_iree.compile(program, options=options, phases=("flow", "hal"), phase=phase)

another value of an option runs only what comes after: *a part gets an option, and is keyed by it, if it runs the first
phase that the option can affect, or a later one*. An option that is not known here can affect all of them.

What is known, and how (IREE 3.13; the tests compare what each phase prints with and without each option):

- Options of the serialiser (``BytecodeTargetOptions``) are read after the last phase, those of the VM
  (``VM::TargetOptions``) in ``vm``. Both are structures that the driver hands to these alone; a program that the
  compiler runs by itself, to evaluate constants in ``global-optimization``, is compiled with defaults instead.
- The same is true of ``SchedulingOptions`` (``stream``; but for the execution model, which the ABI asks for) and
  ``DispatchCreationOptions`` (``dispatch-creation``).
- Options of the choice of tiles (KernelDispatch.cpp) are variables of that file alone, which decides in
  ``executable-configurations``: but it decides for those constants as well, so that they can affect
  ``global-optimization`` unless ``--iree-opt-const-eval=false`` is given.
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

#: Not a phase: the module is serialised.
END = "end"

#: The format of a program that stopped after a phase is this and the phase.
FORMAT = "iree:"

#: Whether the compiler evaluates constants, by running a program of its own.
CONST_EVAL = "iree-opt-const-eval"

_ORDER = (*PHASES, END)

#: The first phase that an option can affect; see above. Options that write files of their own are absent.
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
    """The first phase that an option can affect, or ``end``. const_eval: whether the compiler evaluates constants."""
    phase = _FIRST.get(name_of(option), PHASES[0])
    if phase == "executable-configurations" and const_eval:
        return "global-optimization"
    return phase


def split(flags: Sequence[str], phases: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The parts of a compilation that stops after each of ``phases``: where each ends, and the flags that it gets.

    Raises UsageError for a phase that there is not or that is out of order, and for an option whose value is a word of
    its own: which word belongs to which option only iree-compile knows.
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
    """The name of an option as it is given, ``--NAME`` or ``--NAME=VALUE``."""
    return option.lstrip("-").partition("=")[0]
