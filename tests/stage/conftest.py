"""New processes for the tests of stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forking import Ended, Forking, started

#: Runs a file of Python, in its folder or another, with these variables set beside those that are there.
Program = Callable[..., str]


@pytest.fixture(scope="session")
def _forking() -> Iterator[Forking]:
    forking = Forking()
    yield forking
    forking.close()


@pytest.fixture(params=["forked", pytest.param("started", marks=pytest.mark.long)])
def program(request: pytest.FixtureRequest) -> Program:
    """Runs programs in new processes: forked ones, and at length started ones."""
    run = started if request.param == "started" else request.getfixturevalue("_forking")

    def in_a_process(script: Path, cwd: Path | None = None, **env: str) -> str:
        ended: Ended = run(script, cwd or script.parent, {**os.environ, "CACHEC_LOG": "off", **env})
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    return in_a_process
