"""Canonical encoding of options: what differs, what does not, what is refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import math
import pathlib
import random
import struct
import subprocess
import sys
import types
import typing
import uuid
import zoneinfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.base.cached_properties import collect_encountered
from cachec.errors import UnkeyableArgument
from cachec.key.option_encoding import MAX_DEPTH, describe, encode, plain


def nothing(value: object, path: str) -> bytes | None:
    return None


def enc(value: object) -> bytes:
    return encode(value, nothing, "x")


def output_with_seed(code: str, seed: str) -> str:
    """What another Python prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Other(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.Flag):
    A = 1
    B = 2


class Opaque(enum.Enum):
    X = object()
    Y = object()


@dataclasses.dataclass
class Options:
    a: int
    b: object = None
    hidden: int = dataclasses.field(default=0, init=False, compare=False)

    @functools.cached_property
    def derived(self) -> int:
        return self.a + 1


@dataclasses.dataclass
class Same:
    a: int
    b: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int


class Pair(typing.NamedTuple):
    a: int
    b: int


class Twin(typing.NamedTuple):
    a: int
    b: int


class Struct(msgspec.Struct):
    a: int


class Wild(msgspec.Struct, dict=True):
    a: int


class Name(str):
    pass


# Every value differs from every other one.
DISTINCT: list[object] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    -(2**63) - 1,
    2**4000,
    0.0,
    -0.0,
    1.0,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    1 + 0j,
    0j,
    -0j,
    1 + 1j,
    complex(math.nan, 1),
    complex(math.nan, 2),
    "",
    "1",
    "a",
    "\ud800",
    "\u00e9",
    "e\u0301",
    b"",
    b"1",
    b"a",
    bytearray(b"1"),
    memoryview(b"1"),
    memoryview(struct.pack("i", 1)).cast("i"),
    memoryview(b"12"),
    memoryview(b"12").cast("B", (2, 1)),
    memoryview(b"12").cast("B", (1, 2)),
    (),
    (1,),
    (1, 2),
    (2, 1),
    ((1,), 2),
    (1, (2,)),
    [],
    [1],
    [1, 2],
    [[1], 2],
    [[], [1, 2]],
    ["ab"],
    ["a", "b"],
    set(),
    {1},
    {1, 2},
    frozenset(),
    frozenset({1}),
    {},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {1: "a"},
    {1.0: "a"},
    {True: "a"},
    {"a": 1, 1: "a"},
    {1: "a", "a": 1},
    {"a": {"x": 1, "y": 2}},
    {"a": {"y": 2, "x": 1}},
    Options(1, {"x": 1, "y": 2}),
    Options(1, {"y": 2, "x": 1}),
    collections.OrderedDict(a=1, b=2),
    collections.OrderedDict(b=2, a=1),
    collections.defaultdict(None, a=1),
    collections.defaultdict(None, a=2),
    collections.defaultdict(int, a=1),
    collections.Counter("aab"),
    types.MappingProxyType({"a": 1}),
    collections.Counter("baa"),
    collections.deque([1]),
    collections.deque([2]),
    collections.deque([1], 3),
    types.MappingProxyType({"a": 1, "b": 2}),
    types.MappingProxyType({"b": 2, "a": 1}),
    types.SimpleNamespace(a=1),
    types.SimpleNamespace(a=1, b=2),
    types.SimpleNamespace(b=2, a=1),
    random.Random(1),
    random.Random(2),
    range(3),
    range(4),
    range(1, 3),
    range(0, 3, 2),
    slice(3),
    slice(0, 3),
    slice(1, 3),
    slice(0, 4),
    slice(0, 3, 2),
    ...,
    NotImplemented,
    int,
    bool,
    Options,
    Colour.RED,
    Colour.BLUE,
    Other.RED,
    Level.LOW,
    Bits.A,
    Bits.B,
    Bits.A | Bits.B,
    Opaque.X,
    Opaque.Y,
    Options(1),
    Options(2),
    Options(1, [1]),
    Options(1, (1,)),
    Same(1),
    Slotted(1),
    Pair(1, 2),
    Pair(2, 1),
    Twin(1, 2),
    Struct(1),
    Struct(2),
    Wild(1),
    Name("a"),
    datetime.date(2026, 1, 2),
    datetime.datetime(2026, 1, 2),
    datetime.datetime(2026, 1, 2, fold=1),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
    datetime.time(1),
    datetime.time(2),
    datetime.time(1, fold=1),
    datetime.time(1, tzinfo=datetime.UTC),
    datetime.timedelta(1),
    datetime.timedelta(seconds=1),
    datetime.timedelta(microseconds=1),
    datetime.UTC,
    datetime.timezone(datetime.timedelta(0), "UTC"),
    datetime.timezone(datetime.timedelta(0), "a"),
    datetime.timezone(datetime.timedelta(hours=1), "a"),
    datetime.timezone(datetime.timedelta(hours=1), "b"),
    decimal.Decimal("1.0"),
    decimal.Decimal("1.00"),
    decimal.Decimal("NaN"),
    fractions.Fraction(1, 2),
    fractions.Fraction(1, 3),
    fractions.Fraction(3, 2),
    uuid.UUID(int=1),
    uuid.UUID(int=2),
    uuid.UUID(int=2, is_safe=uuid.SafeUUID.safe),
    -float("nan"),
    struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0123))[0],
    memoryview(b"ab"),
    memoryview(bytearray(b"ab")),
    pathlib.PurePosixPath("a"),
    pathlib.PureWindowsPath("a"),
]


