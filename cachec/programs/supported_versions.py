"""Whether a plugin supports the installed version of its library, and what happens if not."""

from __future__ import annotations

import re
from types import TracebackType

from cachec.base.distributions import Distributions
from cachec.errors import ProcessBoundProgram, Uncacheable, UnstorableValue, UnsupportedVersion
from cachec.model import Reason
from cachec.programs.plugin import Plugin

#: What is raised where something of a library that a plugin uses is gone, or is to be called in another way.
GONE = (AttributeError, ImportError, TypeError)

_CLAUSE = r"(>=|<)(\d+(?:\.\d+)*)"
_RELEASE = r"\d+(?:\.\d+)*"


class Asking:
    """A context in which a plugin is asked for something: GONE is an UnsupportedVersion there."""

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, GONE):
            known = ", ".join(name + versions for name, versions in self._plugin.supported.items())
            raise UnsupportedVersion(
                f"{_package(self._plugin)} knows {known or 'another library'}, and met {type(error).__name__}: {error}"
            ) from error


def bypass_reason(error: Uncacheable) -> Reason:
    """The reason that a call is counted with where a plugin raised ``error``."""
    if isinstance(error, UnstorableValue):
        return Reason.UNSTORABLE
    return Reason.PROCESS_BOUND if isinstance(error, ProcessBoundProgram) else Reason.UNSUPPORTED_VERSION


def unsupported_version(plugin: Plugin, distributions: Distributions) -> str:
    """Which installed distribution is of no version that the plugin supports, in words; empty for none."""
    for name, versions in plugin.supported.items():
        installed = distributions.find(name)
        if installed is not None and not is_within(installed.version, versions):
            return f"{_package(plugin)} needs {name}{versions}, found {installed.version}"
    return ""


def version_of(name: str) -> str:
    """The version of an installed distribution, empty where there is none; without what importlib.metadata imports."""
    installed = Distributions().find(name)
    return "" if installed is None else installed.version


def is_within(version: str, versions: str) -> bool:
    """Whether a version is one of ``>=A,<B``, by its release alone: ``0.11.0.dev1`` counts as 0.11.

    Raises ValueError for another notation of ``versions``.
    """
    found = re.match(_RELEASE, version)
    release = _numbers(found[0]) if found is not None else ()
    for clause in versions.split(","):
        match = re.fullmatch(_CLAUSE, clause)
        if match is None:
            raise ValueError(f"{versions!r} is no range such as '>=1.2,<2'")
        if (release < _numbers(match[2])) is (match[1] == ">="):
            return False
    return True


def _package(plugin: Plugin) -> str:
    return type(plugin).__module__.partition(".")[0]


def _numbers(release: str) -> tuple[int, ...]:
    """The numbers of a release without zeros at its end: 0.10.0 is 0.10."""
    numbers = [int(number) for number in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
