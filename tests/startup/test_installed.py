"""A wheel and an editable install bring ``cachec-startup.pth``: ``cachec python`` works after either."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.needs import need_packages
from tests.startup.conftest import ROOT, share_packages
from tests.startup.test_startup import COMPILE, MISS, lines


@pytest.mark.long
@pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
def test_an_installed_cachec_starts_in_a_program(run, framework, tmp_path, hook):
    need_packages("editables", "hatchling")
    build = f"from hatchling.build import {hook} as build; build({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "--python", folder, "install", *options, wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    share_packages(site)
    done = run(folder / "bin/cachec", "python", "-c", COMPILE, PYTHONPATH=str(framework), CACHEC_INSTALL="toy")
    assert lines(done) == [MISS]
    place = "import cachec_startup; print(cachec_startup.__file__)"
    home = site if hook == "build_wheel" else ROOT
    assert run(folder / "bin/cachec", "python", "-c", place).stdout == f"{home}/cachec_startup/__init__.py\n"
