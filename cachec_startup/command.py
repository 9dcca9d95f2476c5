"""``cachec python``: this Python with the arguments that follow, and ``CACHEC_INSTALL`` set.

The file ``cachec-startup.pth`` of an installed cachec does the rest. Where there is none (``pip install --target``, a
folder in ``PYTHONPATH``), the program is run by ``cachec_startup.interpreter`` in its place.
"""

import os
import sys

from cachec_startup import DEFAULT, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: What ``python -c`` gets in place of the program; no name stays in ``__main__``.
_PROGRAM = "__import__('sys').path.append({!r}) or __import__('cachec_startup.interpreter').interpreter.main({!r})"

#: Options of Python that end the line (its ``-c`` and ``-m``), that have a value, and that run no program of the user.
_LAST, _WITH_VALUE, _OTHERS = "cm", "WX", "hV?x"


def become_python(args: "list[str]") -> "NoReturn":
    """Replace this process by Python with these arguments. Raises OSError where it can't be started."""
    os.environ.setdefault(VARIABLE, DEFAULT)
    line = args if _has_startup_file() else _through_interpreter(args)
    os.execv(sys.executable, [sys.executable, *line])


def _has_startup_file() -> bool:
    """Whether a new process of this Python runs ``cachec-startup.pth``."""
    import site

    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return any(os.path.exists(os.path.join(folder, "cachec-startup.pth")) for folder in folders)


def _through_interpreter(args: "list[str]") -> "list[str]":
    """The line with ``_PROGRAM`` in place of the program; the line itself where Python runs no program of the user."""
    at = 0  # of the next word
    while at < len(args) and args[at].startswith("-") and args[at] != "-":
        word = args[at]
        at += 1
        if word == "--":
            return _of_file(args, args[: at - 1], args[at:])
        if word.startswith("--"):
            if word != "--check-hash-based-pycs":
                return args
            at += 1
            continue
        for place, option in enumerate(word[1:], 2):
            is_joined = place < len(word)
            if option in _OTHERS or (option in _LAST + _WITH_VALUE and not is_joined and at == len(args)):
                return args
            if option in _LAST:
                flags = args[: at - 1] + ([] if place == 2 else [word[: place - 1]])
                rest = [word[place:], *args[at:]] if is_joined else args[at:]
                return _line(args, flags, option, rest)
            if option in _WITH_VALUE:
                at += not is_joined
                break
    return _of_file(args, args[:at], args[at:])


def _of_file(args: "list[str]", flags: "list[str]", rest: "list[str]") -> "list[str]":
    """The same, for a program in a file or on standard input."""
    if rest[:1] in ([], ["-"]):
        is_read = sys.stdin is None or not sys.stdin.isatty()
        return _line(args, flags, "stdin", rest or [""]) if is_read else args
    return _line(args, flags, "file", rest) if os.path.exists(rest[0]) else args


def _line(args: "list[str]", flags: "list[str]", kind: str, rest: "list[str]") -> "list[str]":
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [*flags, "-c", _PROGRAM.format(folder, args), kind, *rest]
