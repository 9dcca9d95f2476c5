"""Programs that tests need: without them a test is skipped, but not where CI runs it."""

from __future__ import annotations

import os
import shutil

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
