"""A command sees the whole environment, and what it obeys is in its key."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.key.tools import command_variables
from cachec.key.tools.environment import LOCALE
from cachec.launcher import adapters, command_key
from cachec.launcher.explain import explain
from tests.launcher.conftest import Launcher, wait_for_clock, write
from tests.needs import need

#: Says which variables a program asks for.
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
static void note(const char *name) {
  int fd = open(LOG, O_WRONLY | O_APPEND | O_CREAT, 0666);
  if (fd >= 0) { if (write(fd, name, strlen(name)) < 0 || write(fd, "\\n", 1) < 0) _exit(9); close(fd); }
}
#define ASK(function) char *function(const char *name) { \\
  static char *(*real)(const char *); if (!real) real = dlsym(RTLD_NEXT, #function); note(name); return real(name); }
ASK(getenv) ASK(secure_getenv)
"""

CLANG_TARGETS = (
    *("", "arm64-apple-macos", "arm64-apple-ios", "x86_64-apple-darwin20", "x86_64-pc-windows-msvc"),
    *("powerpc-ibm-aix", "x86_64-scei-ps4", "wasm32-wasi"),
)

GCC_LINES = [
    *("-g -MD -c a.c", "-O2 -S a.c", "a.c -o a", "a.o -shared -o a.so -Wl,--as-needed", "-O1 -flto=2 a.c -o a"),
    *("-E a.c", "-c a.S", "-save-temps -fprofile-use -c a.c"),
]

LINES = [
    *(pytest.param((name, *line.split()), id=f"{name} {line}") for name in ("gcc", "g++") for line in GCC_LINES),
    *(
        pytest.param(("clang-19", *(["-target", target] if target else ["-g"]), "-c", "a.c"), id=f"clang {target}")
        for target in CLANG_TARGETS
    ),
    ("llc-19", "a.ll", "-o", "a.s"),
    ("opt-19", "-O2", "a.ll", "-o", "a.bc"),
    ("mlir-opt-19", "a.mlir", "-o", "b.mlir", "--canonicalize"),
    ("mlir-translate-19", "--mlir-to-llvmir", "e.mlir", "-o", "b.ll"),
    *(
        pytest.param(line, marks=pytest.mark.long)
        for line in (
            (
                *("iree-compile", "a.mlir", "-o", "a.vmfb", "--iree-hal-target-device=local"),
                "--iree-hal-local-target-device-backends=llvm-cpu",
            ),
            ("iree-opt", "a.mlir", "-o", "b.mlir"),
            ("iree-import-onnx", "--help"),
        )
    ),
]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("cc")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    line = ["cc", "-shared", "-fPIC", f'-DLOG="{folder}/log"', "shim.c", "-o", "shim.so", "-ldl"]
    subprocess.run(line, cwd=folder, check=True)
    return folder / "shim.so"


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_each_variable_that_a_compiler_asks_for_is_in_its_adapter(
    launcher: Launcher, shim: Path, line: tuple[str, ...]
) -> None:
    beside = Path(sys.executable).with_name(line[0])
    program = str(beside) if beside.exists() else shutil.which(line[0])
    if program is None:
        pytest.skip(f"not installed: {line[0]}")
    write("a.c", "int main(void) { return 1; }\n")
    write("a.S", ".globl x\nx:\n")
    if "a.o" in line:
        subprocess.run([program, "-fPIC", "-c", "a.c"], check=True)
    write("a.ll", "define i32 @f() {\n  ret i32 1\n}\n")
    write("e.mlir", "module {}\n")
    write("a.mlir", "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    log = shim.with_name("log")
    log.unlink(missing_ok=True)
    subprocess.run([program, *line[1:]], env={**os.environ, "LD_PRELOAD": str(shim)}, check=True, capture_output=True)
    adapter = adapters.find(program, line[0])
    assert adapter is not None
    environment = adapter.environment
    assert environment.complete
    known = (*environment.keyed, *environment.passed, *environment.plain)
    known = (*known, *command_key._ALWAYS, *LOCALE)
    asked = set(log.read_text().split())
    assert asked
    assert {name for name in asked if not command_variables.matches(name, known)} <= {
        "bar"
    }  # LLVM asks for that, for nothing


@pytest.mark.parametrize("line", [("gcc", "-c", "a.c"), ("g++", "a.c", "-o", "a")], ids=lambda line: line[0])
def test_a_variable_of_others_does_not_count_for_gcc(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...]
) -> None:
    need(line[0])
    write("a.c", "int main() { return 1; }\n")
    for name in ("", "FOO", "BAR"):
        if name:
            monkeypatch.setenv(name, "1")
        launcher.run(*line)
        launcher.run(*line)
        assert launcher.last().hit
    assert "miss:environment-changed" not in launcher.reasons()
    monkeypatch.setenv("CPATH", "/nowhere")
    launcher.run(*line)
    assert launcher.last().reason.value == "miss:environment-changed"
    assert launcher.last().detail.endswith("set CPATH as it was, or say --ignore-env CPATH")


