"""The machine that a result was made on, as a compiler that targets "this host" sees it."""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from cachec.base.hashing import Hasher
from cachec.model import Part, PartKind

#: x86 flags of /proc/cpuinfo that name instructions (Linux: arch/x86/include/asm/cpufeatures.h), by prefix. The rest
#: are facts about the kernel, mitigations, virtualisation and power, which come and go on one machine.
_X86_PREFIXES = (
    "3dnow", "abm", "adx", "aes", "amx", "apx", "avx", "bmi", "cldemote", "clflush", "clwb", "clzero", "cmov",
    "cmpccxadd", "cx16", "cx8", "enqcmd", "f16c", "fma", "fsgsbase", "fsrm", "fxsr", "gfni", "hreset", "kl",
    "lahf_lm", "lm", "lwp",
    "misalignsse", "mmx", "movbe", "movdir", "mwaitx", "pclmul", "pni", "popcnt", "prefetch", "ptwrite", "raoint",
    "rdpid", "rdrand", "rdseed", "rtm", "serialize", "sha", "sm3", "sm4", "sse", "ssse", "tbm", "tsxldtrk", "uintr",
    "vaes", "vpclmul", "waitpkg", "wbnoinvd", "widekl", "xop", "xsave",
)  # fmt: skip

#: arm64 names that the kernel gives and no instruction set does.
_ARM_KERNEL = frozenset({"cpuid", "evtstrm"})

#: Fields of /proc/cpuinfo that say which model it is: x86, arm64, RISC-V, POWER and s390.
_MODEL = frozenset(
    {"vendor_id", "cpu family", "model", "CPU implementer", "CPU variant", "CPU part", "uarch", "mvendorid", "cpu"}
)

CPUINFO = "/proc/cpuinfo"

#: PCI classes of displays, of processing accelerators and of co-processors; vendors whose accelerators have none
#: of these (Google: TPU).
_ACCELERATORS = ("0x03", "0x12", "0x0b40")
_ACCELERATING = frozenset({"0x1ae0"})
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
_VISIBLE = (b"CUDA_VISIBLE_DEVICES", b"HIP_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES", b"TPU_VISIBLE_CHIPS")


def cpu_features(cpuinfo: str) -> tuple[tuple[str, ...], str]:
    """Instruction set features, sorted, and the model's name, from the text of ``/proc/cpuinfo``.

    Where processors differ (big.LITTLE), only what all of them have counts. Empty where the format is not known.
    """
    common: set[str] | None = None
    model = ""
    for line in cpuinfo.splitlines():
        field, colon, value = (piece.strip() for piece in line.partition(":"))
        if not colon:
            continue
        features: set[str] | None = None
        if field == "flags":
            features = {flag for flag in value.split() if flag.startswith(_X86_PREFIXES)}
        elif field == "Features":
            features = set(value.split()) - _ARM_KERNEL
        elif field in ("isa", "cpu", "features"):  # RISC-V, POWER, s390
            features = set(value.split())
        elif field in ("model name", "uarch", "CPU part") and not model:
            model = value
        if features is not None:
            common = features if common is None else common & features
    return tuple(sorted(common or ())), model


def facts_of(features: tuple[str, ...]) -> dict[str, str]:
    """All that the part says of this interpreter on a processor with these features, by name."""
    machine = os.uname()
    return {
        "machine": machine.machine,
        "system": machine.sysname,
        "libc": _libc(),
        **_python(),
        "cpu": " ".join(features),
    }


def describe(features: tuple[str, ...], model: str) -> Part:
    """The part for this interpreter on a processor with these features. The model's name is in the detail only."""
    facts = facts_of(features)
    hasher = Hasher("platform")
    for name, value in facts.items():
        hasher.part(name, value.encode())
    shown = " ".join((facts["machine"], facts["system"], facts["libc"], facts["python"], facts["abi"]))
    return Part(PartKind.PLATFORM, "", hasher.digest(), f"{shown}; {model or 'unknown processor'}: {facts['cpu']}")


