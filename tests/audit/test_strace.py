"""strace's lines: every form of call that is traced, its escapes, and lines that are none."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.audit.accesses import Accesses, accesses
from cachec.audit.strace import Calls, SystemCall, descriptor_path, parse_call, string, unescape


def calls(*lines: str) -> list[SystemCall]:
    found = Calls(lines)
    out = list(found)
    assert not found.strange, found.first_strange
    return out


def fold(*lines: str, cwd: str = "/w") -> Accesses:
    return accesses(calls(*lines), cwd)


def test_a_call() -> None:
    (found,) = calls('12  openat(AT_FDCWD</w>, "a b, c)", O_RDONLY|O_CLOEXEC) = 3</w/a b, c)>\n')
    assert found == SystemCall(12, "openat", ("AT_FDCWD</w>", '"a b, c)"', "O_RDONLY|O_CLOEXEC"), "3</w/a b, c)>")
    assert not found.failed
    assert descriptor_path(found.result) == "/w/a b, c)"


@pytest.mark.parametrize(
    ("line", "arguments", "failed"),
    [
        ('1 stat("/x", 0x7ffd) = -1 ENOENT (No such file or directory)', 2, "ENOENT"),
        ('1 execve("/bin/cat", ["cat", "a\\"b", "}"], 0x7ff /* 36 vars */) = 0', 3, ""),
        ('1 newfstatat(3</a>, "", {st_mode=S_IFREG|0644, st_size=1, ...}, AT_EMPTY_PATH) = 0', 4, ""),
        ("1 clone3({flags=CLONE_VM|1<<5, exit_signal=SIGCHLD}, 88) = 77", 2, ""),
        ("1 vfork() = 9", 0, ""),
        ("1 getdents64(3</a\\76b>, 0x55 /* 4 entries */, 32768) = 112", 3, ""),
        ('1 connect(4<socket:[12]>, {sa_family=AF_UNIX, sun_path="/run/x"}, 110) = 0', 3, ""),
        ('1 readlink("/proc/self/exe", "/usr/bin/cat"..., 4095) = 12', 3, ""),
        ('1 open("cut"..., O_RDONLY) = 3', 2, ""),
    ],
)
def test_forms(line: str, arguments: int, failed: str) -> None:
    (found,) = calls(line)
    assert len(found.arguments) == arguments
    assert found.failed == failed


def test_two_processes_at_once() -> None:
    found = calls(
        '1 openat(AT_FDCWD</w>, "a", O_RDONLY <unfinished ...>',
        '2 openat(AT_FDCWD</w>, "b", O_RDONLY <unfinished ...>',
        "1 <... openat resumed>) = 3</w/a>",
        "2 <... openat resumed>) = 3</w/b>",
    )
    assert [(each.pid, string(each.arguments[1]), descriptor_path(each.result)) for each in found] == [
        (1, "a", "/w/a"),
        (2, "b", "/w/b"),
    ]


def test_a_thread_that_starts_a_program() -> None:
    (found,) = calls(
        '7 execve("/bin/x", ["x"], 0x1 /* 1 var */ <unfinished ...>',
        "3 +++ superseded by execve in pid 7 +++",
        "3 <... execve resumed>) = 0",
    )
    assert (found.pid, found.name) == (3, "execve")


@pytest.mark.parametrize("line", ["x", "1 open(", '1 open("a', "1 <... open resumed>) = 3", "1 open(<3", "1 nothing"])
def test_what_is_not_understood_is_counted(line: str) -> None:
    found = Calls([line, '1 open("/a", O_RDONLY) = 3</a>'])
    assert [each.name for each in found] == ["open"]
    assert found.strange == 1
    assert found.first_strange == line


def test_signals_and_ends_are_no_calls() -> None:
    assert not calls("1 --- SIGCHLD {si_signo=SIGCHLD} ---", "1 +++ exited with 0 +++", "1 +++ killed by SIGKILL +++")


@given(st.binary(min_size=1, max_size=30).filter(lambda name: b"\0" not in name))
def test_every_name_comes_back(name: bytes) -> None:
    path = os.fsdecode(name)
    octal = "".join(f"\\{byte:03o}" for byte in name)
    hexed = "".join(f"\\x{byte:02x}" for byte in name)
    assert unescape(octal) == unescape(hexed) == path
    call = parse_call(1, f'open("{octal}", O_RDONLY) = 3</{octal}>')
    assert call is not None
    assert string(call.arguments[0]) == path
    found = descriptor_path(call.result)
    assert found == f"/{path}" or path.endswith(" (deleted)") or path.startswith("memfd:")


def test_c_escapes() -> None:
    assert unescape(r"\n\t\r\v\f\"\\\1\018") == '\n\t\r\v\f"\\\1\x018'


def test_no_line_breaks_the_reader() -> None:
    line = '12  openat(AT_FDCWD</w>, "a\\"b", O_RDONLY, {x=[1, 2]}) = 3</w/a>'
    for end in range(len(line)):
        found = Calls([line[:end]])
        list(found)
    rng = random.Random(7)
    for _ in range(300):
        found = Calls(["1 " + "".join(rng.choice('ab("<>){}[], =\\') for _ in range(20))])
        list(found)


@pytest.mark.parametrize("argument", ["NULL", "0x7ffd", '"cut"...', "3</a>", '"'])
def test_no_strings(argument: str) -> None:
    assert string(argument) is None


@pytest.mark.parametrize("text", ["3", "3<pipe:[1]>", "AT_FDCWD", "3</a (deleted)>", "3</memfd:x>", "0"])
def test_no_paths(text: str) -> None:
    assert descriptor_path(text) is None


# --- what they amount to


def test_reads_and_writes() -> None:
    found = fold(
        '1 openat(AT_FDCWD</w>, "in", O_RDONLY) = 3</w/in>',
        '1 openat(AT_FDCWD</w>, "out", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 4</w/out>',
        '1 openat(AT_FDCWD</w>, "out", O_RDONLY) = 4</w/out>',
        '1 openat(AT_FDCWD</w>, "state", O_RDWR) = 5</w/state>',
        '1 openat(AT_FDCWD</w>, "new", O_RDWR|O_CREAT|O_EXCL, 0600) = 5</w/new>',
        '1 creat("/w/made", 0666) = 5</w/made>',
    )
    assert list(found.read) == ["/w/in", "/w/state"]
    assert list(found.written) == ["/w/out", "/w/state", "/w/new", "/w/made"]


def test_a_temporary_file_is_nothing() -> None:
    found = fold(
        '1 openat(AT_FDCWD</w>, "t", O_RDWR|O_CREAT|O_EXCL, 0600) = 3</w/t>',
        '1 openat(AT_FDCWD</w>, "t", O_RDONLY) = 4</w/t>',
        '1 unlink("t") = 0',
        '1 mkdir("d", 0700) = 0',
        '1 rmdir("d") = 0',
        '1 openat(AT_FDCWD</w>, "/tmp", O_RDWR|O_TMPFILE, 0600) = 3</tmp/#1 (deleted)>',
    )
    assert found == Accesses()


def test_what_was_there_before_and_is_gone() -> None:
    found = fold('1 unlink("old") = 0', '1 rename("a", "b") = 0', '1 unlink("never") = -1 ENOENT (No such file)')
    assert list(found.removed) == ["/w/old", "/w/a"]
    assert list(found.written) == ["/w/b"]


def test_written_beside_and_renamed() -> None:
    found = fold(
        '1 openat(AT_FDCWD</w>, "out.tmp", O_WRONLY|O_CREAT, 0600) = 3</w/out.tmp>',
        '1 renameat2(AT_FDCWD</w>, "out.tmp", AT_FDCWD</w>, "out", 0) = 0',
    )
    assert list(found.written) == ["/w/out"]
    assert not found.removed


def test_an_output_that_is_removed_first_is_replaced() -> None:
    found = fold('1 unlink("out") = 0', '1 openat(AT_FDCWD</w>, "out", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3</w/out>')
    assert list(found.written) == ["/w/out"]
    assert not found.removed


def test_links() -> None:
    found = fold('1 link("a", "b") = 0', '1 symlinkat("anywhere", 3</w/d>, "s") = 0')
    assert list(found.read) == ["/w/a"]
    assert list(found.written) == ["/w/b", "/w/d/s"]


def test_missed() -> None:
    found = fold(
        '1 openat(AT_FDCWD</w>, "a", O_RDONLY) = -1 ENOENT (No such file or directory)',
        '1 access("b", R_OK) = -1 ENOENT (No such file or directory)',
        '1 newfstatat(AT_FDCWD</w>, "c/d", 0x7, 0) = -1 ENOTDIR (Not a directory)',
        '1 stat("e", 0x7) = -1 EACCES (Permission denied)',
        '1 openat(AT_FDCWD</w>, "f", O_RDONLY) = -1 ENOENT (No such file or directory)',
        '1 openat(AT_FDCWD</w>, "f", O_WRONLY|O_CREAT, 0600) = 3</w/f>',
        '1 unlink("g") = 0',
        '1 stat("g", 0x7) = -1 ENOENT (No such file or directory)',
    )
    assert list(found.missed) == ["/w/a", "/w/b", "/w/c/d"]


def test_folders_of_processes() -> None:
    found = fold(
        '1 chdir("sub") = 0',
        "1 clone(child_stack=NULL, flags=SIGCHLD) = 2",
        '2 open("x", O_RDONLY) = 3</w/sub/x>',
        "1 fchdir(5</elsewhere>) = 0",
        '1 open("y", O_RDONLY) = 3</elsewhere/y>',
        '2 open("z", O_RDONLY) = 3</w/sub/z>',
        '2 openat(7</fd>, "q", O_RDONLY) = 3</fd/q>',
        '2 openat(7<pipe:[1]>, "q", O_RDONLY) = 3',
    )
    assert list(found.read) == ["/w/sub/x", "/elsewhere/y", "/w/sub/z", "/fd/q"]


def test_listings_programs_and_servers() -> None:
    found = fold(
        '1 openat(AT_FDCWD</w>, "d", O_RDONLY|O_DIRECTORY) = 3</w/d>',
        "1 getdents64(3</w/d>, 0x5, 32768) = 0",
        '1 execve("/bin/sh", ["sh"], 0x1) = 0',
        '1 execve("/no/sh", ["sh"], 0x1) = -1 ENOENT (No such file or directory)',
        '1 connect(4<socket:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
        '1 connect(4<socket:[1]>, {sa_family=AF_UNIX, sun_path="/run/x"}, 110) = -1 ENOENT (No such file)',
        '1 connect(4<socket:[1]>, {sa_family=AF_UNIX, sun_path=@"abstract"}, 110) = 0',
        '1 connect(4<socket:[1]>, {sa_family=AF_INET6, sin6_port=htons(443), inet_pton(AF_INET6, "::1", &sin6_addr),'
        " sin6_scope_id=0}, 28) = -1 EINPROGRESS (Operation now in progress)",
    )
    assert not found.read
    assert list(found.listed) == ["/w/d"]
    assert list(found.executed) == ["/bin/sh"]
    assert list(found.missed) == ["/no/sh"]
    assert list(found.servers) == ["127.0.0.1:80", "abstract", "::1:443"]


def test_what_strace_can_not_see() -> None:
    assert not fold("1 io_uring_setup(8, 0x7) = -1 ENOSYS (Function not implemented)").is_hidden
    assert fold("1 io_uring_setup(8, {flags=0, sq_thread_cpu=0}) = 4").is_hidden
