"""Generated projects, edits and processes: a hit of the cache is what the stage itself gives.

Each construct once, and of these a sample under ``make test``; ``make soundness COUNT=20000`` for more of them, with
another seed each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import sample
from tests.soundness.cases import cases
from tests.soundness.constructs import CONSTRUCTS
from tests.soundness.runner import Report, judge, run


@pytest.mark.fuzz
def test_no_generated_edit_gives_a_wrong_hit(tmp_path: Path) -> None:
    tried = sample(list(cases(11, len(CONSTRUCTS))))
    report = run(tried, tmp_path / "cases")
    assert report.looks > 6 * len(tried)
    assert not report.wrong, report.text()
    assert not report.failed, report.text()
    assert not report.refused, report.text()
    assert not report.needless, report.text()
    # Modules that count as a whole, because of what they do when they are imported.
    assert len(report.coarse) < 0.25 * report.neutral, report.text()


def test_a_wrong_hit_is_told() -> None:
    report = Report()
    judge(report, "one", {"reason": "hit", "value": "1", "truth": "2", "detail": ""})
    judge(report, "two", {"reason": "miss:first-run", "value": "1", "truth": "1", "detail": ""})
    judge(report, "three", {"reason": "refused", "value": None, "truth": "1", "detail": "no form"})
    assert (len(report.wrong), len(report.failed), len(report.refused)) == (1, 0, 1)
    assert "one: hit gives 1, the stage 2" in report.text()