def platform_facts() -> dict[str, str]:
    """What two machines must have alike to share results, and the name of the processor, by which nothing is keyed."""
    features, model = cpu_features(_read_cpuinfo())
    return {**facts_of(features), "processor": model}


def platform_part(*, portable: bool = False) -> Part:
    """The part ``platform``: machine, system, libc, Python's version, optimisation, ABI and (where it is not as
    Python has it) limit of digits, processor features.

    portable: only what any machine shares: the implementation, version (major.minor), optimisation (``-O``) and limit
    of digits of Python, whose syntax and standard library the stage's code uses. The kernel's version is in neither,
    nor the model or number of processors.
    """
    digits = sys.get_int_max_str_digits()
    return _portable_part(digits) if portable else _host_part(digits)


# Pure for a process: the processor, libc and interpreter that it runs on do not change under it; the limit may.
@functools.lru_cache(maxsize=2)
def _host_part(_digits: int) -> Part:
    return describe(*cpu_features(_read_cpuinfo()))


@functools.lru_cache(maxsize=2)
def _portable_part(_digits: int) -> Part:
    hasher = Hasher("platform-portable")
    python = _python()["python"]
    hasher.part("python", python.encode())
    return Part(PartKind.PLATFORM, "", hasher.digest(), f"portable; {python}")


@functools.lru_cache(maxsize=1)
def processor_digest() -> str:
    """What LLVM makes ``host`` of: instruction set features, and the numbers of the model, by which it tunes code
    (``getHostCPUName`` in llvm/lib/TargetParser/Host.cpp)."""
    return processor(_read_cpuinfo())


def processor(cpuinfo: str) -> str:
    """The same for the text of ``/proc/cpuinfo``."""
    hasher = Hasher("processor")
    hasher.part("machine", os.uname().machine.encode())
    hasher.part("features", " ".join(cpu_features(cpuinfo)[0]).encode())
    models = {line for line in map(str.strip, cpuinfo.splitlines()) if line.partition(":")[0].strip() in _MODEL}
    hasher.part("model", "\n".join(sorted(models)).encode())
    return hasher.digest()


@functools.lru_cache(maxsize=1)
def _accelerators(buses: str = "/sys/bus/pci/devices") -> str:
    """Vendor and model of what computes beside the processors, and the versions of its drivers."""
    found = []
    for device in sorted(os.listdir(buses)) if os.path.isdir(buses) else ():
        vendor, model, kind = (_line(os.path.join(buses, device, name)) for name in ("vendor", "device", "class"))
        if vendor in _ACCELERATING or kind.startswith(_ACCELERATORS):
            found.append(f"{vendor}:{model}")
    return "\n".join([*sorted(found), *map(_line, _DRIVERS)])


def accelerators_digest() -> str:
    """Of the accelerators of this machine, and of the variables that say which of them a process sees."""
    hasher = Hasher("accelerators")
    hasher.part("found", _accelerators().encode())
    for name in _VISIBLE:
        hasher.part(name.decode(), os.environb.get(name, b"\0"))
    return hasher.digest()


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _python() -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:2]))
    suffix = EXTENSION_SUFFIXES[0] if EXTENSION_SUFFIXES else ""
    # What code means: whether it holds its assertions (1) and its docstrings (2), of libraries too.
    if sys.flags.optimize:
        version += f" -{'O' * sys.flags.optimize}"
    # Which numbers have a text, in libraries too (``json``), whoever set it.
    if (digits := sys.get_int_max_str_digits()) != sys.int_info.default_max_str_digits:
        version += f" -X int_max_str_digits={digits}"
    return {"python": f"{sys.implementation.name} {version}", "abi": f"{getattr(sys, 'abiflags', '')}{suffix}"}


def _libc() -> str:
    """``glibc 2.36``, or ``unknown`` where the C library does not say (musl has no such name)."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, OSError, ValueError):
        return "unknown"


def _read_cpuinfo(path: str = CPUINFO) -> str:
    """The description of the processors; of the first alone on x86, where a long list takes milliseconds to make."""
    lines: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip() and any(known.startswith("flags") for known in lines):
                    break
                lines.append(line)
    except FileNotFoundError:
        return ""
    return "".join(lines)
