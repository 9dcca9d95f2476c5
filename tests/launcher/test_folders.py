"""The same command in another folder: what it names relatively is what lies there; with the real clang."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.launcher.conftest import FAKECC_ADAPTER, Launcher, write
from tests.needs import need

CLANG = next((name for name in ("clang-19", "clang") if shutil.which(name)), "clang-19")

_USE = "int f(void) { return X; }\n"
_FOUND = '#include "x.h"\n' + _USE

#: What -> flags, files, and a file that is added or changed in another folder: what is compiled is another then.
CASES = {
    "a header beside the source": ("", {"a.c": _FOUND, "x.h": "#define X 1\n"}, "x.h"),
    "a header of a header": (
        "-isystem sys",
        {"a.c": "#include <x.h>\n" + _USE, "sys/x.h": '#include "deep/y.h"\n', "sys/deep/y.h": "#define X 1\n"},
        "sys/deep/y.h",
    ),
    "a header of a header's folder": (
        "-Iinc",
        {"a.c": '#include "include/y.h"\n' + _USE, "include/y.h": '#include "x.h"\n', "inc/x.h": "#define X 1\n"},
        "include/x.h",
    ),
    "a header that is asked for": (
        "-iquote inc",
        {"a.c": '#if __has_include("x.h")\n#include "x.h"\n#else\n#define X 1\n#endif\n' + _USE, "inc/.keep": ""},
        "inc/x.h",
    ),
    "a header that a header asks for": (
        "-Iinc",
        {
            "a.c": '#if __has_include("x.h")\n#include "x.h"\n#endif\n#include <y.h>\n' + _USE,
            "inc/y.h": '#if __has_include("x.h")\n#include "x.h"\n#else\n#define X 1\n#endif\n',
        },
        "inc/x.h",
    ),
    "a response file": ("@flags", {"a.c": _FOUND, "flags": "-Iinc", "inc/x.h": "#define X 1\n"}, "inc/x.h"),
}


def _compile(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, folder: str, *flags: str) -> tuple[str, bytes]:
    """The reason, and the object. Each folder is a checkout."""
    monkeypatch.chdir(launcher.folder / folder)
    monkeypatch.setenv("CACHEC_BASE_DIR", str(launcher.folder / folder))
    ran = launcher.run(CLANG, "-c", "a.c", "-o", "a.o", *flags)
    assert ran.code == 0, ran.stderr
    return launcher.last().reason.value, Path("a.o").read_bytes()


@pytest.mark.parametrize("what", CASES)
@pytest.mark.sampled
def test_another_folder(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    need(CLANG)
    flags, files, edited = CASES[what]
    for folder in ("one", "two", "three"):
        for name, text in files.items():
            write(f"{folder}/{name}", text)
    write(f"three/{edited}", "#define X 3\n")
    reason, made = _compile(launcher, monkeypatch, "one", *flags.split())
    assert reason == "miss:new-input"
    assert _compile(launcher, monkeypatch, "two", *flags.split()) == ("hit", made)
    reason, other = _compile(launcher, monkeypatch, "three", *flags.split())
    assert reason.startswith("miss:")
    assert other != made
    assert _compile(launcher, monkeypatch, "one", *flags.split()) == ("hit", made)
    assert _compile(launcher, monkeypatch, "three", *flags.split()) == ("hit", other)


def test_a_folder_of_the_search_by_two_names(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler leaves out one that it has already, so what is found first depends on what a link leads to."""
    need(CLANG)
    for folder in ("one", "two", "three"):
        write(f"{folder}/a.c", "#include <x.h>\n" + _USE)
        write(f"{folder}/inc/x.h", "#define X 1\n")
        write(f"{folder}/mid/x.h", "#define X 2\n")
        if folder != "three":
            os.symlink("inc", f"{folder}/sys")
    flags = ("-Iinc", "-Imid", "-isystem", "sys")
    made = _compile(launcher, monkeypatch, "one", *flags)[1]
    assert _compile(launcher, monkeypatch, "two", *flags) == ("hit", made)
    reason, other = _compile(launcher, monkeypatch, "three", *flags)
    assert reason == "miss:dependency-changed"
    assert other != made
    assert _compile(launcher, monkeypatch, "one", *flags) == ("hit", made)
    line = (CLANG, "-c", "a.c", "-o", "a.o", *flags)
    assert launcher.direct(*line) is not None
    os.unlink("sys")
    assert launcher.direct(*line) is None
    assert launcher.run(*line).code == 0
    assert (launcher.last().reason.value, Path("a.o").read_bytes()) == ("hit", other)


