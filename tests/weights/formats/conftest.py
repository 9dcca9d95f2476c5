"""What the tests of all formats do with a file: the checks of the suite that ships, and edits by hypothesis."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cachec.testing import formats
from cachec.testing.formats import Official
from tests.effort import rounds


class Check(formats.Check):
    """Checks of one file."""

    quick = settings(
        max_examples=rounds(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )

    @staticmethod
    def mutated(original: bytes, edits: list[tuple[int, int, bytes]], suffix: str, official: Official) -> bool:
        """``agrees`` for the file with the edits (where, bytes cut, bytes put)."""
        for at, cut, put in edits:
            at %= len(original) + 1
            original = original[:at] + put + original[at + cut :]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"m{suffix}"
            path.write_bytes(original)
            return Check.agrees(path, official, is_good=not edits)


@pytest.fixture(scope="session")
def check() -> type[Check]:
    """The checks."""
    return Check
