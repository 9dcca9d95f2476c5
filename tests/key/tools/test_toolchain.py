"""Tool identity: distributions by their files, executables by everything that they load. On real files."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base.distributions import Distributions
from cachec.base.elf import ElfError, read_dynamic
from cachec.base.hashing import FileDigests
from cachec.errors import UsageError
from cachec.key.tools.elf_dependencies import DEFAULT_CACHE, Loader, read_cache
from cachec.key.tools.executables import Executable, Finder, interpreter_name, which
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Part

GCC = shutil.which("gcc")
needs_gcc = pytest.mark.skipif(GCC is None, reason="gcc is not installed")
IREE = shutil.which("iree-compile", path=str(Path(sys.executable).parent))
needs_iree = pytest.mark.skipif(IREE is None, reason="iree-base-compiler is not installed")

FILES = {
    "comp/__init__.py": b"version = 1\n",
    "comp/core.py": b"def compile(): return 1\n",
    "comp/libcore.so": b"\x00native code",
    "comp/__pycache__/core.cpython-311.pyc": b"bytecode",
}


#: Kinds of scripts that installers make, and what ends the names of ours.
SCRIPTS = {"console_scripts": "", "gui_scripts": "-gui"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wheel(
    site: Path,
    files: dict[str, bytes] = FILES,
    *,
    name: str = "comp",
    version: str = "1.0",
    script: str = "",
    depth: str = "../bin",
) -> Path:
    """Install files as pip does: RECORD last, with hashes and sizes. Everything looks an hour old."""
    folder = site / f"{name}-{version}.dist-info"
    contents = dict(files)
    contents[f"{folder.name}/METADATA"] = f"Name: {name}\nVersion: {version}\n".encode()
    contents[f"{folder.name}/INSTALLER"] = str(site).encode()
    if script:
        points = "".join(f"[{kind}]\n{script}{end} = {name}.core:compile\n" for kind, end in SCRIPTS.items())
        contents[f"{folder.name}/entry_points.txt"] = points.encode()
        for end in SCRIPTS.values():
            contents[f"{depth}/{script}{end}"] = (
                f"#!{sys.executable}\n# made for {site}\nimport sys\n"
                f"from {name}.core import compile\nsys.exit(compile())\n"
            ).encode()
    rows = []
    for path, content in contents.items():
        place = Path(os.path.normpath(site / path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755 if depth in path else 0o644)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},," if path.endswith(".pyc") else f"{path},sha256={digest},{len(content)}")
    rows.append(f"{folder.name}/RECORD,,")
    (folder / "RECORD").write_text("\n".join(rows) + "\n")
    return site


def keys(*sites: Path, clock: Callable[[], float] | None = None) -> ToolKeys:
    dists = Distributions([str(site) for site in sites])
    return ToolKeys(FileDigests(), dists, **({} if clock is None else {"clock": clock}))


def touch_later(path: Path, seconds: float = 3600) -> None:
    when = path.stat().st_mtime + seconds
    os.utime(path, (when, when))


def part(site: Path) -> Part:
    return keys(site).distribution("comp")


# --- distributions: what does not change the part


def test_the_same_wheel_in_two_places_is_the_same_tool(tmp_path: Path) -> None:
    one, two = wheel(tmp_path / "a/site", script="comp-run"), wheel(tmp_path / "b/c/site", script="comp-run")
    assert part(one) == part(two)
    assert part(one).label == "distribution/comp"
    assert part(one).detail == "comp 1.0"


def test_rows_in_another_order_are_the_same_tool(tmp_path: Path) -> None:
    one = wheel(tmp_path / "a")
    assert part(one) == part(wheel(tmp_path / "b", dict(reversed(FILES.items()))))


def test_what_the_installer_generates_does_not_count(tmp_path: Path) -> None:
    site = wheel(tmp_path / "site", script="comp-run")
    before = part(site)
    (site / "comp/__pycache__/core.cpython-311.pyc").write_bytes(b"other bytecode")
    (site / "comp-1.0.dist-info/INSTALLER").write_bytes(b"uv")
    (site / "comp-1.0.dist-info/direct_url.json").write_text("{}")
    (tmp_path / "bin/comp-run").write_text("#!/other/python\nother text\n")
    assert part(site) == before


@pytest.mark.parametrize(
    "name", ["INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s", "uv_cache.json"]
)
def test_what_the_installer_writes_does_not_count(tmp_path: Path, name: str) -> None:
    one, other = (wheel(tmp_path / text, {**FILES, f"comp-1.0.dist-info/{name}": text.encode()}) for text in "ab")
    assert part(one) == part(other)


@pytest.mark.parametrize("name", ["comp-1.0.dist-info/WHEEL", "comp-1.0.dist-info/top_level.txt", "comp/INSTALLER"])
def test_what_is_in_the_wheel_counts(tmp_path: Path, name: str) -> None:
    one, other = (wheel(tmp_path / text, {**FILES, name: text.encode()}) for text in "ab")
    assert part(one) != part(other)


def test_a_file_that_was_touched_and_not_changed_does_not_count(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    before = part(site)
    touch_later(site / "comp/core.py")
    assert part(site) == before


def test_a_file_that_is_not_listed_does_not_count(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    before = part(site)
    (site / "comp/extra.py").write_text("x = 1")
    assert part(site) == before


def test_any_spelling_of_the_name_is_one_part(tmp_path: Path) -> None:
    site = wheel(tmp_path, name="my_comp")
    assert keys(site).distribution("My.Comp") == keys(site).distribution("my-comp")


def test_unchanged_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = wheel(tmp_path)
    read: list[str] = []
    monkeypatch.setattr(FileDigests, "of_installed", lambda _self, path: read.append(str(path)))
    part(site)
    assert read == []


# --- distributions: what changes it


@pytest.mark.parametrize("path", ["comp/core.py", "comp/libcore.so"])
def test_another_size_changes_it_and_is_named(tmp_path: Path, path: str) -> None:
    site = wheel(tmp_path)
    before = part(site)
    (site / path).write_bytes(FILES[path] + b"more")
    after = part(site)
    assert after.digest != before.digest
    assert path in after.detail


def test_the_same_size_and_other_bytes_changes_it(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    before = part(site)
    (site / "comp/core.py").write_bytes(FILES["comp/core.py"].replace(b"1", b"2"))
    touch_later(site / "comp/core.py")
    after = part(site)
    assert after.digest != before.digest
    assert "comp/core.py" in after.detail


def test_the_same_size_and_an_old_mtime_changes_it(tmp_path: Path) -> None:
    """ctime tells: it can't be set back. RECORD is made older than the slack first."""
    site = wheel(tmp_path)
    before = part(site)
    state = os.stat(site / "comp/core.py")
    (site / "comp/core.py").write_bytes(FILES["comp/core.py"].replace(b"1", b"2"))
    os.utime(site / "comp/core.py", ns=(state.st_atime_ns, state.st_mtime_ns))
    from cachec.key.tools import toolchain

    slack, toolchain.INSTALL_SLACK_NS = toolchain.INSTALL_SLACK_NS, 0
    try:
        after = part(site)
    finally:
        toolchain.INSTALL_SLACK_NS = slack
    assert after.digest != before.digest


