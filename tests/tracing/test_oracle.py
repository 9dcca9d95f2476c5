"""Generated programs in C, shell and Python: strace names the same lookups, and the file system the same changes."""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.tracing.accesses import Kind
from tests.effort import WHOLE
from tests.needs import need
from tests.tracing import oracle
from tests.tracing.conftest import run

#: Paths that programs use: there or not, relative and absolute, through links and folders. All are below the folder of
#: the test, since programs rename and remove them.
PATHS = (
    *("a", "b", "sub/c", "sub/../a", "./a", "none", "sub/none", "none/x", "link", "dangling", "sublink/c", "sublink"),
    *("sub", ".", "new1", "sub/new2", "{work}/a", "{work}/sub/c", "{work}/none", "exe", "script", "/{work}/a"),
)

LINKS = {"sublink": "sub", "link": "a", "dangling": "none"}

LOOKUPS = (
    *("openat", "openat2", "nofollow", "opath", "fstatat", "lfstatat", "emptypath", "statx", "statfs", "faccessat"),
    *("faccessat2", "readlinkat", "list", "getxattr", "llistxattr", "inotify", "chdir", "execve", "procfd", "proccwd"),
    *("pageend", "longpath", "badaddress", "open", "stat", "lstat", "access", "readlink"),
)
BELOW = ("below", "belowpath", "fchdir")
CHANGES = (
    *("create", "createnew", "write", "append", "truncate", "mkdirat", "unlinkat", "rmdir", "fchmodat"),
    *("utimensat", "creat", "mkdir", "unlink", "chmod"),
)
PAIRS = ("renameat", "linkat", "symlinkat", "rename", "link", "symlink")


