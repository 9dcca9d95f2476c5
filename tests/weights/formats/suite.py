"""The suite that ships, as far as it goes under ``make test``; all of it under ``make test-long``."""

from __future__ import annotations

import pytest

from cachec.testing.formats import FormatConformance
from tests.effort import WHOLE, rounds


class ShippedFormat(FormatConformance):
    """Base of the suites of the formats that ship with cachec."""

    pytestmark = pytest.mark.fuzz
    stride = 1 if WHOLE else 7  # as in ``effort.sample``: every bit has its turn
    edits = rounds(200)
