"""After a touch, and after a branch switch there and back, a second build has nothing to do, and outputs are new."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

from tests.needs import need

from .conftest import Build

SOURCES = {
    "a.h": "#define A 1\n",
    "a.c": '#include "a.h"\nint a(void) { return A; }\n',
    "main.c": "int a(void);\nint main(void) { return a() - 1; }\n",
}

CMAKE = "-DCMAKE_C_COMPILER=clang-19 -DCMAKE_C_COMPILER_WORKS=1 '-DCMAKE_C_COMPILER_LAUNCHER=cachec;exec;--'"

#: System -> its files, and the commands that configure and build.
SYSTEMS = {
    "CMake with Ninja": (
        {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\nproject(p C)\nadd_executable(run a.c main.c)\n"},
        (f"cmake -S . -B build -G Ninja {CMAKE}", "cmake --build build"),
    ),
    "CMake with Make": (
        {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\nproject(p C)\nadd_executable(run a.c main.c)\n"},
        (f"cmake -S . -B build -G 'Unix Makefiles' {CMAKE}", "cmake --build build"),
    ),
    "Make": (
        {
            "Makefile": "run: a.o main.o\n\tclang-19 $^ -o $@\n%.o: %.c\n\tcachec exec -- clang-19 -MMD -c $< -o $@\n"
            "-include a.d main.d\n"
        },
        ("true", "make"),
    ),
    "Make with Make's default rules": (
        {"Makefile": "run: a.o main.o\na.o: a.h\n"},
        ("true", "make CC=cachec\\ exec\\ --\\ clang-19 LINK.o=clang-19"),
    ),
    "Ninja": (
        {
            "build.ninja": "rule cc\n command = cachec exec -- clang-19 -MD -MF $out.d -c $in -o $out\n"
            " depfile = $out.d\n deps = gcc\nrule link\n command = clang-19 $in -o $out\n"
            "build a.o: cc a.c\nbuild main.o: cc main.c\nbuild run: link a.o main.o\n"
        },
        ("true", "ninja"),
    ),
    "Meson": (
        {"meson.build": "project('p', 'c')\nexecutable('run', 'a.c', 'main.c')\n"},
        ("env CC=cachec\\ exec\\ --\\ clang-19 meson setup build", "meson compile -C build"),
    ),
}
PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.long] if name not in {"CMake with Ninja", "Make"} else []) for name in SYSTEMS
]


@pytest.mark.parametrize("system", PARAMETERS)
def test_a_second_build_has_nothing_to_do(build: Build, system: str) -> None:
    need("clang-19", "git", "make", "ninja", "cmake")
    if system == "Meson" and shutil.which("meson") is None:
        pytest.skip("not installed: meson")
    files, (configure, make) = SYSTEMS[system]
    project = build.folder / "project"
    project.mkdir()
    for name, text in {**SOURCES, **files, ".gitignore": "build\n*.o\n*.d\nrun\n.ninja*\n"}.items():
        (project / name).write_text(text)

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
        build.run("git", *who, *words, cwd=project)

    def built(*, first: str) -> None:
        """Build, and see that a second build has nothing to do."""
        found = build.outcomes("sh", "-c", make, cwd=project)
        compiled = {name: count for name, count in found.items() if name.endswith(" clang") and "bypass" not in name}
        if system != "Meson" or first == "miss":  # its compiler links too: over an old program is another run
            assert {name.split()[0] for name in compiled} == {first}, found
        assert build.outcomes("sh", "-c", make, cwd=project) == Counter()
        outputs = [path for path in project.rglob("*.o") if "CMakeFiles/3" not in str(path)]
        assert len(outputs) == 2
        for path in outputs:
            source = project / ("a.c" if path.name.startswith(("a", "a.c", "run.p_a")) else "main.c")
            assert path.stat().st_mtime_ns >= source.stat().st_mtime_ns

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "other")
    (project / "a.c").write_text('#include "a.h"\nint a(void) { return A + 0; /* another */ }\n')
    (project / "a.h").write_text("#define A (2 - 1)\n")
    git("commit", "-qam", "two")
    git("checkout", "-q", "main")
    build.run("sh", "-c", configure, cwd=project)
    built(first="miss")
    for name in ("a.c", "a.h"):
        os.utime(project / name)
    built(first="hit")
    git("checkout", "-q", "other")
    git("checkout", "-q", "main")
    built(first="hit")
