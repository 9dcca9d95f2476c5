"""Texts that come from elsewhere: whether they can be written down, and how a person is shown them: printable, cut, and
of two that differ around where they begin to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cachec.errors import UsageError, printable

#: Characters of a key in a table, and how few of them a person may give.
SHOWN_KEY = 12
MIN_PREFIX = 6

#: Characters of one text that are shown.
MAX_SHOWN = 160

#: How much of the common beginning of two long texts is shown.
_CONTEXT = 40

#: What goes by a name with one of these in it is never shown; a tokenizer is no secret.
_SECRET_WORDS = "TOKEN(?!I[ZS])|SECRET|PASSW|PASSPHRASE|COOKIE|CREDENTIAL|KEY|_(?:PWD|PAT)$|(?:^|_)(?:AUTH|DSN)$"

#: Text without control characters, which a terminal might obey.
clean = printable


#: How the reader of messages has begun a command, ``cachec`` with its options; empty where a function was called.
_typed: ContextVar[str] = ContextVar("cachec_typed", default="")


@contextmanager
def naming_options(folder: str | None = None) -> Iterator[None]:
    """While the body runs, messages name options of the command line. folder: what ``--dir`` was given."""
    token = _typed.set("cachec" if folder is None else f"cachec --dir {shlex.quote(folder)}")
    try:
        yield
    finally:
        _typed.reset(token)


def argument_hint(argument: str, option: str) -> str:
    """How a message names what is to be given: ``pass pad=True`` to a caller, ``say --pad`` to who typed a command."""
    return option if _typed.get() else argument


def to_type(command: str) -> str:
    """A command as a message names it, to be typed: of the same store, so with the ``--dir`` that was given."""
    return f"{_typed.get() or 'cachec'} {command}"


def number_of(count: int, what: str) -> str:
    """A count in words: ``1 hit``, ``2 misses``, ``1,000 entries``. what: of one."""
    if count == 1:
        return f"1 {what}"
    if what.endswith(("s", "x", "ch", "sh")):
        return f"{count:,} {what}es"
    return f"{count:,} {what[:-1]}ies" if re.search("[^aeiou]y$", what) else f"{count:,} {what}s"


def is_text(text: str) -> bool:
    """Whether a name or a path can be written as UTF-8, which keys and records are: half of a surrogate pair can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_secret(name: str) -> bool:
    """Whether the value of a variable, argument or field is not to be shown, going by its name."""
    return re.search(_SECRET_WORDS, name.upper()) is not None


def is_url(text: str) -> bool:
    """Whether a text names something that is fetched; a path makes one slash of two."""
    return ":" in text and re.match(r"[a-z][a-z0-9+.-]*://|(?:https?|ftp|file|s3|gs|hf):/", text) is not None


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that ``word`` may be a slip of, for a message; empty where none is near."""
    import difflib  # for messages alone

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def shown_pair(old: str | None, new: str | None) -> tuple[str, str]:
    """Two texts cut to what can be shown, around where they begin to differ."""
    old, new = old or "", new or ""
    if max(len(old), len(new)) <= MAX_SHOWN:
        return old, new
    start = max(0, _common(old, new) - _CONTEXT)
    return _window(old, start), _window(new, start)


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


def is_key_prefix(text: str) -> bool:
    """Whether a text can be the beginning of a key."""
    return re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX},64}}", text.lower()) is not None


def key_prefix(text: str) -> str:
    """The beginning of a key, as a person gave it, in lower case. Raises UsageError."""
    if not is_key_prefix(text):
        raise UsageError(f"{text!r} is no key: give {MIN_PREFIX} to 64 hexadecimal characters")
    return text.lower()


def module_of(cls: object) -> str:
    """The name of the module that a class or a function says it is of; empty where it says none, as one that a call of
    ``type`` makes where the globals have no ``__name__``."""
    return str(getattr(cls, "__module__", ""))
