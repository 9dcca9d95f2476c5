"""The row that a miss is compared with: the nearest key, and how large the row gets."""

from __future__ import annotations

import random

import msgspec
import pytest

from cachec.model import RECORD_VERSION, ArtifactRef, Part
from cachec.store.packing import pack, unpack
from cachec.store.recent import MAX_KEYS, Recent
from tests.parts import part

EMPTY = Recent(version=RECORD_VERSION, stage="s")


def parts(**values: object) -> tuple[Part, ...]:
    """Parts by name, ``__`` for a slash."""
    return tuple(part(name.replace("__", "/"), str(value)) for name, value in values.items())


def key(number: int) -> str:
    return f"{number:064x}"


def ref(number: int) -> ArtifactRef:
    return ArtifactRef(key(number), number)


def of(*calls: tuple[Part, ...]) -> Recent:
    row = EMPTY
    for number, call in enumerate(calls):
        row = row.with_newest(key(number), ref(number), call)
    return row


BASE = {"stage__s": 1, "code__a": 1, "code__b": 1, "distribution__t": 1, "arg__o": 1}


@pytest.mark.parametrize(
    ("calls", "new", "nearest"),
    [
        ([{"arg__o": 2}, {"arg__o": 3, "distribution__t": 2}], {"arg__o": 4}, 0),
        ([{"arg__o": 2, "distribution__t": 2}, {"arg__o": 3}], {"arg__o": 4}, 1),
        ([{}, {}], {"arg__o": 4}, 1),
        ([{"file__a": 1}, {"file__b": 1}], {"file__a": 2}, 0),
        ([{"file__a": 1, "arg__o": 5, "distribution__t": 5}, {"file__b": 1}], {"file__a": 2}, 0),
        ([{"program__p": 1, "arg__o": 5, "distribution__t": 5}, {"program__p": 2}], {"program__p": 1}, 0),
        (
            [{"file__a": 1}, {"file__b": 1}, {"file__a": 1, "arg__new": 1, "arg__more": 1}],
            {"file__a": 1, "arg__o": 3},
            0,
        ),
    ],
    ids=["one change", "fewest", "newest of equals", "same file", "input first", "same content", "added parts"],
)
def test_the_nearest(calls: list[dict[str, object]], new: dict[str, object], nearest: int) -> None:
    row = of(*(parts(**{**BASE, **call}) for call in calls))
    found = row.nearest(parts(**{**BASE, **new}))[0]
    assert (found.key, found.parts) == (key(nearest), ref(nearest))


def test_it_counts_as_the_parts_themselves_do() -> None:
    random_ = random.Random(1)

    def call() -> dict[str, int]:
        return {f"arg__{random_.randrange(20)}": random_.randrange(3) for _ in range(12)}

    calls = [call() for _ in range(300)]
    row = of(*(parts(**each) for each in calls))
    assert row.keys == tuple(key(number) for number in range(299, 299 - MAX_KEYS, -1))
    for _ in range(50):
        new = call()

        def distance(number: int, new: dict[str, int] = new) -> int:
            common = calls[number].items() & new.items()
            return max(len(calls[number]), len(new)) - len(common)

        ranked = [int(each.key, 16) for each in row.nearest(parts(**new))]
        assert ranked == sorted(range(299, 299 - MAX_KEYS, -1), key=distance)


def test_a_key_that_comes_again_is_there_once_and_what_nobody_has_is_forgotten() -> None:
    row = EMPTY
    for number in range(3 * MAX_KEYS):
        row = row.with_newest(key(number), ref(number), parts(**BASE, file__f=number))
    row = row.with_newest(key(3 * MAX_KEYS - 2), ref(0), parts(**BASE, file__f=-1))
    assert len(row.keys) == len(set(row.keys)) == MAX_KEYS
    assert row.keys[:2] == (key(3 * MAX_KEYS - 2), key(3 * MAX_KEYS - 1))
    assert len(row.prints) <= 8 * (len(BASE) + MAX_KEYS + 1)
    assert unpack(pack(row), Recent, "s") == row


@pytest.mark.parametrize("count", [0, 200, 3000, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_row_is_bounded(count: int) -> None:
    row = EMPTY
    for number in range(MAX_KEYS if count < 1000 else 12):
        code = tuple(part(f"code/{at}", str(at if at % 9 else at + number)) for at in range(count))
        row = row.with_newest(key(number), ref(number), code)
    assert len(msgspec.json.encode(row)) < 150_000
    assert row.keys[0] == key(number)
    if count:
        assert row.nearest(code)[0].key == row.keys[0]
