"""Weights of a command: by content, by content if they are opened (under whatever name), or by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, write


@pytest.fixture(autouse=True)
def _files(launcher: Launcher) -> None:
    write("in", "program")
    write("w.bin", "weights 1")


def _run(launcher: Launcher, script: str, key: str, *more: str) -> str:
    options = ["--input=in", "--output=out", f"--weights=w.bin={key}"]
    assert launcher.run("sh", "-c", script, *more, options=options).code == 0
    return launcher.last().reason.value


def test_by_content(launcher: Launcher) -> None:
    assert _run(launcher, "cp in out", "content") == "miss:new-input"
    assert _run(launcher, "cp in out", "content") == "hit"
    write("w.bin", "weights 2")
    assert _run(launcher, "cp in out", "content") == "miss:file-changed"


@pytest.mark.parametrize("key", ["opened", "name"])
def test_what_is_not_opened_does_not_count(launcher: Launcher, key: str) -> None:
    assert _run(launcher, "cp in out; ls -l w.bin > /dev/null", key) == "miss:new-input"
    write("w.bin", "weights 2, another size")
    assert _run(launcher, "cp in out; ls -l w.bin > /dev/null", key) == "hit"
    os.unlink("w.bin")
    write("w.bin", "weights 3")
    assert _run(launcher, "cp in out; ls -l w.bin > /dev/null", key) == "hit"


@pytest.mark.parametrize(
    "script",
    [
        "cat in link > out",
        "cat in hard > out",
        "sh -c 'sh -c \"cat w.bin > out\"'",
        "exec 9< w.bin; cat in > out",
    ],
)
@pytest.mark.sampled
def test_what_is_opened_counts(launcher: Launcher, script: str) -> None:
    os.symlink("w.bin", "link")
    os.link("w.bin", "hard")
    assert _run(launcher, script, "opened") == "miss:new-input"
    assert _run(launcher, script, "opened") == "hit"
    Path("w.bin").write_text("weights 2")
    assert _run(launcher, script, "opened") == "miss:dependency-changed"
    Path("w.bin").write_text("weights 1")
    assert _run(launcher, script, "opened") == "hit"


@pytest.mark.parametrize("start", ["", "setsid "])
def test_a_child_that_stays_may_open_it_later(launcher: Launcher, start: str) -> None:
    script = f"cat in > out; {start}sh -c 'sleep 0.3; cat w.bin > late' > /dev/null 2>&1 &"
    for _ in range(2):
        assert _run(launcher, script, "opened") == "bypass:undescribed-effect"
        assert not launcher.last().stored


def test_a_weight_by_name_that_is_opened_all_the_same(launcher: Launcher) -> None:
    for number in range(2):
        write("w.bin", f"weights {number}")
        assert _run(launcher, "cat w.bin > out", "name") == "bypass:undescribed-effect"
        assert "/work/w.bin, which counts by its name, was read" in launcher.last().detail
        assert Path("out").read_text() == f"weights {number}"


def test_standard_input_may_be_the_weights(launcher: Launcher) -> None:
    kept = os.dup(0)
    try:
        reasons = []
        for text in ("1", "1", "2"):
            write("w.bin", text)
            source = os.open("w.bin", os.O_RDONLY)
            os.dup2(source, 0)
            os.close(source)
            assert launcher.run("cat", "-", options=["--weights=w.bin=opened"]).stdout == text
            reasons.append(launcher.last().reason.value)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert reasons[:2] == ["miss:new-input", "hit"]
    assert reasons[2] != "hit"


def test_which_rule_holds_is_in_the_key(launcher: Launcher) -> None:
    assert _run(launcher, "cp in out", "opened") == "miss:new-input"
    assert _run(launcher, "cp in out", "name") == "miss:option-changed"
