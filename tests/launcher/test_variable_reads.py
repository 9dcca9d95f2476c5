"""PATH and HOME count by what a command looked for with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, write


@pytest.fixture
def places(launcher: Launcher) -> tuple[Launcher, Path]:
    """Two folders of tools, and two homes with a file each."""
    folder = launcher.folder.parent
    for number in ("1", "2"):
        tool = write(str(folder / f"bin{number}" / "numbertool"), f"#!/bin/sh\necho {number} > out\n")
        tool.chmod(0o755)
        write(str(folder / f"home{number}" / "rc"), number)
    return launcher, folder


@pytest.mark.parametrize(
    ("line", "by_path", "by_home"),
    [
        ("numbertool", True, False),
        ("echo $PATH > out", True, False),
        ("cat $HOME/rc > out", False, True),
        ("cat $HOME/nothing || echo x > out", False, True),
        ("echo $HOME > out", False, True),
        ("cat a.txt > out", False, False),
    ],
)
def test_a_variable_counts_where_it_was_used(
    places: tuple[Launcher, Path], monkeypatch: pytest.MonkeyPatch, line: str, by_path: bool, by_home: bool
) -> None:
    launcher, folder = places
    write("a.txt", "text")
    system = os.environ["PATH"]

    def kind(tools: str, home: str) -> str:
        monkeypatch.setenv("PATH", f"{folder / tools}:{system}")
        monkeypatch.setenv("HOME", str(folder / home))
        Path("out").unlink(missing_ok=True)
        assert launcher.run("sh", "-c", line).code == 0
        return launcher.last().reason.kind

    assert [kind("bin1", "home1"), kind("bin1", "home1")] == ["miss", "hit"]
    assert kind("bin2", "home1") == ("miss" if by_path else "hit")
    assert kind("bin1", "home2") == ("miss" if by_home else "hit")


def test_a_home_folder_in_the_project_counts(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in "12":
        write(f"home{number}/rc", number)
    kinds = []
    for number in "1122":
        monkeypatch.setenv("HOME", os.path.abspath(f"home{number}"))
        assert launcher.run("sh", "-c", "cat $HOME/rc > out").code == 0
        assert Path("out").read_text() == number
        kinds.append(launcher.last().reason.kind)
    assert kinds == ["miss", "hit", "miss", "hit"]


_SHA, _LATER = "6f1ed002ab5595859014ebf0951522d9a1b2c3d4", "f00dd002ab5595859014ebf0951522d9a1b2c3d4"


@pytest.mark.parametrize(
    ("name", "values", "line", "counts"),
    [
        ("CI_COMMIT_SHA", (_SHA, _LATER), "echo $CI_COMMIT_SHA > out", True),
        ("GITHUB_SHA", (_SHA, _LATER), "env | grep SHA= > out", True),
        ("GITHUB_SHA", (_SHA, _LATER), "sh ./script > out", True),
        ("GITHUB_SHA", (_SHA, _LATER), "cat a.txt > out", False),
        ("BUILD_NUMBER", ("17", "18"), "sh ./script > out", True),
        ("BUILD_NUMBER", (None, "18"), "sh ./script > out", True),
        ("BUILD_NUMBER", ("17", "18"), "echo 17 > out", False),
        ("SHLVL", ("1", "2"), "echo 1 > out", False),
        ("GITHUB_TOKEN", (_SHA, _LATER), "echo $GITHUB_TOKEN > out", False),
    ],
)
def test_a_variable_of_ci_counts_where_the_result_holds_it(
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    values: tuple[str | None, str],
    line: str,
    counts: bool,
) -> None:
    write("a.txt", "text")
    write("script", "echo ${GITHUB_SHA:-unset} | cut -c1-7; echo $BUILD_NUMBER\n")

    def reason(value: str | None) -> str:
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert launcher.run("sh", "-c", line).code == 0
        return launcher.last().reason.value.partition(":")[0]

    assert [reason(values[0]), reason(values[0])] == ["miss", "hit"]
    assert reason(values[1]) == ("miss" if counts else "hit")
    assert [reason(values[1]), reason(values[0])] == ["hit", "hit"]
