"""The BPF program that reports system calls, and its installation in the process that is to be traced.

Sources: seccomp(2), seccomp_unotify(2), ``include/uapi/linux/seccomp.h``, ``include/uapi/linux/bpf_common.h``.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import signal
import struct
from collections.abc import Sequence
from functools import cache

from cachec.tracing.syscalls import READS_DESCRIPTOR, WRITES_DESCRIPTOR, Architecture

#: CLONE_NEW*: a process that has one of these may see other files under the same path.
NEW_NAMESPACE = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80  # of unshare(2) only: of clone(2) these bits are the exit signal

#: Signals that an ordinary run gets. A handler without SA_RESTART for one of them lets a reported call fail with EINTR.
_FREQUENT_SIGNALS = (signal.SIGCHLD, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)

_ALLOW, _NOTIFY, _ERROR = 0x7FFF0000, 0x7FC00000, 0x00050000  # SECCOMP_RET_*
_SPEC_ALLOW, _NEW_LISTENER, _WAIT_KILLABLE = 1 << 2, 1 << 3, 1 << 5
_PR_SET_NO_NEW_PRIVS = 38

#: By seccomp(2), and by prctl(2) before that, a process has a filter too.
SET_MODE_FILTER, PR_SET_SECCOMP = 1, 22

_LOAD, _RETURN = 0x20, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45

#: code, instructions to skip where the comparison holds, and where it does not, operand: ``struct sock_filter``.
_Instruction = tuple[int, int, int, int]


@cache
def libc() -> ctypes.CDLL:
    """The C library."""
    return ctypes.CDLL(None, use_errno=True)


def assemble(machine: Architecture, token: int, descriptors: Sequence[int] = ()) -> bytes:
    """Return the filter: calls of the table are reported, io_uring does not exist, all else is allowed.

    Calls of another architecture or ABI are all reported. token: a sendmsg(2) whose flags have this number in their
    upper half, which the kernel ignores, is allowed: by it the child sends the listener to its parent. descriptors:
    those beside the streams whose use is reported.
    """
    code: list[_Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine.audit), _return(_NOTIFY), (_LOAD, 0, 0, 0)]
    if machine.has_x32:
        code += [(_AT_LEAST, 0, 1, 0x40000000), _return(_NOTIFY)]
    conditions = {
        "io_uring_setup": [_return(_ERROR | errno.ENOSYS)],
        "sendmsg": _allow_if(2, _EQUAL, token, upper=True),
        "sendto": _allow_null(4),
        "utimensat": _allow_null(1),
        "clone": _allow_without(0, NEW_NAMESPACE),
        "unshare": _allow_without(0, NEW_NAMESPACE | _NEW_TIME_NAMESPACE),
        "rt_sigaction": _for_signals() + _allow_null(1),
        "seccomp": [*_notify_if_in(0, (SET_MODE_FILTER,)), _return(_ALLOW)],
        "prctl": [*_notify_if_in(0, (PR_SET_SECCOMP,)), _return(_ALLOW)],
        **_on_descriptors((0, *descriptors), descriptors),
        "fcntl": _notify_if_duplicating((0, *descriptors)),
    }
    for name, number in machine.numbers.items():
        if not descriptors and name in WRITES_DESCRIPTOR.keys() - READS_DESCRIPTOR.keys():
            continue
        block = conditions.get(name, [_return(_NOTIFY)])
        code += [(_EQUAL, 0, len(block), number), *block]
    code.append(_return(_ALLOW))
    return struct.pack("<" + "HBBI" * len(code), *itertools.chain.from_iterable(code))


def install(machine: Architecture, program: bytes) -> tuple[int, bool]:
    """Install the filter in this process for good; return the listener, and whether privileges can't be gained now.

    Raises OSError: EBUSY where an outer filter has a listener, others where the kernel or a sandbox gives none.
    """
    code = ctypes.create_string_buffer(program, len(program))
    header = _SockFprog(len(program) // 8, ctypes.addressof(code))
    flags = _NEW_LISTENER | _SPEC_ALLOW | _WAIT_KILLABLE
    has_no_new_privileges = False
    while True:
        listener = libc().syscall(machine.seccomp, SET_MODE_FILTER, flags, ctypes.byref(header))
        if listener >= 0:
            return listener, has_no_new_privileges
        number = ctypes.get_errno()
        if number == errno.EINVAL and flags & _WAIT_KILLABLE:  # before Linux 5.19
            flags &= ~_WAIT_KILLABLE
        elif number == errno.EACCES and not has_no_new_privileges:  # without CAP_SYS_ADMIN
            if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
            has_no_new_privileges = True
        else:
            raise OSError(number, f"seccomp(2) gives no listener: {os.strerror(number)}")


class _SockFprog(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _return(action: int) -> _Instruction:
    return _RETURN, 0, 0, action


def _argument(index: int, *, upper: bool = False) -> _Instruction:
    """Load half of an argument; both architectures are little-endian."""
    return _LOAD, 0, 0, 16 + 8 * index + 4 * upper


def _allow_if(index: int, comparison: int, operand: int, *, upper: bool = False) -> list[_Instruction]:
    return [_argument(index, upper=upper), (comparison, 0, 1, operand), _return(_ALLOW), _return(_NOTIFY)]


def _allow_null(index: int) -> list[_Instruction]:
    """Allow the call where an argument, a pointer, is NULL."""
    lower, upper = _argument(index), _argument(index, upper=True)
    return [lower, (_EQUAL, 0, 3, 0), upper, (_EQUAL, 0, 1, 0), _return(_ALLOW), _return(_NOTIFY)]


def _on_descriptors(read: Sequence[int], written: Sequence[int]) -> dict[str, list[_Instruction]]:
    """The blocks of calls that are reported where they read from, or write to, one of these descriptors."""
    blocks: dict[str, list[_Instruction]] = {}
    for table, descriptors in ((READS_DESCRIPTOR, read), (WRITES_DESCRIPTOR, written)):
        for name, index in table.items():
            blocks.setdefault(name, []).extend(_notify_if_in(index, descriptors) if descriptors else [])
    return {name: [*block, _return(_ALLOW)] for name, block in blocks.items()}


def _notify_if_in(index: int, values: Sequence[int]) -> list[_Instruction]:
    """Report the call where the lower half of an argument is one of these values; else go on."""
    last = len(values)
    compared = [(_EQUAL, last - at - 1, 1 if at == last - 1 else 0, value) for at, value in enumerate(values)]
    return [_argument(index), *compared, _return(_NOTIFY)]


def _notify_if_duplicating(descriptors: Sequence[int]) -> list[_Instruction]:
    """Report fcntl(2) where it duplicates one of these: F_DUPFD, F_DUPFD_CLOEXEC."""
    duplicates = [_argument(1), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, 1030), _return(_ALLOW)]
    return [*duplicates, *_notify_if_in(0, descriptors), _return(_ALLOW)]


def _allow_without(index: int, bits: int) -> list[_Instruction]:
    return [_argument(index), (_ANY_BIT, 1, 0, bits), _return(_ALLOW), _return(_NOTIFY)]


def _for_signals() -> list[_Instruction]:
    """Allow the call unless its first argument is one of the frequent signals."""
    last = len(_FREQUENT_SIGNALS)
    compared = [(_EQUAL, last - at, 0, int(number)) for at, number in enumerate(_FREQUENT_SIGNALS)]
    return [_argument(0), *compared, _return(_ALLOW)]
