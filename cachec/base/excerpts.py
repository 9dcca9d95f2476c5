"""Long texts cut for a person: of two that differ, around where they begin to."""

from __future__ import annotations

#: Characters of one text that are shown.
MAX_SHOWN = 160

#: How much of the common beginning of two long texts is shown.
_CONTEXT = 40


def shown_pair(old: str | None, new: str | None) -> tuple[str, str]:
    """Two texts cut to what can be shown, around where they begin to differ."""
    old, new = old or "", new or ""
    if max(len(old), len(new)) <= MAX_SHOWN:
        return old, new
    start = max(0, _common(old, new) - _CONTEXT)
    return _window(old, start), _window(new, start)


def clean(text: str) -> str:
    """Without control characters, which a terminal might obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _window(text: str, start: int) -> str:
    if start < 2 * _CONTEXT:
        start = 0
    end = start + MAX_SHOWN
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _common(old: str, new: str) -> int:
    """The length of the common beginning, by bisection: slices are compared at the speed of memcmp."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
