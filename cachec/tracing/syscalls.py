"""The system calls that the filter reports, with their numbers.

Numbers: ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` of Linux 6.17.
Audit numbers of architectures: ``include/uapi/linux/audit.h``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

#: Name, number on x86-64, number on aarch64; ``-`` where the architecture has no such call.
_TABLE = """
open 2 -
creat 85 -
openat 257 56
openat2 437 437
execve 59 221
execveat 322 281
uselib 134 -
stat 4 -
lstat 6 -
newfstatat 262 79
statx 332 291
statfs 137 43
access 21 -
faccessat 269 48
faccessat2 439 439
readlink 89 -
readlinkat 267 78
getdents 78 -
getdents64 217 61
chdir 80 49
inotify_add_watch 254 27
name_to_handle_at 303 264
open_by_handle_at 304 265
getxattr 191 8
lgetxattr 192 9
listxattr 194 11
llistxattr 195 12
getxattrat 464 464
listxattrat 465 465
file_getattr 468 468
rename 82 -
renameat 264 38
renameat2 316 276
link 86 -
linkat 265 37
symlink 88 -
symlinkat 266 36
unlink 87 -
unlinkat 263 35
rmdir 84 -
mkdir 83 -
mkdirat 258 34
mknod 133 -
mknodat 259 33
truncate 76 45
chmod 90 -
fchmodat 268 53
fchmodat2 452 452
chown 92 -
lchown 94 -
fchownat 260 54
utime 132 -
utimes 235 -
futimesat 261 -
utimensat 280 88
setxattr 188 5
lsetxattr 189 6
removexattr 197 14
lremovexattr 198 15
setxattrat 463 463
removexattrat 466 466
file_setattr 469 469
connect 42 203
bind 49 200
sendto 44 206
sendmsg 46 211
sendmmsg 307 269
chroot 161 51
unshare 272 97
setns 308 268
mount 165 40
umount2 166 39
pivot_root 155 41
move_mount 429 429
open_tree 428 428
clone 56 220
setuid 105 146
setgid 106 144
setreuid 113 145
setregid 114 143
setresuid 117 147
setresgid 119 149
setfsuid 122 151
setfsgid 123 152
capset 126 91
rt_sigaction 13 134
io_uring_setup 425 425
seccomp 317 277
prctl 157 167
umask 95 166
read 0 63
readv 19 65
pread64 17 67
preadv 295 69
preadv2 327 286
recvfrom 45 207
recvmsg 47 212
dup 32 23
dup2 33 -
dup3 292 24
fcntl 72 25
ioctl 16 29
sendfile 40 71
splice 275 76
tee 276 77
copy_file_range 326 285
write 1 64
writev 20 66
pwrite64 18 68
pwritev 296 70
pwritev2 328 287
ftruncate 77 46
mmap 9 222
"""

#: Calls that take something from a descriptor, or duplicate it, by the position of the descriptor. They are reported
#: where that is standard input. sendfile(2), mmap(2) and the others have it where their manual pages say.
READS_DESCRIPTOR = {
    **dict.fromkeys(("read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg"), 0),
    **dict.fromkeys(("dup", "dup2", "dup3", "fcntl", "ioctl", "splice", "tee", "copy_file_range"), 0),
    "sendfile": 1,
    "mmap": 4,
}

#: Calls that write to a descriptor: the same, where a run was given others than its streams.
WRITES_DESCRIPTOR = {
    **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "sendfile"), 0),
    "tee": 1,
    "splice": 2,
    "copy_file_range": 2,
}


class Architecture(NamedTuple):
    """What the filter has to know of a machine."""

    #: AUDIT_ARCH_*, as the kernel reports it with each call.
    audit: int
    #: Whether numbers from 0x40000000 on are calls of another ABI (x32).
    has_x32: bool
    #: Numbers of the calls in the table, by name.
    numbers: Mapping[str, int]
    #: The number of seccomp(2) itself, which libc does not wrap.
    seccomp: int


def architecture(machine: str | None = None) -> Architecture | None:
    """Return the tables of ``machine`` (``os.uname().machine``); None where cachec has none."""
    machine = machine or os.uname().machine
    if machine == "x86_64":
        return Architecture(0xC000003E, True, _numbers(1), 317)
    if machine == "aarch64":
        return Architecture(0xC00000B7, False, _numbers(2), 277)
    return None


def _numbers(column: int) -> dict[str, int]:
    rows = [line.split() for line in _TABLE.split("\n") if line]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
