"""Environments of their own: what Python does at its start depends on the files in its site-packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parents[2]

Run = Callable[..., "CompletedProcess[str]"]


def made(folder: Path, *, has_startup_file: bool) -> Path:
    """The Python of a new environment with an editable install of this checkout, and the tests' packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    files = {"a_checkout.pth": f"{ROOT}\n{ROOT / 'plugins'}\n"}
    if has_startup_file:
        files["cachec-startup.pth"] = (ROOT / "cachec_startup/cachec-startup.pth").read_text()
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["cachec.plugins"]
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: cachec\nVersion: 0.1.0\n",
        "direct_url.json": json.dumps({"dir_info": {"editable": True}, "url": ROOT.as_uri()}),
        "entry_points.txt": "[cachec.plugins]\n" + "".join(f"{name} = {place}\n" for name, place in plugins.items()),
    }
    files |= {f"cachec-0.1.0.dist-info/{name}": text for name, text in info.items()}
    files["cachec-0.1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    for name, text in files.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    share_packages(site)
    return folder / "bin" / "python"


def share_packages(site: Path) -> None:
    """Have an environment import the packages of the tests, too; it does not run their ``.pth`` files."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in packages))


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with ``cachec-startup.pth``."""
    return made(tmp_path_factory.mktemp("environments") / "with", has_startup_file=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command line in the test's folder, with a store of its own and without the tests' variables."""

    def run(*words: object, stdin: str = "", **variables: str) -> CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "PYTHON"))}
        environ |= {"CACHEC_DIR": str(tmp_path / "store"), **variables}
        return subprocess.run(
            list(map(str, words)), cwd=tmp_path, env=environ, input=stdin, capture_output=True, text=True, timeout=240
        )

    return run


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """A framework ``toy``, whose plugin stores what it compiles; returns the folder that holds both."""
    folder = tmp_path / "packages"
    package, plugin = folder / "toy", folder / "cachec_toy"
    for each in (package, plugin, folder / "cachec_toy-1.dist-info"):
        each.mkdir(parents=True)
    (package / "__init__.py").write_text("compile = str.upper\n")
    (package / "later.py").write_text("")
    (plugin / "__init__.py").write_text("")
    (plugin / "startup.py").write_text(STARTUP)
    (folder / "cachec_toy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: cachec_toy\nVersion: 1\n")
    (folder / "cachec_toy-1.dist-info" / "entry_points.txt").write_text("[cachec.plugins]\ntoy = cachec_toy:plugin\n")
    return folder


STARTUP = """
def _install():
    import cachec, toy

    cache = cachec.Cache()
    stored = cache.foreign("toy")
    compile = toy.compile

    def cached(text):
        found = stored.get(text)
        if found is None:
            stored.put(text, compile(text).encode())
        return found.decode() if found else compile(text)

    toy.compile = cached

def _later():
    import sys

    sys.modules["toy.later"].is_installed = True

ACTIONS = {"toy": _install, "toy.later": _later}
"""
