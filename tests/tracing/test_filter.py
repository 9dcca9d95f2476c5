"""The filter, run by an interpreter of BPF: what it answers to each call, on both architectures."""

from __future__ import annotations

import re
import signal
import struct
from pathlib import Path

import pytest

from cachec.tracing.filter import PR_SET_SECCOMP, SET_MODE_FILTER, assemble
from cachec.tracing.process_paths import ProcessMemory
from cachec.tracing.recorder import AccessRecorder
from cachec.tracing.syscall_decoder import SyscallDecoder
from cachec.tracing.syscalls import READS_DESCRIPTOR, WRITES_DESCRIPTOR, Architecture, architecture

ALLOW, NOTIFY, ENOSYS = 0x7FFF0000, 0x7FC00000, 0x00050000 + 38
TOKEN = 0x12345678


def answer(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the filter answers: the instructions that it uses, of ``Documentation/networking/filter.rst``."""
    data = struct.pack("<iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    at = loaded = 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, operand)
        else:
            holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            at += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> Architecture:
    found = architecture(request.param)
    assert found is not None
    return found


def test_an_unknown_machine_has_no_tables() -> None:
    assert architecture("riscv64") is None


def test_each_call_of_the_table_is_reported_and_no_other(machine: Architecture) -> None:
    program = assemble(machine, TOKEN)
    ones = [2**64 - 1] * 6
    for name, number in machine.numbers.items():
        if name in WRITES_DESCRIPTOR.keys() - READS_DESCRIPTOR.keys():
            assert answer(program, machine.audit, number, *ones) == ALLOW, name
            continue
        arguments = [int(signal.SIGCHLD), *ones[1:]] if name == "rt_sigaction" else [*ones]
        if name in READS_DESCRIPTOR:
            assert answer(program, machine.audit, number, *arguments) == ALLOW, name
            arguments[READS_DESCRIPTOR[name]] = 0
            arguments[1] = 0 if name == "fcntl" else arguments[1]
        if name in {"seccomp", "prctl"}:
            assert answer(program, machine.audit, number, *arguments) == ALLOW, name
            arguments[0] = SET_MODE_FILTER if name == "seccomp" else PR_SET_SECCOMP
        assert answer(program, machine.audit, number, *arguments) == (ENOSYS if name == "io_uring_setup" else NOTIFY), (
            name
        )
    for number in set(range(1000)) - set(machine.numbers.values()):
        assert answer(program, machine.audit, number, *ones) == ALLOW, number
    assert answer(program, machine.audit, -1) in {ALLOW, NOTIFY}  # a debugger may set it; it is never run


@pytest.mark.parametrize("name", sorted({**READS_DESCRIPTOR, **WRITES_DESCRIPTOR}))
def test_the_use_of_a_descriptor_is_reported(machine: Architecture, name: str) -> None:
    if name not in machine.numbers:
        return
    program = assemble(machine, TOKEN, (3, 7))
    reads, writes = READS_DESCRIPTOR.get(name), WRITES_DESCRIPTOR.get(name)
    for fd in (0, 3, 7, 1, 5):
        for position in range(6):
            arguments = [99] * 6
            arguments[1] = 1030 if name == "fcntl" else 99
            arguments[position] = fd
            if name == "fcntl" and position == 1:
                continue
            wanted = (position == reads and fd in {0, 3, 7}) or (position == writes and fd in {3, 7})
            found = answer(program, machine.audit, machine.numbers[name], *arguments)
            assert found == (NOTIFY if wanted else ALLOW), (fd, position)


def test_another_architecture_is_reported(machine: Architecture) -> None:
    program = assemble(machine, TOKEN)
    assert answer(program, 0x40000003, 3) == NOTIFY  # i386: read
    assert answer(program, 0x40000028, 3) == NOTIFY  # 32-bit ARM
    assert answer(program, machine.audit, 0x40000000) == (NOTIFY if machine.has_x32 else ALLOW)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sendto", (3, 1, 1, 0, 0, 0), ALLOW),
        ("sendto", (3, 1, 1, 0, 1 << 40, 16), NOTIFY),
        ("sendmsg", (3, 1, 0), NOTIFY),
        ("sendmsg", (3, 1, 0x4000), NOTIFY),
        ("sendmsg", (3, 1, TOKEN << 32), ALLOW),
        ("utimensat", (3, 0, 0, 0), ALLOW),
        ("utimensat", (3, 1, 0, 0), NOTIFY),
        ("clone", (0x11 | 0x00010F00,), ALLOW),  # CLONE_VM, FS, FILES, SIGHAND, THREAD
        ("clone", (0x11 | 0x00020000,), NOTIFY),  # CLONE_NEWNS
        ("clone", (0x11 | 0x10000000,), NOTIFY),  # CLONE_NEWUSER
        ("unshare", (0x00000600,), ALLOW),  # CLONE_FS, FILES
        ("unshare", (0x40000000,), NOTIFY),  # CLONE_NEWNET
        ("rt_sigaction", (17, 0), ALLOW),
        ("rt_sigaction", (17, 1 << 33), NOTIFY),
        ("rt_sigaction", (2, 1 << 33), ALLOW),
        ("rt_sigaction", (14, 1), NOTIFY),
        ("read", (0, 1, 1), NOTIFY),
        ("read", (3, 1, 1), ALLOW),
        ("fcntl", (0, 1030, 10), NOTIFY),  # F_DUPFD_CLOEXEC
        ("fcntl", (0, 3), ALLOW),  # F_GETFL
        ("fcntl", (3, 0, 10), ALLOW),
        ("mmap", (0, 1, 1, 0x22, 0xFFFFFFFF, 0), ALLOW),
        ("mmap", (0, 1, 1, 2, 0, 0), NOTIFY),
    ],
)
def test_arguments(machine: Architecture, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert answer(assemble(machine, TOKEN), machine.audit, machine.numbers[name], *arguments) == expected


def test_each_call_has_a_handler(machine: Architecture) -> None:
    calls = SyscallDecoder(AccessRecorder(), ProcessMemory(), machine.numbers, 1, {})
    for name in machine.numbers.keys() - {"io_uring_setup"}:
        calls.handle(machine.numbers[name], 2**22 + 1, (0,) * 6)  # of a process that is not there: nothing is recorded


@pytest.mark.parametrize(
    ("name", "header", "pattern"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
)
def test_numbers_are_those_of_the_headers(name: str, header: str, pattern: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"needs {header}")
    machine = architecture(name)
    assert machine is not None
    known = {call: int(number) for call, number in re.findall(pattern, Path(header).read_text())}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    wrong = {call: number for call, number in machine.numbers.items() if known.get(call, number) != number}
    assert not wrong
    unknown = machine.numbers.keys() - known.keys()
    assert {machine.numbers[call] for call in unknown} <= set(range(442, 500)), "only new calls may be missing there"
    assert machine.seccomp == known["seccomp"]
