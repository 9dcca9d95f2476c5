"""Whether the installed libraries are of releases that a plugin works with, and what becomes of one that is not.

An older release than a plugin was tried with is not used. A newer one is, once its self-test passed (``self_tests``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from cachec.base.callers import warn_caller
from cachec.base.distributions import Distributions
from cachec.base.unsendable import ForbiddenUseError
from cachec.errors import CachecError, ProcessBoundProgram, Uncacheable, UnstorableValue, UnsupportedVersion
from cachec.model import Reason
from cachec.programs.plugin import Plugin

#: What is raised where something of a library that a plugin uses is gone, or is to be called in another way.
GONE = (AttributeError, ImportError, TypeError)

_RANGE = r">=(\d+(?:\.\d+)*),<(\d+(?:\.\d+)*)"
_RELEASE = r"\d+(?:\.\d+)*"


class Asking:
    """A context in which a plugin is asked for something: what its library raises is an UnsupportedVersion there."""

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, CachecError | OSError | ForbiddenUseError):
            tried = ", ".join(name + releases for name, releases in self._plugin.tried_releases.items())
            raise UnsupportedVersion(
                f"{self._plugin.package} was tried with {tried or 'another library'}, and met "
                f"{type(error).__name__}: {error}"
            ) from error


class Releases(NamedTuple):
    """The installed releases of a plugin's libraries.

    installed: version by distribution. too_old: why they are not used, in words; empty where none is older than tried.
    newer: those newer than tried, in words; empty for none.
    """

    installed: Mapping[str, str]
    too_old: str
    newer: str


def bypass_reason(error: Uncacheable) -> Reason:
    """The reason that a call is counted with where a plugin raised ``error``."""
    if isinstance(error, UnstorableValue):
        return Reason.UNSTORABLE
    return Reason.PROCESS_BOUND if isinstance(error, ProcessBoundProgram) else Reason.UNSUPPORTED_VERSION


def why_unsupported(plugin: Plugin, distributions: Distributions, store: Path | None) -> str:
    """Why the installed releases can't be used by a plugin, in words; empty where they can.

    Runs the plugin's self-test for newer ones than it was tried with, unless the verdict is remembered in the folder
    ``store``. None: another process has asked, or nothing will be stored, so newer ones are used.
    """
    releases = installed_releases(plugin, distributions)
    if releases.too_old or not releases.newer or store is None:
        return releases.too_old
    from cachec.programs.self_tests import why_failing  # of few machines

    return why_failing(plugin, releases.installed, releases.newer, store)


def installed_releases(plugin: Plugin, distributions: Distributions) -> Releases:
    """Compare what is installed with what a plugin was tried with."""
    installed: dict[str, str] = {}
    too_old, newer = "", []
    for name, tried in plugin.tried_releases.items():
        found = distributions.find(name)
        if found is None:
            continue
        installed[name] = found.version
        side = compare(found.version, tried)
        if side < 0:
            too_old = too_old or f"{plugin.package} needs {name}{tried.partition(',')[0]}, found {found.version}"
        elif side > 0:
            newer.append(f"{name} {found.version} is newer than {plugin.package} was tried with ({tried})")
    return Releases(installed, too_old, "; ".join(newer))


def step_aside(reason: str, *, strict: bool) -> None:
    """Tell the caller of an ``install`` that nothing is installed: a warning, once a place; with ``strict`` raise
    UnsupportedVersion."""
    if strict:
        raise UnsupportedVersion(reason)
    warn_caller(reason)


def version_of(name: str) -> str:
    """Return the version of an installed distribution, or an empty text, without the imports of importlib.metadata."""
    installed = Distributions().find(name)
    return "" if installed is None else installed.version


def compare(version: str, tried: str) -> int:
    """-1 for a version below ``>=A,<B``, 0 within, 1 above, by its release alone: ``0.11.0.dev1`` counts as 0.11.

    What is no version is below. Raises ValueError for another notation of ``tried``.
    """
    match = re.fullmatch(_RANGE, tried)
    if match is None:
        raise ValueError(f"{tried!r} is no range such as '>=1.2,<2'")
    found = re.match(_RELEASE, version)
    release = _numbers(found[0]) if found is not None else ()
    if release < _numbers(match[1]):
        return -1
    return 0 if release < _numbers(match[2]) else 1


def _numbers(release: str) -> tuple[int, ...]:
    """The numbers of a release without zeros at its end: 0.10.0 is 0.10."""
    numbers = [int(number) for number in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
