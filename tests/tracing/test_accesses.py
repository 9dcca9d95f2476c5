"""What counts: first touch decides what is an input, and what is the run's own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base import fsio
from cachec.tracing.accesses import Accesses, Effect, Kind, TracedInput, TraceProblemKind
from cachec.tracing.supervisor import trace
from tests.needs import need
from tests.tracing.conftest import kinds, output, reasons, run

CREATED, WRITTEN, REMOVED, ATTRIBUTES = Effect.CREATED, Effect.WRITTEN, Effect.REMOVED, Effect.ATTRIBUTES
STATUS, CONTENT, LISTING = Kind.STATUS, Kind.CONTENT, Kind.LISTING


def inputs(accesses: Accesses, work: Path) -> dict[str, int]:
    """The inputs in the folder, by their relative path."""
    found: dict[str, int] = {}
    for each in accesses.inputs:
        path = os.path.normpath(os.path.join(each.folder, each.path))
        if path.startswith(f"{work}/"):
            name = path.removeprefix(f"{work}/")
            found[name] = found.get(name, 0) | each.kinds
    return found


def changes(accesses: Accesses, work: Path) -> dict[str, int]:
    return {change.path.removeprefix(f"{work}/"): change.effect for change in accesses.changes}


def find(accesses: Accesses, path: str, *, follow: bool = True) -> TracedInput:
    (found,) = [each for each in accesses.inputs if each.path == path and each.follow is follow]
    return found


#: A script of shell in a folder with the files in1 and in2 and the folder sub with in3; its inputs and its changes.
CASES: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {
    "looked at, then opened": ("[ -e in1 ]; read x < in1", {"in1": STATUS | CONTENT}, {}),
    "absent": ("[ -e none ]", {"none": STATUS}, {}),
    "absent, then made": ("[ -e out ] || echo x > out; read x < out", {"out": STATUS}, {"out": CREATED}),
    "made, then read": ("echo x > out; read x < out; [ -e out ]", {}, {"out": CREATED}),
    "made at one path, read by another": ("echo x > out; read x < ./sub/../out", {}, {"out": CREATED}),
    "made through a link": (
        "ln -s sub l; echo x > l/out; read x < sub/out",
        {"l": STATUS},
        {"l": CREATED, "sub/out": CREATED},
    ),
    "emptied, then read": ("echo x > in1; read x < in1", {}, {"in1": CREATED}),
    "read, then emptied": ("read x < in1; echo $x > in1", {"in1": CONTENT}, {"in1": CREATED}),
    "appended to": ("echo x >> in1", {"in1": CONTENT}, {"in1": WRITTEN}),
    "appended to what it made": ("echo x > out; echo x >> out", {}, {"out": CREATED}),
    "made and removed": ("echo x > tmp; rm tmp", {}, {}),
    "removed": ("rm in1", {"in1": STATUS}, {"in1": REMOVED}),
    "removed in vain": ("rm -f none", {"none": STATUS}, {}),
    "removed, then made": ("rm in1; echo x > in1; read x < in1", {"in1": STATUS}, {"in1": CREATED | REMOVED}),
    "renamed": ("mv in1 out", {"in1": CONTENT, "out": STATUS}, {"in1": REMOVED, "out": CREATED}),
    "made, renamed, read": ("echo x > tmp; mv tmp out; read x < out", {"out": STATUS}, {"out": CREATED}),
    "renamed over another": ("echo x > tmp; mv tmp in1; read x < in1", {"in1": STATUS}, {"in1": CREATED}),
    "linked": ("ln in1 out; read x < out", {"in1": CONTENT, "out": STATUS}, {"out": CREATED}),
    "a folder": (
        "mkdir d; echo x > d/a; read x < d/a; ls d",
        {"d": STATUS},
        {"d": CREATED | Effect.LISTED, "d/a": CREATED},
    ),
    "a folder that is there": ("mkdir -p sub; read x < sub/in3", {"sub": STATUS, "sub/in3": CONTENT}, {}),
    "a folder, renamed": (
        "mkdir t; echo x > t/a; mv t d; read x < d/a",
        {"t": STATUS, "d": STATUS},
        {"d": CREATED, "d/a": CREATED},
    ),
    "failed to make": ("mkdir in1; mkdir none/x", {"in1": STATUS, "none/x": STATUS}, {}),
    "failed to rename": (
        "mkdir d; mv -T d sub; read x < sub/in3",
        {"d": STATUS, "sub": STATUS, "sub/in3": CONTENT},
        {"d": CREATED | REMOVED},
    ),
    "failed to rename, then changed": (
        "mv -T in1 sub; echo x >> in1; [ -x in1 ]; read x < in1",
        {"in1": STATUS | CONTENT, "sub": STATUS},
        {"in1": WRITTEN},
    ),
    "failed to replace, then touched": (
        "mkdir d; mv -T d in1; touch -d 2020-01-01 in1; read x < in1",
        {"d": STATUS, "in1": STATUS | CONTENT},
        {"d": CREATED | REMOVED, "in1": WRITTEN},
    ),
    "mode": ("chmod 600 in1", {}, {"in1": ATTRIBUTES}),
    "mode of what it made": ("echo x > out; chmod 600 out", {}, {"out": CREATED | ATTRIBUTES}),
    "opened to be written, but not": (": >> in1", {"in1": CONTENT}, {}),
    "times": ("touch in1", {"in1": CONTENT}, {"in1": WRITTEN}),
    "listed": ("for f in sub/*; do :; done", {"sub": STATUS | LISTING}, {}),
    "current folder": (
        "cd sub; read x < in3; read x < ../in1",
        {"sub": STATUS, "sub/in3": CONTENT, "in1": CONTENT},
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_touch(work: Path, name: str) -> None:
    (work / "sub").mkdir()
    for path in ("in1", "in2", "sub/in3"):
        (work / path).write_text(path)
    text, expected, changed = CASES[name]
    accesses = run("/bin/sh", "-c", text)
    found = inputs(accesses, work)
    # Tools look at paths before they act; what must be there is, and no more is an input by its content.
    assert {path: kinds & expected.get(path, CONTENT | LISTING) for path, kinds in found.items()} == {
        **dict.fromkeys(found, 0),
        **expected,
    }
    assert changes(accesses, work) == changed
    assert not accesses.problems


def test_states_are_those_of_the_first_touch(work: Path) -> None:
    (work / "in").write_text("before")
    (work / "link").symlink_to("in")
    before = os.stat("in")
    accesses = run("/bin/sh", "-c", "read x < in; readlink link; echo after > in; [ -e none ]; [ -d . ]")
    found = find(accesses, "in")
    assert (found.folder, found.error, found.effect) == (str(work), 0, CREATED)
    assert found.state is not None
    assert found.state[:5] == (before.st_dev, before.st_ino, before.st_mode, before.st_nlink, before.st_size)
    assert found.state[5:] == (before.st_mtime_ns, before.st_ctime_ns, before.st_uid, before.st_gid)
    assert find(accesses, "link", follow=False).target == "in"
    assert (find(accesses, "none").state, find(accesses, "none").error) == (None, 2)
    assert find(accesses, ".").target == str(work)
    (change,) = accesses.changes
    assert change.before is not None
    assert change.after is not None
    assert (change.path, change.before.size, change.after.size) == (f"{work}/in", 6, 6)


def test_paths_are_literal(work: Path) -> None:
    (work / "deep/down").mkdir(parents=True)
    (work / "deep/in").write_text("")
    (work / "link").symlink_to("deep/down")
    accesses = run("cat", "link/../in", "./deep//in", f"{work}/deep/in")
    expected = {("link/../in", str(work)), ("./deep//in", str(work)), (f"{work}/deep/in", "")}
    assert {(each.path, each.folder) for each in accesses.inputs if each.path.endswith("in")} == expected


def test_a_listing_is_that_of_before_the_run(work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text("")
    accesses = run("/bin/sh", "-c", "rm a; echo x > new; ls")
    assert find(accesses, str(work)).names == ("a", "b")


def test_what_is_replaced_by_the_run_says_so(work: Path) -> None:
    accesses = run("/bin/sh", "-c", "[ -e out ]; [ -e none ]; echo x > out")
    assert (find(accesses, "out").effect, find(accesses, "none").effect) == (CREATED, 0)
    accesses = run("/bin/sh", "-c", "[ -e out ]; rm out; echo x > out")
    assert find(accesses, "out").effect == CREATED | REMOVED


def test_a_folder_that_the_run_did_not_make_is_not_moved(work: Path) -> None:
    (work / "sub").mkdir()
    assert reasons(run("mv", "sub", "other")) == {TraceProblemKind.MOVED_FOLDER}


def test_links_of_proc_count_as_what_they_lead_to(work: Path) -> None:
    (work / "in").write_text("text")
    accesses, text = output(
        "/bin/sh", "-c", "cat /proc/self/cwd/in; cat < in; cat /dev/fd/3 3< in; cat /proc/self/status"
    )
    assert text.startswith("texttexttext")
    assert kinds(accesses, work / "in") == CONTENT | Kind.STATUS  # whether it is a link counts
    assert not any(each.path.startswith("/proc/self") for each in accesses.inputs)
    with (work / "in").open() as file:
        accesses, text = output("cat", "/dev/stdin", stdin=file.fileno())
    assert (text, kinds(accesses, work / "in")) == ("text", CONTENT | Kind.STATUS)
    accesses, text = output("/bin/sh", "-c", "echo text | cat /dev/stdin")
    assert (text, accesses.problems) == ("text\n", ())


def of_system(accesses: Accesses) -> set[str]:
    return {each.path for each in accesses.inputs if each.path.startswith(("/proc", "/sys"))}


#: A script of shell, and its inputs below /proc and /sys. OTHER is the number of a process that is not of the run.
SYSTEM: dict[str, tuple[str, set[str]]] = {
    "of itself": ("read x < /proc/self/status; read x < /proc/$$/stat; read x < /proc/thread-self/comm", set()),
    "its folder": ("cd /proc/self; read x < status; for f in /proc/$$/task/*; do :; done", set()),
    "of its parent, child and ended child": ("(read x < /proc/$$/stat) & read x < /proc/$!/stat; wait", set()),
    "of another": (
        "read x < /proc/OTHER/stat; [ -e /proc/OTHER/exe ]; cd /proc/OTHER; read x < comm",
        {"/proc/OTHER/stat", "/proc/OTHER/exe", "/proc/OTHER", "/proc/OTHER/comm"},
    ),
    "another by its folder": ("cd /proc; read x < OTHER/stat", {"/proc", "/proc/OTHER/stat"}),
    "of none": ("read x < /proc/4194305/stat", {"/proc/4194305/stat"}),
    "of the machine": (
        "read x < /proc/cpuinfo; read x < /proc/sys/kernel/osrelease; [ -d /sys/devices/system/cpu ]",
        {"/proc/cpuinfo", "/proc/sys/kernel/osrelease", "/sys/devices/system/cpu"},
    ),
}


@pytest.mark.parametrize("name", SYSTEM)
def test_processes_of_the_run_are_no_inputs(work: Path, name: str) -> None:
    text, expected = SYSTEM[name]
    other = str(os.getppid())  # os.getpid() is the supervisor: see below
    accesses = run("/bin/sh", "-c", text.replace("OTHER", other))
    assert {path.replace(other, "OTHER") for path in of_system(accesses)} == expected
    assert not accesses.problems


def test_the_supervisor_is_another_process(work: Path) -> None:
    assert of_system(run("/bin/sh", "-c", "read x < /proc/$PPID/stat")) == {f"/proc/{os.getpid()}/stat"}


def test_interpreters_are_inputs(work: Path, compiled: Callable[..., str]) -> None:
    shutil.copy("/bin/cat", work / "itp")
    (work / "script").write_text("#!./itp\n")
    (work / "outer").write_text("#! ./script\n")
    for name in ("script", "outer"):
        (work / name).chmod(0o755)
    folder = work / "elsewhere"
    folder.mkdir()
    accesses = run("/bin/sh", "-c", f"cd {work} && exec ./outer", cwd=str(folder))
    for name in ("outer", "script", "itp"):
        assert kinds(accesses, work / name) & ~STATUS == CONTENT | Kind.EXECUTED
    loader = next(each.path for each in accesses.inputs if each.path.startswith("/lib") and "/ld-" in each.path)
    shutil.copy(loader, work / "loader")
    program = compiled("patched", "int main(void) { return 0; }\n", [f"-Wl,--dynamic-linker={work}/loader"])
    accesses = run(program)
    assert accesses.returncode == 0
    assert kinds(accesses, work / "loader") == CONTENT | Kind.EXECUTED


def test_a_program_that_was_opened_before(work: Path) -> None:
    text = "import os; fd = os.open('/bin/true', os.O_RDONLY); os.execve(fd, ['true'], {})"
    accesses = run("python3", "-c", text)
    assert accesses.returncode == 0
    assert any(each.path.endswith("bin/true") and each.kinds & Kind.EXECUTED for each in accesses.inputs)


@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_a_compiler_twice(work: Path, compiler: str) -> None:
    """The output of the first run is the only difference of the second; the compiler replaces it whole."""
    need(compiler)
    (work / "a.c").write_text("int f(void) { return 1; }\n")
    command = [compiler, "-c", "a.c", "-o", "a.o"]
    first, second = run(*command), run(*command)
    assert not first.problems
    assert not second.problems
    assert changes(first, work) == {"a.o": changes(first, work)["a.o"]}
    outputs = [change for change in second.changes if change.path.endswith("a.o")]
    assert not any(change.effect & WRITTEN for change in outputs)

    def content(accesses: Accesses) -> set[str]:
        return {each.path for each in accesses.inputs if each.kinds & CONTENT and not each.path.startswith("/proc/")}

    assert content(first) == content(second)
    assert "a.c" in content(first)


def test_links_of_the_run_that_lead_in_a_circle(work: Path) -> None:
    accesses = run(
        "sh",
        "-c",
        "ln -s two one; ln -s one two; ln -s . here; cat one two/x here/one; ls -d here/ one/; "
        "ln -s here/here/here/here/here/here/one/x deep; mkdir new; "
        "ln -s ../here/here/new new/up; cat new/up/up/up/up/up/a",
    )
    assert not accesses.problems


@pytest.mark.parametrize(
    ("look", "place"),
    [("cat .own", "none"), ("[ -e .own ]", "none"), ("[ -L .way/gone/f ]", "gone/f"), ("cat .way/gone/f", "gone/f")],
)
def test_what_a_link_of_the_run_leads_to_in_vain_is_absent(work: Path, look: str, place: str) -> None:
    text = f'ln -s "$PWD/none" .own; ln -s "$PWD" .way; {look}; rm .own .way'
    inputs = {each.path: each for each in run("sh", "-c", text).inputs}
    assert inputs[str(work / place)].state is None


def test_a_link_of_before_that_a_link_of_the_run_leads_to_counts(work: Path) -> None:
    """Also where nothing is at the end."""
    (work / "before").symlink_to("nowhere")
    accesses = run("sh", "-c", 'ln -s "$PWD/before" .own; cat .own; rm .own')
    targets = {each.path: each.target for each in accesses.inputs}
    assert targets[str(work / "before")] == "nowhere"


def test_the_way_to_what_is_made_counts(work: Path) -> None:
    (work / "real").mkdir()
    (work / "link").symlink_to("real")
    (work / "out").symlink_to("target")
    inputs = {each.path: each for each in run("sh", "-c", "echo x > link/o; echo x > out").inputs}
    assert inputs[f"{work}/link"].target == str(work / "real")
    assert (inputs[f"{work}/out"].follow, inputs[f"{work}/out"].target) == (False, "target")


def test_a_folder_that_is_not_removed_counts_by_its_names(work: Path) -> None:
    (work / "full").mkdir()
    (work / "full" / "x").touch()
    accesses = run("rmdir", "full")
    assert accesses.returncode == 1
    assert [each.names for each in accesses.inputs if each.kinds & Kind.LISTING] == [("x",)]


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("true", False),
        ("cat", True),
        ("cat < other", False),
        ("echo x | cat", False),
        ("sh -c 'cat'", True),
        ("read x", True),
        ("exec 3<&0; true", True),
        ("cat /dev/stdin", True),
        ("cat /proc/self/fd/0", True),
        ("cat /dev/stdin < other", False),
        ("bash -c 'cat < other; { cat; } < other'", False),
        (f"{sys.executable} -c 'import sys'", False),
        (f"{sys.executable} -c 'import sys; sys.stdin.read()'", True),
        (f"{sys.executable} -c 'import os; os.pread(0, 1, 0)'", True),
        (f"{sys.executable} -c 'import mmap; mmap.mmap(0, 0, access=mmap.ACCESS_READ)'", True),
        (f"{sys.executable} -c 'import os; os.sendfile(1, 0, 0, 1)'", True),
        (f"{sys.executable} -c 'import os; os.dup(0)'", True),
        (f"{sys.executable} -c 'import os; os.fstat(0); os.isatty(0)'", False),
    ],
)
def test_whether_standard_input_is_used(work: Path, line: str, uses: bool) -> None:
    (work / "in").write_text("text")
    (work / "other").write_text("text")
    with open(work / "in", "rb") as given, open(os.devnull, "wb") as null:
        accesses = trace(["sh", "-c", line], stdin=given.fileno(), stdout=null.fileno(), stderr=null.fileno())
    assert accesses.uses_stdin is uses


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("read x < /dev/tty", True),
        ("echo x > /dev/tty", True),
        ("bash -c 'echo x > /dev/tty'", True),
        ("bash -c true", False),
        ("test -e /dev/tty", False),
        (f"{sys.executable} -c 'import os; os.get_terminal_size(0)'", True),
        (f"{sys.executable} -c 'import os; os.isatty(0)'", False),
        (f"{sys.executable} -c 'import os; os.get_terminal_size(0)' < /dev/null", False),
        ("echo > a.c; gcc -c a.c", False),
    ],
)
def test_whether_the_terminal_is_used(work: Path, line: str, uses: bool) -> None:
    ours, theirs = os.openpty()
    with fsio.closing(ours), fsio.closing(theirs):
        accesses = run("sh", "-c", line, stdin=theirs)
    assert reasons(accesses) == ({TraceProblemKind.DEVICE} if uses else set())


@pytest.mark.parametrize("name", ["/dev/stdin", "/proc/self/fd/0", "/dev/fd/0", "/dev//fd/0", "/proc/thread-self/fd/0"])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_pipe_by_its_name(work: Path, name: str, is_own: bool) -> None:
    """It has no path, and whoever opens it reads it by another number."""
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    try:
        accesses = run("sh", "-c", f"echo own | cat {name}" if is_own else f"cat {name}", stdin=reader)
    finally:
        os.close(reader)
    assert accesses.uses_stdin is not is_own
    assert run("sh", "-c", f"echo own | cat {name}" if is_own else f"cat {name}").uses_stdin is not is_own  # /dev/null
