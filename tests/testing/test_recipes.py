"""The recipes of CONTRIBUTING.md: what a newcomer copies from there works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cachec.testing.conformance import PluginConformance
from cachec.testing.formats import FormatConformance
from tests.recipes import DOCUMENT, block, entry_points, install

RECIPES = re.split(
    r"^### ", DOCUMENT.read_text().partition("## Recipes\n")[2].partition("\n## ")[0], flags=re.MULTILINE
)


class Newcomer:
    """Somebody with an environment and a project of their own.

    site: the folder where packages are installed. project: where the tests are, and the store.
    """

    def __init__(self, folder: Path) -> None:
        self.site, self.project = folder / "site", folder / "project"
        self.site.mkdir()
        self.project.mkdir()
        (self.project / "pytest.ini").write_text("[pytest]\n")

    def follows(self, package: str) -> None:
        """Write and install the package of a recipe, with its test if it has one."""
        install(self.site, package, block(f"{package}.py"), entry_points(package))

    def runs(self, *args: str) -> subprocess.CompletedProcess[str]:
        """``python -m ARGS`` in the project."""
        path = os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH", "")]))
        environ = {**os.environ, "PYTHONPATH": path, "CACHEC_DIR": str(self.project / "cache")}
        line = [sys.executable, "-m", *args]
        return subprocess.run(line, cwd=self.project, env=environ, capture_output=True, text=True, check=False)

    def tests(self, package: str) -> str:
        """What pytest says of the test of a recipe."""
        (self.project / f"test_{package}.py").write_text(block(f"test_{package}.py"))
        done = self.runs("pytest", "-q", "-p", "no:cacheprovider", f"test_{package}.py")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "suite"), [("toy_compiler", PluginConformance), ("toy_checkpoints", FormatConformance)]
)
def test_a_plugin_and_a_format(newcomer: Newcomer, package: str, suite: type) -> None:
    """The suites' own tests show that these fail what is broken."""
    newcomer.follows(package)
    count = sum(name.startswith("test") for name in vars(suite))
    assert f"{count} passed" in newcomer.tests(package)


def test_a_remote_engine(newcomer: Newcomer) -> None:
    newcomer.follows("toy_remote")
    newcomer.tests("toy_remote")
    checked = newcomer.runs("cachec", "remote", "check", f"toy://{newcomer.project}/remote.db")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    unknown = newcomer.runs("cachec", "remote", "check", "toys://x")
    assert "the scheme of an installed package" in unknown.stderr


def test_a_command(newcomer: Newcomer) -> None:
    newcomer.follows("toy_command")
    done = newcomer.runs("cachec", "toy")
    assert (done.stdout, done.stderr, done.returncode) == ("not measured yet\n", "", 0)


def test_a_key_part(newcomer: Newcomer) -> None:
    (newcomer.site / "toy_part.py").write_text(block("toy_part.py"))
    assert "1 passed" in newcomer.tests("toy_part")


@pytest.mark.parametrize("recipe", RECIPES[1:], ids=lambda recipe: recipe.partition("\n")[0])
def test_a_recipe_is_short(recipe: str) -> None:
    """Code does not count."""
    assert len(re.sub(r"^```.*?^```$", "", recipe, flags=re.DOTALL | re.MULTILINE).split()) <= 250
