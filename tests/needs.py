"""What tests need: programs, without which a test is skipped, but not where CI runs, and modules that take seconds."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
from typing import Any

import pytest

#: Debian's packages of the tools that are not installed by pip.
MLIR_TOOLS = ("mlir-opt-19", "mlir-translate-19", "clang-19", "ld")


def need(*tools: str) -> None:
    """Skip the test unless every tool is in PATH; fail it where the variable CI is set."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        reason = f"needs {', '.join(missing)}; .ci/tools installs them on Debian"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def need_packages(*distributions: str) -> None:
    """The same of packages that pip installs, which ``make test`` does where there are such for this machine."""
    missing = []
    for name in distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        reason = f"needs the packages {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


class Later:
    """A module that is imported when something of it is first asked for: not by every process that collects tests.

    Pytest asks everything in a test module for ``__wrapped__``, ``_mock_name`` and the like, which import nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_mock_name" or (name.startswith("__") and name != "__version__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
