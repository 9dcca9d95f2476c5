"""The environment that a command gets: what is named for it, and the little that every command needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cachec.key.tools.environment import LOCALE

#: Passed on to every command without being recorded: where it runs and for whom, not what it makes. (PATH chooses
#: executables, which are recorded by content.)
PASSED_ON = ("PATH", "HOME", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "TERM")


def command_environment(environ: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """What a command gets of ``environ``: ``PASSED_ON``, the locale, and the variables that are named for it.

    Whoever runs it records the last two.
    """
    return {name: value for name, value in environ.items() if name in PASSED_ON or name in LOCALE or name in named}
