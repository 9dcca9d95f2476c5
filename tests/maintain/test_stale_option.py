"""--stale: entries that can't hit any more, by what they recorded of tools and files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import cachec
from cachec.base.hashing import EMPTY, digest_bytes
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector
from cachec.model import Read
from tests.parts import tool

from .conftest import Yard, key_of


def stale(maintainer: Maintainer) -> dict[str, str]:
    """key -> why."""
    return {each.key: each.why for each in maintainer.plan(Selector(stale=True)).chosen}


def test_distributions(yard: Yard) -> None:
    from cachec.key.tools.toolchain import ToolKeys

    now = ToolKeys(yard.store.digests).distribution("msgspec")
    other = msgspec.structs.replace(now, digest=digest_bytes(b"other"), version="0.1.0")
    keys = [key_of(number) for number in range(3)]
    yard.publish(keys[0], parts=(now,))
    yard.publish(keys[1], parts=(other,))
    yard.publish(keys[2], parts=(tool("no-such-distribution", "1.0"),))
    found = stale(yard.maintainer)
    assert set(found) == set(keys[1:])
    assert found[keys[1]] == f"tool msgspec 0.1.0: now {now.version}"
    assert found[keys[2]] == "tool no-such-distribution 1.0: not installed"


def test_executables(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachec.key.tools.toolchain import ToolKeys

    tool = tmp_path / "bin" / "toolx"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    key = key_of(1)
    yard.publish(key, parts=(ToolKeys(yard.store.digests).executable("toolx"),))
    assert stale(yard.maintainer) == {}
    tool.write_text("#!/bin/sh\necho 2\n")
    assert set(stale(yard.maintainer)) == {key}
    tool.unlink()  # it may have been given by a path that is recorded nowhere: that can't be told
    assert stale(yard.maintainer) == {}


def test_reads_of_files(yard: Yard, tmp_path: Path) -> None:
    header = tmp_path / "x.h"
    header.write_text("1")
    same = Read("file", str(header), "", digest_bytes(b"1"))
    changed = Read("file", str(header), "", digest_bytes(b"0"))
    absent = Read("absent", str(tmp_path / "none"), "", EMPTY)
    there = Read("absent", str(header), "", EMPTY)
    weight = Read("weight", "w", "scale", "1" * 64)
    env = Read("env", "NO_SUCH_VARIABLE", "", "1" * 64)
    keys = [key_of(number) for number in range(5)]
    yard.publish(keys[0], reads=(same, absent, weight, env))
    yard.publish(keys[1], reads=(same, changed))
    yard.publish(keys[2], reads=(there,))
    yard.publish(keys[3], reads=(changed,))
    yard.publish(keys[3], reads=(same,))  # one of its two traces still holds
    yard.publish(keys[4])
    found = stale(yard.maintainer)
    assert set(found) == {keys[1], keys[2]}
    assert found[keys[1]] == f"file {header} is not as it was"


def test_a_stage_that_read_a_file(cache: cachec.Cache, tmp_path: Path) -> None:
    header = tmp_path / "x.h"
    header.write_text("1")

    @cache.stage(tools=["msgspec"])
    def build(name: str) -> str:
        return name + Path(cachec.depends(header)).read_text()

    build("a")
    maintainer = Maintainer(cache.store)
    assert stale(maintainer) == {}
    header.write_text("2")
    assert len(stale(maintainer)) == 1
    assert maintainer.plan(Selector(stale=True)).apply().removed
    assert build("a") == "a2"
    assert stale(maintainer) == {}


def test_files_below_a_base_folder_count_from_the_one_that_is_set(yard: Yard, tmp_path: Path) -> None:
    header = tmp_path / "checkout" / "x.h"
    header.parent.mkdir()
    header.write_text("1")
    yard.publish(key_of(1), stage="exec:cc", reads=(Read("file", "base_dir:x.h", "", digest_bytes(b"1")),))

    def at(base: Path | None) -> tuple[bool, int]:
        maintainer = Maintainer(yard.store, base_dir=base)
        return bool(stale(maintainer)), sum(1 for _ in maintainer.find(Selector(sources=(str(header),))))

    assert at(header.parent) == (False, 1)
    assert at(None) == (False, 0)  # that can't be told
    header.write_text("2")
    assert at(header.parent) == (True, 1)
    assert at(None) == (False, 0)
    assert at(tmp_path) == (True, 0)  # there is no such file in this one
