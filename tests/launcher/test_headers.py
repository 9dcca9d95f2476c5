"""What a compiler includes counts, and what it would include instead; with the real clang."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cachec.launcher.headers import DepfileError, Included, plain, read_depfile
from cachec.model import Reason
from tests.launcher.conftest import FAKECC_ADAPTER, Launcher, need, wait_for_clock, write

CLANG = next((name for name in ("clang-19", "clang") if shutil.which(name)), "clang-19")


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (b"a.o: a.c b.h\n", ["a.c", "b.h"]),
        (b"a.o: a.c \\\n  b.h \\\n  c.h\n", ["a.c", "b.h", "c.h"]),
        (b"a.o: a.c b.h b.h\n\nb.h:\n", ["a.c", "b.h"]),
        (b"a\\ b.o: a\\ b.c x\\#y.h d$$r.h\n", ["a b.c", "x#y.h", "d$r.h"]),
        (b"c:/x.o: w\\v.c\n", ["w\\v.c"]),
        (b"a.o:\n", []),
    ],
)
def test_depfiles(text: bytes, files: list[str]) -> None:
    assert read_depfile(text) == files


@pytest.mark.parametrize("text", [b"", b"a.c b.h\n", b"\0\1\2"])
def test_what_is_no_depfile(text: bytes) -> None:
    with pytest.raises(DepfileError, match="no rule"):
        read_depfile(text)


def test_candidates(tmp_path: Path) -> None:
    for name in ("src/a.c", "one/.keep", "two/lib/x.h", "two/y.h", "sys/include/std.h", "sys/include/bits/t.h"):
        write(str(tmp_path / name), "")
    place = lambda name: str(tmp_path / name)  # noqa: E731
    files = [place("src/a.c"), place("two/lib/x.h"), place("two/y.h"), place("sys/include/bits/t.h")]
    found = set(Included(files, [place("one"), place("two")], [place("sys/include")]).candidates())
    assert {path for path in found if path.startswith(str(tmp_path))} == {
        place(name)
        for name in (
            *("src/lib", "one/lib", "src/y.h", "one/y.h", "two/lib/y.h"),
            *("src/bits", "one/bits", "two/bits", "two/lib/bits", "src/t.h", "one/t.h", "two/t.h", "two/lib/t.h"),
            "two/lib/lib",
        )
    }
    assert {"/usr/include/lib", "/usr/include/y.h"} <= found


def test_candidates_by_relative_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.c", "one/.keep", "two/x.h", "include/z.h", "top.h"):
        write(name, "")
    found = {*Included(["a.c", "two/x.h", "include/z.h", "top.h"], ["one", "", "two"], []).candidates()}
    assert {path for path in found if not path.startswith("/")} == {
        *("x.h", "one/x.h", "include/x.h", "two/two", "one/two", "include/two"),
        *("two/include", "one/include", "include/include", "one/top.h", "two/top.h", "include/top.h"),
    }


@pytest.mark.parametrize(
    ("path", "found"),
    [("./a", "a"), (".//a/./b//c/", "a/b/c"), (".", ""), ("", ""), ("/", "/"), ("//a/.", "/a"), ("../a", "../a")],
)
def test_plain_paths(path: str, found: str) -> None:
    assert plain(path) == found


def test_a_compiler_that_names_nothing_that_it_included(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "fakecc.toml").write_text('includes = [".c"]' + FAKECC_ADAPTER)
    write("a.c", "int a;\n")
    ran = launcher.run("fakecc", "a.c", "-o", "a.o")
    assert ran.code == 0
    assert os.path.exists("a.o")
    assert launcher.last().reason is Reason.UNDESCRIBED
    assert "did not name what it included" in launcher.last().detail


def test_has_include(tmp_path: Path) -> None:
    text = b'#if __has_include("b.h") || __has_include( <c/d.h> )\n#endif\n'
    files = {str(tmp_path / "a.h"): text, str(tmp_path / "deep/e.h"): b""}
    places, untold = Included([*files], ["/inc"], []).looked_for(files)
    assert not untold
    assert {path for path in places if not path.startswith("/usr")} == {
        *(str(tmp_path / name) for name in ("b.h", "c/d.h", "deep/b.h", "deep/c/d.h")),
        *("/inc/b.h", "/inc/c/d.h"),
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('#define HAS(x) __has_include(x)\n#if HAS("b.h")\n#endif\n', {"b.h"}),
        ("#define HAS __has_include\n#define MINE(x) HAS(x)\n#if MINE( <b.h>)\n#endif\n", {"b.h"}),
        ('#define HAS_B __has_include("b.h")\n#if HAS_B\n#endif\n', {"b.h"}),
        ("#ifdef __has_include\n#if defined(__has_include) && defined __has_include\n#endif\n#endif\n", set()),
        ("#ifndef __has_include\n#define __has_include(x) 0\n#endif\n", set()),
        ("// asks by __has_include\n/* or by\n * __has_include(X) */\n", set()),
        ("int a; // asks\nint b; /* by __has_include(X) */\n", set()),
        ('char q = \'"\', *s = "/*";\n#if __has_include("b.h")\n#endif\n/* end */\n', {"b.h"}),
        ('s = R"(\n/*\n)";\n#if __has_include("b.h")\n#endif\n/* end */\n', {"b.h"}),
        ("#if __has_include(X)\n#endif\n", None),
        ("#define HAS(x) __has_include(x)\n#if HAS(X)\n#endif\n", None),
        ("%: define HAS(x) __has_include(x)\n#define X_IS_THERE HAS(X)\n#if X_IS_THERE\n#endif\n", None),
    ],
)
def test_what_macros_ask_for(text: str, names: set[str] | None) -> None:
    places, untold = Included(["a.c"], [], []).looked_for({"a.c": text.encode()})
    assert untold == ("a.c" if names is None else "")
    assert {path for path in places if "/" not in path} == (names or set())


_SOURCE = '#include <stddef.h>\n#include "my.h"\nint f(void) { return VALUE; }\n'


@pytest.fixture
def project(launcher: Launcher) -> Launcher:
    """A source whose header is in the second of two include folders, compiled once."""
    write("a.c", _SOURCE)
    write("two/my.h", "#define VALUE 1\n")
    os.mkdir("one")
    assert _compile(launcher) == "miss:new-input"
    assert _compile(launcher) == "hit"
    return launcher


def _compile(launcher: Launcher, *more: str) -> str:
    wait_for_clock()
    assert launcher.run(CLANG, "-c", "a.c", "-o", "a.o", "-Ione", "-Itwo", *more).code == 0
    return launcher.last().reason.value


def _direct(launcher: Launcher) -> bool:
    return launcher.direct(CLANG, "-c", "a.c", "-o", "a.o", "-Ione", "-Itwo") is not None


@need(CLANG)
class TestClang:
    def test_what_is_compiled_is_what_a_hit_gives(self, project: Launcher) -> None:
        made = Path("a.o").read_bytes()
        os.unlink("a.o")
        assert _direct(project)
        assert Path("a.o").read_bytes() == made
        os.unlink("a.o")
        assert _compile(project) == "hit"
        assert Path("a.o").read_bytes() == made

    def test_a_changed_header(self, project: Launcher) -> None:
        write("two/my.h", "#define VALUE 2\n")
        assert not _direct(project)
        assert _compile(project) == "miss:dependency-changed"
        assert "my.h has other content" in project.last().detail
        write("two/my.h", "#define VALUE 1\n")
        assert _compile(project) == "hit"

    def test_a_header_added_earlier_on_the_include_path(self, project: Launcher) -> None:
        made = Path("a.o").read_bytes()
        write("one/my.h", "#define VALUE 7\n")
        assert not _direct(project)
        assert _compile(project) == "miss:dependency-changed"
        assert "one/my.h is there now" in project.last().detail
        assert Path("a.o").read_bytes() != made
        os.unlink("one/my.h")
        assert _compile(project) == "hit"
        assert Path("a.o").read_bytes() == made

    def test_a_header_added_beside_the_source_or_over_a_system_one(self, project: Launcher) -> None:
        for place in ("my.h", "one/stddef.h"):
            write(place, "#define VALUE 3\ntypedef int fake;\n")
            assert not _direct(project)
            assert _compile(project) == "miss:dependency-changed"
            os.unlink(place)

    def test_other_files_in_the_folders_do_not_matter(self, project: Launcher) -> None:
        for place in ("one/other.h", "two/unused.h", "unused.c"):
            write(place, "")
        assert _direct(project)
        assert _compile(project) == "hit"

    def test_a_header_that_is_asked_for_and_appears(self, launcher: Launcher) -> None:
        write("a.c", '#if __has_include("opt.h")\nint with;\n#else\nint without;\n#endif\n')
        os.mkdir("one")
        os.mkdir("two")
        assert _compile(launcher) == "miss:new-input"
        assert _compile(launcher) == "hit"
        write("two/opt.h", "")
        assert _compile(launcher) == "miss:dependency-changed"

    @pytest.mark.long
    def test_a_depfile_is_written_by_a_hit_too(self, project: Launcher) -> None:
        for flags in (["-MD", "-MF", "a.d"], ["-MMD", "-MF", "a.d", "-MT", "target"], ["-MD"]):
            assert _compile(project, *flags).startswith("miss:")
            wanted = Path("a.d").read_bytes()
            for name in ("a.d", "a.o"):
                os.unlink(name)
            assert _compile(project, *flags) == "hit"
            assert Path("a.d").read_bytes() == wanted
            assert b"my.h" in wanted

    def test_system_headers_count_although_the_depfile_leaves_them_out(self, launcher: Launcher) -> None:
        write("sys/s.h", "#define VALUE 1\n")
        write("a.c", "#include <s.h>\nint f(void) { return VALUE; }\n")
        os.mkdir("one")
        os.mkdir("two")
        flags = ("-isystem", "sys", "-MMD", "-MF", "a.d")
        assert _compile(launcher, *flags) == "miss:new-input"
        assert b"s.h" not in Path("a.d").read_bytes()
        write("sys/s.h", "#define VALUE 2\n")
        assert _compile(launcher, *flags) == "miss:dependency-changed"

    @pytest.mark.parametrize("word", ["__TIME__", "__DATE__", "__TIMESTAMP__"])
    @pytest.mark.sampled
    def test_a_source_or_header_with_the_time_in_it(
        self, project: Launcher, monkeypatch: pytest.MonkeyPatch, word: str
    ) -> None:
        write("two/my.h", f"#define VALUE sizeof({word})\n")
        for _ in range(2):
            assert _compile(project) == "bypass:volatile-input"
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
        _compile(project)
        assert _compile(project) == "hit"

    def test_debug_information_is_bound_to_its_folder(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in ("x", "y"):
            write(f"{folder}/a.c", "int f(void) { return 1; }\n")
            for name in ("one", "two"):
                os.mkdir(f"{folder}/{name}")
        reasons = []
        for flags in ((), ("-g",)):
            for folder in ("x", "y", "x"):
                monkeypatch.chdir(launcher.folder / folder)
                reasons.append(_compile(launcher, *flags))
        assert [reason == "hit" for reason in reasons] == [False, True, True, False, False, True]

    def test_a_failing_compile_says_what_the_compiler_says(self, launcher: Launcher) -> None:
        write("a.c", "int f(\n")
        wait_for_clock()
        ran = launcher.run(CLANG, "-c", "a.c", "-o", "a.o")
        assert ran.code == 1
        assert "a.c:1:" in ran.stderr
        assert not Path("a.o").exists()

    def test_warnings_come_again(self, launcher: Launcher) -> None:
        write("a.c", "int f(void) { }\n")
        wait_for_clock()
        first = launcher.run(CLANG, "-c", "a.c", "-o", "a.o", "-Wall")
        wait_for_clock()
        second = launcher.run(CLANG, "-c", "a.c", "-o", "a.o", "-Wall")
        assert "warning: non-void function" in first.stderr
        assert second == first

    def test_a_precompiled_header_that_would_be_taken_instead(self, launcher: Launcher) -> None:
        write("a.c", "int f(void) { return VALUE; }\n")
        write("pre.h", "#define VALUE 1\n")
        line = (CLANG, "-c", "a.c", "-o", "a.o", "-include", "pre.h")
        assert launcher.run(*line).code == 0
        assert launcher.run(*line).code == 0
        assert launcher.last().hit
        write("pre.h.gch", "")
        assert launcher.direct(*line) is None
        launcher.run(*line)
        assert launcher.last().reason.value == "bypass:not-understood"

    def test_prefix_maps_share_debug_information(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        reasons = []
        for name in ("x", "y"):
            write(f"{name}/a.c", "int f(void) { return 1; }\n")
            folder = os.path.abspath(name)
            monkeypatch.setenv("CACHEC_BASE_DIR", folder)
            monkeypatch.chdir(folder)
            wait_for_clock()
            launcher.run(CLANG, "-g", "-c", f"{folder}/a.c", "-o", "a.o", f"-ffile-prefix-map={folder}=.")
            reasons.append(launcher.last().reason.value)
            monkeypatch.chdir(launcher.folder)
        assert reasons == ["miss:new-input", "hit"]

    def test_a_depfile_of_another_checkout_names_its_own_files(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = []
        for name in ("x", "y"):
            folder = os.path.abspath(name)
            write(f"{name}/a.c", f'#include "{"my.h"}"\nint f(void) {{ return 1; }}\n')
            write(f"{name}/my.h", "")
            monkeypatch.setenv("CACHEC_BASE_DIR", folder)
            monkeypatch.chdir(folder)
            wait_for_clock()
            launcher.run(CLANG, "-c", f"{folder}/a.c", "-o", f"{folder}/a.o", "-MD", "-MF", f"{folder}/a.d")
            made.append((launcher.last().hit, Path("a.d").read_text().replace(folder, "BASE")))
            assert folder in Path("a.d").read_text()
            monkeypatch.chdir(launcher.folder)
        assert [hit for hit, _ in made] == [False, True]
        assert made[0][1] == made[1][1]