def test_different_values_have_different_forms() -> None:
    forms = [enc(value) for value in DISTINCT]
    for (left, one), (right, other) in itertools.combinations(zip(DISTINCT, forms, strict=True), 2):
        assert one != other, (left, right)


def test_no_form_is_the_start_of_another() -> None:
    # What is concatenated in a container can then be taken apart in one way only.
    forms = sorted(enc(value) for value in DISTINCT)
    for one, other in itertools.pairwise(forms):
        assert not other.startswith(one), (one, other)


def test_the_same_value_has_the_same_form_inside_a_container() -> None:
    for value in DISTINCT:
        assert enc([value, 1]) == enc([value, 1])
        assert enc([value]) != enc([[value]])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1, "a", (2, 3)}, {(2, 3), "a", 1}),
        (0.1 + 0.2, 0.30000000000000004),
    ],
)
def test_what_does_not_count(one: object, other: object) -> None:
    assert enc(one) == enc(other)


def test_what_a_cached_property_holds_counts() -> None:
    used = Options(1)
    assert used.derived == 2
    assert enc(used) != enc(Options(1))
    with collect_encountered() as met:
        assert enc(Options(1)) != enc(used)
    assert [each.names for each in met.unfilled] == [{"derived"}]
    with collect_encountered({id(used): frozenset({"derived"})}):
        assert enc(used) == enc(Options(1))


def test_all_state_of_an_instance_counts() -> None:
    hidden, extra, struct_extra = Options(1), Options(1), Wild(1)
    hidden.hidden = 5
    extra.more = 1  # type: ignore[attr-defined]
    struct_extra.more = 1  # type: ignore[attr-defined]
    assert len({enc(Options(1)), enc(hidden), enc(extra)}) == 3
    assert enc(struct_extra) != enc(Wild(1))


@dataclasses.dataclass
class Answering:
    a: int = 1


def test_an_attribute_that_was_deleted_is_not_there() -> None:
    deleted = Answering()
    del deleted.a
    assert deleted.a == 1
    assert enc(deleted) != enc(Answering())


class AnswersAll:
    def __getattribute__(self, name: str) -> object:
        return AnswersAll()


def test_what_answers_for_every_name_is_refused() -> None:
    for value in (AnswersAll(), [AnswersAll()]):
        with pytest.raises(UnkeyableArgument, match="no class"):
            enc(value)


def test_attrs_like_classes_are_keyed_by_their_fields() -> None:
    class Point:
        __attrs_attrs__ = (types.SimpleNamespace(name="x"),)

        def __init__(self, x: int) -> None:
            self.x = x

    assert enc(Point(1)) == enc(Point(1)) != enc(Point(2))


