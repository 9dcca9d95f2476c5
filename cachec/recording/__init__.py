"""What one run of a stage looks at: recorded by the handles that it was given, and by the net under them."""

from cachec.recording.recorder import CommandRun, FileSeen, Recorder, current, recording

__all__ = ["CommandRun", "FileSeen", "Recorder", "current", "recording"]
