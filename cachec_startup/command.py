"""``cachec python``: this Python with the arguments that follow, and ``CACHEC_INSTALL`` set.

The file ``cachec_startup.pth`` of an installed cachec does the rest. Where there is none (``pip install --target``, a
folder in ``PYTHONPATH``), the program is run by ``cachec_startup.interpreter`` in its place.
"""

import os
import sys

from cachec_startup import DEFAULT, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: What ``python -c`` gets in place of the program; no name stays in ``__main__``.
_PROGRAM = "__import__('sys').path.append({!r}) or __import__('cachec_startup.interpreter').interpreter.main()"

#: Options of Python that end the line (its ``-c`` and ``-m``), that have a value, and that run no program of the user.
_LAST, _WITH_VALUE, _OTHERS = "cm", "WX", "hV?x"


def become_python(args: "list[str]") -> "NoReturn":
    """Replace this process by Python with these arguments. Raises OSError where it can't be started."""
    os.environ.setdefault(VARIABLE, DEFAULT)
    line = args if _has_startup_file() else _through_interpreter(args)
    os.execv(sys.executable, [sys.executable, *line])


def _has_startup_file() -> bool:
    """Whether a new process of this Python runs ``cachec_startup.pth``."""
    import site

    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return any(os.path.exists(os.path.join(folder, "cachec_startup.pth")) for folder in folders)


def _through_interpreter(args: "list[str]") -> "list[str]":
    """The line with ``_PROGRAM`` in place of the program; the line itself where Python only has to say something."""
    at, word = 0, ""
    while at < len(args) and args[at].startswith("-") and args[at] != "-":
        word = args[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            if word != "--check-hash-based-pycs":
                return args
            at += 1
            continue
        for place, option in enumerate(word[1:], 2):
            if option in _OTHERS:
                return args
            if option in _LAST:
                value = [word[place:]] if word[place:] else args[at : at + 1]
                flags = args[: at - 1] + [word[: place - 1]] * (place > 2)
                rest = args[at:] if word[place:] else args[at + 1 :]
                return _line(flags, option, value, rest) if value else args
            if option in _WITH_VALUE:
                at += not word[place:]
                break
    program = args[at : at + 1]
    if program in ([], ["-"]):
        return args if sys.stdin is not None and sys.stdin.isatty() else _line(args[:at], "stdin", program, args[at + 1 :])
    return _line(args[:at], "file", program, args[at + 1 :]) if os.path.exists(program[0]) else args


def _line(flags: "list[str]", kind: str, value: "list[str]", rest: "list[str]") -> "list[str]":
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [*flags, "-c", _PROGRAM.format(folder), kind, *(value or [""]), *rest]