@pytest.mark.parametrize("adapter", sorted(adapters.SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_an_adapter_names_each_variable_once(adapter: Path) -> None:
    environment = adapters.read(adapter).environment
    lists = (environment.keyed, environment.passed, environment.plain)
    assert sum(map(len, lists)) == len({name for names in lists for name in names})  # each in one list


def test_a_command_sees_every_variable(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "some value")
    monkeypatch.setenv("MAKEFLAGS", "-j --jobserver-auth=3,4")
    write("a.txt", "x")
    launcher.run("sh", "-c", "env > out", options=["--input=a.txt", "--output=out"])
    seen = dict(line.partition("=")[::2] for line in Path("out").read_text().splitlines())
    ours = {"PWD", "OLDPWD", "_", "SHLVL"}
    expected = {name: value for name, value in os.environ.items() if name not in ours and "\n" not in value}
    assert {name: seen.get(name) for name in expected} == expected
    assert seen["CACHEC_DEPTH"] == "1"


#: Variables that hold a secret somewhere.
SECRETS = [
    *("DB_URL", "PASSPHRASE", "SIGNING_PASSPHRASE", "SENTRY_DSN", "NPM_AUTH", "DB_PWD", "GH_PAT", "PRIVATE_KEY"),
    *("MYSQL_PASS", "COOKIE", "HF_TOKEN", "API_SECRET", "PLAIN"),
]


@pytest.mark.parametrize("way", ["no adapter", "adapter", "named"])
def test_no_value_of_a_variable_is_in_the_store(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    for number, name in enumerate(SECRETS):
        monkeypatch.setenv(name, f"postgres://u:hunter2x{number}x@h")
    write("a.txt", "x\n")
    wait_for_clock()
    line = ("fakecc", "a.txt", "-o", "a.out") if way == "adapter" else ("cp", "a.txt", "a.out")
    options = [] if way == "adapter" else ["--input=a.txt", "--output=a.out"]
    options += [f"--env={name}" for name in SECRETS if way == "named"]
    for expected in ("miss", "hit"):
        launcher.run(*line, options=options)
        assert launcher.last().reason.kind == expected
    assert launcher.direct(*line, options=options) is not None
    monkeypatch.setenv("PLAIN", "hunter2x-other")
    assert launcher.direct(*line, options=options) is None
    found = explain([*options, "--", *line])
    assert [(each.part.name, "hunter2" in str(each)) for each in found.differences] == [("PLAIN", False)]
    launcher.run(*line, options=options)
    assert launcher.last().reason.value == "miss:environment-changed"
    assert "PLAIN" in launcher.last().detail
    files = [path for path in launcher.store.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


#: Variable -> whether it counts for a command whose adapter names no variable of the kind; its result does not hold it.
COUNTS = {
    **dict.fromkeys(("MYCC_LEVEL", "CFLAGS", "FORCE_COLOR", "CI", "WORKSPACE", "VIRTUAL_ENV", "SIGNING_KEY"), True),
    **dict.fromkeys(("TOKENIZER", "TOKENIZERS_PARALLELISM", "LD_BIND_NOW", "TZ", "BUILD_TYPE", "TERMINATE"), True),
    "HOME": True,  # a program may look for anything by it, and not find it
    **dict.fromkeys(("TERM", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SHLVL", "_", "OLDPWD"), False),
    **dict.fromkeys(("MAKEFLAGS", "MAKELEVEL", "GITHUB_RUN_ID", "BUILD_NUMBER", "CACHEC_STATS_FILE"), False),
    **dict.fromkeys(("HF_TOKEN", "hf_token", "DB_PASSWORD", "OPENAI_API_KEY", "MY_SECRET"), False),
}


@pytest.mark.parametrize(("name", "counts"), COUNTS.items(), ids=COUNTS)
@pytest.mark.sampled
def test_which_variables_count_without_an_adapter(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str, counts: bool
) -> None:
    write("a.txt", "x")
    verb = "echo" if counts else "test"  # those that don't count do where the result holds their value
    line, options = ("sh", "-c", f'{verb} "${name}" > out'), ["--input=a.txt", "--output=out"]
    monkeypatch.setenv(name, "/")
    launcher.run(*line, options=options)
    assert launcher.direct(*line, options=options) is not None
    monkeypatch.setenv(name, "/usr/bin:/bin")
    assert (launcher.direct(*line, options=options) is None) == counts
    launcher.run(*line, options=options)
    assert launcher.last().reason.value == ("miss:environment-changed" if counts else "hit")
    monkeypatch.delenv(name)
    launcher.run(*line, options=[*options, f"--env={name}"])
    assert not launcher.last().hit  # what is named counts


@pytest.mark.parametrize("is_complete", [False, True])
def test_an_adapter_says_whether_it_names_all_variables(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, is_complete: bool
) -> None:
    adapter = launcher.folder.parent / "fakecc.toml"
    patterns = 'keyed = ["FAKE_OPT", "FAKE_K*"]\npassed = ["RUNS", "FAKE_P*", "FAKE_KP"]\nplain = ["FAKE_U*"]\n'
    text = re.sub(r"(?s)keyed = .*", patterns, adapter.read_text())
    adapter.write_text(text + f"complete = {str(is_complete).lower()}\n")
    write("a.txt", "x\n")
    wait_for_clock()
    line = ("fakecc", "a.txt", "-o", "a.out")
    launcher.run(*line)
    for name, counts in (
        *(("FAKE_OPT", True), ("FAKE_K1", True), ("FAKE_KP", False), ("FAKE_P1", False)),
        *(("FAKE_HIDDEN", not is_complete), ("TERM", False)),
    ):
        monkeypatch.setenv(name, "another")
        assert (launcher.direct(*line) is None) == counts, name
        launcher.run(*line)
        assert launcher.last().reason.value == ("miss:environment-changed" if counts else "hit"), name
        monkeypatch.delenv(name)
        launcher.run(*line)
        assert launcher.last().hit
    monkeypatch.setenv("FAKE_U1", "another")  # it chooses what the adapter does not describe, and the trace sees
    assert launcher.direct(*line) is None
    launcher.run(*line)
    assert launcher.last().reason.kind == "miss"


def test_a_folder_below_the_base_folder_in_a_variable_is_equal_in_each_checkout(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, expected in (("one", "miss"), ("other", "hit")):
        write(f"{name}/a.txt", "x\n")
        wait_for_clock()
        monkeypatch.chdir(launcher.folder / name)
        monkeypatch.setenv("CACHEC_BASE_DIR", os.getcwd())
        monkeypatch.setenv("FAKE_HOME", f"{os.getcwd()}/tools")
        launcher.run("fakecc", "a.txt", "-o", "a.out")
        assert launcher.last().reason.kind == expected
        monkeypatch.chdir(launcher.folder)


@pytest.mark.parametrize("value", ["", "libm"])
def test_a_preloaded_library_counts_by_content(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    write("a.txt", "x\n")
    wait_for_clock()
    line = ("fakecc", "a.txt", "-o", "a.out")
    launcher.run(*line)
    if value:
        maps = Path("/proc/self/maps").read_text()
        found = re.search(r"/\S*/libm[.-]\S*", maps)
        if found is None:
            pytest.skip("this process has no libm")
        (tmp_path / "preloaded").mkdir()
        value = str(shutil.copy(found[0], tmp_path / "preloaded" / "libm.so"))
        wait_for_clock()
    monkeypatch.setenv("LD_PRELOAD", value)
    for expected in ("miss:environment-changed", "hit"):
        assert launcher.run(*line).code == 0
        assert launcher.last().reason.value == expected
    if value:
        with open(value, "ab") as file:
            file.write(b"\0")
        wait_for_clock()
        assert launcher.direct(*line) is None
        launcher.run(*line)
        assert launcher.last().reason.value == "miss:dependency-changed"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("MACOSX_DEPLOYMENT_TARGET", "11.0", "12.0"),
        ("CPATH", "one", "two"),
        ("C_INCLUDE_PATH", "one", "two"),
    ],
)
@pytest.mark.sampled
def test_a_variable_that_gives_another_object(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str, first: str, second: str
) -> None:
    need("clang-19")
    for value in (1, 2):
        write(f"{['one', 'two'][value - 1]}/v.h", f"#define V {value}\n")
    write("v.h", "")
    write("a.c", "#if __has_include(<v.h>)\n#include <v.h>\n#else\n#define V 0\n#endif\nint v = V;\n")
    line = ["clang-19", "-target", "x86_64-apple-darwin20", "-c", "a.c", "-o", "a.o"]
    for value, expected in ((first, "miss"), (second, "miss"), (first, "hit"), (second, "hit")):
        monkeypatch.setenv(name, value)
        subprocess.run([*line[:-1], "bare.o"], check=True)
        launcher.run(*line)
        assert launcher.last().reason.kind == expected
        assert Path("a.o").read_bytes() == Path("bare.o").read_bytes()


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["SDKROOT", "CCC_OVERRIDE_OPTIONS", "LD_PROFILE"])
def test_a_variable_by_which_an_adapter_is_none(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    need("clang-19")
    write("a.c", "int f(void) { return 1; }\n")
    line = ("clang-19", "-c", "a.c", "-o", "a.o")
    launcher.run(*line)
    monkeypatch.setenv(name, "/nowhere")
    assert launcher.direct(*line) is None
    bare = subprocess.run(line, capture_output=True, text=True, check=True)
    made = Path("a.o").read_bytes()
    for kind in ("miss", "hit"):
        Path("a.o").unlink()
        ran = launcher.run(*line)
        assert launcher.last().reason.kind == kind, launcher.last()
        assert (Path("a.o").read_bytes(), ran.stdout, ran.stderr) == (made, bare.stdout, bare.stderr)
