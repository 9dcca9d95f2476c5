"""Scalars, data, containers, dataclasses, enums: round trips, aliasing, refusals, hostile rows."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import struct
import sys
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachec import codecs
from cachec.codecs.json_data import INLINE_LIMIT
from cachec.errors import StoreFault, UnstorableResult
from cachec.model import ArtifactRef, Fault, Inline, Leaf, Node, Record, Sequence
from tests.effort import rounds

HERE = __name__


class Colour(enum.Enum):
    RED = object()


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Result:
    data: bytes
    extra: Any = None

    @functools.cached_property
    def size(self) -> int:
        return len(self.data)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: list[int] = dataclasses.field(default_factory=list, init=False)


@dataclasses.dataclass
class Noisy:
    """Storing is not making: neither of these may run when it comes back."""

    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise AssertionError("ran")


class Pair(typing.NamedTuple):
    a: int
    b: Any


class Sized(typing.NamedTuple):
    a: int


def same(one: Any, other: Any) -> bool:
    """Equal in value and type all the way down; a NaN equals one of the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other)


SCALARS = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    10**5000,
    0.0,
    -0.0,
    1.0,
    1e22,
    5e-324,
    math.inf,
    -math.inf,
    math.nan,
    -math.nan,
    [struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]],
    complex(struct.unpack("<d", struct.pack("<Q", 0xFFF0000000000001))[0], -math.nan),
    1 + 2j,
    complex(-0.0, math.nan),
    "",
    "text",
    "two\nlines\0",
    "é😀",
    "\ud800",
    "x" * (INLINE_LIMIT + 1),
    "\ud800" * INLINE_LIMIT,
    b"",
    b"\0\xff",
    b"x" * (INLINE_LIMIT + 1),
]


@pytest.mark.parametrize("value", SCALARS, ids=range(len(SCALARS)))
def test_scalars_come_back_as_they_were(bench: Any, value: object) -> None:
    assert same(bench.round_trip(value), value)
    assert same(bench.round_trip([value, (value,), {"k": value}]), [value, (value,), {"k": value}])


@pytest.mark.parametrize(
    "value",
    [
        [],
        (),
        {},
        [[]],
        ((), [()]),
        {"a": [1, 1.0, True, None, "x", {"b": (1, 2)}]},
        {"!t": [1]},
        {"!": 1, "!!": 2, "!i": "1", "!f": (1,)},
        ({"!t": (1,)},),
        {"b": 1, "a": 2},
        list(range(5000)),
        {str(n): (n, float(n)) for n in range(1000)},
        [b"x", {"y": b"z" * 2000}],
        Result(b"1"),
        Result(b"1", {"k": Result(b"2", (Frozen(1), [Pair(1, [2])]))}),
        Frozen(1),
        Pair(1, Pair(2, b"")),
        Colour.RED,
        {"c": Colour.RED, "b": Bits.A},
    ],
    ids=lambda value: repr(value)[:30],
)
def test_containers_come_back_as_they_were(bench: Any, value: object) -> None:
    assert same(bench.round_trip(value), value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.just("!t"), inner),
    max_leaves=20,
)


