"""Texts that come from elsewhere: whether they can be written down, and how they are shown."""

from __future__ import annotations

from cachec.errors import printable

#: Text without control characters, which a terminal might obey.
clean = printable


def is_text(text: str) -> bool:
    """Whether a name or a path can be written as UTF-8, which keys and records are: half of a surrogate pair can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
