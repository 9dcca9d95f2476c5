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