def test_a_header_by_an_absolute_name_stays_where_it_is(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    need(CLANG)
    for folder, number in (("one", 1), ("two", 2)):
        write(f"{folder}/a.c", _FOUND)
        write(f"{folder}/inc/x.h", f"#define X {number}\n")
    flags = (f"-I{launcher.folder}/one/inc",)
    made = _compile(launcher, monkeypatch, "one", *flags)[1]
    assert _compile(launcher, monkeypatch, "two", *flags)[1] == made
    write("../one/inc/x.h", "#define X 3\n")
    reason, other = _compile(launcher, monkeypatch, "two", *flags)
    assert reason == "miss:dependency-changed"
    assert other != made


def test_a_result_with_the_folder_in_it_stays_there(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    need(CLANG)
    for folder in ("one", "two"):
        write(f"{folder}/a.c", _FOUND)
        write(f"{folder}/x.h", "#define X 1\n")
    for folder in ("one", "two"):
        reason, made = _compile(launcher, monkeypatch, folder, "-g")
        assert reason.startswith("miss:")
        assert os.fsencode(launcher.folder / folder) in made


#: Flags, a source, and whether its object is another in a checkout whose path has another length.
BASED = {
    "size of a file's name": ((), "char f[sizeof(__FILE__)];\n", True),
    "wide name of a file": ((), 'const unsigned short *f = u"" __FILE__;\n', True),
    "size of a definition": (("-DROOT=$P",), "#define S(x) #x\n#define T(x) S(x)\nchar f[sizeof(T(ROOT))];\n", True),
    "mapped name": (("-ffile-prefix-map=$P=.",), "char f[sizeof(__FILE__)];\n", False),
}


@pytest.mark.parametrize("what", BASED)
@pytest.mark.sampled
def test_what_follows_from_the_base_folder(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    need(CLANG)
    flags, text, differs = BASED[what]
    made, reasons = set(), []
    for folder in ("one", "another"):
        base = str(launcher.folder / folder)
        write(f"{base}/a.c", text)
        monkeypatch.setenv("CACHEC_BASE_DIR", base)
        monkeypatch.chdir(base)
        line = (CLANG, "-c", f"{base}/a.c", "-o", "a.o", *(flag.replace("$P", base) for flag in flags))
        assert launcher.run(*line).code == 0
        reasons.append(launcher.last().reason.value)
        made.add(Path("a.o").read_bytes())
    assert (reasons[1], len(made)) == (("miss:dependency-changed", 2) if differs else ("hit", 1))


@pytest.mark.parametrize("name", ["base_dir:x.h", "x y.h"])
def test_names_that_look_like_others(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    need(CLANG)
    for folder, number in (("one", 1), ("two", 1), ("three", 2)):
        write(f"{folder}/a.c", _FOUND.replace("x.h", name))
        write(f"{folder}/{name}", f"#define X {number}\n")
    reasons = [_compile(launcher, monkeypatch, folder)[0] for folder in ("one", "two", "three")]
    assert reasons == ["miss:new-input", "hit", "miss:dependency-changed"]


def test_a_folder_in_the_result_is_told_with_the_flag_that_keeps_it_out(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = 'normalises = { "--map=OLD=NEW" = "folders in names" }\n' + FAKECC_ADAPTER
    launcher.folder.parent.joinpath("fakecc.toml").write_text(adapter)
    for folder in ("one", "two"):
        base = launcher.folder / folder
        write(f"{folder}/a.txt", f"{launcher.folder}/one")
        monkeypatch.chdir(base)
        monkeypatch.setenv("CACHEC_BASE_DIR", str(base))
        monkeypatch.delenv("PWD", raising=False)
        assert launcher.run("fakecc", "a.txt", "-o", "a.out").code == 0
        monkeypatch.chdir(launcher.folder)
    assert launcher.reasons() == ["miss:new-input", "miss:dependency-changed"]
    words = "and its path is in a.out; --map=OLD=NEW keeps out folders in names"
    assert launcher.last().detail == f"folder base_dir is another one, {words}"


#: Flags by which a compiler writes a depfile with absolute names, and that depfile: as CMake has it, and by default.
DEPFILES = {"-MD -MT a.o -MF deps/a.o.d": "deps/a.o.d", "-MD": "a.d", "-MMD -MP -MFa.deps": "a.deps"}


@pytest.mark.parametrize("compiler", ["gcc", CLANG])
@pytest.mark.parametrize("flags", DEPFILES)
def test_a_depfile_names_the_files_of_its_checkout(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, compiler: str, flags: str
) -> None:
    need(compiler)
    for folder, expected in (("one", "miss"), ("second", "hit")):
        base = launcher.folder / folder
        write(f"{base}/a.c", _FOUND)
        write(f"{base}/x.h", "#define X 1\n")
        (base / "deps").mkdir()
        monkeypatch.setenv("CACHEC_BASE_DIR", str(base))
        monkeypatch.chdir(base)
        assert launcher.run(compiler, *flags.split(), "-c", f"{base}/a.c", "-o", "a.o").code == 0
        assert launcher.last().reason.kind == expected, launcher.last()
        text = Path(DEPFILES[flags]).read_text()
        assert f"{base}/a.c" in text
        assert f"{base}/x.h" in text


def test_a_miss_names_the_file_that_holds_the_folder(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    need("gcc")
    for options in ([], ["--relocatable"]):
        for folder in ("one", "two"):
            base = launcher.folder / folder
            write(f"{base}/a.c", "int f;\n")
            monkeypatch.setenv("CACHEC_BASE_DIR", str(base))
            monkeypatch.chdir(base)
            assert launcher.run("gcc", "-g", "-c", "a.c", options=options).code == 0
        assert launcher.last().detail == (
            "folder base_dir is another one, and its path is in a.o; "
            "-ffile-prefix-map=OLD=NEW keeps out folders in debug information and __FILE__"
        )
