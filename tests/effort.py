"""How far tests that try many inputs go: a sample under ``make test``, all of it under ``make test-long``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Whether this is ``make test-long``, which also runs the tests of mark ``fuzz`` again.
WHOLE = os.environ.get("TESTS_LONG") == "1"


def rounds(whole: int) -> int:
    """How many random inputs are tried in place of ``whole``."""
    return whole if WHOLE else max(whole // 10, min(whole, 20))


def sample(whole: Sequence[T]) -> Sequence[T]:
    """All, or each seventh and the last; 7 has no divisor with 8, so of a bit a byte every bit has its turn."""
    return whole if WHOLE else [*whole[:-1:7], *whole[-1:]]
