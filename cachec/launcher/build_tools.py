"""Commands after a launcher that are not compilers: helpers of the build system itself, and another launcher.

CMake's launcher property stands before every command of a rule, its own helpers (``cmake -E copy``) too. These have no
compiler in them: no key and no index, and an outcome of their own. Imports nothing but ``os``.
"""

import os

#: By the base name of the command.
NAMES = frozenset({"cmake", "cmake3", "ctest", "cpack", "ccmake", "make", "gmake", "ninja", "samu", "rsync", "latexmk"})

#: Of these, those that decide by the times of files, which are in no trace: what they start can be cached, they can't.
BY_TIME = NAMES - {"cmake", "cmake3", "cpack", "ccmake"}

DETAIL = "a command of the build system itself"


def advice(name: str) -> str:
    """Return the advice for a program of ``BY_TIME``."""
    return f"{name} compares the times of files; put cachec exec before the commands that {name} starts"


def is_helper(command: str) -> bool:
    """Whether the command belongs to a build system. Its description on the command line wins over that."""
    return command.rpartition("/")[2] in NAMES


def unwrap_launchers(args: list[str], own: str) -> list[str]:
    """``args`` without a launcher before a launcher: ``[--restat] -- [env NAME=VALUE...] cachec exec REST`` is REST.

    CMake puts its launcher before commands that have one already. own: how this process was started; another cachec is
    left to be one. The variables come into ``os.environ``.
    """
    begin = int(args[:1] == ["--restat"])
    at = begin + 1
    variables: list[str] = []
    if args[begin : begin + 2] == ["--", "env"]:
        at += 1
        while at < len(args) and args[at].startswith("CACHEC_") and "=" in args[at]:
            variables.append(args[at])
            at += 1
    if args[begin : begin + 1] != ["--"] or args[at : at + 2] != [own, "exec"]:
        return args
    for name, _, value in (each.partition("=") for each in variables):
        os.environ[name] = value
    return unwrap_launchers(args[at + 2 :], own)