@pytest.mark.fuzz
@settings(max_examples=rounds(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_any_data_comes_back_as_it_was(bench: Any, value: object) -> None:
    assert same(bench.round_trip(value), value)


def test_data_is_one_leaf_inline_if_short_and_an_artifact_if_long(bench: Any) -> None:
    short, long = bench.encode([1, {"a": (2,)}]), bench.encode([[n, (n, str(n))] for n in range(2000)])
    assert isinstance(short, Leaf)
    assert isinstance(long, Leaf)
    assert (len(short.artifacts), len(long.artifacts)) == (0, 1)
    assert len(msgspec.json.encode(long)) < 300


def test_artifacts_lists_every_artifact_of_a_tree(bench: Any) -> None:
    big = [b"%d" % n * 1000 for n in range(4)]
    node = bench.encode({"a": big[0], "b": [big[1], (big[2], None)], "c": Result(big[3])})
    assert [ref.size for ref in codecs.artifacts(node)] == [1000] * 4
    assert list(codecs.artifacts(bench.encode("short"))) == []


def test_decoding_twice_shares_nothing_that_can_change(bench: Any) -> None:
    value = {"data": [1, [2]], "tagged": [(1, [2])], "record": Result(b"x", [b"y", []]), "mixed": [b"x" * 2000, [1]]}
    node = bench.encode(value)
    first = bench.decode(node)
    first["data"][1].append(3)
    first["tagged"][0][1].append(3)
    first["record"].extra[1].append(3)
    first["record"].data = b"changed"
    first["mixed"][1].append(3)
    first["more"] = 1
    assert same(bench.decode(node), value)
    assert same(first, first), "and the comparison is one that can fail"
    assert not same(first, value)


def test_a_class_comes_back_without_running_its_code(bench: Any) -> None:
    value = Noisy(1)
    value.a = -1
    assert bench.round_trip(value).a == -1


def test_a_cached_property_is_not_stored(bench: Any) -> None:
    value = Result(b"abc")
    assert value.size == 3
    back = bench.round_trip(value)
    assert "size" not in vars(back)
    assert back.size == 3


# --- refusals


class Unknown:
    pass


@dataclasses.dataclass
class Lists(list[int]):
    a: int = 0


def with_attribute() -> Result:
    value = Result(b"")
    value.more = 1  # type: ignore[attr-defined]
    return value


def without_field() -> Result:
    value = Result(b"")
    del value.data
    return value


def local() -> object:
    @dataclasses.dataclass
    class Local:
        a: int

    return Local(1)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Unknown(), r"test_values\.Unknown; a stage returns .*install a plugin"),
        (lambda: 0, "builtins.function"),
        ({1, 2}, "builtins.set; return a sorted list"),
        (collections.OrderedDict(a=1), r"OrderedDict; return dict\("),
        (bytearray(b"a"), r"builtins.bytearray; return bytes\("),
        (Path("x"), r"return cachec\.File\(path\)"),
        (collections.OrderedDict(a=b""), "collections.OrderedDict"),
        (with_attribute(), "'more' as a field"),
        (without_field(), "'data', which it lacks"),
        (local(), "define the class at the top level"),
        (Lists(), "Lists"),
        (Bits.A | Bits.B, "a name in the class"),
        (types.SimpleNamespace(), "SimpleNamespace"),
        (ValueError("x"), "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_no_codec_takes_is_refused_with_place_type_and_way_out(bench: Any, value: object, says: str) -> None:
    with pytest.raises(UnstorableResult, match=rf"^result\['k'\]\[1\]\.extra is (?s:.*){says}"):
        bench.encode({"k": (0, Result(b"", value))})


@pytest.mark.parametrize("value", [{1: 2}, {None: b"", True: [1]}, {(1, ("a", 2.5)): {}, "a": 1, b"b": 2}])
def test_numbers_and_tuples_are_keys(bench: Any, value: dict[Any, Any]) -> None:
    back = bench.round_trip([value])
    assert back == [value]
    assert [*map(type, back[0])] == [*map(type, value)]


@pytest.mark.parametrize("key", [math.nan, frozenset(), (1, Path("a")), "\ud800"])
def test_other_keys_are_refused(bench: Any, key: object) -> None:
    with pytest.raises(UnstorableResult, match=r"a key of result\[0\]"):
        bench.encode([{key: b""}])


def test_cycles_and_bottomless_results_are_refused(bench: Any) -> None:
    data: list[Any] = [1]
    data.append(data)
    tree: list[Any] = [b""]
    tree.append({"again": tree})
    for cycle in (data, tree):
        with pytest.raises(UnstorableResult, match="contains itself or is over 100 deep"):
            bench.encode(cycle)


# --- hostile rows


def hostile(node: Node, bench: Any) -> str:
    with pytest.raises(StoreFault) as caught:
        bench.decode(node)
    assert caught.value.fault is Fault.ROW_CORRUPT
    return caught.value.detail


@pytest.mark.parametrize(
    "node",
    [
        Inline("int", "1_0"),
        Inline("int", " 1"),
        Inline("int", "+1"),
        Inline("int", "0x1"),
        Inline("int", "1" * 30),
        Inline("int", "9" * 10**6),
        Inline("int", ""),
        Inline("float", "1"),
        Inline("float", "1e0"),
        Inline("float", "x"),
        Inline("float", "nan:12"),
        Inline("float", "nan:7FF8000000000001"),
        Inline("float", "nan:3ff0000000000000"),
        Inline("complex", "1.0"),
        Inline("complex", "1.0 x"),
        Inline("bool", "True"),
        Inline("none", "x"),
        Inline("bytes", "0"),
        Inline("what", ""),
        Inline("enum", f"{HERE}:Colour:BLUE"),
        Inline("enum", f"{HERE}:Colour:__members__"),
        Inline("enum", f"{HERE}:Result:data"),
        Inline("enum", "nowhere:Colour:RED"),
        Inline("enum", ""),
        Leaf("what", ()),
        Leaf("plugin:none", ()),
        Leaf("bytes", ()),
        Leaf("data", ()),
        Leaf("data", (), {"json": "[1"}),
        Leaf("data", (), {"json": 1}),
        Leaf("data", (), {"json": "1", "more": 1}),
        Leaf("data", (), {"json": "[" * 10**5 + "]" * 10**5}),
        Leaf("data", (ArtifactRef("0" * 64, 0),), {"json": "1"}),
        Leaf("data", (), {"json": '{"!x":1}', "tagged": True}),
        Leaf("data", (), {"json": '{"!t":1}', "tagged": True}),
        Leaf("data", (), {"json": '{"!t":[],"a":1}', "tagged": True}),
        Leaf("data", (), {"json": '{"!i":"zz"}', "tagged": True}),
        Leaf("data", (), {"json": '{"!f":1.0}', "tagged": True}),
        Sequence("set", ()),
        Sequence("dict", (Inline("int", "1"),)),
        Sequence("dict", (Sequence("list", ()), Inline("int", "1"))),
        Sequence("dict", (Inline("int", "1"), Inline("int", "1"), Inline("int", "1"), Inline("int", "2"))),
        Record("", ("a",), ()),
        Record("", ("a", "a"), (Inline("none", ""), Inline("none", ""))),
        Record("nowhere:Result", (), ()),
        Record(f"{HERE}:Nowhere", (), ()),
        Record(f"{HERE}:Unknown", (), ()),
        Record("os:system", (), ()),
        Record("builtins:object", (), ()),
        Record(f"{HERE}:Lists", ("a",), (Inline("int", "1"),)),
        Record(f"{HERE}:Result", ("data",), (Inline("none", ""),)),
        Record(f"{HERE}:Result", ("extra", "data"), (Inline("none", ""), Inline("none", ""))),
        Record(f"{HERE}:Sized", ("a", "b"), (Inline("none", ""), Inline("none", ""))),
        Record(f"{HERE}:Result.__init__.__globals__.Result", (), ()),
    ],
    ids=lambda node: repr(node)[:60],
)
def test_a_row_that_says_what_cannot_be_is_corrupt(bench: Any, node: Node) -> None:
    assert hostile(node, bench)


def test_a_row_never_causes_an_import(bench: Any) -> None:
    assert "antigravity" not in sys.modules
    hostile(Record("antigravity:Result", (), ()), bench)
    hostile(Inline("enum", "antigravity:Result:A"), bench)
    assert "antigravity" not in sys.modules


def test_a_class_that_changed_its_fields_is_a_miss(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.encode(Result(b"", 1))
    changed = dataclasses.make_dataclass("Result", ["data", "extra", "new"])
    monkeypatch.setattr(sys.modules[HERE], "Result", changed)
    assert "has the fields" in hostile(node, bench)


def test_an_artifact_that_is_gone_or_short_is_a_fault_of_its_own(bench: Any) -> None:
    node = bench.encode(b"x" * 5000)
    (ref,) = codecs.artifacts(node)
    path = bench.store.root / ref.digest
    path.chmod(0o644)
    path.write_bytes(b"short")
    with pytest.raises(StoreFault) as caught:
        bench.decode(node)
    assert caught.value.fault is Fault.ARTIFACT_CORRUPT
    path.unlink()
    with pytest.raises(StoreFault) as caught:
        bench.decode(node)
    assert caught.value.fault is Fault.ARTIFACT_MISSING
