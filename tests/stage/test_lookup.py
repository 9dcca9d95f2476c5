"""What a look costs: rows read, keys made, results decoded, leases written; and that a question changes nothing."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

import cachec
from cachec import Reason
from cachec.key.key_builder import KeyBuilder
from cachec.stage.lookup import EntryFinder
from cachec.store.index import DiskcacheIndex
from cachec.store.leases import Leases


class _Counted:
    """Stands in the place of a method. No function, which would count with the code of whatever ran: by its counts."""

    def __init__(self, real: Callable[..., Any], count: Callable[..., None]) -> None:
        self._real = real
        self._count = count

    def __get__(self, holder: object, owner: type) -> MethodType:
        return MethodType(self, holder)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._count(*args)
        return self._real(*args, **kwargs)


class Counts:
    """How often the real ones were used: rows by their names, calls by theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        read = _Counted(DiskcacheIndex.read, lambda _, key: self.rows.update([key]))
        monkeypatch.setattr(DiskcacheIndex, "read", read)
        for owner, name in (
            (KeyBuilder, "build"),
            (EntryFinder, "decode"),
            (EntryFinder, "explain"),
            (Leases, "take"),
            (DiskcacheIndex, "atomically"),
        ):
            monkeypatch.setattr(owner, name, self._counting(name, getattr(owner, name)))

    def _counting(self, name: str, real: Callable[..., Any]) -> _Counted:
        return _Counted(real, lambda *_: self.calls.update([name]))

    def clear(self) -> None:
        self.rows.clear()
        self.calls.clear()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


