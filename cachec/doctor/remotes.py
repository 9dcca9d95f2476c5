"""Stores that machines share, where some are configured."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cachec.doctor.case import Case, Finding
from cachec.errors import ConfigError
from cachec.model import Fault

#: Seconds after which what a build could not send is no longer on its way.
_WAITING = 86400.0


def remotes(case: Case) -> Iterator[Finding]:
    """Each is asked once, for as long as a call would wait for it; and what still waits to be sent."""
    if case.settings.remote:
        from cachec.remote.chain import Remotes  # imported by nobody who has none

        try:
            shared = Remotes(case.settings.remote, case.store, _let, case.environ)
        except ConfigError as error:
            yield Finding("remote", str(error), "`cachec config` says where it is set")
            return
        for remote in shared.all:
            said, _ = remote.asked()
            if said != "ok":
                words = f"{remote.address.shown} does not answer ({said}): nothing is fetched from it, or sent to it"
                yield Finding(
                    "remote", words, f"cachec remote check {remote.address.shown}, or take it out of `remote`"
                )
        shared.close()
    waiting = _waiting(case)
    if waiting:
        yield Finding(
            "remote-spool", f"{waiting} results wait for more than a day to be sent to a remote", "cachec push"
        )


def _waiting(case: Case) -> int:
    from cachec.remote.spool import Spool

    folder = Spool(case.folder).folder
    if not os.path.isdir(folder):
        return 0
    return sum(case.clock() - entry.stat(follow_symlinks=False).st_mtime > _WAITING for entry in os.scandir(folder))


def _let(fault: Fault, detail: str) -> None:
    """What fails is asked for."""
