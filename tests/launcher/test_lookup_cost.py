"""A call through the whole path makes one key and decodes once, and a query writes nothing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cachec.key.tools.executables import Finder
from cachec.launcher import memo
from cachec.launcher.command_key import CommandKeyBuilder
from cachec.launcher.explain import explain
from cachec.model import Reason
from cachec.stage.lookup import EntryFinder
from cachec.store.index import DiskcacheIndex
from cachec.store.leases import Leases
from tests.launcher.conftest import Launcher, write

_LINE = ("fakecc", "a.txt", "-o", "a.out")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> list[str]:
    """The names of what is called, in order."""
    found: list[str] = []
    for owner, name in (
        (CommandKeyBuilder, "build"),
        (EntryFinder, "decode"),
        (EntryFinder, "explain"),
        (Leases, "take"),
        (memo, "begin"),
        (Finder, "program"),
    ):
        real = getattr(owner, name)

        def counted(*args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            found.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    write("a.txt", "x")
    os.utime("a.txt", (1, 1))
    return found


def test_a_miss_makes_its_key_and_looks_at_its_inputs_again(launcher: Launcher, calls: list[str]) -> None:
    launcher.run(*_LINE)
    assert [name for name in calls if name != "take"] == [
        *("begin", "build", "explain"),
        *("build", "decode"),
    ]
    assert launcher.direct(*_LINE) is not None


def test_a_miss_reads_six_rows_at_most(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Counter[str] = Counter()
    read = DiskcacheIndex.read

    def counted(index: DiskcacheIndex, key: str) -> bytes | None:
        rows[key] += not key.startswith("digest:")  # what is remembered of contents
        return read(index, key)

    monkeypatch.setattr(DiskcacheIndex, "read", counted)
    write("a.txt", "x")
    write("b.txt", "y")
    launcher.run("fakecc", "b.txt", "-o", "b.out")  # makes the store
    for line, reason in (
        (_LINE, Reason.NEW_INPUT),
        ((*_LINE, "-O2"), Reason.OPTION_CHANGED),
        (_LINE, Reason.FILE_CHANGED),
    ):
        if reason is Reason.FILE_CHANGED:
            write("a.txt", "edited")
        rows.clear()
        launcher.run(*line)
        assert launcher.last().reason is reason
        assert launcher.last().stored
        assert rows.total() <= 6, (line, rows)


def test_a_hit_makes_one_key_and_decodes_once(launcher: Launcher, calls: list[str]) -> None:
    launcher.run(*_LINE)
    for path in (launcher.store / "direct").rglob("*"):
        if path.is_file():
            path.unlink()
    calls.clear()
    launcher.run(*_LINE)
    assert launcher.last().reason is Reason.HIT
    assert [name for name in calls if name != "take"] == ["begin", "build", "decode"]
    assert launcher.direct(*_LINE) is not None, "its memo is written again"
    assert launcher.compiled() == 1


def test_what_can_have_no_memo_is_known_before_the_key_is_made(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.txt", "x")
    drafts: list[object] = []
    begin = memo.begin

    def begun(*args: Any) -> Any:
        drafts.append(begin(*args))
        return drafts[-1]

    request = CommandKeyBuilder.build

    def requested(*args: Any, **kwargs: Any) -> Any:
        assert drafts == [None]
        return request(*args, **kwargs)

    monkeypatch.setattr(memo, "begin", begun)
    monkeypatch.setattr(CommandKeyBuilder, "build", requested)
    monkeypatch.setenv("CACHEC_LOG", "all")
    launcher.run(*_LINE)
    assert launcher.last().stored
    assert launcher.direct(*_LINE) is None


@pytest.mark.parametrize("changed", ["a.txt", "../bin/fakecc", "../fakecc.toml"])
def test_a_memo_is_not_written_where_what_its_key_rests_on_changed_meanwhile(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    write("a.txt", "x")
    launcher.run(*_LINE)
    for path in (launcher.store / "direct").rglob("*"):
        if path.is_file():
            path.unlink()
    request = CommandKeyBuilder.build

    def requested(*args: Any, **kwargs: Any) -> Any:
        found = request(*args, **kwargs)
        Path(changed).write_text(Path(changed).read_text() + "\n")  # right after the key is made
        return found

    monkeypatch.setattr(CommandKeyBuilder, "build", requested)
    launcher.run(*_LINE)
    assert launcher.direct(*_LINE) is None


@pytest.mark.parametrize("mode", ["on", "require"])
def test_a_question_makes_one_key_and_leaves_nothing(
    launcher: Launcher, calls: list[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    launcher.run(*_LINE)
    write("b.txt", "y")
    os.utime("b.txt", (1, 1))
    monkeypatch.setenv("CACHEC_MODE", mode)

    def state() -> dict[str, int]:
        found = [path for path in launcher.store.rglob("*") if path.is_file()]
        return {str(path): path.stat().st_mtime_ns for path in found if not path.name.endswith(("-wal", "-shm"))}

    before = state()
    for line, reason, names in (
        (_LINE, Reason.HIT, ["build"]),
        ((*_LINE, "-O2"), Reason.OPTION_CHANGED, ["build", "explain"]),
        (("fakecc", "b.txt", "-o", "b.out"), Reason.NEW_INPUT, ["build", "explain"]),
    ):
        calls.clear()
        assert explain(["--", *line]).outcome.reason is reason
        assert calls == names
    assert state() == before


@pytest.mark.long
def test_publications_keep_the_store_within_its_size(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_MAX_SIZE", str(1 << 20))
    for number in range(12):
        write(f"{number}.txt", os.urandom(100_000).hex())
        launcher.run("fakecc", f"{number}.txt", "-o", f"{number}.out")
    held = sum(path.stat().st_size for path in (launcher.store / "objects").rglob("*") if path.is_file())
    assert held < 2 << 20
