"""The records are sufficient for a cache: after each edit a hit gives the same as the command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import need
from tests.tracing.minicache import MiniCache

PYTHON = os.path.realpath(sys.executable)


def python(text: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-B", "-c", text]


def shell(text: str) -> None:
    subprocess.run(["/bin/sh", "-c", text], check=True)


#: What is there, the command, and the edit.
CASES: dict[str, tuple[str, list[str], str]] = {
    "a file": ("echo 1 > f", ["/bin/cat", "f"], "echo 2 > f"),
    "no edit": ("echo 1 > f", ["/bin/cat", "f"], "touch f"),
    "chdir": ("true", ["/bin/sh", "-c", "cd sub 2>/dev/null && echo yes || echo no"], "mkdir sub"),
    "an interpreter": (
        "printf '#!./itp\\n' > sc; chmod +x sc; cp /bin/echo itp",
        ["./sc", "x"],
        "printf '#!/bin/sh\\necho other\\n' > itp2; cp /usr/bin/printf itp",
    ),
    "a link to another folder, opened": (
        "mkdir r1 r2; echo 1 > r1/f; echo 2 > r2/f; ln -sfn r1 cur",
        python("import os; d = os.open('cur', os.O_DIRECTORY); print(os.read(os.open('f', 0, dir_fd=d), 9))"),
        "ln -sfn r2 cur",
    ),
    "a link to another folder, entered": (
        "mkdir r1 r2; echo 1 > r1/f; echo 2 > r2/f; ln -sfn r1 cur",
        ["/bin/sh", "-c", "cd cur; /bin/cat f"],
        "ln -sfn r2 cur",
    ),
    "a path back from a link": (
        "mkdir -p q/deep; echo 1 > q/f; ln -sfn q/deep lk; echo top > f",
        ["/bin/cat", "lk/../f"],
        "echo 2 > q/f",
    ),
    "a link of proc": ("echo 1 > g", ["/bin/cat", "/proc/self/cwd/g"], "echo 2 > g"),
    "an absent file": ("true", ["/bin/sh", "-c", "[ -e x ] && echo yes || echo no"], "echo 1 > x"),
    "an absent folder": (
        "true",
        python("import os\ntry: os.statvfs('v'); print(1)\nexcept OSError: print(0)"),
        "mkdir v",
    ),
    "an absent file of a watch": (
        "true",
        python("import ctypes; l = ctypes.CDLL(None); print(l.inotify_add_watch(l.inotify_init1(0), b'w', 2) > 0)"),
        "mkdir w",
    ),
    "mode": ("echo 1 > f; chmod 644 f", ["/usr/bin/stat", "-c", "%a", "f"], "chmod 600 f"),
    "links": ("echo 1 > f", ["/usr/bin/stat", "-c", "%h", "f"], "ln f g"),
    "size": ("echo 1 > f", ["/usr/bin/stat", "-c", "%s", "f"], "echo 22 > f"),
    "a listing": ("mkdir d; touch d/a", ["/bin/ls", "d"], "touch d/b"),
    "the text of a link": ("ln -s a l", ["/bin/readlink", "l"], "ln -sfn b l"),
    "an attribute": (
        f"touch f; {PYTHON} -c \"import os; os.setxattr('f', 'user.k', b'1')\"",
        python("import os; print(os.getxattr('f', 'user.k'))"),
        f"{PYTHON} -c \"import os; os.setxattr('f', 'user.k', b'2')\"",
    ),
    "a busy lock": ("true", ["/bin/sh", "-c", "mkdir lock 2>/dev/null && echo got || echo busy"], "mkdir -p lock"),
    "a program on the path": (
        "mkdir bin; cp /bin/echo bin/tool",
        ["/bin/sh", "-c", "PATH=./bin0:./bin; tool x"],
        "mkdir bin0; printf '#!/bin/sh\\necho other\\n' > bin0/tool; chmod +x bin0/tool",
    ),
    "a renamed input": ("echo 1 > f", ["/bin/sh", "-c", "cp f g; mv g h; cat h"], "echo 2 > f; rm h"),
    "an input in place": ("echo 1 > f", ["/bin/sh", "-c", "echo x >> f; cat f"], "echo 2 > f"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_is_seen(work: Path, name: str) -> None:
    before, command, edit = CASES[name]
    shell(before)
    cache = MiniCache()
    cache.run(*command)
    again, text = cache.run(*command)
    if name not in {"a busy lock", "an input in place", "a renamed input"}:
        assert again, f"no hit without an edit: {cache.last and cache.last.problems}"
    shell(edit)
    state = Path.cwd().parent / "state"
    shell(f"rm -rf {state}; cp -a . {state}")
    expected = subprocess.run(command, cwd=state, capture_output=True, text=True, check=False).stdout
    is_hit, text = cache.run(*command)
    assert text == expected
    assert is_hit == (name in {"no edit", "a busy lock"})  # the lock was busy in the second run already


@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_branches(work: Path, compiler: str) -> None:
    need(compiler, "nm")
    cache = MiniCache()
    hits = []
    for version in "ABAABBAB":
        (work / "br.c").write_text(f"int {version}(void) {{ return {ord(version)}; }}\n")
        hits.append(cache.run(compiler, "-c", "br.c", "-o", "br.o")[0])
        names = subprocess.run(["nm", "br.o"], capture_output=True, text=True, check=True).stdout
        assert f" {version}\n" in names
    assert hits[4:] == [True] * 4


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/cp", "a.c", "out"],
        ["/usr/bin/install", "a.c", "out"],
        ["/usr/bin/ar", "rcs", "l.a", "a.o"],
        ["/usr/bin/ld", "-r", "-o", "r.o", "a.o"],
        ["/usr/bin/gcc", "-shared", "-o", "s.so", "a.o"],
        python("open('out', 'w').write('1')"),
    ],
    ids=lambda command: Path(command[0]).name,
)
def test_nothing_changed(work: Path, command: list[str]) -> None:
    """Also with the output of the last run there."""
    need(command[0])
    need("gcc")
    (work / "a.c").write_text("int f(void) { return 1; }\n")
    shell("gcc -c -fPIC a.c")
    cache = MiniCache()
    hits = [cache.run(*command)[0] for _ in range(3)]
    if Path(command[0]).name != "ar":  # it reads its archive: what it has made depends on that
        assert hits[2]
