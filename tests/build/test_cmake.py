"""plugins/cmake: a small project, built twice by each generator, and what its keywords do."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import cachec
from cachec.cli.cmd_config import find_shipped_file
from cachec.errors import CachecError
from tests.needs import need

from .conftest import PROJECTS, ROOT, Build

GENERATORS = ("Ninja", pytest.param("Unix Makefiles", marks=pytest.mark.long))
PACKAGE = ROOT / "plugins" / "cmake"

#: What a build of the project comes to; ``answer`` is ``miss`` at first, ``hit`` afterwards.
HELPERS = Counter({"bypass:build-helper cmake": 2})


def programs(answer: str) -> Counter[str]:
    return HELPERS + Counter({f"{answer} mlir-opt": 3, f"{answer} mlir-translate": 1, f"{answer} pack": 1})


def configure(build: Build, project: Path, *options: str, generator: str = "Ninja", code: int = 0) -> str:
    shutil.rmtree(project / "build", ignore_errors=True)
    line = ("cmake", "-S", project, "-B", project / "build", "-G", generator, f"-Dcachec_DIR={PACKAGE}", *options)
    return build.run(*line, cwd=project, code=code)


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("cmake", "ninja", "make", "mlir-opt-19", "mlir-translate-19")


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_project_built_twice(build: Build, generator: str) -> None:
    project = build.project(PROJECTS / "cmake")
    written = []
    for answer in ("miss", "hit"):
        configure(build, project, generator=generator)  # in an emptied folder
        assert build.outcomes("cmake", "--build", "build", cwd=project) == programs(answer)
        outputs = (project / "build").rglob("*")
        written.append({path.name: path.read_bytes() for path in outputs if path.suffix in {".mlir", ".ll", ".bin"}})
    assert sorted(written[0]) == [
        "again.mlir",
        "copied.mlir",
        "packed.bin",
        "scale.ll",
        "scale.llvm.mlir",
        "shift.llvm.mlir",
    ]
    assert written[0] == written[1]
    assert b"define i32 @scale" in written[0]["scale.ll"]
    assert build.outcomes("cmake", "--build", "build", cwd=project) == Counter()  # nothing is left to do


@pytest.mark.long
@pytest.mark.parametrize("generator", GENERATORS)
def test_two_checkouts_share_hits_with_a_base_folder(build: Build, generator: str) -> None:
    for name, answer in (("one", "miss"), ("two/deeper", "hit")):
        project = build.project(PROJECTS / "cmake", name)
        configure(build, project, f"-DCACHEC_BASE_DIR={project}", generator=generator)
        assert build.outcomes("cmake", "--build", "build", cwd=project) == programs(answer)
    project = build.project(PROJECTS / "cmake", "three")
    configure(build, project, generator=generator)
    assert build.outcomes("cmake", "--build", "build", cwd=project) == programs("miss")  # its paths are in the keys


@pytest.mark.long
@pytest.mark.parametrize("way", ["variable", "file"])
def test_two_checkouts_of_models_and_c_sources_share_every_hit(build: Build, way: str) -> None:
    need("clang-19")
    beside = Path(sys.executable).parent  # pip's iree-compile
    if not (beside / "iree-compile").exists():
        pytest.skip("not installed: iree-compile")
    build.environ["PATH"] += f":{beside}"
    for name, answer in (("one", "miss"), ("two/deeper", "hit")):
        project = build.project(PROJECTS / "mixed", name)
        options = ["-DCMAKE_C_COMPILER=clang-19"]
        if way == "file":
            (project / "cachec.toml").write_text('base_dir = "."\n')
        else:
            options.append(f"-DCACHEC_BASE_DIR={project}")
        configure(build, project, *options)
        assert build.outcomes("cmake", "--build", "build", cwd=project) == Counter(
            {f"{answer} clang": 2, f"{answer} iree-compile": 2, f"{answer} mlir-opt": 1}
        )


@pytest.mark.long
def test_what_changes_a_program_and_what_does_not(build: Build) -> None:
    project = build.project(PROJECTS / "cmake")
    configure(build, project)
    packed = ("cmake", "--build", "build", "--target", "packed")
    assert build.outcomes(*packed, cwd=project) == Counter({"miss pack": 1})
    (project / "models" / "weights.bin").write_text("weights, version 2\n")
    assert build.outcomes(*packed, cwd=project) == Counter({"miss pack": 1})  # they are opened
    assert (project / "build" / "packed.bin").read_text().endswith("weights, version 2\n")
    (project / "models" / "weights.bin").touch()
    assert build.outcomes(*packed, cwd=project) == Counter({"hit pack": 1})
    (project / "build" / "packed.bin").unlink()
    assert build.outcomes(*packed, cwd=project, PACK_LEVEL="9") == Counter({"miss pack": 1})
    assert (project / "build" / "packed.bin").read_text().startswith("level 9\n")


@pytest.mark.long
def test_an_output_that_stays_the_same_ends_the_build_there(build: Build) -> None:
    project = build.project(PROJECTS / "cmake")
    configure(build, project)
    build.outcomes("cmake", "--build", "build", cwd=project)
    scale = project / "models" / "scale.mlir"
    scale.write_text("// another comment\n" + scale.read_text())
    found = build.outcomes("cmake", "--build", "build", "--target", "scale", cwd=project)
    assert found == Counter({"miss mlir-opt": 1})  # mlir-translate is not called


LISTS = """
cmake_minimum_required(VERSION 3.20)
project(one LANGUAGES NONE)
find_package(cachec REQUIRED)
{}
get_target_property(where one CACHEC_OUTPUT)
message(STATUS "output <${{where}}>")
"""


def one(build: Build, text: str, *, code: int = 0) -> tuple[Path, str]:
    """A project with the program `one`, configured; what CMake said."""
    project = build.folder / "one"
    project.mkdir()
    (project / "a.mlir").write_text("module {}\n")
    (project / "CMakeLists.txt").write_text(LISTS.format(text))
    return project, configure(build, project, code=code)


def test_weights_keyed_by_name_start_no_build(build: Build) -> None:
    call = (
        "cachec_add_program(one INPUT a.mlir OUTPUT deep/er/a.out COMPILER mlir-opt-19 WEIGHTS {} OPTIONS -o <OUTPUT>)"
    )
    project, said = one(build, call.format("w.bin=name v.bin u.bin=opened"))
    assert f"output <{project}/build/deep/er/a.out>" in said
    rules = (project / "build" / "build.ninja").read_text()
    command = next(line for line in rules.splitlines() if "COMMAND =" in line and "mlir-opt" in line)
    for given in ("w.bin=name", "v.bin=content", "u.bin=opened"):
        assert re.search(rf"--weights \S*/{given} ", command)
    depends = next(line for line in rules.splitlines() if line.startswith("build deep/er/a.out"))
    assert "v.bin" in depends
    assert "u.bin" in depends
    assert "w.bin" not in depends


def test_exec_options(build: Build) -> None:
    call = (
        "cachec_add_program(one INPUT a.mlir OUTPUT a.out COMPILER mlir-opt-19 STRIP PORTABLE ENVIRONMENT X TOOLS sh)"
    )
    project, _ = one(build, call)
    rules = (project / "build" / "build.ninja").read_text()
    assert re.search(
        r"exec --env X --tool sh --strip --portable --restat -- \S*mlir-opt-19 \S*/a.mlir -o \S*/a.out", rules
    )
    assert "a.out.irpa" in rules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cachec_add_program(one INPUT a.mlir COMPILER mlir-opt-19)", "(one): OUTPUT is missing"),
        ("cachec_add_program(one INPUT a.mlir OUTPUT a COMPILER no-such-tool)", "COMPILER no-such-tool is not there"),
        ("cachec_add_program(one INPTU a INPUT a.mlir OUTPUT a COMPILER sh)", '"INPTU;a" belongs to no keyword'),
        ("cachec_launch_custom_commands(ALL)", '"ALL" is not understood'),
    ],
)
def test_wrong_use_is_told(build: Build, text: str, words: str) -> None:
    _, said = one(build, text, code=1)
    assert words in re.sub(r"\s+", " ", said)


def test_the_launcher_of_the_whole_project(build: Build) -> None:
    text = """
