"""Each part of a command's key: what changes it, and what does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.key.tools.executables import which
from cachec.launcher import arguments, command_key
from cachec.launcher.options import parse
from cachec.launcher.path_map import PathMap
from cachec.launcher.stage import CommandContext
from tests.launcher.conftest import Launcher, need, write

_LINE = ("fakecc", "a.txt", "-o", "a.out", "-O2")


def _parts(*line: str) -> dict[str, str]:
    options, argv = parse(line if "--" in line else ["--", *line])
    opened = CommandContext({}, dict(os.environ))
    program = which(argv[0], opened.variables)
    assert program is not None
    command = arguments.describe_here(opened, options, argv, program)
    found = opened.requests.build(None, {"command": command, "stripped": (), "stdin": None})
    return {part.label: part.digest for part in found.parts()}


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.fixture
def before(launcher: Launcher) -> dict[str, str]:
    """The parts of ``_LINE``."""
    write("a.txt", "x")
    return _parts(*_LINE)


def test_the_parts(before: dict[str, str]) -> None:
    others = {f"env/{name}" for name in os.environ if name not in {"FAKE_EXIT", "FAKE_OPT"}}
    of_the_loader = {f"env/{name}" for name in command_key._ALWAYS if not name.endswith("*")}
    assert set(before) - others - of_the_loader == {
        "stage/exec:fakecc",
        "arg/program",
        "env/FAKE_EXIT",
        "env/FAKE_OPT",
        "platform",
        "arg/input",
        "arg/-o",
        "arg/-O2",
        "order/order of arguments",
        "arg/current folder",
        "arg/umask",
        "file/a.txt",
    }


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (("fakecc", "a.txt", "-o", "b.out", "-O2"), {"arg/-o"}),
        (("fakecc", "./a.txt", "-o", "a.out", "-O2"), {"arg/input", "file/a.txt", "file/./a.txt"}),
        (("fakecc", "a.txt", "-o", "a.out", "-O3"), {"arg/-O2", "arg/-O3", "order/order of arguments"}),
        (("fakecc", "a.txt", "-o", "a.out", "-O2", "-new"), {"arg/-new", "order/order of arguments"}),
        (("fakecc", "-O2", "a.txt", "-o", "a.out"), {"order/order of arguments"}),
        (("fakecc", "a.txt", "-o", "a.out", "-O2", "-O2"), {"arg/-O2", "order/order of arguments"}),
        (("--portable", "--", *_LINE), {"platform"}),
        (("--env", "NEW", "--", *_LINE), {"env/NEW"}),
    ],
)
def test_the_command_line(before: dict[str, str], line: tuple[str, ...], changed: set[str]) -> None:
    assert _changed(before, _parts(*line)) == changed


def test_values_of_one_flag_are_kept_apart(launcher: Launcher) -> None:
    write("a.txt", "x")
    one = _parts("fakecc", "a.txt", "-o", "o", "-D=a", "-D=b")
    other = _parts("fakecc", "a.txt", "-o", "o", "-D=b", "-D=a")
    assert _changed(one, other) == {"arg/-D"}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("FAKE_OPT", {"env/FAKE_OPT"}),
        ("LD_LIBRARY_PATH", {"env/LD_LIBRARY_PATH"}),
        ("FAKE_HIDDEN", {"env/FAKE_HIDDEN"}),
        ("TERM", set()),
        ("LC_CTYPE", {"env/LC_CTYPE"}),
        ("LC_OTHER", {"env/LC_OTHER"}),
    ],
)
def test_variables(before: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, changed: set[str]) -> None:
    monkeypatch.setenv(name, "/x")
    assert _changed(before, _parts(*_LINE)) == changed
    if changed:
        empty = _parts(*_LINE)
        monkeypatch.setenv(name, "")
        assert _changed(empty, _parts(*_LINE)) == changed
        assert _changed(before, _parts(*_LINE)) == changed


def test_variables_of_an_adapter_that_names_all(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "fakecc.toml"
    path.write_text(path.read_text() + "complete = true\n")
    write("a.txt", "x")
    for name, counts in (("FAKE_OPT", True), ("FAKE_HIDDEN", False)):
        before = _parts(*_LINE)
        monkeypatch.setenv(name, "1")
        assert _changed(before, _parts(*_LINE)) == ({f"env/{name}"} if counts else set())


def test_an_input(before: dict[str, str]) -> None:
    os.utime("a.txt", (1, 1))
    os.chmod("a.txt", 0o600)
    write("unrelated", "x")
    assert not _changed(before, _parts(*_LINE))
    write("a.txt", "y")
    assert _changed(before, _parts(*_LINE)) == {"file/a.txt"}


def test_an_input_folder(launcher: Launcher) -> None:
    write("d/a", "x")
    line = ("--input", "d", "--output", "o", "--", "sh", "-c", "true")
    before = _parts(*line)
    write("d/b", "x")
    assert _changed(before, _parts(*line)) == {"file/d"}


def test_the_compiler(before: dict[str, str], tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "fakecc"
    os.utime(tool, (1, 1))
    assert not _changed(before, _parts(*_LINE))
    moved = tmp_path / "elsewhere" / "fakecc"
    moved.parent.mkdir()
    shutil.copy(tool, moved)
    assert _changed(before, _parts(str(moved), *_LINE[1:])) == {"arg/program"}
    tool.write_text(tool.read_text() + "\n")
    assert not _changed(before, _parts(*_LINE))  # the trace has it


@need("cc")
def test_a_rebuilt_library_of_the_compiler_is_named(launcher: Launcher, tmp_path: Path) -> None:
    lib, tool = tmp_path / "lib", tmp_path / "bin" / "fakecc"
    lib.mkdir()
    write("tool.c", "int f(void); int main(void) { return f(); }\n")

    def build(value: int) -> None:
        write("lib.c", f"int f(void) {{ return {value} - {value}; }} int v = {value};\n")
        subprocess.run(["cc", "-shared", "-fPIC", "lib.c", "-o", lib / "libcore.so"], check=True)

    build(1)
    subprocess.run(["cc", "tool.c", "-o", tool, f"-L{lib}", "-lcore", f"-Wl,-rpath,{lib}"], check=True)
    write("a.txt", "x")
    executable = tool.read_bytes()
    line = ("fakecc", "a.txt")
    launcher.run(*line)
    assert launcher.direct(*line) is not None
    build(2)
    assert tool.read_bytes() == executable
    assert launcher.direct(*line) is None
    launcher.run(*line)
    assert launcher.last().reason.value == "miss:dependency-changed"
    assert "libcore.so has other content" in launcher.last().detail


def test_helpers_and_tools(before: dict[str, str], tmp_path: Path) -> None:
    helper = tmp_path / "bin" / "helper"
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o755)
    line = ("--tool", "helper", "--", *_LINE)
    one = _parts(*line)
    assert _changed(before, one) == {"executable/helper"}
    helper.write_text("#!/bin/sh\n# new\n")
    assert _changed(one, _parts(*line)) == {"executable/helper"}


def test_the_adapter(before: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "fakecc.toml"
    path.write_text("# only a comment\n" + path.read_text())
    assert not _changed(before, _parts(*_LINE))
    path.write_text(path.read_text().replace("flags = [", "relative = true\nflags = ["))
    assert _changed(before, _parts(*_LINE)) == {"stage/exec:fakecc"}


def test_the_folder_of_a_command_that_no_adapter_knows(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("--output", "o", "--", "sh", "-c", "true")
    before = _parts(*line)
    os.mkdir("sub")
    monkeypatch.chdir("sub")
    assert _changed(before, _parts(*line)) == {"arg/current folder"}


def test_two_checkouts_share_keys(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        write(f"{name}/src/a.txt", "x")
        os.mkdir(f"{name}/build")
        base = os.path.abspath(name)
        monkeypatch.setenv("CACHEC_BASE_DIR", base)
        monkeypatch.chdir(f"{base}/build")
        found.append(_parts("fakecc", f"{base}/src/a.txt", f"--root={base}/other", "-o", f"{base}/build/a.out"))
        monkeypatch.chdir(launcher.folder)
    assert not _changed(*found)
    monkeypatch.delenv("CACHEC_BASE_DIR")
    assert _changed(found[0], _parts("fakecc", os.path.abspath("one/src/a.txt"), "-o", "a.out"))


@pytest.mark.parametrize(
    ("text", "keyed"),
    [
        ("/base/x", "\0/x"),
        ("/base", "\0"),
        ("--a=/base/x,/base/y", "--a=\0/x,\0/y"),
        ("/base2/x", "/base2/x"),
        ("/other/base/x", "/other/base/x"),
        ("x/base/y", "x/base/y"),
        ("-I/base/x", "-I\0/x"),
    ],
)
def test_what_stands_for_the_base_folder(text: str, keyed: str) -> None:
    assert PathMap("/base", "/base/build").remove_base(text) == keyed


def test_kept_paths_come_back() -> None:
    one, other = PathMap("/one", "/one/b"), PathMap("/two", "/two/b")
    assert other.to_absolute(one.to_anchored("/one/x/../y")) == "/two/x/../y"
    assert other.to_absolute(one.to_anchored("/onely/y")) == "/onely/y"
    assert other.fill_base(one.template(b"at /one/x: /onely '/one'")) == b"at /two/x: /onely '/two'"
    assert one.template(b"\0/one/x") == b"\0/one/x"


_IREE = os.path.join(os.path.dirname(sys.executable), "iree-compile")


@need(_IREE)
def test_a_command_counts_with_its_distribution(launcher: Launcher) -> None:
    write("a.mlir", "x")
    assert "distribution/iree-base-compiler" in _parts(_IREE, "a.mlir", "-o", "a.vmfb")


def test_another_program_of_that_name_counts_as_it_is(launcher: Launcher, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "iree-compile"
    tool.write_text('#!/bin/sh\necho "$EXTRA" | cat "$1" - > "$3"\n')
    tool.chmod(0o755)
    write("a.mlir", "x")
    for _ in range(2):
        assert launcher.run("iree-compile", "a.mlir", "-o", "a.vmfb").code == 0
    assert launcher.reasons() == ["miss:new-input", "hit"]
    assert Path("a.vmfb").read_text() == "x\n"
