"""Whether code looks at something outside of the process, as far as names tell: a memo of it may hold what was."""

from __future__ import annotations

from types import FunctionType
from typing import Any

#: Names by which code looks at something outside of the process.
OUTSIDE = frozenset(
    {
        *("open", "read_text", "read_bytes", "load", "fromfile", "loadtxt", "genfromtxt", "connect"),
        *("environ", "environb", "getenv", "expandvars", "expanduser", "which", "getcwd", "cwd"),
        *("exists", "is_file", "is_dir", "isfile", "isdir", "stat", "getsize", "getmtime", "samefile", "readlink"),
        *("listdir", "scandir", "walk", "glob", "rglob", "iterdir", "import_module", "find_spec"),
    }
)


def looks_outside(function: Any, cls: type, within: frozenset[Any] = frozenset()) -> bool:
    """Whether a function, or one that it names, looks at files, variables and the like, as far as names tell."""
    code = getattr(function, "__code__", None)
    if code is None or code in within:
        return False
    if not OUTSIDE.isdisjoint(code.co_names):
        return True
    spaces = (function.__globals__, *map(vars, cls.__mro__))
    named = (space.get(name) for name in code.co_names for space in spaces)
    return any(looks_outside(each, cls, within | {code}) for each in named if isinstance(each, FunctionType))