cachec_launch_custom_commands(GLOBAL)
add_custom_target(one ALL COMMAND "${CMAKE_COMMAND}" -E echo one)
set_target_properties(one PROPERTIES CACHEC_OUTPUT none)
"""
    project, _ = one(build, text)
    assert build.outcomes("cmake", "--build", "build", cwd=project) == Counter({"bypass:build-helper cmake": 1})


@pytest.mark.long
def test_the_launcher_of_a_c_compiler(build: Build) -> None:
    need("clang-19")
    project = build.folder / "c"
    project.mkdir()
    (project / "a.c").write_text("int a(void) { return 1; }\n")
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(c LANGUAGES C)\nadd_library(a OBJECT a.c)\n"
    )
    for name, answer in (("one", "miss"), ("two", "hit")):
        project = shutil.copytree(project, build.folder / name)
        launcher = f"-DCMAKE_C_COMPILER_LAUNCHER=env;CACHEC_BASE_DIR={project};cachec;exec;--"
        configure(build, project, "-DCMAKE_C_COMPILER=clang-19", launcher)
        assert build.outcomes("cmake", "--build", "build", cwd=project) == Counter({f"{answer} clang": 1})


@pytest.mark.long
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_folder_with_spaces(build: Build, generator: str) -> None:
    project = build.project(PROJECTS / "cmake", "a folder, with 'quotes'")
    configure(build, project, f"-DCACHEC_BASE_DIR={project}", generator=generator)
    assert build.outcomes("cmake", "--build", "build", cwd=project) == programs("miss")


def test_without_cachec_it_says_what_to_do(build: Build) -> None:
    project = build.project(PROJECTS / "cmake")
    (build.folder / "bin" / "cachec").unlink()
    build.environ["PATH"] = "/usr/bin:/bin"
    said = configure(build, project, code=1)
    assert "set CACHEC_EXECUTABLE to its path" in re.sub(r"\s+", " ", said)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("0.1", True),
        ("0.1.0 EXACT", True),
        ("0", True),
        ("0.2", False),
        ("0.1.9", False),
        ("1.0", False),
        ("0.1...0.9", True),
    ],
)
def test_versions(build: Build, wanted: str, found: bool) -> None:
    project = build.folder / "versions"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(v LANGUAGES NONE)\nfind_package(cachec {wanted} REQUIRED)\n"
    )
    configure(build, project, code=0 if found else 1)


def test_the_version_is_that_of_cachec() -> None:
    text = (PACKAGE / "cachecConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{cachec.__version__}")' in text


def test_config_names_the_folder(build: Build) -> None:
    assert Path(build.run("cachec", "config", "--cmake-dir", cwd=build.folder).strip()) == PACKAGE


@pytest.mark.parametrize(
    ("kind", "name"), [("cmake", "cachecConfig.cmake"), ("cmake", "cachecConfigVersion.cmake"), ("make", "cachec.mk")]
)
def test_an_installed_cachec_has_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    shared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = tmp_path / shared["shared-data"][f"plugins/{kind}"]  # a wheel's data go to the prefix
    shutil.copytree(ROOT / "plugins" / kind, place)
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "cachec"
    monkeypatch.setattr(cachec, "__file__", str(package / "__init__.py"))
    assert find_shipped_file(kind, name) == str(place / name)
    (place / name).unlink()
    with pytest.raises(CachecError, match="install cachec again"):
        find_shipped_file(kind, name)


def test_find_package_finds_an_installed_cachec_by_itself(build: Build) -> None:
    prefix = build.folder
    shutil.copytree(PACKAGE, prefix / "share" / "cmake" / "cachec")  # beside bin, which is in PATH
    project = build.project(PROJECTS / "cmake")
    said = build.run("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", cwd=project)
    assert "Build files have been written" in said
    assert f"{prefix}/bin/cachec" in (project / "build" / "CMakeCache.txt").read_text()


@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_a_checkout_in_another_folder_hits_with_depfiles(build: Build, compiler: str) -> None:
    need(compiler)
    lines = ["cmake_minimum_required(VERSION 3.20)", "project(demo C)", "add_library(a STATIC src/a.c)"]
    lines += ["target_include_directories(a PRIVATE include)"]
    for name, answer in (("one", "miss"), ("second", "hit")):
        project = build.folder / name
        for file, text in {
            "CMakeLists.txt": "\n".join(lines),
            "cachec.toml": 'base_dir = "."\n',
            "src/a.c": '#include "x.h"\nint f(void) { return X; }\n',
            "include/x.h": "#define X 1\n",
        }.items():
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            (project / file).write_text(text)
        options = (f"-DCMAKE_C_COMPILER={compiler}", "-DCMAKE_C_COMPILER_LAUNCHER=cachec;exec;--")
        build.run("cmake", "-S", ".", "-B", "build", "-G", "Ninja", *options, cwd=project)
        found = build.outcomes("cmake", "--build", "build", cwd=project)
        assert found == Counter({f"{answer} {compiler.removesuffix('-19')}": 1})
        assert f"{project}/include/x.h" in build.run("ninja", "-C", "build", "-t", "deps", cwd=project)
