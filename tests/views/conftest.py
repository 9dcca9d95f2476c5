"""What the tests of pages share: a store with known entries and calls."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cachec.model import Outcome, Reason
from tests.maintain.conftest import Yard, key_of

#: Names that are markup, script, or turn the text that follows.
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "<b>bold</b>&amp;'\u202egnol\u0007\x1b[2J\x00",
    "a" * 5000,
)


def call(reason: Reason, stage: str, number: int, ago: float, **fields: object) -> Outcome:
    """A call of an entry that ended so long ago."""
    return Outcome(reason=reason, stage=stage, key=key_of(number), time=time.time() - ago, **fields)  # type: ignore[arg-type]


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Three entries of two stages, and a build of five calls of two processes, an hour after another."""
    yard = Yard(tmp_path / "store", now=time.time())
    yard.publish(key_of(1), stage="pkg.lower", seconds=10.0, size=4096, ago=3600)
    yard.publish(key_of(2), stage="pkg.build", seconds=1.0, size=65536, ago=3600)
    yard.publish(key_of(3), stage="pkg.build", seconds=100.0, size=8192, tags=("keep",), ago=3600)
    yard.maintainer.pins.add("tag", "keep")
    emit = yard.log.emit
    emit(call(Reason.FIRST_RUN, "pkg.lower", 1, 7000, seconds=10.0, stored=True, pid=7))
    emit(call(Reason.HIT, "pkg.lower", 1, 9, seconds=0.5, saved=10.0, pid=8))
    emit(call(Reason.HIT, "pkg.lower", 1, 8, seconds=0.5, saved=10.0, pid=9))
    detail = "level: 1 -> 2"
    emit(call(Reason.OPTION_CHANGED, "pkg.build", 2, 6, seconds=2.0, stored=True, pid=8, detail=detail))
    emit(call(Reason.ENTRY_GONE, "pkg.build", 3, 4, seconds=30.0, stored=True, pid=9))
    emit(call(Reason.STAGE_RAISED, "pkg.build", 4, 3, seconds=1.0, pid=9, detail="ValueError: no"))
    yard.store.release()
    return yard
