"""What was concluded from content: remembered by all that it follows from, in a table that does not grow."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from cachec.maintain.maintainer import Maintainer
from cachec.store import derived_cache
from cachec.store.derived_cache import FORGOTTEN_SECONDS, MOST, SLOTS, Conclusions
from cachec.store.row_codec import pack
from cachec.store.store import Store

DAY = 86400.0
NOW = 2_000_000_000.0

Word = Annotated[str, msgspec.Meta(pattern="^[a-z]*$")]


class Table:
    """A memory in a dict, and a clock."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.now = NOW

    def recall(self, name: str) -> bytes | None:
        return self.rows.get(name)

    def remember(self, name: str, value: bytes) -> None:
        self.rows[name] = value

    def words(self, kind: str = "word") -> Conclusions[str]:
        return Conclusions(self, kind, Word, clock=lambda: self.now)


def test_an_answer_is_that_of_all_it_is_about_and_of_nothing_else() -> None:
    table = Table()
    table.words().keep("yes", "a", "b")
    assert table.words().recall("a", "b") == "yes"
    for other in (("a",), ("b", "a"), ("ab",), ("a", "b", ""), ("", "a", "b"), ()):
        assert table.words().recall(*other) is None
    assert table.words("other").recall("a", "b") is None
    assert Conclusions(None, "word", Word).recall("a", "b") is None


def test_the_table_has_so_many_rows_and_the_newer_of_two_in_one_stays() -> None:
    table = Table()
    seen: dict[str, str] = {}
    for number in itertools.count():
        table.words().keep("x" * (number % 7), str(number))
        (name,) = set(table.rows) - set(seen) or {""}
        if not name:
            break
        seen[name] = str(number)
    assert table.words().recall(str(number)) == "x" * (number % 7)
    gone = [each for each in seen.values() if table.words().recall(each) is None]
    assert len(gone) == 1
    for more in range(20 * SLOTS):
        table.words().keep("", str(more))
    assert len(table.rows) == SLOTS
    table.words("long").keep("x" * MOST, "long")
    assert len(table.rows) == SLOTS


def test_a_damaged_row_is_no_answer() -> None:
    table = Table()
    table.words().keep("answer", "a")
    ((name, row),) = table.rows.items()
    for at in range(len(row)):
        for changed in (row[:at] + bytes((row[at] ^ 1,)) + row[at + 1 :], row[:at], row + row[at:]):
            table.rows[name] = changed
            assert table.words().recall("a") is None
    about = msgspec.json.decode(row[39:])[0]
    for answer in (b'"ANSWER"', b"1", b"null", b'"a'):
        table.rows[name] = pack(derived_cache._Row(about, NOW, msgspec.Raw(answer)))
        assert table.words().recall("a") is None
    table.rows[name] = row
    assert table.words().recall("a") == "answer"


def test_what_is_of_use_is_written_once_a_day_and_kept() -> None:
    table = Table()
    table.words().keep("answer", "a")
    ((name, row),) = table.rows.items()
    table.now += DAY - 1
    assert table.words().recall("a") == "answer"
    assert table.rows[name] == row
    table.now += 2
    assert table.words().recall("a") == "answer"
    assert table.rows[name] != row
    table.now += FORGOTTEN_SECONDS  # nobody was there to forget it
    assert table.words().recall("a") == "answer"


@pytest.mark.parametrize("later", [0.0, FORGOTTEN_SECONDS - 2 * DAY, FORGOTTEN_SECONDS + 2 * DAY])
def test_gc_forgets_what_is_of_no_use_and_what_is_damaged(tmp_path: Path, later: float) -> None:
    store = Store(tmp_path)
    store.prepare()
    words = Conclusions(store.index, "word", Word, clock=lambda: NOW)
    words.keep("old", "a")
    store.index.remember("conclusion:word:7000", b"damaged")
    store.index.write("conclusion-kind", b"another's", "tag")
    store.close()
    if later:
        Conclusions(store.index, "word", Word, clock=lambda: NOW + later).keep("new", "b")
        store.close()
    now = NOW + later + (FORGOTTEN_SECONDS - 3 * DAY if not later else 0)
    Maintainer(store, clock=lambda: now).collect()
    there = list(store.index.keys(prefix="conclusion"))
    is_old = later > FORGOTTEN_SECONDS
    assert len(there) == 1 + (not is_old) + bool(later)
    reader = Conclusions(Store(tmp_path).index, "word", Word, clock=lambda: now)
    assert (reader.recall("a"), reader.recall("b")) == (None if is_old else "old", "new" if later else None)


@pytest.mark.parametrize("later", [0.0, FORGOTTEN_SECONDS - DAY, FORGOTTEN_SECONDS + DAY, -FORGOTTEN_SECONDS - DAY])
def test_gc_forgets_digests_of_files_that_were_taken_long_ago(tmp_path: Path, later: float) -> None:
    """They are by inode, checkout or path, of which a machine that builds in fresh folders never runs out."""
    store = Store(tmp_path)
    store.prepare()
    names = ["digest:1:2:0:3", "digest:all:ab", "digest:code:cd"]
    for name in names:
        store.index.remember(name, b"row")
    store.close()
    now = time.time() + later
    Maintainer(store, clock=lambda: now).collect()
    assert list(store.index.keys(prefix="digest:")) == (names if abs(later) < FORGOTTEN_SECONDS else [])
