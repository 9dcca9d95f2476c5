"""Releases of compilers: older ones than plugins were tried with, and newer ones with the verdicts of self-tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from cachec.doctor.case import Case, Finding
from cachec.key.tools.requirements import parse_requirements
from cachec.programs.self_tests import remembered_verdict, run_and_remember
from cachec.programs.supported_versions import installed_releases


def compilers(case: Case) -> Iterator[Finding]:
    """Plugins that can't be imported, and releases of compilers that they are not used with."""
    if case.plugins_refused:
        yield Finding("plugin", case.plugins_refused, "repair or uninstall its package: every stage asks for plugins")
    for plugin in case.plugins:
        releases = installed_releases(plugin, case.distributions)
        if releases.too_old:
            wanted = " ".join(f"'{name}{tried}'" for name, tried in plugin.tried_releases.items())
            owner = next(_requirers(plugin.tried_releases, case), "")
            way = f"a newer release of {owner}, which says what it goes with" if owner else f"pip install {wanted}"
            yield Finding("compiler", f"{releases.too_old}: its stages run uncached", way)
        elif releases.newer:
            verdict = remembered_verdict(plugin, releases.installed, case.folder)
            if verdict is not None and not verdict.reason:
                continue
            state = "its self-test has not run yet" if verdict is None else verdict.reason
            yield Finding(
                "compiler",
                f"{releases.newer}: {state}" + ("" if verdict is None else ", so its stages run uncached"),
                "install a release that was tried, or a newer cachec",
                partial(run_and_remember, plugin, releases.installed, case.folder, again=True),
                f"run the self-test of {plugin.package}",
            )


def _requirers(names: Collection[str], case: Case) -> Iterator[str]:
    """Installed distributions that require one of these without an extra: they may refuse another release of it."""
    for each in case.distributions:
        if each.name not in {"cachec", *names}:
            found = {one.name for one in parse_requirements(each.read("METADATA")) if not one.of}
            if not found.isdisjoint(names):
                yield f"{each.name} {each.version}"


def compiler_facts(case: Case) -> dict[str, Any]:
    """The installed compilers by distribution, each with what its plugin was tried with."""
    facts: dict[str, Any] = {}
    for plugin in case.plugins:
        releases = installed_releases(plugin, case.distributions)
        verdict = remembered_verdict(plugin, releases.installed, case.folder) if releases.newer else None
        for name, tried in plugin.tried_releases.items():
            facts[name] = {"version": releases.installed.get(name), "tried": tried, "plugin": plugin.name}
            if verdict is not None:
                facts[name]["self_test"] = {"failure": verdict.reason or None, "time": verdict.time}
    return facts