def test_a_dataclass_of_generics_is_an_instance_like_any_other() -> None:
    T = typing.TypeVar("T")

    @dataclasses.dataclass
    class Box(typing.Generic[T]):
        item: T

    assert enc(Box(1)) == enc(Box(1)) != enc(Box("1"))


# --- special


def test_special_is_asked_for_everything_but_plain_scalars_and_is_believed() -> None:
    asked: list[str] = []

    def special(value: object, path: str) -> bytes | None:
        asked.append(path)
        return b"code of " + value.__name__.encode() if isinstance(value, types.FunctionType) else None

    def one() -> None: ...
    def two() -> None: ...

    value = {"f": [1, one], "n": None, "s": "text"}
    form = encode(value, special, "options")
    assert asked == ["options", "options['f']", "options['f'][1]"]
    assert form != encode({**value, "f": [1, two]}, special, "options")
    assert encode(b"code of one", special) != encode(one, special), "an answer is not bytes of the same content"


def test_special_is_asked_in_an_order_that_no_hash_seed_changes() -> None:
    code = (
        "import enum; from cachec.key.option_encoding import encode\n"
        "E = enum.Enum('E', 'a b c d e f g')\n"
        "asked = []\n"
        "encode({*E}, lambda v, p: asked.append(p), 'x'); print(asked)"
    )
    assert len({output_with_seed(code, seed) for seed in "01234"}) == 1


def test_special_is_asked_for_the_class_of_an_instance() -> None:
    answers: dict[type, bytes] = {}

    def special(value: object, path: str) -> bytes | None:
        return answers.get(value) if isinstance(value, type) else None

    for value in (Options(1), Colour.RED, Pair(1, 2), Struct(1), Name("a")):
        before = encode(value, special)
        answers[type(value)] = b"one body"
        one = encode(value, special)
        answers[type(value)] = b"another body"
        assert len({before, one, encode(value, special)}) == 3


class Table(dict[str, int]):
    pass


def test_an_instance_of_a_class_whose_code_is_told_is_its_state_and_its_items() -> None:
    def enc(value: object) -> bytes:
        return encode(value, lambda each, _: each.__name__.encode() if isinstance(each, type) else None)

    def plain(**attributes: object) -> Unknown:
        made = Unknown()
        vars(made).update(attributes)
        return made

    table = Table(a=1)
    table.more = 1  # type: ignore[attr-defined]
    values: list[object] = [
        plain(),
        plain(a=1),
        plain(a=1, b=2),
        plain(b=2, a=1),
        Listed(),
        Listed([1]),
        Listed([1, 2]),
    ]
    values += [Table(), Table(a=1), Table(a=1, b=2), Table(b=2, a=1), table, {"a": 1}, [1]]
    for (left, one), (right, other) in itertools.combinations(enumerate(map(enc, values)), 2):
        assert one != other, (left, right)
    assert enc(plain(a=1)) == enc(plain(a=1))
    assert enc(Table(a=1)) == enc(Table(a=1))


def test_a_generator_of_numpy_is_its_state() -> None:
    import numpy as np

    for make in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        one = np.random.Generator(make(1))
        before = enc(one)
        assert before == enc(np.random.Generator(make(1))) != enc(np.random.Generator(make(2)))
        one.random()
        assert enc(one) != before
    assert enc(np.random.RandomState(1)) == enc(np.random.RandomState(1)) != enc(np.random.RandomState(2))


def test_special_is_not_asked_for_scalars() -> None:
    def special(value: object, path: str) -> bytes | None:
        raise AssertionError(value)

    for value in (None, True, 1, 1.0, "a", b"a"):
        encode(value, special)


# --- refusals


class Unknown:
    pass


class Attributed(str):
    pass


@dataclasses.dataclass
class Failure(Exception):
    code: int


def attributed() -> Attributed:
    value = Attributed("a")
    value.more = 1  # type: ignore[attr-defined]
    return value


def ordered_with_attribute() -> object:
    value: typing.Any = collections.OrderedDict()
    value.more = 1
    return value


