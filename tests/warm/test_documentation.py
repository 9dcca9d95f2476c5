"""docs/warm.md, docs/watch.md and docs/ci.md: their commands and programs run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachec import warm
from tests.needs import need

from .conftest import CLI, Project

ROOT = Path(__file__).parents[2]
TEXT = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("warm", "watch", "ci")}

PIPELINE = """
    import cachec
    cache = cachec.Cache()

    @cache.stage
    def compiled(batch: int, target: str, checkpoint: str) -> str:
        return f"{batch} {target} {checkpoint}"

    def warm(batch, target="vmvx", checkpoint=""):
        compiled(batch, target, checkpoint)
"""


def blocks(name: str, language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", TEXT[name], re.DOTALL)
    assert found
    return found


@pytest.fixture
def documented(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project of docs/warm.md, in a repository."""
    need("mlir-opt-19")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mlir-opt").symlink_to(str(shutil.which("mlir-opt-19")))
    (folder / "cachec").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m cachec "$@"\n')
    (folder / "cachec").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    project.write("pyproject.toml", blocks("warm", "toml")[0])
    project.write("examples/minilm/pipeline.py", PIPELINE)
    project.write("models/a", "")
    for name in "ab":
        project.write(f"{name}.mlir", "func.func @f(%x: i32) -> i32 {\n  return %x : i32\n}\n")
    (project.folder / "out").mkdir()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    commit = ["commit", "-qm", "first"]
    for words in (["init", "-q"], ["add", "-A"], commit, ["update-ref", "refs/remotes/origin/main", "HEAD"]):
        subprocess.run(["git", *identity, *words], cwd=project.folder, check=True)
    return project


def test_what_is_declared(documented: Project) -> None:
    rows = [row.id for row in warm.load().rows]
    axes = ("batch=1,target=llvm-cpu", "batch=1,target=vmvx", "batch=8,target=llvm-cpu")
    assert rows == [*(f"minilm[{each}]" for each in axes), *(f"kernels[name={name}]" for name in "ab")]
    assert set(re.findall(r"`(\w+)`", TEXT["warm"].split("| key | meaning |")[1].split("\n\n")[0])) >= {
        name for name in warm.Target.__struct_fields__ if name not in {"name", "folder"}
    }


@pytest.mark.long
def test_every_command(documented: Project) -> None:
    commands = [line[2:].split("#")[0].strip() for line in blocks("warm", "console")[0].splitlines()]
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=documented.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (documented.folder / "out" / "b.mlir").exists()
    assert "| minilm" in (documented.folder / "summary.md").read_text()


@pytest.mark.long
def test_the_program(documented: Project) -> None:
    documented.write("pipeline.py", PIPELINE)
    program = documented.write("program.py", blocks("warm", "python")[0])
    text = program.read_text().replace(
        "with ProcessPoolExecutor", "if __name__ == '__main__':\n  with ProcessPoolExecutor"
    )
    program.write_text(text)
    found = runpy.run_path(str(program))
    assert found["summary"].exit_code == 1
    assert found["summary"].counts["would-miss"] == 2
    done = subprocess.run(
        [sys.executable, str(program)], cwd=documented.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_what_watch_tells(project: Project) -> None:
    pytest.importorskip("watchdog")
    project.write("layers.py", "def attention(x):\n    return x\n")
    project.write(
        "stages.py",
        """
        import cachec
        from layers import attention
        cache = cachec.Cache()
        @cache.stage
        def lower(batch: int) -> int:
            return attention(batch)
        """,
    )
    project.targets('[warm.targets.minilm]\ncall = "stages:lower"\nmatrix = { batch = [1] }\n')
    assert project.warm().exit_code == 0
    command, *wanted = blocks("watch", "console")[0].splitlines()
    words = command.removeprefix("$ cachec ").split()
    with subprocess.Popen([*CLI, *words], cwd=project.folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(2)]
        project.write("layers.py", "def attention(x):\n    return x + 1\n")
        told += [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
    assert [plain(line) for line in told] == [plain(line) for line in wanted]


def plain(line: str) -> str:
    return re.sub(r"[\d.]+ (m?s|files)\b", r"N \1", line.strip())


def test_pre_commit_and_the_action() -> None:
    hooks, action, with_remote = blocks("ci", "yaml")
    offered = re.findall(r"- id: (\S+)", (ROOT / ".pre-commit-hooks.yaml").read_text())
    assert re.findall(r"- id: (\S+)", hooks) == offered
    place = re.search(r"uses: OWNER/cachec/(\S+)@", action)
    assert place is not None
    text = (ROOT / place[1] / "action.yml").read_text()
    inputs = set(re.findall(r"^  ([a-z-]+):\n    description:", text.split("\noutputs:")[0], re.MULTILINE))
    given = set(re.findall(r"^          ([a-z-]+): ", action + with_remote, re.MULTILINE))
    assert given == {"max-size", "remote"}
    assert given <= inputs
    table = TEXT["ci"].split("| input | meaning |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert named == inputs
    saving = re.search(
        r"case \$\{GITHUB_EVENT_NAME:-\} in (.*?)\) saves", (ROOT / place[1] / "cachec-ci.sh").read_text()
    )
    assert saving is not None
    for event in saving[1].split(" | "):
        assert f"`{event}`" in TEXT["ci"]


@pytest.mark.long
def test_pytest(tmp_path: Path) -> None:
    tests = """
model, weights = 1, 2
class stages:
    import cachec as package
    cache = package.Cache()
    @cache.stage
    def lower(model: int, weights: int, batch: int, seq: int) -> int:
        return model
"""
    (tmp_path / "test_it.py").write_text(tests + blocks("ci", "python")[0])
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    commands = [line[2:].split("#")[0].split() for line in blocks("ci", "console")[1].splitlines()]
    codes = []
    for words in [["pytest"], *commands]:
        pytest_words = [sys.executable, "-m", *words, "-p", "cachec.pytest_plugin", "-p", "no:cacheprovider"]
        done = subprocess.run(pytest_words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
        assert words != ["pytest"] or re.search(r"1 miss; saved [\d.]+ m?s, spent [\d.]+ m?s", done.stdout), done.stdout
    assert codes == [0, 0, 0], "the store of the fixture is spared from what pytest was told"
