"""Stores that machines share, where some are configured."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cachec.base.display_text import number_of, to_type
from cachec.doctor.case import Case, Finding
from cachec.errors import ConfigError
from cachec.model import Fault

#: Seconds after which what a build could not send is no longer on its way.
_WAITING = 86400.0


def remotes(case: Case) -> Iterator[Finding]:
    """Each is asked once, for as long as a call would wait for it; and what still waits to be sent."""
    refused = 0
    if case.settings.remote:
        from cachec.remote.chain import Remotes  # imported by nobody who has none

        try:
            shared = Remotes(case.settings.remote, case.store, _let, case.environ)
        except ConfigError as error:
            yield Finding("remote", str(error), "`cachec config` says where it is set")
            return
        for remote in shared.all:
            answer = remote.probe()
            if answer.state != "ok":
                words = f"{remote.address.shown} can't be used ({answer.state}: {answer.detail})"
                yield Finding("remote", words, to_type("remote check") + ", or take it out of `remote`")
        waiting = shared.pending().ours
        for remote in shared.all:
            name, shown = remote.address.name, remote.address.shown
            if (count := waiting[name]) and (why := shared.spool.last_refusal(name)):
                refused += count
                words = (
                    f"{number_of(count, 'result')} {'waits' if count == 1 else 'wait'} for {shown}; last refused: {why}"
                )
                yield Finding("remote-spool", words, f"{to_type('remote check')}, then {to_type('push')}")
        shared.close()
    if (old := _waiting(case)) > refused:
        yield Finding(
            "remote-spool",
            f"{number_of(old, 'result')} {'waits' if old == 1 else 'wait'} for more than a day to be sent to a remote",
            to_type("push"),
        )


def _waiting(case: Case) -> int:
    from cachec.remote.spool import Spool

    folder = Spool(case.folder).folder
    if not os.path.isdir(folder):
        return 0
    return sum(case.clock() - entry.stat(follow_symlinks=False).st_mtime > _WAITING for entry in os.scandir(folder))


def _let(fault: Fault, detail: str) -> None:
    """What fails is asked for."""
