"""The rows that a miss is compared with: the nearest key, and how large a row gets."""

from __future__ import annotations

import random

import msgspec
import pytest

from cachec.model import ArtifactRef, Part
from cachec.store.nearest_keys import MAX_KEYS, Neighbours, Recent, neighbourhood, neighbours, prints_of
from cachec.store.row_codec import pack, unpack
from tests.parts import part

EMPTY = Recent(stage="s")


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
        row = row.with_newest(key(number), ref(number), prints_of(call))
    return row


BASE = {"stage__s": 1, "code__a": 1, "code__b": 1, "distribution__t": 1, "arg__n": 1, "arg__o": 1}


class Rows(dict[str, Recent]):
    """The rows of one stage, as a store keeps them."""

    def add(self, number: int, call: tuple[Part, ...]) -> None:
        for name in neighbourhood("s", call).rows():
            row = self.get(name, Recent(stage="s", alike=name))
            self[name] = row.with_newest(key(number), ref(number), prints_of(call))

    def neighbours(self, call: tuple[Part, ...]) -> Neighbours:
        place = neighbourhood("s", call)
        return neighbours(place, {name: self.get(name, EMPTY) for name in place.rows()}, call)


def call(**values: object) -> tuple[Part, ...]:
    """The parts of a call; a value ``name:content`` is of an input of that name."""
    made = []
    for each in parts(**{**BASE, **values}):
        subject, colon, content = each.detail.partition(":")
        made.append(part(each.label, content, subject=subject) if colon else each)
    return tuple(made)


@pytest.mark.parametrize(
    ("calls", "new", "nearest"),
    [
        ([{"arg__o": 2}, {"arg__o": 3, "distribution__t": 2}], {"arg__o": 4}, 0),
        ([{"arg__o": 2, "distribution__t": 2}, {"arg__o": 3}], {"arg__o": 4}, 1),
        ([{}, {}], {"arg__o": 4}, 1),
        ([{"file__a": "a:1"}, {"file__b": "b:1"}], {"file__a": "a:2"}, 0),
        ([{"file__f": "a:1"}, {"file__f": "b:1"}], {"file__f": "a:2"}, 0),
        ([{"file__f": "a:1", "arg__o": 5, "distribution__t": 5}, {"file__f": "b:1"}], {"file__f": "a:2"}, 0),
        ([{"program__p": "m:1", "arg__o": 5, "distribution__t": 5}, {"program__p": "m:2"}], {"program__p": "m:1"}, 0),
        ([{"file__f": "a:1", "arg__o": 5, "env__l": 1}, {"file__f": "a:2"}], {"file__f": "a:1"}, 1),
        ([{"program__p": "1", "arg__o": 5, "distribution__t": 5}, {"program__p": "2"}], {"program__p": "1"}, 1),
        ([{"file__f": "/x/a:1", "arg__o": 5}, {"file__f": "/x/b:1"}], {"file__f": "/y/a:1"}, 0),
        ([{"arg__f": "f:1", "arg__o": 5}, {"arg__f": "g:1"}], {"arg__f": "f:2"}, 0),
        (
            [{"file__f": "a:1", "order__out": "a.o:"}, {"file__f": "a:1", "order__out": "b.o:"}],
            {"file__f": "a:2", "order__out": "a.o:"},
            0,
        ),
        (
            [{"file__a": "a:1"}, {"file__b": "b:1"}, {"file__a": "a:1", "arg__new": 1, "arg__more": 1}],
            {"file__a": "a:1", "arg__o": 3},
            0,
        ),
    ],
    ids=[
        *("one change", "fewest", "newest of equals", "same file", "same argument", "input first", "same program"),
        *("a file as it once was",),
        *("a program without a name", "in another folder", "same callable", "same output", "added parts"),
    ],
)
@pytest.mark.parametrize("others", [0, 500])
def test_the_nearest(calls: list[dict[str, object]], new: dict[str, object], nearest: int, others: int) -> None:
    """others: newer entries, each of an input or an option of its own."""
    rows = Rows()
    for number, values in enumerate(calls):
        rows.add(number, call(**values))
    for number in range(others):
        rows.add(1000 + number, call(file__f=f"other{number}:1"))
        rows.add(2000 + number, call(arg__n=f"other {number}", arg__o=number, distribution__t=9))
    found = rows.neighbours(call(**new))
    assert not found.unknown
    assert (found.nearest[0].key, found.nearest[0].parts) == (key(nearest), ref(nearest))


