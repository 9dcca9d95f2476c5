"""A watch does not open files with a known digest, but still watches them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Watching

Watch = Callable[..., Watching]


@pytest.mark.long
def test_models_and_tools_that_were_read_long_ago(project: Any, watch: Watch) -> None:
    tool = project.folder / "bin" / "tool"
    tool.parent.mkdir()
    shutil.copy(shutil.which("true") or "/bin/true", tool)
    project.write("model.bin", "x" * 70000)
    project.write("data/a.bin", "y" * 70000)
    project.write(
        "remembering.py",
        """
        import os, cachec
        from stages import ran
        cache = cachec.Cache()
        TOOL = os.path.abspath("bin/tool")

        @cache.stage(tools=[TOOL])
        def with_tool(n: int) -> int:
            return n

        @cache.stage
        def with_model(model: cachec.File, data: cachec.Dir) -> int:
            return model.path.stat().st_size

        @cache.stage
        def deeper(n: int) -> int:
            cachec.depends("side.txt")
            return n

        def tools(): with_tool(1)
        def models(): with_model(cachec.File("model.bin"), cachec.Dir("data"))
        def sides(): deeper(1)
        """,
    )
    project.write("side.txt", "z" * 70000)
    project.targets("".join(f'[warm.targets.{n}]\ncall = "remembering:{n}"\n' for n in ("tools", "models", "sides")))
    time.sleep(2.2)  # digests are remembered of what is older than two seconds
    assert project.warm().exit_code == 0
    assert project.warm(check=True).exit_code == 0
    watching = watch()
    for path, target in (
        ("model.bin", "models"),
        ("data/a.bin", "models"),
        ("side.txt", "sides"),
        ("bin/tool", "tools"),
    ):
        file = project.folder / path
        known = file.read_bytes()
        file.write_bytes(known[:-1] + b"!")
        watching.next("stale", target)
        file.write_bytes(known)
        watching.next("warm", target)
    os.utime(project.folder / "model.bin")
    watching.next("changed")
