"""How many launchers are nested: a wrapper that is called like its compiler may call ``cachec exec`` for ever.

Imports nothing but ``os``. Each launcher that starts a command adds one to a variable of the command's environment.
"""

import os

#: The variable that holds the number of launchers around a process.
VARIABLE = "CACHEC_DEPTH"

#: The deepest nesting that is allowed. A build that runs another build needs one or two levels.
MAX_DEPTH = 10

#: A longer number is not from a launcher.
_MAX_DIGITS = 6


def depth(environ: "os._Environ[str] | dict[str, str]") -> int:
    """Return how many launchers are around a process with this environment."""
    text = environ.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def is_too_deep(environ: "os._Environ[str] | dict[str, str]") -> bool:
    """Return whether a launcher with this environment must not start another command."""
    return depth(environ) >= MAX_DEPTH


def increase_depth(environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """Return the variable for a command that a launcher with this environment starts."""
    return {VARIABLE: str(depth(environ) + 1)}


def too_deep_message(name: str, program: str) -> str:
    """Return the error for a command that must not be started. program: the executable that ``name`` leads to."""
    return (
        f"cachec exec was started {MAX_DEPTH} levels deep, by commands that start cachec exec again; the next one is "
        f"{name!r}, which is {program}; in the scripts that start cachec exec, name the compiler by the path of its "
        "own executable"
    )