@pytest.mark.parametrize(
    ("known", "new", "unknown"),
    [
        ({"file__f": "a:1"}, {"file__f": "b:1"}, ("b",)),
        ({"file__f": "a:1", "arg__o": 2}, {"file__f": "b:2"}, ("b",)),
        ({"program__p": "m:1"}, {"program__p": "n:2"}, ("n",)),
        ({"arg__f": "f:1"}, {"arg__f": "g:1"}, ("g",)),
        ({"file__f": "a:1", "order__out": "a.out:"}, {"file__f": "b:1", "order__out": "a.out:"}, ("b",)),
        ({"file__f": "a:1", "arg__g": "g:"}, {"file__f": "b:1", "arg__g": "g:"}, ("b",)),
        ({"file__f": "a:1", "file__g": "g:1"}, {"file__f": "b:1", "file__g": "g:1"}, ("b",)),
        (
            {"file__f": "a:1", "file__g": "g:1", "order__out": "x:"},
            {"file__f": "a:1", "file__g": "g:1", "file__h": "h:1", "order__out": "x:"},
            (),
        ),
        ({"program__p": "1"}, {"program__p": "2"}, ()),
        ({"arg__o": 1}, {"arg__o": 2}, ()),
    ],
)
def test_an_input_of_which_there_is_none_is_named(
    known: dict[str, object], new: dict[str, object], unknown: tuple[str, ...]
) -> None:
    rows = Rows()
    rows.add(1, call(**known))
    assert rows.neighbours(call(**new)).unknown == unknown


def test_many_inputs_are_found_again_by_some_and_take_few_rows() -> None:
    rows = Rows()
    objects = {f"file__{number}.o": f"{number}.o:1" for number in range(500)}
    rows.add(0, call(**objects, order__outputs="prog:"))
    rows.add(1, call(file__x="x.o:1", order__outputs="other:"))
    assert len(rows) <= 16
    found = rows.neighbours(call(**{**objects, "file__77.o": "77.o:2"}, order__outputs="prog:"))
    assert (found.unknown, found.nearest[0].key) == ((), key(0))
    found = rows.neighbours(call(**{**objects, "file__added.o": "added.o:2"}, order__outputs="prog:"))
    assert (found.unknown, found.nearest[0].key) == ((), key(0))


def test_an_option_that_changed_is_found_however_many_calls_came_after() -> None:
    rows = Rows()
    rows.add(0, call(arg__n=1, arg__o=1))
    for number in range(1, 300):
        rows.add(number, call(arg__n=number + 1, arg__o=7))
    assert rows.neighbours(call(arg__n=1, arg__o=2)).nearest[0].key == key(0)
    assert rows.neighbours(call(arg__n=1, arg__o=1, code__a=2)).nearest[0].key == key(0)


@pytest.mark.parametrize("options", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("swept", [0, -1])
def test_one_option_of_many_is_found_after_a_sweep_of_another(options: int, swept: int) -> None:
    """First each value of one option; then the call that differs in one option from the first of these.

    Of more than three options, some are left out of a row together, and of one of these the newest may be taken.
    """
    rows = Rows()
    names = [f"arg__o{at}" for at in range(options)]
    base = dict.fromkeys(names, 0)
    for number in range(200):
        rows.add(number, call(**{**base, names[swept]: number}))
    for name in names:
        found = rows.neighbours(call(**{**base, name: -1})).nearest[0].key
        together = (names.index(name) - swept % options) % 3 == 0
        assert found == key(199 if name == names[swept] or (options > 3 and together) else 0), name
    assert rows.neighbours(call(**base, code__a=2)).nearest[0].key == key(0)


@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("options", [0, 1, 12])
def test_a_call_has_few_rows_and_an_edit_of_any_input_is_found(inputs: int, output: bool, options: int) -> None:
    rows = Rows()
    files = {f"file__{at}": f"/src/{at}:1" for at in range(inputs)}
    others: dict[str, object] = {f"arg__{at}": at for at in range(options)}
    if output:
        others["order__out"] = "a.out:"
    for number in range(40):
        rows.add(number, call(**{**files, "file__0": f"/src/other{number}:1"}, **others))
    rows.add(99, call(**files, **others))
    assert len(neighbourhood("s", call(**files, **others)).rows()) <= 4
    for name, value in files.items():
        found = rows.neighbours(call(**{**files, name: value.replace(":1", ":2")}, **others))
        assert (found.unknown, found.nearest[0].key) == ((), key(99))
    moved = {name: value.replace("/src", "/elsewhere") for name, value in files.items()}
    found = rows.neighbours(call(**moved, **others))
    assert (found.unknown, found.nearest[0].key) == ((), key(99))


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
        row = row.with_newest(key(number), ref(number), prints_of(parts(**BASE, file__f=number)))
    row = row.with_newest(key(3 * MAX_KEYS - 2), ref(0), prints_of(parts(**BASE, file__f=-1)))
    assert len(row.keys) == len(set(row.keys)) == MAX_KEYS
    assert row.keys[:2] == (key(3 * MAX_KEYS - 2), key(3 * MAX_KEYS - 1))
    assert len(row.prints) <= 8 * (len(BASE) + MAX_KEYS + 1)
    assert unpack(pack(row), Recent, "s") == row


@pytest.mark.parametrize("count", [0, 200, 3000, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_row_is_bounded(count: int) -> None:
    row = EMPTY
    for number in range(MAX_KEYS if count < 1000 else 12):
        code = tuple(part(f"code/{at}", str(at if at % 9 else at + number)) for at in range(count))
        row = row.with_newest(key(number), ref(number), prints_of(code))
    assert len(msgspec.json.encode(row)) < 150_000
    assert row.keys[0] == key(number)
    if count:
        assert row.nearest(code)[0].key == row.keys[0]
