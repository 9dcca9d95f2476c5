"""What came of a warming, as data and as Markdown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from cachec import report
from cachec.warm.model import Result, Status


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results in the order of the rows. seconds: wall time. estimate: what was foretold, None where nothing was."""

    results: tuple[Result, ...]
    check: bool
    seconds: float
    estimate: float | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status; each status is there."""
        counter = Counter(result.status for result in self.results)
        return {status.value: counter[status] for status in Status}

    @property
    def saved(self) -> float:
        """Seconds that hits saved."""
        return sum(result.saved for result in self.results)

    @property
    def spent(self) -> float:
        """Seconds of the rows that compiled; rows that ran at the same time count each."""
        return sum(result.seconds for result in self.results if result.status is Status.COMPILED)

    @property
    def exit_code(self) -> int:
        """0: all is warm. 1: something would miss. 2: something failed, was skipped or cancelled."""
        statuses = {result.status for result in self.results}
        if statuses & {Status.FAILED, Status.SKIPPED, Status.CANCELLED}:
            return 2
        return 1 if Status.WOULD_MISS in statuses else 0

    def data(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "check": self.check,
            **{name.replace("-", "_"): count for name, count in self.counts.items()},
            "seconds": self.seconds,
            "seconds_spent": self.spent,
            "seconds_saved": self.saved,
            "estimate": self.estimate,
            "targets": [_result(result) for result in self.results],
        }

    def line(self) -> str:
        """One line: ``12 hit, 3 compiled, 1 failed in 14.2 s; compiled 30.1 s, saved 120.4 s``."""
        counts = [f"{count} {name}" for name, count in self.counts.items() if count]
        words = f"{', '.join(counts) or 'nothing to do'} in {report.period(self.seconds)}"
        if self.spent:
            words += f"; compiling took {report.period(self.spent)}"
        if self.saved > 0:
            words += f"; hits saved {report.period(self.saved)}"
        return words

    def markdown(self) -> str:
        """A table for a CI summary (GitHub Flavored Markdown): each target, what missed and why."""
        title = "cachec warm --check" if self.check else "cachec warm"
        lines = [f"### {title}", "", self.line(), ""]
        if self.results:
            lines += ["| target | result | seconds | why |", "|---|---|---:|---|"]
        cell = report.markdown_cell
        lines += [
            f"| {cell(each.id)} | {each.status.value} | {each.seconds:.2f} | {cell(each.why())} |"
            for each in sorted(self.results, key=lambda each: _ORDER.index(each.status))
        ]
        return "\n".join(lines) + "\n"


#: The order of the report, the most important first.
_ORDER = (
    Status.FAILED,
    Status.SKIPPED,
    Status.CANCELLED,
    Status.WOULD_MISS,
    Status.COMPILED,
    Status.HIT,
)


def _result(result: Result) -> dict[str, Any]:
    return {
        "target": result.id,
        "status": result.status.value,
        "seconds": result.seconds,
        "seconds_saved": result.saved,
        "error": result.error or None,
        "calls": [
            {
                "stage": each.stage,
                "reason": each.reason.value,
                "detail": each.detail,
                "key": each.key,
                "seconds": each.seconds,
            }
            for each in result.outcomes
        ],
    }
