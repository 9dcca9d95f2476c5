"""Lines of cachec on standard error."""

import sys


def write_line(words: str) -> None:
    """Write a line behind what the program has printed. Nothing where a stream is closed, as nobody could read it."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"cachec: {words}\n")):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