def test_a_changed_file_put_back_is_the_same_tool_again(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    before = part(site)
    (site / "comp/core.py").write_bytes(b"other")
    assert part(site) != before
    (site / "comp/core.py").write_bytes(FILES["comp/core.py"])
    touch_later(site / "comp/core.py")
    assert part(site) == before


def test_a_missing_file_changes_it_and_is_named(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    before = part(site)
    (site / "comp/core.py").unlink()
    assert part(site).digest != before.digest
    assert "comp/core.py is missing" in part(site).detail


def test_name_version_and_content_of_the_wheel_change_it(tmp_path: Path) -> None:
    digests = {
        part(wheel(tmp_path / "a")).digest,
        part(wheel(tmp_path / "b", version="1.1")).digest,
        part(wheel(tmp_path / "c", {**FILES, "comp/core.py": b"other"})).digest,
        part(wheel(tmp_path / "d", {**FILES, "comp/new.py": b""})).digest,
        keys(wheel(tmp_path / "e", name="comp2")).distribution("comp2").digest,
    }
    assert len(digests) == 5


def test_an_executable_of_the_wheel_in_bin_counts(tmp_path: Path) -> None:
    one = wheel(tmp_path / "a/site", {**FILES, "../bin/comp": b"\x7fELF one"})
    two = wheel(tmp_path / "b/lib/site", {**FILES, "../../bin/comp": b"\x7fELF one"})
    other = wheel(tmp_path / "c/site", {**FILES, "../bin/comp": b"\x7fELF two"})
    assert part(one) == part(two)
    assert part(one).digest != part(other).digest


def test_a_script_of_the_wheel_counts_without_its_first_line(tmp_path: Path) -> None:
    one = wheel(tmp_path / "a/site", {**FILES, "../bin/comp": b"#!/a/python\nrun()\n"})
    two = wheel(tmp_path / "b/site", {**FILES, "../bin/comp": b"#!/b/c/python3\nrun()\n"})
    other = wheel(tmp_path / "c/site", {**FILES, "../bin/comp": b"#!/a/python\nwalk()\n"})
    assert part(one) == part(two)
    assert part(one).digest != part(other).digest


# --- distributions: when it is looked at, and what is refused


def test_files_are_looked_at_again_after_a_second(tmp_path: Path) -> None:
    site, clock = wheel(tmp_path), Clock()
    toolchain = keys(site, clock=clock)
    before = toolchain.distribution("comp")
    (site / "comp/core.py").write_bytes(b"other")
    assert toolchain.distribution("comp") == before
    assert toolchain.distribution("comp", fresh=True) != before
    (site / "comp/core.py").write_bytes(b"another one")
    clock.now += 1.0
    assert "core.py" in toolchain.distribution("comp").detail


def test_a_new_install_is_noticed_at_once(tmp_path: Path) -> None:
    site, clock = wheel(tmp_path), Clock()
    toolchain = keys(site, clock=clock)
    before = toolchain.distribution("comp")
    shutil.rmtree(site / "comp-1.0.dist-info")
    wheel(site, {**FILES, "comp/core.py": b"other"})
    assert toolchain.distribution("comp") != before
    shutil.rmtree(site / "comp-1.0.dist-info")
    with pytest.raises(UsageError, match="'comp' is not an installed distribution"):
        toolchain.distribution("comp")


def test_what_is_not_installed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-tool"):
        keys(tmp_path).distribution("no-such-tool")


def test_an_editable_install_is_refused(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    (site / "comp-1.0.dist-info/direct_url.json").write_text('{"dir_info": {"editable": true}}')
    with pytest.raises(UsageError, match="editable"):
        part(site)


def test_an_install_without_record_is_refused(tmp_path: Path) -> None:
    site = wheel(tmp_path)
    (site / "comp-1.0.dist-info/RECORD").unlink()
    with pytest.raises(UsageError, match="without a RECORD"):
        part(site)


def test_the_sha256_of_a_doubtful_file_is_remembered_by_content(tmp_path: Path) -> None:
    rows: dict[str, bytes] = {}

    class Memory:
        def recall(self, name: str) -> bytes | None:
            return rows.get(name)

        def remember(self, name: str, value: bytes) -> None:
            rows[name] = value

    site = wheel(tmp_path)
    before = part(site)
    touch_later(site / "comp/core.py")
    dists = Distributions([str(site)])
    assert ToolKeys(FileDigests(Memory()), dists).distribution("comp") == before
    kept = [value for name, value in rows.items() if name.startswith("sha256:")]
    wanted = base64.urlsafe_b64encode(hashlib.sha256(FILES["comp/core.py"]).digest()).rstrip(b"=")
    assert kept == [wanted]
    assert ToolKeys(FileDigests(Memory()), dists).distribution("comp") == before
    rows |= {name: b"\xff" for name in rows if name.startswith("sha256:")}  # damage makes nothing of it equal
    assert ToolKeys(FileDigests(Memory()), dists).distribution("comp") != before


def test_a_real_distribution() -> None:
    toolchain = ToolKeys(FileDigests(), Distributions())
    found = toolchain.distribution("msgspec")
    assert found.label == "distribution/msgspec"
    assert found.detail.startswith("msgspec 0.")
    assert toolchain.distribution("msgspec", fresh=True) == found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_plain_user_remembers_the_files_of_root() -> None:
    """No lease is granted on another owner's file, so ``of_path`` hashes it each time; ``of_installed`` need not."""
    open_to_all = Path(tempfile.mkdtemp())
    open_to_all.chmod(0o755)
    for name, mode in (("library", 0o644), ("writable", 0o666)):
        (open_to_all / name).write_bytes(b"x")
        (open_to_all / name).chmod(mode)
    code = f"""
import encodings.unicode_escape, os, signal
from cachec.base import fsio, hashing
fsio.is_settled = lambda *_: True
os.setegid(65534)
os.seteuid(65534)
def is_kept(ask, name):
    digests = hashing.FileDigests()
    getattr(digests, ask)("{open_to_all}/" + name)
    return bool(digests._known)
print(is_kept("of_path", "library"), is_kept("of_installed", "library"), is_kept("of_installed", "writable"))
"""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    finally:
        shutil.rmtree(open_to_all)
    assert done.stdout.split() == ["False", "True", "False"]


# --- ELF


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A stub executable next to the library that does the work, as pip's iree-compile is, and a library of that."""
    tree = tmp_path / "tree"
    tree.mkdir()
    build(tree, "libdeep.so", "int deep(void) { return 1; }")
    build(tree, "libwork.so", "int deep(void); int work(void) { return deep(); }", "-ldeep")
    build(tree, "stub", "int work(void); int main(void) { return work() - 1; }", "-lwork", "-Wl,-rpath-link,.")
    return tree


def build(tree: Path, name: str, source: str, *flags: str, rpath: str = "-Wl,-rpath,$ORIGIN") -> None:
    shared = ["-shared", "-fPIC"] if ".so" in name else []
    command = ["gcc", "-x", "c", "-", "-o", name, *shared, "-L.", rpath, "-Wl,--no-as-needed", "-x", "none", *flags]
    subprocess.run(command, input=source.encode(), cwd=tree, check=True)


def executable(path: Path | str, **environ: str) -> Part:
    toolchain = ToolKeys(FileDigests(), Distributions([]))
    return toolchain.executable(path, {"PATH": os.environ["PATH"], **environ})


@needs_gcc
def test_the_closure_is_what_the_loader_says(built: Path) -> None:
    for path in (built / "stub", Path(GCC or ""), Path(sys.executable)):
        said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        expected = {line.split()[0].rpartition("/")[2] for line in said.splitlines()} - {"linux-vdso.so.1"}
        places = {os.path.realpath(line.split("=> ")[1].split(" (")[0]) for line in said.splitlines() if "=> /" in line}
        closure = Loader().closure(str(path), {})
        assert {library.name for library in closure.libraries} == expected
        assert places <= {os.path.realpath(library.path) for library in closure.libraries}
        assert closure.missing == ()


@needs_gcc
@pytest.mark.parametrize("name", ["stub", "libwork.so", "libdeep.so"])
def test_every_loaded_file_changes_the_part_and_is_named(built: Path, name: str) -> None:
    before = executable(built / "stub")
    with open(built / name, "ab") as file:
        file.write(b"\0")
    after = executable(built / "stub")
    assert after.digest != before.digest
    changed = set(after.detail.split(", ")) - set(before.detail.split(", "))
    assert [text.split()[0].rpartition("/")[2] for text in changed] == [name]


@needs_gcc
def test_the_same_tree_elsewhere_is_the_same_tool(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "place"
    shutil.copytree(built, other)
    assert executable(built / "stub") == executable(other / "stub")


@needs_gcc
def test_files_that_are_not_loaded_do_not_count(built: Path) -> None:
    before = executable(built / "stub")
    build(built, "libother.so", "int other;")
    assert executable(built / "stub") == before


@needs_gcc
def test_one_object_notices_a_change_of_a_library(built: Path) -> None:
    toolchain = ToolKeys(FileDigests(), Distributions([]))
    before = toolchain.executable(built / "stub", {})
    assert toolchain.executable(built / "stub", {}) == before
    build(built, "libdeep.so", "int deep(void) { return 2; }")
    assert toolchain.executable(built / "stub", {}) != before


@needs_gcc
def test_a_settled_executable_costs_only_stats(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    toolchain = ToolKeys(FileDigests(), Distributions([]), clock=clock)
    monkeypatch.setattr("cachec.key.tools.toolchain.fsio.is_settled", lambda *_: True)
    before = toolchain.executable(built / "stub", {})

    def refuse(*_: object) -> None:
        raise AssertionError("looked at the files again")

    monkeypatch.setattr(FileDigests, "of_installed", refuse)
    monkeypatch.setattr(Finder, "program", refuse)
    assert toolchain.executable(built / "stub", {}) == before
    clock.now += 1.0
    with pytest.raises(AssertionError):
        toolchain.executable(built / "stub", {})


@needs_gcc
def test_what_was_looked_up_is_gone_by_once(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = ToolKeys(FileDigests(), Distributions([]))
    monkeypatch.setattr("cachec.key.tools.toolchain.fsio.is_settled", lambda *_: False)
    looked: list[str] = []
    look = Finder.program

    def counted(finder: Finder, command: str, environ: dict[str, str]) -> Executable:
        looked.append(command)
        return look(finder, command, environ)

    monkeypatch.setattr(Finder, "program", counted)
    stub = str(built / "stub")
    program = toolchain.program(stub, {})
    assert toolchain.executable(stub, {}) == ToolKeys(FileDigests(), Distributions([])).executable(stub, {})
    assert (program.path, len(looked)) == (stub, 2)  # of which the second is the other's
    for number, (environ, fresh) in enumerate([({}, False), ({}, True), ({"LD_LIBRARY_PATH": "/"}, False)], 3):
        toolchain.executable(stub, environ, fresh=fresh)
        assert len(looked) == number
    toolchain.program(stub, {})
    toolchain.executable(stub, {"PATH": "/"})
    toolchain.executable(stub, {}, fresh=True)
    assert len(looked) == 8  # another environment, and whoever wants it anew, are not answered by it


@needs_gcc
def test_library_path_chooses_the_library(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "libs"
    other.mkdir()
    build(other, "libdeep.so", "int deep(void) { return 9; }")
    before = executable(built / "stub")
    after = executable(built / "stub", LD_LIBRARY_PATH=str(other))
    assert after.digest != before.digest  # a RUNPATH is searched after LD_LIBRARY_PATH
    assert executable(built / "stub", LD_LIBRARY_PATH=str(tmp_path / "empty")) == before


@needs_gcc
def test_an_rpath_is_searched_before_the_library_path_and_for_what_libraries_need(tmp_path: Path) -> None:
    main, libs, other = tmp_path / "main", tmp_path / "main/libs", tmp_path / "other"
    for folder in (main, libs, other):
        folder.mkdir()
    build(libs, "libdeep.so", "int deep(void) { return 1; }")
    build(libs, "libwork.so", "int deep(void); int work(void) { return deep(); }", "-ldeep", rpath="-Wl,-O1")
    build(other, "libdeep.so", "int deep(void) { return 2; }")
    flags = ("-Llibs", "-lwork", "-Wl,-rpath-link,libs", "-Wl,--disable-new-dtags")
    build(main, "stub", "int work(void); int main(void) { return 0; }", *flags, rpath="-Wl,-rpath,$ORIGIN/libs")
    elf = read_dynamic(main / "stub")
    assert elf.rpath == ("$ORIGIN/libs",)
    closure = Loader().closure(str(main / "stub"), {"LD_LIBRARY_PATH": str(other)})
    assert {lib.name: lib.path for lib in closure.libraries}["libdeep.so"] == str(libs / "libdeep.so")
    said = subprocess.run(["ldd", main / "stub"], capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(other)})
    assert str(libs / "libdeep.so") in said.stdout


@needs_gcc
def test_a_preloaded_library_counts(built: Path, tmp_path: Path) -> None:
    build(tmp_path, "libpre.so", "int pre;")
    preloaded = executable(built / "stub", LD_PRELOAD=str(tmp_path / "libpre.so"))
    assert preloaded.digest != executable(built / "stub").digest
    assert "libpre.so" in preloaded.detail


@needs_gcc
def test_every_processor_variant_of_a_library_counts(built: Path) -> None:
    before = executable(built / "stub")
    variant = built / "glibc-hwcaps" / "x86-64-v9"
    variant.mkdir(parents=True)
    build(variant, "libdeep.so", "int deep(void) { return 3; }")
    after = executable(built / "stub")
    assert after.digest != before.digest
    assert "glibc-hwcaps/x86-64-v9/libdeep.so" in after.detail


@needs_gcc
def test_a_missing_library_is_named_and_its_arrival_counts(built: Path) -> None:
    (built / "libdeep.so").rename(built / "hidden")
    before = executable(built / "stub")
    assert "stub needs libdeep.so, which was not found" in before.detail
    (built / "hidden").rename(built / "libdeep.so")
    assert executable(built / "stub").digest != before.digest


@needs_gcc
def test_a_library_of_another_machine_is_passed_over(built: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    data = bytearray((built / "libdeep.so").read_bytes())
    struct.pack_into("<H", data, 18, 183)  # e_machine: AArch64
    (foreign / "libdeep.so").write_bytes(data)
    assert executable(built / "stub", LD_LIBRARY_PATH=str(foreign)) == executable(built / "stub")


@needs_gcc
def test_a_static_executable_is_its_content(tmp_path: Path) -> None:
    build(tmp_path, "alone", "int main(void) { return 0; }", "-static")
    assert executable(tmp_path / "alone").detail.count(",") == 0


@needs_gcc
def test_a_32_bit_executable_counts_by_content_and_says_so(built: Path) -> None:
    data = bytearray((built / "stub").read_bytes())
    data[4] = 1
    (built / "stub").write_bytes(data)
    before = executable(built / "stub")
    assert "only its content counts" in before.detail
    (built / "stub").write_bytes(bytes(data) + b"\0")
    assert executable(built / "stub").digest != before.digest


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"#!/bin/sh", "/bin/sh"),
        (b"#! /bin/sh -e\nrest", "/bin/sh"),
        (b"#!/usr/bin/env python3\n", "python3"),
        (b"#!/usr/bin/env -S A=1 python3 -u\n", "python3"),
        (b"#!/usr/bin/env -i\n", ""),
        (b"#!\n", ""),
        (b'#!/bin/sh\n\'\'\'exec\' "/a b/python" "$0" "$@"', "/a b/python"),
        (b"#!/bin/sh\n'''exec' /a/python \"$0\" \"$@\"\n' '''\nimport re\n", "/a/python"),
        (b"#!/bin/sh\necho '''exec' /a/python\n", "/bin/sh"),
    ],
)
def test_the_interpreter_that_a_script_names(head: bytes, name: str) -> None:
    assert interpreter_name(head) == name


@needs_gcc
def test_where_a_library_is_looked_for_that_is_nowhere(tmp_path: Path) -> None:
    build(tmp_path, "libgone.so", "int gone(void) { return 1; }")
    build(tmp_path, "stub", "int gone(void); int main(void) { return gone(); }", "-L.", "-lgone", rpath="")
    (tmp_path / "libgone.so").unlink()
    closure = Loader().closure(str(tmp_path / "stub"), {})
    assert closure.missing == ("libgone.so",)
    folders = [f"/{folder}{os.uname().machine}-linux-gnu" for folder in ("lib/", "usr/lib/")]
    assert {*folders, "/lib64", "/usr/lib64", "/lib", "/usr/lib"} <= set(closure.searched)


@needs_gcc
def test_an_interpreter_that_is_missing_and_comes(tmp_path: Path) -> None:
    interpreter = tmp_path / "ld.so"
    build(tmp_path, "stub", "int main(void) { return 0; }", f"-Wl,--dynamic-linker={interpreter}")
    assert read_dynamic(tmp_path / "stub").interpreter == str(interpreter)
    closure = Loader().closure(str(tmp_path / "stub"), {})
    assert "ld.so" in closure.missing
    assert str(tmp_path) in closure.searched
    before = executable(tmp_path / "stub")
    assert "needs ld.so, which was not found" in before.detail
    for content in (b"one", b"two"):
        interpreter.write_bytes(content)
        after = executable(tmp_path / "stub")
        assert after.digest != before.digest
        assert "not found" not in after.detail
        before = after


@needs_gcc
def test_a_damaged_elf_is_an_elf_error_at_every_cut(built: Path) -> None:
    data = (built / "libdeep.so").read_bytes()
    whole = read_dynamic(built / "libdeep.so")
    cut = built / "cut"
    refused = read = 0
    for length in range(0, len(data), 97):
        cut.write_bytes(data[:length])
        try:
            found = read_dynamic(cut)
        except ElfError as error:
            refused += str(cut) in str(error)
        else:
            assert found == whole  # all tables lie before the cut
            read += 1
    assert refused + read == len(range(0, len(data), 97))
    assert refused > 10


def test_the_library_cache_agrees_with_ldconfig() -> None:
    ldconfig = shutil.which("ldconfig", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    if ldconfig is None or not os.path.exists(DEFAULT_CACHE):
        pytest.skip("no ldconfig or no library cache")
    said = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    expected = [line.split(" => ")[1] for line in said.splitlines() if " => " in line]
    found = read_cache(Path(DEFAULT_CACHE).read_bytes())
    assert sorted(path for paths in found.values() for path in paths) == sorted(expected)


def test_a_damaged_library_cache_is_refused() -> None:
    data = Path(DEFAULT_CACHE).read_bytes() if os.path.exists(DEFAULT_CACHE) else b""
    if not data:
        pytest.skip("no library cache")
    with pytest.raises(ElfError, match="glibc-ld"):
        read_cache(b"ld.so-1.7.0" + bytes(100))
    for length in range(20, len(data) - 400, 997):
        with pytest.raises(ElfError):
            read_cache(data[:length])
    assert read_cache(b"ld.so-1.7.0" + bytes(21) + data) == read_cache(data)


# --- scripts


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_shell_script_counts_with_its_interpreter(tmp_path: Path) -> None:
    one = executable(script(tmp_path / "a/tool", "#!/bin/sh\necho 1\n"))
    assert one == executable(script(tmp_path / "b/tool", "#!/bin/sh\necho 1\n"))
    assert one.digest != executable(script(tmp_path / "c/tool", "#!/bin/sh\necho 2\n")).digest
    assert "interpreter of tool/libc.so" in one.detail
    assert "not known" in one.detail


def test_the_interpreter_is_looked_up_through_env(tmp_path: Path) -> None:
    script(tmp_path / "x/lang", "#!/bin/sh\n:\n")
    script(tmp_path / "y/lang", "#!/bin/sh\n: other\n")
    tool = script(tmp_path / "tool", "#!/usr/bin/env -S lang -u\n")
    one = executable(tool, PATH=f"{tmp_path}/x:/bin")
    assert one == executable(tool, PATH=f"{tmp_path}/none:{tmp_path}/x:/bin")
    assert one.digest != executable(tool, PATH=f"{tmp_path}/y:/bin").digest
    assert "'lang' of tool was not found" in executable(tool, PATH="/bin").detail


def test_a_name_is_looked_up_in_path(tmp_path: Path) -> None:
    script(tmp_path / "a/tool", "#!/bin/sh\n:\n")
    plain = tmp_path / "b/tool"
    plain.parent.mkdir()
    plain.write_text("not executable")
    environ = {"PATH": f"{tmp_path}/b:{tmp_path}/a"}
    assert which("tool", environ) == str(tmp_path / "a/tool")
    assert which("tool", {"PATH": str(tmp_path / "b")}) is None
    with pytest.raises(UsageError, match="'tool' is not in PATH"):
        executable("tool", PATH=str(tmp_path / "b"))
    with pytest.raises(UsageError, match="not an executable file"):
        executable(tmp_path / "b/tool")


def test_the_name_that_it_is_called_by_counts(tmp_path: Path) -> None:
    tool = script(tmp_path / "clang", "#!/bin/sh\n:\n")
    (tmp_path / "clang++").symlink_to(tool)
    assert executable(tmp_path / "clang").digest != executable(tmp_path / "clang++").digest


def test_a_console_script_is_its_distribution(tmp_path: Path) -> None:
    site = wheel(tmp_path / "a/site", script="comp-run")
    other = wheel(tmp_path / "b/site", script="comp-run")
    toolchain, place = keys(site), tmp_path / "a/bin/comp-run"
    before = toolchain.executable(place)
    assert "comp 1.0" in before.detail
    assert before == keys(other).executable(tmp_path / "b/bin/comp-run")
    (site / "comp/libcore.so").write_bytes(b"other native code")
    after = keys(site).executable(place)
    assert after.digest != before.digest
    assert "comp/libcore.so" in after.detail


def test_an_edited_console_script_counts(tmp_path: Path) -> None:
    site = wheel(tmp_path / "site", script="comp-run")
    place = tmp_path / "bin/comp-run"
    before = keys(site).executable(place)
    place.write_text(place.read_text() + "# edited\n")
    after = keys(site).executable(place)
    assert after.digest != before.digest
    assert "script" in after.detail


@needs_gcc
def test_the_stub_of_the_same_name_in_the_distribution_is_resolved(built: Path, tmp_path: Path) -> None:
    """The layout of pip's iree-compile: script -> stub -> library, all but the C library in one wheel."""
    files = {f"comp/{name}": (built / name).read_bytes() for name in ("libwork.so", "libdeep.so")}
    files["comp/comp-run"] = (built / "stub").read_bytes()
    site = wheel(tmp_path / "site", files, script="comp-run")
    (site / "comp/comp-run").chmod(0o755)
    place = tmp_path / "bin/comp-run"
    before = keys(site).executable(place)
    assert "helper/comp/comp-run/libc.so.6" in before.detail
    (site / "comp/libdeep.so").write_bytes(files["comp/libdeep.so"] + b"\0")
    after = keys(site).executable(place)
    assert after.digest != before.digest
    assert "comp/libdeep.so" in after.detail


@needs_gcc
def test_an_elf_of_a_wheel_counts_with_the_files_it_may_open_later(built: Path, tmp_path: Path) -> None:
    files = {f"comp/{name}": (built / name).read_bytes() for name in ("stub", "libwork.so", "libdeep.so")}
    site = wheel(tmp_path / "site", {**files, "comp/plugin.so": b"opened with dlopen"})
    (site / "comp/stub").chmod(0o755)
    before = keys(site).executable(site / "comp/stub")
    (site / "comp/plugin.so").write_bytes(b"another plugin, opened with dlopen")
    after = keys(site).executable(site / "comp/stub")
    assert after.digest != before.digest
    assert "comp/plugin.so" in after.detail


@needs_iree
def test_the_real_iree_compile_is_its_distribution_and_system_libraries() -> None:
    toolchain = ToolKeys(FileDigests(), Distributions())
    found = toolchain.executable(str(IREE))
    assert "iree-base-compiler 3." in found.detail
    assert "helper/iree/compiler/_mlir_libs/iree-compile/libstdc++.so.6" in found.detail
    assert "interpreter" in found.detail


@needs_iree
def test_the_real_stub_with_another_compiler_library_is_another_tool(tmp_path: Path) -> None:
    found = Distributions().find("iree-base-compiler")
    assert found is not None
    libs = Path(found.root) / "iree/compiler/_mlir_libs"
    shutil.copy(libs / "iree-compile", tmp_path / "iree-compile")
    (tmp_path / "libIREECompiler.so").symlink_to(libs / "libIREECompiler.so")
    closure = Loader().closure(str(tmp_path / "iree-compile"), {})
    assert ("libIREECompiler.so", str(tmp_path / "libIREECompiler.so")) in closure.libraries
    before = executable(tmp_path / "iree-compile")
    assert before == executable(libs / "iree-compile")
    (tmp_path / "libIREECompiler.so").unlink()
    shutil.copy(libs / "libIREECompiler.so", tmp_path / "libIREECompiler.so")
    with (tmp_path / "libIREECompiler.so").open("ab") as file:
        file.write(b"another build")
    after = executable(tmp_path / "iree-compile")
    assert after.digest != before.digest
    changed = set(after.detail.split(", ")) - set(before.detail.split(", "))
    assert {text.split()[0] for text in changed} == {"iree-compile/libIREECompiler.so"}
