"""Commands of the build system behind the launcher: run at once, under an outcome of their own."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path

import pytest

from cachec.events import read_log
from cachec.launcher import build_tools
from cachec.model import Reason

from .conftest import Build


@pytest.fixture
def fake(build: Build) -> Path:
    """A `cmake` that says what it was given, and ends with 3 for `fail`."""
    tool = build.folder / "bin" / "cmake"
    tool.write_text('#!/bin/sh\necho "cmake $*"\n[ "$1" != fail ] || exit 3\n')
    tool.chmod(0o755)
    return build.folder


def test_a_helper_passes_through_with_its_own_outcome(build: Build, fake: Path) -> None:
    for _ in range(2):
        said = build.outcomes("cachec", "exec", "--", "cmake", "-E", "echo", cwd=fake)
        assert said == Counter({"bypass:build-helper cmake": 1})
    assert build.run("cachec", "exec", "--", fake / "bin" / "cmake", "a b", cwd=fake) == "cmake a b\n"
    build.run("cachec", "exec", "--", "cmake", "fail", cwd=fake, code=3)
    log = read_log(fake / "store")
    records = [(each.reason, each.stage, each.detail) for each in log]
    assert records == [(Reason.BUILD_HELPER, "exec:cmake", build_tools.DETAIL)] * 4
    assert not log.damaged


@pytest.mark.parametrize("name", ["cmake", "cmake3", "ctest", "cpack", "ccmake", "/usr/bin/cmake"])
def test_the_commands_of_build_systems(name: str) -> None:
    assert build_tools.is_helper(name)
    assert not build_tools.is_helper(f"{name}x")


def test_what_is_described_is_no_helper(build: Build, fake: Path) -> None:
    (fake / "in").write_text("x")
    (fake / "bin" / "cmake").write_text('#!/bin/sh\ncp "$1" "$2"\n')
    line = ("cachec", "exec", "--input", "in", "--output", "out", "--", "cmake", "in", "out")
    assert build.outcomes(*line, cwd=fake) == Counter({"miss cmake": 1})
    assert build.outcomes(*line, cwd=fake) == Counter({"hit cmake": 1})


def test_a_missing_helper_is_told(build: Build) -> None:
    (build.folder / "store").mkdir()
    build.environ["PATH"] = f"{build.folder / 'bin'}"
    said = build.run("cachec", "exec", "--", "ctest", cwd=build.folder, code=127)
    assert "'ctest' is not an executable in PATH" in said


def test_signals_are_as_the_command_expects(build: Build, fake: Path) -> None:
    (fake / "bin" / "cmake").write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    build.run("cachec", "exec", "--", "cmake", cwd=fake)
    found = build.run("cachec", "exec", "--", "cmake", cwd=fake).split()[1]
    assert not int(found, 16) & (1 << 12 | 1 << 24)  # SIGPIPE, SIGXFSZ


@pytest.mark.parametrize("text", ["dir = ", "dir = 3\n", "\xff"])
@pytest.mark.sampled
def test_a_malformed_configuration_is_told_by_the_whole_road(build: Build, fake: Path, text: str) -> None:
    build.run("cachec", "exec", "--", "cmake", cwd=fake)
    del build.environ["CACHEC_DIR"]
    (fake / "cachec.toml").write_bytes(text.encode("latin-1"))
    said = build.run("cachec", "exec", "--", "cmake", cwd=fake, code=2)
    assert "cachec.toml" in said
    assert "Traceback" not in said


def test_a_launcher_before_a_launcher(build: Build, fake: Path) -> None:
    (fake / "in").write_text("x")
    (fake / "bin" / "copy").write_text('#!/bin/sh\ncp "$1" "$2"\n')
    (fake / "bin" / "copy").chmod(0o755)
    own = fake / "bin" / "cachec"
    inner = (own, "exec", "--input", "in", "--output", "out", "--", "copy", "in", "out")
    assert build.outcomes(own, "exec", "--", *inner, cwd=fake) == Counter({"miss copy": 1})
    assert build.outcomes(*inner, cwd=fake) == Counter({"hit copy": 1})
    with_base = ("env", f"CACHEC_BASE_DIR={fake}", *inner)
    assert build.outcomes(*with_base, cwd=fake) == Counter({"miss copy": 1})
    assert build.outcomes(*with_base[:2], own, "exec", "--", *with_base, cwd=fake) == Counter({"hit copy": 1})
    assert build.outcomes(own, "exec", "--", *with_base, cwd=fake) == Counter({"hit copy": 1})
    log = [json.loads(line) for line in next((fake / "store" / "log").iterdir()).read_text().splitlines()]
    assert [each["stage"] for each in log] == ["exec:copy"] * 5  # one outcome a call


@pytest.mark.parametrize(
    "args",
    [
        ["--", "/other/cachec", "exec", "--", "x"],
        ["--", "/own", "stats"],
        ["--strip", "--", "/own", "exec", "--", "x"],
        ["--", "env", "PATH=/x", "/own", "exec", "--", "x"],
        ["--", "env", "CACHEC_MODE=off", "x"],
        ["--"],
        [],
    ],
)
def test_what_is_no_launcher_before_a_launcher(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEC_MODE", raising=False)
    assert build_tools.unwrap_launchers(args, "/own") == args
    assert "CACHEC_MODE" not in os.environ


def test_a_log_file_of_its_own_mode(build: Build, fake: Path) -> None:
    build.run("cachec", "exec", "--", "cmake", cwd=fake)
    build.outcomes("cachec", "exec", "--", "cmake", cwd=fake)
    assert stat.S_IMODE((fake / "stats.jsonl").stat().st_mode) == 0o600


def test_a_record_that_can_not_be_written_stops_nothing(build: Build, fake: Path) -> None:
    build.run("cachec", "exec", "--", "cmake", cwd=fake)
    said = build.run("cachec", "exec", "--", "cmake", "x", cwd=fake, CACHEC_STATS_FILE=str(fake / "no" / "such"))
    assert said == "cmake x\n"
    assert len(list(read_log(fake / "store"))) == 2  # once each