class Listed(list[int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Unknown(),
        lambda: 0,
        len,
        attributed(),
        ordered_with_attribute(),
        Listed(),
        Failure(1),
        iter([]),
        sys,
        pathlib.Path("a"),
        list[int],
        type("Nowhere", (), {}),
        memoryview(b"").__class__.__call__,
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_what_has_no_stable_key_is_refused_with_path_type_and_way_out(value: object) -> None:
    with pytest.raises(UnkeyableArgument) as caught:
        encode({"x": (0, 1, [value])}, nothing, "options")
    text = str(caught.value)
    assert "argument options['x'][2][0] is" in text
    for way_out in ("dataclass", "cachec.File", "WeightSet", "ignore=", "plugin"):
        assert way_out in text


def test_a_refusal_names_the_type_and_the_field() -> None:
    with pytest.raises(UnkeyableArgument, match=r"argument o\.b\['k'\] is a \S*test_option_encoding\.Unknown"):
        encode(Options(1, {"k": Unknown()}), nothing, "o")


def test_cycles_and_bottomless_nesting_are_refused() -> None:
    cycle: list[object] = [1]
    cycle.append({"again": cycle})
    with pytest.raises(UnkeyableArgument, match=r"x\[1\]\['again'\] contains itself"):
        enc(cycle)
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert enc(deep)
    with pytest.raises(UnkeyableArgument, match="nested over 100 deep"):
        enc([deep])


def test_one_value_met_twice_is_no_cycle() -> None:
    shared = [1]
    assert enc([shared, shared]) == enc([[1], [1]])


# --- numpy


def test_numpy_scalars_and_dtypes() -> None:
    import ml_dtypes
    import numpy as np

    values: list[object] = [
        1,
        1.0,
        True,
        *(np.dtype(code).type(1) for code in ("i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "?")),
        np.float32(-0.0),
        np.float32(0.0),
        np.float32("nan"),
        np.complex64(complex(math.nan, 1)),
        np.complex64(complex(math.nan, 2)),
        np.str_("a"),
        np.bytes_(b"a"),
        np.datetime64("2026-01-01"),
        np.datetime64("2026-01-01", "ns"),
        np.datetime64("nat"),
        np.timedelta64(1, "s"),
        ml_dtypes.bfloat16(1),
        ml_dtypes.float8_e4m3fn(1),
        ml_dtypes.float8_e5m2(1),
        np.dtype("<f4"),
        np.dtype(">f4"),
        np.dtype("V2"),
        np.dtype(ml_dtypes.bfloat16),
        np.dtype(ml_dtypes.float8_e4m3fn),
        np.dtype(ml_dtypes.float8_e4m3),
        np.dtype([("a", "f4"), ("b", "i4")]),
        np.dtype([("b", "f4"), ("a", "i4")]),
        np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4]}),
        np.dtype({"names": ["a"], "formats": ["i4"], "itemsize": 8}),
        np.dtype(("f4", (2, 2))),
        np.dtype("f4", metadata={"unit": "m"}),
        np.float32,
    ]
    forms = [enc(value) for value in values]
    for (left, one), (right, other) in itertools.combinations(zip(values, forms, strict=True), 2):
        assert one != other, (left, right)
    assert enc(np.float32("nan")) != enc(-np.float32("nan"))
    assert enc(np.uint32(0x7FC00001).view("f4")) != enc(np.float32("nan"))
    assert enc(np.dtype("l")) != enc(np.dtype("q"))
    assert enc(np.dtype("f4")) == enc(np.dtype("float32"))
    for refused in (np.longdouble(1), np.zeros(3), np.void(b"ab"), np.array([(1, 2)], "i4,i4")[0]):
        with pytest.raises(UnkeyableArgument):
            enc(refused)


def test_numpy_is_not_imported() -> None:
    code = (
        "import sys; from cachec.key.option_encoding import encode, describe\n"
        "encode({'a': [1, 2.0, ('x',)]}, lambda v, p: None); describe([1])\n"
        "assert not {'numpy', 'ml_dtypes', 'click', 'rich', 'subprocess'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=pathlib.Path(__file__).parents[2])


# --- across processes


def test_the_form_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from cachec.key.option_encoding import encode\n"
        "value = {'s': {'a', 'b', 'c', 1, None}, 'd': {x: {x} for x in 'qrs'}, 'f': frozenset({b'x', 'x'})}\n"
        "print(encode(value, lambda v, p: None).hex())"
    )
    forms = {output_with_seed(code, seed) for seed in "0123"}
    assert len(forms) == 1
    assert len(forms.pop()) > 20


def test_the_form_of_a_plain_value_is_what_it_was() -> None:
    # A change here makes every stored key a miss: change KEY_VERSION with it, on purpose.
    assert enc({"b": [1, 2.5], "a": ("x", None, True)}).hex() == (
        "7b0200000000000000"
        "73010000000000000062"
        "5b0200000000000000" + "690100000000000000" + "640000000000000440"
        "73010000000000000061"
        "280300000000000000" + "73010000000000000078" + "4e" + "54"
    )


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


def exact(value: object) -> object:
    """A form in which == means the same value of the same type."""
    if isinstance(value, dict):
        return dict, tuple((exact(key), exact(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(exact(item) for item in value)
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else value.hex()
    return type(value), value


@given(TREES, TREES)
def test_forms_are_equal_exactly_where_values_are(one: object, other: object) -> None:
    assert (enc(one) == enc(other)) == (exact(one) == exact(other))


@given(st.lists(SCALARS), st.lists(SCALARS))
def test_where_a_list_ends_counts(one: list[object], other: list[object]) -> None:
    joined = enc([one, other])
    assert (joined == enc([[*one, *other], []])) == (not other)


# --- words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (3, "3"),
        (2**4000, "int of 4001 bits"),
        ("ab", "'ab'"),
        (b"ab", "b'ab'"),
        (b"\x01" * 100, "bytes of 100 bytes 0101010101010101…"),
        ([1, (2,)], "[1, (2,)]"),
        ([[1], ()], "[[1], ()]"),
        ({"a": {2, 1}}, "{'a': {1, 2}}"),
        (Colour.RED, "Colour.RED"),
        (Options(1, "x"), "Options(a=1, b='x', hidden=0)"),
        (Pair(1, 2), "Pair(a=1, b=2)"),
        (int, "int"),
        (datetime.date(2026, 1, 2), "datetime.date(2026, 1, 2)"),
        (decimal.Decimal("1.5"), "Decimal('1.5')"),
        (fractions.Fraction(1, 2), "Fraction(1, 2)"),
        (uuid.UUID(int=1), "UUID('00000000-0000-0000-0000-000000000001')"),
        (zoneinfo.ZoneInfo("UTC"), "zoneinfo.ZoneInfo(key='UTC')"),
        (pathlib.PurePosixPath("a"), "PurePosixPath('a')"),
        (frozenset({1}), "{1}"),
        (collections.OrderedDict(a=1), "{'a': 1}"),
        (types.MappingProxyType({"a": 1}), "{'a': 1}"),
    ],
)
def test_describe(value: object, text: str) -> None:
    assert describe(value) == text


def test_describe_is_short_and_runs_no_repr() -> None:
    import ml_dtypes
    import numpy as np

    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("its repr ran")

    assert describe(np.zeros((1000, 3), "f4")) == "array float32[1000, 3]"
    for value in (np.float32(1.5), np.dtype("f4"), ml_dtypes.bfloat16(1.5)):
        assert describe(value) == repr(value)
    assert "Loud>" in describe([Loud()], 200)
    assert describe(list(range(10**5)), 40).endswith("100000 in all]")
    for value in ("x" * 1000, list(range(1000)), {str(n): n for n in range(1000)}, [["a" * 60] * 9] * 9):
        assert len(describe(value)) <= 80
        assert len(describe(value, 20)) <= 20
    cycle: list[object] = []
    cycle.append(cycle)
    assert len(describe(cycle)) <= 80


def test_plain_says_what_needs_no_plugin() -> None:
    import numpy as np

    known: list[object] = [
        1,
        "a",
        [Options(1)],
        {},
        Colour.RED,
        datetime.date(2026, 1, 2),
        np.float32(1),
        np.dtype("f4"),
    ]
    unknown: list[object] = [Options(1), Unknown(), np.zeros(2), Struct(1), len]
    assert [plain(value) for value in known] == [True] * len(known)
    assert [plain(value) for value in unknown] == [False] * len(unknown)
