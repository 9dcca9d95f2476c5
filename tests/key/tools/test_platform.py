"""The platform part: what changes it, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cachec.key.tools import platform
from cachec.key.tools.platform import cpu_features, describe, platform_part

X86 = """\
processor\t: 0
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu sse sse2 avx avx2 fma ibrs md_clear hypervisor
bugs\t\t: spectre_v1

processor\t: 1
model name\t: AMD EPYC
flags\t\t: fpu sse sse2 avx avx2 fma ibrs md_clear hypervisor
"""


def part(text: str):
    return describe(*cpu_features(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [(" avx2", ""), ("avx2 fma", "avx2 fma avx512f"), ("sse2", "sse2 amx_bf16")],
)
def test_an_instruction_set_changes_it(old: str, new: str) -> None:
    assert part(X86).digest != part(X86.replace(old, new)).digest


#: Linux's names of instructions, and some of what else it lists among them.
INSTRUCTIONS = """
    3dnow 3dnowext 3dnowprefetch abm adx aes amx_bf16 amx_int8 amx_tile apx avx avx2 avx512f avx512_vnni avx_vnni bmi1
    bmi2 cldemote clflush clflushopt clwb clzero cmov cmpccxadd cx16 cx8 enqcmd f16c fma fma4 fsgsbase fsrm fxsr
    fxsr_opt gfni hreset kl lahf_lm lm lwp misalignsse mmx mmxext movbe movdir64b movdiri mwaitx pclmulqdq pni popcnt
    prefetchi ptwrite raoint rdpid rdrand rdseed rtm serialize sha512 sha_ni sm3 sm4 sse sse2 sse4_1 sse4a ssse3 tbm
    tsxldtrk uintr vaes vpclmulqdq waitpkg wbnoinvd widekl xop xsave xsavec xsaveopt xsaves
"""
NO_INSTRUCTIONS = """
    acpi apic arat constant_tsc cpb dts est fpu_not ht hypervisor ibpb ibrs invpcid_single md_clear monitor nopl npt nx
    overflow_recov pat pebs pti rep_good retpoline smep ssbd stibp svm tm2 topoext tsc vmx vnmi x2apic
"""


def test_the_flags_that_name_instructions_count_and_no_others() -> None:
    flags = f"{NO_INSTRUCTIONS} {INSTRUCTIONS}".split()
    assert cpu_features(f"flags : {' '.join(flags)}\n")[0] == tuple(sorted(INSTRUCTIONS.split()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" ibrs md_clear", ""),
        ("hypervisor", "hypervisor retpoline stibp ssbd"),
        ("spectre_v1", "spectre_v1 srso"),
        ("stepping\t: 1", "stepping\t: 2"),
        ("AMD EPYC", "AMD EPYC 9999"),
        ("fpu sse sse2", "sse2 sse fpu"),
    ],
)
def test_mitigations_models_and_order_do_not(old: str, new: str) -> None:
    assert part(X86).digest == part(X86.replace(old, new)).digest


def test_the_number_of_processors_does_not() -> None:
    assert part(X86).digest == part(X86 + "\n" + X86).digest


def test_the_model_is_shown() -> None:
    assert "AMD EPYC" in part(X86).detail
    assert "avx2" in part(X86).detail


def test_where_processors_differ_only_the_common_counts() -> None:
    arm = "Features : fp asimd sve evtstrm\n\nFeatures : fp asimd cpuid\n"
    assert cpu_features(arm)[0] == ("asimd", "fp")
    assert part(arm).digest == part("Features : fp asimd\n").digest
    assert part(arm).digest != part("Features : fp asimd sve\n").digest


def test_other_architectures_are_read() -> None:
    assert cpu_features("isa\t\t: rv64imafdc_zba\nuarch: sifive")[0] == ("rv64imafdc_zba",)
    assert cpu_features("nonsense\n") == ((), "")


@pytest.mark.parametrize("field", ["machine", "sysname"])
def test_machine_and_system_change_it(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = part(X86)
    real = os.uname()
    values = {name: getattr(real, name) for name in ("sysname", "nodename", "release", "version", "machine")}
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(tuple({**values, field: "other"}.values())))
    assert part(X86).digest != before.digest


def test_kernel_release_and_host_name_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = part(X86)
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((real.sysname, "other", "9.9", "#9", real.machine)))
    assert part(X86).digest == before.digest


def test_libc_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = part(X86)
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 9.99")
    assert part(X86).digest != before.digest


def test_the_abi_of_python_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = part(X86)
    monkeypatch.setattr(platform, "EXTENSION_SUFFIXES", [".cpython-399-other.so"])
    assert part(X86).digest != before.digest


def test_the_minor_version_changes_both_and_the_patch_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> tuple[str, str]:
        platform._portable_part.cache_clear()
        return part(X86).digest, platform_part(portable=True).digest

    before = both()
    monkeypatch.setattr(sys, "version_info", (*sys.version_info[:2], 99, "final", 0))
    assert both() == before
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    after = both()
    assert after[0] != before[0]
    assert after[1] != before[1]
    platform._portable_part.cache_clear()


@pytest.mark.parametrize("level", [1, 2])
def test_the_optimisation_of_python_changes_both(level: int) -> None:
    """Without assertions, and without docstrings, code means something else."""
    told = "from cachec.key.tools.platform import platform_part as p\nprint(p().digest, p(portable=True).digest)"
    command = [sys.executable, "-c", told]
    plain, less = (
        subprocess.check_output([*command[:1], *options, *command[1:]]) for options in ([], ["-" + "O" * level])
    )
    assert plain.split() == [each.digest.encode() for each in (platform_part(), platform_part(portable=True))]
    assert not set(plain.split()) & set(less.split())


def test_portable_knows_nothing_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    host, portable = platform_part(), platform_part(portable=True)
    assert host.label == portable.label == "platform"
    assert host.digest != portable.digest
    platform._portable_part.cache_clear()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("other",) * 5))
    monkeypatch.setattr(platform, "_read_cpuinfo", lambda: "flags : avx999")
    assert platform_part(portable=True) == portable


def test_this_machine_has_features() -> None:
    with open(platform.CPUINFO) as file:
        whole = cpu_features(file.read())
    assert cpu_features(platform._read_cpuinfo()) == whole
    assert whole[0]
    assert platform_part() == describe(*whole)


def test_accelerators_are_told_by_vendor_and_model_and_not_by_where_they_are(tmp_path, monkeypatch):
    def bus(name: str, *devices: tuple[str, str, str]) -> str:
        for number, held in enumerate(devices):
            folder = tmp_path / name / f"0000:{name}{number}:00.0"
            folder.mkdir(parents=True)
            for field, text in zip(("vendor", "device", "class"), held, strict=True):
                (folder / field).write_text(text + "\n")
        return str(tmp_path / name)

    def told(where: str) -> str:
        return platform._accelerators.__wrapped__(where)

    nic, h200, h100 = ("0x8086", "0x1", "0x020000"), ("0x10de", "0x2335", "0x030200"), ("0x10de", "0x2330", "0x030200")
    tpu = ("0x1ae0", "0x63", "0xff0000")
    assert told(bus("a", nic)) == told(str(tmp_path / "none"))
    assert told(bus("b", h200, nic)) == told(bus("c", nic, h200))
    others = [
        told(bus(f"d{number}", *each)) for number, each in enumerate([(h200,), (h100,), (h200, h200), (tpu,), ()])
    ]
    assert len(set(others)) == 5

    seen = platform.accelerators_digest()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert platform.accelerators_digest() != seen
