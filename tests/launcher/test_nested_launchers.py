"""A wrapper with its compiler's own name ends with an error, and nested launchers work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.launcher import depth
from tests.launcher.conftest import Launcher, write

CACHEC = f"{sys.executable} -m cachec"


def _program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


#: How a wrapper calls the launcher, and where it stands: of its own name in PATH, by its path, by another one.
WRAPPERS = {
    "exec": 'exec {cachec} exec -- {name} "$@"\n',
    "no exec": '{cachec} exec -- {name} "$@"\n',
    "own path": 'exec {cachec} exec -- {folder}/{name} "$@"\n',
    "through another": 'exec {folder}/inner "$@"\n',
    "each other": 'exec {cachec} exec -- {folder}/other "$@"\n',
    "options": 'exec {cachec} exec --restat -- {name} "$@"\n',
}


@pytest.mark.parametrize(("name", "wrapper"), list(zip(["fakecc", "unknown"] * 3, WRAPPERS.values(), strict=True)))
@pytest.mark.sampled
def test_a_wrapper_that_calls_itself_is_an_error(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper: str, name: str
) -> None:
    folder = tmp_path / "wrappers"
    words = {"cachec": CACHEC, "name": name, "folder": folder}
    _program(folder, name, "#!/bin/sh\n" + wrapper.format(**words))
    _program(folder, "inner", "#!/bin/sh\n" + WRAPPERS["exec"].format(**words))
    _program(folder, "other", f'#!/bin/sh\nexec {CACHEC} exec -- {folder}/{name} "$@"\n')
    real = _program(tmp_path / "real", name, "#!/bin/sh\necho never\n")
    write("a.txt", "x\n")
    environ = {
        **os.environ,
        "PATH": f"{folder}:{real.parent}:{os.environ['PATH']}",
        "CACHEC_DEPTH": str(depth.MAX_DEPTH - 2),  # the other levels are as these
        "CACHEC_SERVER": "off",
    }
    done = subprocess.run([folder / name, "a.txt", "-o", "a.out"], env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cachec: error: cachec exec was started {depth.MAX_DEPTH} levels deep, ")
    assert "; the next one is '" in line
    assert any(f", which is {folder}/{each}; " in line for each in (name, "other"))
    assert line.endswith("name the compiler by the path of its own executable")
    assert str(real) not in line  # nobody knows whether it leads back


def test_launchers_within_launchers(launcher: Launcher, tmp_path: Path) -> None:
    """As a script that is behind the launcher itself and runs a compiler behind it, which is a wrapper of the kind.

    What the inner one takes from the store, the outer one does not see.
    """
    wrapper = f'#!/bin/sh\nexec {CACHEC} exec -- {tmp_path}/bin/fakecc "$@"\n'
    _program(tmp_path / "wrappers", "fakecc", wrapper)
    _program(launcher.folder, "build.sh", "#!/bin/sh\nfakecc a.txt -o inner.out && cp inner.out all.out\n")
    write("a.txt", "x\n")
    environ = {**os.environ, "PATH": f"{tmp_path}/wrappers:{os.environ['PATH']}", "CACHEC_SERVER": "off"}
    options = ["--input=a.txt", "--output=all.out", "--output=inner.out"]
    line = [*CACHEC.split(), "exec", *options, "--", "./build.sh"]
    for expected in (["miss:new-input", "bypass:undescribed-effect"], ["hit", "bypass:undescribed-effect"]):
        before = len(launcher.outcomes())
        subprocess.run(line, env=environ, check=True)
        assert launcher.reasons()[before:] == expected
        # The second time the inner one writes over a file that is there.
        words = ["a cachec inside of it took something from its store", "/work/inner.out in place, so the result"]
        assert any(each in launcher.last().detail for each in words)
    assert launcher.compiled() == 1
    assert Path("all.out").read_text() == Path("inner.out").read_text()


@pytest.mark.parametrize(
    ("text", "found"), [("", 0), ("0", 0), ("3", 3), ("-1", 0), ("x", 0), ("1.5", 0), ("²", 0), ("9" * 5000, 0)]
)
def test_what_is_no_depth_is_none(text: str, found: int) -> None:
    assert depth.depth({depth.VARIABLE: text}) == found
    assert depth.increase_depth({depth.VARIABLE: text}) == {depth.VARIABLE: str(found + 1)}


def test_the_depth_is_no_setting_and_in_no_key(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", "x\n")
    line = ("fakecc", "a.txt", "-o", "a.out")
    launcher.run(*line)
    monkeypatch.setenv(depth.VARIABLE, "1")
    assert launcher.direct(*line) is not None
    launcher.run(*line)
    assert launcher.last().hit
