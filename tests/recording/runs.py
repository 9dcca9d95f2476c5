"""A run without a stage: its code is not that of the tests which look at what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachec.recording import ReadRecorder, current, recording
from cachec.recording.observations import Observations
from cachec.recording.run_observer import Net


@contextmanager
def observed_run(is_project: Callable[[str], bool]) -> Iterator[Observations]:
    """Within the one that goes on here, if any does."""
    net = Net(is_project)
    with recording(ReadRecorder("test", current(), net=net)):
        yield net.observed
