"""All checks, in the order of the report; and the repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cachec.base import fsio
from cachec.doctor import disk, machine, releases, remotes, rights, state
from cachec.doctor.case import Case, Finding
from cachec.errors import StoreFault

#: The checks that need no store.
_ANYWHERE = (
    *(machine.settings, machine.commands, rights.rights, disk.check_free_space),
    *(machine.clock, machine.kernel, machine.tracer, releases.compilers),
)

#: What needs one.
_IN_STORES = (disk.file_system, state.database, state.find_leftovers, state.weights, remotes.remotes)


class Diagnosis(NamedTuple):
    """The findings, and facts about the store and the machine, as plain data."""

    findings: tuple[Finding, ...]
    facts: Mapping[str, Any]


def examine(case: Case) -> Diagnosis:
    """Run all checks. They change nothing, but make and remove a file in ``tmp``."""
    facts = {"disk": disk.disk_facts(case), "index": state.index_facts(case), **machine.machine_facts(case)}
    return Diagnosis(tuple(_findings(case)), facts)


def _findings(case: Case) -> Iterator[Finding]:
    if case.folder.exists() and not case.folder.is_dir():
        yield Finding("folder", f"{case.folder} is no folder", "name another one (--dir, CACHEC_DIR)")
    for check in (*_ANYWHERE, *(_IN_STORES if case.folder.is_dir() else ())):
        for finding in _run_check(check, case):
            # A shared store that refuses this user belongs to others: it is not changed.
            yield finding._replace(repair=None) if case.is_shared and case.refusal else finding


def _run_check(check: Callable[[Case], Iterator[Finding]], case: Case) -> Iterator[Finding]:
    """Return the findings of a check. An error of the check is a finding, too."""
    try:
        yield from check(case)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        yield Finding("unreadable", f"this can't be looked at: {what}", "let this user read it, or look at the disk")
    except StoreFault as fault:
        yield Finding("unreadable", f"this can't be looked at: {fault.detail}", "look at the disk")


def repair(findings: tuple[Finding, ...]) -> list[tuple[Finding, str]]:
    """Do what is safe; each finding that something was done about, and why that failed, empty where it did not."""
    done = []
    for finding in findings:
        if finding.repair is None:
            continue
        try:
            with fsio.faults(f"repairing what {finding.check} found"):
                finding.repair()
            done.append((finding, ""))
        except StoreFault as fault:
            done.append((finding, fault.detail))
    return done
