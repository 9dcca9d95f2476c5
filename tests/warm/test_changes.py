"""``--changed-since``: what git says changed, and which rows that touches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec.warm import Row, Target, expand
from cachec.warm.changes import changed_files, rows_touched


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_text("a")
    (folder / "sub" / "ü b.py").write_text("b")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def test_what_changed(repository: Path) -> None:
    assert changed_files(str(repository), "HEAD") == []
    (repository / "a.py").write_text("changed")
    (repository / "sub" / "ü b.py").unlink()
    (repository / "new").write_text("")
    (repository / "ignored").write_text("")
    real = repository.resolve()
    expected = [str(real / "a.py"), str(real / "new"), str(real / "sub" / "ü b.py")]
    assert changed_files(str(repository), "HEAD") == expected
    assert changed_files(str(repository / "sub"), "HEAD") == expected, "from a folder below too"
    git(repository, "add", "-A")
    assert changed_files(str(repository), "HEAD") == expected
    git(repository, "commit", "-qm", "two")
    assert changed_files(str(repository), "HEAD") == []
    assert changed_files(str(repository), "HEAD~1") == expected


@pytest.mark.parametrize("since", ["no-such", "--output=/tmp/x", "HEAD:a.py"])
def test_no_revision(repository: Path, since: str) -> None:
    with pytest.raises(UsageError, match=r"git knows no commit|is no revision"):
        changed_files(str(repository), since)


def test_no_repository_and_no_git(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"git rev-parse fails in .*not a git repository"):
        changed_files(str(tmp_path), "HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="git can't be run"):
        changed_files(str(repository), "HEAD")


def rows(folder: Path) -> list[Row]:
    return expand(
        [
            Target(name="lower", call="m:f", files=("src/*.py",), folder=str(folder)),
            Target(name="build", call="m:f", files=("models/**",), after=("lower",), folder=str(folder)),
            Target(name="plain", call="m:f", folder=str(folder)),
        ]
    )


def test_touched_by_globs_and_by_the_configuration(tmp_path: Path) -> None:
    given = rows(tmp_path)

    def names(*changed: str) -> list[str]:
        return [row.id for row in rows_touched(given, [str(tmp_path / each) for each in changed], "/c.toml")]

    assert names() == []
    assert names("src/a.py") == ["lower", "build", "plain"], "build comes after; plain says nothing, so it is touched"
    assert names("models/x/y") == ["lower", "build", "plain"], "lower comes before"
    assert names("src/deep/a.py") == ["plain"]
    changed = rows_touched(given, ["/c.toml"], "/c.toml")
    assert [row.id for row in changed] == ["lower", "build", "plain"]
