"""A compiler that is a script, or leads to another program: what it runs, as far as that can be seen."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from cachec.base.elf import is_elf
from cachec.key.tools.executables import interpreter_name, which

#: A longer script is none that can be read at a glance.
_MAX_BYTES = 1 << 16

#: Shells whose ``exec PROGRAM "$@"`` is understood.
_SHELLS = frozenset({"sh", "bash", "dash"})

#: The one command of a script that hands all on.
_EXEC = re.compile(r'exec\s+(?:"([^"$`\\]+)"|([^\s"\'$`\\;&|<>(){}*?\[\]~#=]+))\s+"\$@"\s*')


class NotSeen(Exception):
    """What a command runs is not known; the message says why."""


class Followed(NamedTuple):
    """runs: the executables that a script starts, as it names them. last: the path of the one that is no script."""

    runs: tuple[str, ...]
    last: str


def followed(program: str, environ: Mapping[str, str], cwd: str) -> Followed:
    """What a program starts that is a script; of another one nothing.

    program: an absolute path. Only a script that does nothing but ``exec PROGRAM "$@"`` can be followed. Raises
    NotSeen, OSError.
    """
    runs: list[str] = []
    paths = [program]
    while True:
        at = paths[-1]
        with open(at, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if is_elf(data):
            return Followed(tuple(runs), at)
        target = _target(at, data)
        path = which(target, environ, cwd)
        if path is None or ("/" in target and not target.startswith("/")):
            raise NotSeen(f"{at} runs {target!r}, which is not in PATH, nor an absolute path of an executable")
        beside = os.path.join(os.path.dirname(os.path.realpath(program)), target)
        if path in paths or (os.access(beside, os.X_OK) and not os.path.samefile(beside, path)):
            raise NotSeen(f"{at} runs {target!r}, and there are several of that name")
        runs.append(target)
        paths.append(path)


def _target(path: str, data: bytes) -> str:
    if data[:2] != b"#!":
        raise NotSeen(f"{path} is neither an ELF file nor a script")
    if len(data) > _MAX_BYTES or os.path.basename(interpreter_name(data)) not in _SHELLS:
        raise NotSeen(f"{path} is a script, and what it runs and reads is not known")
    lines = [line.strip() for line in data.decode(errors="surrogateescape").split("\n")[1:]]
    commands = [line for line in lines if line and not line.startswith("#")]
    match = _EXEC.fullmatch(commands[0]) if len(commands) == 1 else None
    if match is None:
        raise NotSeen(
            f'{path} is a script that does more than exec PROGRAM "$@", so what it runs and reads is not known'
        )
    return match[1] or match[2]