def prepare(work: Path) -> None:
    """The folder, the same each time."""
    for entry in list(work.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (work / "sub").mkdir()
    for name in ("a", "b", "sub/c"):
        (work / name).write_text(name)
    for link, target in LINKS.items():
        (work / link).symlink_to(target)
    shutil.copy("/bin/true", work / "exe")
    (work / "script").write_text("#!./exe\n")
    (work / "script").chmod(0o755)


def compare(work: Path, command: list[str]) -> None:
    """Run the command three times on the same folder: with strace, traced, and look at what it left."""
    prepare(work)
    before = oracle.snapshot(work)
    account = oracle.strace(command, work, work.parent / "strace.log", before, LINKS)
    prepare(work)
    before = oracle.snapshot(work)
    accesses = run(*command)
    found = oracle.inputs(accesses)
    touched = {change.path for change in accesses.changes}
    unseen = {each for each in account.required - found if not _is_below(each[0], touched)}
    assert not unseen, f"{command}: strace alone saw {sorted(unseen)}"
    # What decides where a file is that the run makes is looked up too; and what is behind its own links, by real paths.
    more = Kind.STATUS | Kind.LISTING
    makes_links = any(change.after is not None and stat.S_ISLNK(change.after.mode) for change in accesses.changes)
    extra = {
        (path, kind)
        for path, kind in found - account.required - account.allowed
        if not _is_below(path, {str(work)}) or (not kind & more and not makes_links)
    }
    interpreters = {str(work / "exe"), "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}
    # By the folder that a file is in counts the way to it, where the run learned its real path (/proc/self/exe).
    folders = {(os.path.dirname(path), Kind.STATUS) for path, _ in found}
    assert {path for path, _ in extra - folders} <= interpreters, f"{command}: strace did not see {sorted(extra)}"
    after = oracle.snapshot(work)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    recorded = {change.path for change in accesses.changes}
    linked = {change.path for change in accesses.changes if change.before == change.after}
    assert changed <= recorded | _same_file(changed, before), f"{command}: changed {sorted(changed - recorded)}"
    assert recorded - linked <= changed, f"{command}: not changed {sorted(recorded - changed)}"


def _is_below(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _same_file(paths: set[str], before: dict[str, tuple[int, ...]]) -> set[str]:
    """Paths of which another hard link was made, or removed: their change time is another one."""
    return {
        path for path in paths if path in before and os.path.lexists(path) and os.lstat(path).st_ino == before[path][0]
    }


def operations(random_: random.Random, work: Path, count: int) -> list[str]:
    def path(*without: str) -> str:
        return random_.choice([path for path in PATHS if path not in without]).format(work=work)

    found = []
    for _ in range(count):
        group = random_.choice((LOOKUPS, LOOKUPS, LOOKUPS, BELOW, CHANGES, PAIRS))
        name = random_.choice(group)
        second = (
            f",{random_.choice(('c', 'none', '../a', 'new3'))}" if group is BELOW else f",{path()}" * (group is PAIRS)
        )
        # The oracle does not follow a link, or a link to a folder, that has another name now.
        found.append(f"{name},{path(*LINKS, 'sub') if group is PAIRS else path()}{second}")
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(200 if WHOLE else 12))
def test_a_c_program_by_raw_calls(work: Path, compiled: Callable[..., str], seed: int) -> None:
    need("strace")
    compare(work, [compiled("toucher"), *operations(random.Random(seed), work, 25)])


@pytest.mark.parametrize("name", [*LOOKUPS, *BELOW])
def test_each_lookup_by_itself(work: Path, compiled: Callable[..., str], name: str) -> None:
    prepare(work)
    accesses = run(compiled("toucher"), f"{name},sub,c" if name in BELOW else f"{name},a")
    if name != "badaddress":
        last = [each for each in accesses.inputs if str(work) in (each.folder + each.path)]
        assert last, name
    assert not accesses.problems
    assert not accesses.changes


SHELL = (
    *("cat {p}", "[ -e {p} ]", "[ -x {p} ] && [ -d {p} ]", "ls {p}", "ls -l {p}", "cd {p} && cat c; cd {work}"),
    *("echo x > {p}", "echo x >> {p}", "cp {p} {q}", "mv {p} {q}", "rm -f {p}", "mkdir -p {p}", "ln -s {p} {q}"),
    *("for f in sub/*; do :; done", "read x < {p}", "(cd sub && cat c) | cat", "find sub", "./script"),
    *("touch {p}", ". {p}", "head -c 1 {p}", "readlink /proc/self/cwd"),
)

PYTHON = (
    *("open({p!r}).read()", "os.stat({p!r})", "os.lstat({p!r})", "os.listdir({p!r})", "os.path.exists({p!r})"),
    *("list(os.scandir({p!r}))", "os.readlink({p!r})", "os.path.realpath({p!r})", "os.access({p!r}, os.R_OK)"),
    *("open({p!r}, 'w').write('x')", "open({p!r}, 'a').write('x')", "os.replace({p!r}, {q!r})", "os.remove({p!r})"),
    *("os.makedirs({p!r}, exist_ok=True)", "os.symlink({p!r}, {q!r})", "subprocess.run(['cat', {p!r}])"),
    *("shutil.copy({p!r}, {q!r})", "glob.glob({p!r} + '/*')", "os.open({p!r}, os.O_RDONLY | os.O_CREAT)"),
    *("list(os.walk({p!r}))", "os.link({p!r}, {q!r})", "subprocess.run(['cat', {p!r}, 'c'], cwd='sub')"),
    *("os.readlink('/proc/self/exe')", "os.readlink('/proc/self/fd/%d' % os.open({p!r}, 0))"),
)


def chosen(random_: random.Random, lines: tuple[str, ...], work: Path, count: int) -> list[str]:
    found = []
    for line in random_.choices(lines, k=count):
        is_pair = "{q" in line  # the oracle does not follow a link that has another name now
        first = [path for path in PATHS if not (is_pair and path in {*LINKS, "sub"})]
        names = {"p": random_.choice(first), "q": random_.choice(PATHS)}
        found.append(line.format(work=work, **{name: path.format(work=work) for name, path in names.items()}))
    return found


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(60 if WHOLE else 8))
def test_a_shell_script(work: Path, seed: int) -> None:
    need("strace")
    compare(work, ["/bin/sh", "-c", "\n".join(chosen(random.Random(seed), SHELL, work, 8))])


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(40 if WHOLE else 4))
def test_a_python_script(work: Path, seed: int) -> None:
    need("strace")
    lines = chosen(random.Random(seed), PYTHON, work, 10)
    text = "import glob, os, shutil, subprocess\n"
    text += "".join(f"try: {line}\nexcept OSError: pass\n" for line in lines)
    compare(work, [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", text])


@pytest.mark.parametrize(
    "command",
    [["gcc", "-c", "a.c", "-o", "a.o"], ["clang-19", "-O1", "-c", "a.c", "-o", "a.o"], ["make", "-s", "a.o"]],
    ids=lambda command: command[0],
)
def test_a_compiler(work: Path, command: list[str]) -> None:
    need("strace", command[0], "cc")
    (work.parent / "src").mkdir()

    def written() -> None:
        (work / "a.c").write_text('#include <stdio.h>\n#include "a.h"\nint main(void) { return puts(A); }\n')
        (work / "a.h").write_text('#define A "a"\n')

    written()
    account = oracle.strace(
        [str(shutil.which(command[0])), *command[1:]], work, work.parent / "log", oracle.snapshot(work)
    )
    (work / "a.o").unlink()
    accesses = run(*command)
    assert accesses.returncode == 0
    temporary = {(path, kind) for path, kind in account.required if path.startswith(("/tmp/cc", "/tmp/a-", "/proc/"))}
    unseen = {each for each in account.required - oracle.inputs(accesses) - temporary if "/a-" not in each[0]}
    assert not unseen
    assert not accesses.problems
    assert [change.path for change in accesses.changes] == [str(work / "a.o")]
    assert oracle.inputs(accesses) >= {(str(work / "a.c"), Kind.CONTENT), (str(work / "a.h"), Kind.CONTENT)}
