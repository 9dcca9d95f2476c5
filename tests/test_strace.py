"""strace's lines: every form of call that is traced, its escapes, and lines that are none."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strace import Calls, SystemCall, descriptor_path, parse_call, string, unescape


def calls(*lines: str) -> list[SystemCall]:
    found = Calls(lines)
    out = list(found)
    assert not found.strange, found.first_strange
    return out


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
