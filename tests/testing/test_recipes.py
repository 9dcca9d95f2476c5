"""The recipes of docs/plugins.md and docs/architecture.md: what a newcomer copies from there works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.testing.conformance import PluginConformance
from cachec.testing.formats import FormatConformance
from tests.recipes import block, entry_points, install


def ran(*args: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``python -m ARGS`` where the packages in the folder ``site`` are installed too."""
    environ = {**os.environ, "PYTHONPATH": str(site), "CACHEC_DIR": str(cwd / "cache")}
    command = [sys.executable, "-m", *args]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_what_a_newcomer_writes_passes_the_suites(tmp_path: Path) -> None:
    """A plugin and a format, each with the test that the recipe tells to write; the suites' own tests show that these
    fail what is broken."""
    site, project = tmp_path / "site", tmp_path / "project"
    site.mkdir()
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\n")
    for package in ("toy_compiler", "toy_checkpoints"):
        install(site, package, block(f"{package}.py"), entry_points(package))
        (project / f"test_{package}.py").write_text(block(f"test_{package}.py"))
    done = ran("pytest", "-q", "-p", "no:cacheprovider", site=site, cwd=project)
    tests = [
        name for suite in (PluginConformance, FormatConformance) for name in vars(suite) if name.startswith("test")
    ]
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} passed" in done.stdout, done.stdout


def test_a_command_of_another_package(tmp_path: Path) -> None:
    install(tmp_path, "toy_command", block("toy_command.py"), entry_points("toy_command"))
    done = ran("cachec", "toy", site=tmp_path, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("not measured yet\n", "", 0)


def test_the_page_names_every_test_of_the_suite() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    said = re.findall(r"`([a-z_.]+)`", page.partition("## 3.")[2])
    for name in vars(PluginConformance):
        if name.startswith("test_"):
            assert any(name.removeprefix("test_").endswith(each.lstrip("._")) or each in name for each in said), name