@pytest.fixture
def stage(cache: cachec.Cache) -> Any:
    @cache.stage(name="stage")
    def stage(n: int, option: str = "") -> bytes:
        return b"%d " % n + os.urandom(100_000)

    return stage


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a store, but for what SQLite makes and removes while somebody reads."""
    found = {path: path.stat() for path in folder.rglob("*") if not path.name.endswith(("-wal", "-shm"))}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items() if path.is_file()}


#: Rows of a miss: the entry, four of calls like it, the size of the store.
MOST_ROWS = 6


def rows_of_a_call(counts: Counts) -> Counter[str]:
    """The rows that were read, but for what a process remembers of contents: its sources and the texts of the code."""
    return Counter({name: count for name, count in counts.rows.items() if not name.startswith("digest:")})


@pytest.mark.parametrize("reopen", [False, True])
def test_a_miss_reads_six_rows_at_most(cache: cachec.Cache, stage: Any, counts: Counts, reopen: bool) -> None:
    stage(-1)  # makes the store
    for number in range(30):
        counts.clear()
        _, outcome = cache.call(stage, number)
        assert outcome.stored
        of_sources = [name for name in counts.rows if name.startswith("digest:code:")]  # once a file and process
        assert len(of_sources) <= (number == 0)
        of_texts = [name for name in counts.rows if name.startswith("digest:") and name not in of_sources]
        assert len(of_texts) <= 1  # the texts of the code, which are stored: seen to be whole once a process
        assert counts.rows.total() - len(of_sources) - len(of_texts) <= MOST_ROWS, counts.rows
        assert max(counts.rows.values()) == 1, counts.rows
        assert counts.calls["explain"] == counts.calls["decode"] == 1
        if reopen:
            cache.close()


def _files(folder: Path, *names: str) -> tuple[Path, ...]:
    for name in names:
        (folder / name).write_text(name)
        os.utime(folder / name, (1, 1))
    return tuple(folder / name for name in names)


@pytest.mark.parametrize("files", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("options", [0, 1, 2, 3, 8, 12])
def test_no_kind_of_miss_reads_more_than_six_rows(
    cache: cachec.Cache, counts: Counts, tmp_path: Path, files: int, options: int
) -> None:
    """A first run, one input more, one option changed, code changed; whatever a stage is given."""
    names = [f"f{at}" for at in range(files)] + [f"o{at}" for at in range(options)]
    given = dict(zip(names, (*_files(tmp_path, *map(str, range(files))), *range(options)), strict=True))

    def make(code: int) -> Any:
        scope: dict[str, Any] = {"Path": Path}
        hints = ", ".join(f"{name}: {'Path' if name.startswith('f') else 'int'}" for name in names)
        exec(f"def made({hints}) -> int:\n    return {code}", scope)  # one parameter for each
        return cache.stage(name="made")(scope["made"])

    calls: list[tuple[Reason, Any, dict[str, Any]]] = [(Reason.FIRST_RUN, make(1), given)]
    if options:
        last = f"o{options - 1}"
        calls.append((Reason.OPTION_CHANGED, make(1), {**given, last: "other"}))
    calls.append((Reason.CODE_CHANGED, make(2), given))
    if files:
        calls.append((Reason.FILE_CHANGED, make(2), given))
        (other,) = _files(tmp_path, "another")
        calls.append((Reason.NEW_INPUT, make(2), {**given, "f0": other}))
    cache.stage(name="before", version="1")(lambda: None)()  # makes the store
    for reason, stage, arguments in calls:
        if reason is Reason.FILE_CHANGED:
            arguments["f0"].write_text("edited")
            os.utime(arguments["f0"], (2, 2))
        counts.clear()
        _, outcome = cache.call(stage, **arguments)
        read = rows_of_a_call(counts)
        assert outcome.stored
        assert outcome.reason in ({reason, Reason.NEW_INPUT} if reason is Reason.FIRST_RUN else {reason})
        assert read.total() <= MOST_ROWS, (reason, read)
        assert max(read.values()) == 1, (reason, read)


def test_a_miss_reads_six_rows_twice_at_most_though_others_write_meanwhile(cache: cachec.Cache, counts: Counts) -> None:
    other = cachec.Cache(cache.dir, log="off")

    @cache.stage(name="slow")
    def slow(n: int, option: str = "") -> int:
        other.store.index.write(f"another:{n}", b"", "another")
        return n

    for number in range(3):
        counts.clear()
        assert cache.call(slow, number)[1].stored
        read = rows_of_a_call(counts)
        assert len(read) <= MOST_ROWS, read
        assert max(read.values()) <= 2, read


def test_a_publication_reads_each_row_once_though_others_wrote_meanwhile(cache: cachec.Cache, counts: Counts) -> None:
    other = cachec.Cache(cache.dir, log="off")

    @other.stage(name="beside")
    def beside(n: int) -> int:
        return n

    @cache.stage(name="slow", ignore=["counts"])
    def slow(n: int, counts: Any) -> int:
        beside(n)
        counts.clear()
        return n

    for number in range(3):
        _, outcome = cache.call(slow, number, counts)
        assert counts.rows[f"entry:default:{outcome.key}"] == 1  # what others invalidated is not put back
        assert counts.rows.total() <= 5, counts.rows
        assert max(counts.rows.values()) == 1, counts.rows


def test_a_hit_reads_one_row_and_none_where_nothing_was_written(
    cache: cachec.Cache, stage: Any, counts: Counts
) -> None:
    stage(1)
    cache.close()
    counts.clear()
    stage(1)
    assert [name for name in counts.rows if not name.startswith("digest:")] == [f"entry:default:{stage.key(1)}"]
    counts.clear()
    assert cache.call(stage, 1)[1].hit
    assert counts.rows.total() == 0
    assert counts.calls == {"build": 1, "decode": 1}


def test_who_waits_and_then_hits_explains_nothing(cache: cachec.Cache, counts: Counts) -> None:
    begun = threading.Event()

    @cache.stage(name="slow", version="1")
    def slow(n: int) -> int:
        begun.set()
        while waiting.is_alive() and not has_looked.wait(0.01):
            pass
        return n

    has_looked = threading.Event()
    look = EntryFinder.find

    def looked(looker: EntryFinder, *args: Any, **kwargs: Any) -> Any:
        found = look(looker, *args, **kwargs)
        if threading.current_thread() is waiting:
            has_looked.set()
        return found

    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.append(cache.call(slow, 1)[1]))
    running = threading.Thread(target=lambda: outcomes.append(cache.call(slow, 1)[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EntryFinder, "find", looked)
        running.start()
        begun.wait()
        waiting.start()
        running.join()
        waiting.join()
    assert sorted(outcome.reason.kind for outcome in outcomes) == ["hit", "miss"]
    assert counts.calls["explain"] == 1


@pytest.mark.parametrize("mode", ["on", "require", "read-only", "refresh", "verify"])
def test_a_question_decodes_leases_and_writes_nothing_and_never_raises(
    cache: cachec.Cache, counts: Counts, mode: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    os.utime(source, (1, 1))

    def make(mode: str | None, of: cachec.Cache = cache) -> Any:
        @of.stage(name="stage", mode=mode, version="1")
        def stage(path: Path, n: object) -> tuple[bytes, cachec.Dir]:
            out = tmp_path / f"out{n}"
            out.mkdir()
            (out / "x").write_bytes(os.urandom(5000))
            return os.urandom(100_000), cachec.Dir(out)

        return stage

    make(None)(source, 1)
    cache.close()
    before = files(cache.dir)
    fresh = cachec.Cache(cache.dir, log="off")
    asked = make(mode, fresh)
    counts.clear()
    assert asked.check(source, 1).reason is Reason.HIT
    assert asked.check(source, 2).reason is Reason.OPTION_CHANGED
    assert asked.why(source, 2).startswith("miss:option-changed: n: 1 -> 2")
    unkeyable = asked.check(source, object())
    assert (unkeyable.reason, unkeyable.key) == (Reason.USAGE, "")
    assert asked.why(source, object()).startswith("error:usage: ")
    fresh.close()
    assert files(cache.dir) == before
    assert counts.calls.keys() == {"build", "explain"}


def test_a_question_sees_a_damaged_artifact_and_leaves_it(cache: cachec.Cache, stage: Any) -> None:
    value = stage(1)
    [path] = [path for path in (cache.dir / "objects").rglob("*") if path.is_file() and path.read_bytes() == value]
    path.chmod(0o600)
    path.write_bytes(b"x" * len(value))
    assert stage.check(1).reason is Reason.ARTIFACT_CORRUPT
    assert path.exists()
    path.unlink()
    assert stage.check(1).reason is Reason.ARTIFACT_MISSING


def test_an_invalidation_during_a_run_is_not_undone(cache: cachec.Cache, tmp_path: Path) -> None:
    """What the look saw is not what a publication keeps: traces that were forgotten meanwhile stay forgotten."""
    read = tmp_path / "read"

    @cache.stage(name="stage", version="1")
    def stage(n: int) -> bytes:
        cachec.depends(read)
        other = cachec.Cache(cache.dir, log="off")
        if read.read_text() == "two":
            [entry] = other.store.entries()
            assert other.store.invalidate(entry.key)
        return os.urandom(8)

    read.write_text("one")
    stage(1)
    read.write_text("two")
    stage(1)
    [entry] = cache.store.entries()
    assert len(entry.traces) == 1


def test_the_stages_own_stop_iteration_passes_through(cache: cachec.Cache) -> None:
    own = StopIteration("own")

    @cache.stage(name="stage", version="1", mode="off")
    def off(n: int) -> int:
        raise own

    @cache.stage(name="stage", version="1")
    def on(n: int) -> int:
        raise own

    for stage in (off, on):
        with pytest.raises(StopIteration) as caught:
            stage(1)
        assert caught.value is own
        assert own.__context__ is None
    assert cache.events.counts[Reason.STAGE_RAISED] == 1
