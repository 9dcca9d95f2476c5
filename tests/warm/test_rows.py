"""Rows: the matrix, what waits for what, selection, shards, and globs."""

from __future__ import annotations

import pytest

from cachec.errors import UsageError
from cachec.warm import Row, Target, expand, select, shard
from cachec.warm.changes import glob
from cachec.warm.rows import parse_shard, with_dependents

LOWER = Target(name="lower", call="m:lower", matrix={"model": ("a", "b")}, after=("fetch",))
BUILD = Target(name="build", call="m:build", matrix={"model": ("a", "b"), "target": ("cpu", "gpu")}, after=("lower",))
FETCH = Target(name="fetch", call="m:fetch")


def ids(rows: list[Row]) -> list[str]:
    return [row.id for row in rows]


def test_a_row_waits_for_those_that_agree_in_shared_axes() -> None:
    rows = {row.id: row.after for row in expand([BUILD, LOWER, FETCH])}
    assert rows == {
        "fetch": (),
        "lower[model=a]": ("fetch",),
        "lower[model=b]": ("fetch",),
        "build[model=a,target=cpu]": ("lower[model=a]",),
        "build[model=a,target=gpu]": ("lower[model=a]",),
        "build[model=b,target=cpu]": ("lower[model=b]",),
        "build[model=b,target=gpu]": ("lower[model=b]",),
    }
    order = list(rows)
    assert all(order.index(before) < order.index(name) for name, after in rows.items() for before in after)


def test_two_targets_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two targets are named 'fetch'"):
        expand([FETCH, FETCH])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], 7),
        (["fetch"], ["fetch"]),
        (["lower"], ["fetch", "lower[model=a]", "lower[model=b]"]),
        (["lower[model=b]"], ["fetch", "lower[model=b]"]),
        (["build[model=a,*]"], ["fetch", "lower[model=a]", "build[model=a,target=cpu]", "build[model=a,target=gpu]"]),
        (["f*", "lower[model=?]"], ["fetch", "lower[model=a]", "lower[model=b]"]),
    ],
)
def test_selection_brings_what_is_needed(wanted: list[str], found: object) -> None:
    chosen = ids(select(expand([FETCH, LOWER, BUILD]), wanted))
    assert (len(chosen) if isinstance(found, int) else chosen) == found


def test_a_name_that_fits_nothing() -> None:
    with pytest.raises(UsageError, match=r"no target is named 'bild'. Did you mean build\? The targets are fetch"):
        select(expand([FETCH, LOWER, BUILD]), ["bild"])


def test_shards_cover_everything_and_need_nothing_of_each_other() -> None:
    rows = expand([FETCH, LOWER, BUILD])
    for count in (1, 2, 3, 8):
        shares = [shard(rows, index, count) for index in range(1, count + 1)]
        assert {name for share in shares for name in ids(share)} == set(ids(rows))
        for share in shares:
            assert all(set(row.after) <= set(ids(share)) for row in share)
    assert ids(shard(rows, 1, 3)) == ids(shard(list(reversed(rows)), 1, 3))[::-1]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match="write K/N"):
        parse_shard(text)
    assert parse_shard("3/8") == (3, 8)


def test_dependents() -> None:
    rows = expand([FETCH, LOWER, BUILD])
    assert ids(with_dependents(rows, ["lower[model=b]"])) == [
        "lower[model=b]",
        "build[model=b,target=cpu]",
        "build[model=b,target=gpu]",
    ]


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*.py", "a.py", "src/a.py"),
        ("src/**", "src/a/b.py", "srcs/a"),
        ("**/*.py", "a.py", "a.pyc"),
        ("**/*.py", "x/y/a.py", "a.py/x"),
        ("m[0-9].mlir", "m1.mlir", "mx.mlir"),
        ("m[!0-9]", "mx", "m1"),
        ("a?b", "axb", "a/b"),
        ("a.b", "a.b", "axb"),
        ("[", "[", "x"),
    ],
)
def test_globs(pattern: str, fits: str, does_not: str) -> None:
    assert glob(pattern).fullmatch(fits)
    assert not glob(pattern).fullmatch(does_not)
