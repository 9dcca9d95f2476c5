"""Records what one run of a stage reads: through its handles, and through the observers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cachec.base.lazy import lazily
from cachec.recording import thread_owner

if TYPE_CHECKING:
    from cachec.recording.recorder import CommandRun, FileState, ReadRecorder, recording
else:  # a hit asks for the current one alone
    __getattr__, __dir__ = lazily(
        globals(), {"cachec.recording.recorder": ["CommandRun", "FileState", "ReadRecorder", "recording"]}
    )


def current() -> ReadRecorder | None:
    """The recorder of the stage that this context runs in, or that this thread was started by, or given a job by; None
    outside of all."""
    return cast("ReadRecorder | None", thread_owner.current())  # the one class of its runs


__all__ = ["CommandRun", "FileState", "ReadRecorder", "current", "recording"]
