"""The two ways to read a header: checks of all tensors together, which accept nothing that one at a time would not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cachec.errors import CheckpointError
from cachec.weights import open_weights
from cachec.weights.formats.safetensors import _parse, _parse_at_once
from tests.effort import rounds

LENGTH = b"12345678"  # in front of each text; not looked at here
CODES = {"F32": 4, "U8": 1, "BF16": 2, "I64": 8}
HOSTILE = Path(__file__).parent.parent.parent / "hostile"


def entry(code: str, shape: list[int], begin: int) -> dict[str, Any]:
    size = CODES[code]
    for dimension in shape:
        size *= dimension
    return {"dtype": code, "shape": shape, "data_offsets": [begin, begin + size]}


def at_once(text: bytes, available: int) -> tuple[Any, Any] | None:
    header = _parse_at_once(LENGTH + text, available)
    return None if header is None else (dict(header.tensors), header.metadata)


def one_by_one(text: bytes, available: int) -> tuple[Any, Any] | None:
    try:
        header = _parse("f", LENGTH + text, available)
    except CheckpointError:
        return None
    return dict(header.tensors), header.metadata


def header(*shapes: tuple[str, list[int]], **more: Any) -> tuple[bytes, int]:
    """The text of a header of such tensors, one after the other, and the bytes of its data."""
    entries: dict[str, Any] = dict(more)
    reached = 0
    for number, (code, shape) in enumerate(shapes):
        entries[f"t{number}"] = entry(code, shape, reached)
        reached = entries[f"t{number}"]["data_offsets"][1]
    return json.dumps(entries).encode(), reached


GOOD = [
    header(("F32", [2, 3])),
    header(("F32", [2, 3]), ("F32", [2, 3]), ("U8", [8]), ("I64", []), ("BF16", [1, 1, 1])),
    header(("F32", [2]), __metadata__={"format": "pt"}),
    header(("F32", [2]), __metadata__={"dtype": "x", "-0": "y-0"}),
    header(("F32", [2]), __metadata__={}),
    (json.dumps({"layer-0.b": entry("F32", [2], 8), "a,-0": entry("F32", [2], 0)}).encode(), 16),
    (json.dumps({"ä ": entry("F32", [2], 0)}, ensure_ascii=False).encode() + b"  ", 8),
]


@pytest.mark.parametrize(("text", "available"), GOOD)
def test_what_is_usual_is_read_at_once(text: bytes, available: int) -> None:
    found = at_once(text, available)
    expected = one_by_one(text, available)
    assert expected is not None
    assert found == expected or b",-0" in text, "a name that looks like a number may be looked at twice"


ONE = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
REFUSED = {
    "another size of the file": (f"{{{ONE}}}", 9),
    "no tensors": ("{}", 0),
    "a field twice and one missing": (
        '{"a":{"dtype":"F32","dtype":"F32","data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}',
        5,
    ),
    "one field unknown, another missing": (
        '{"a":{"dtype":"F32","x":1,"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}',
        5,
    ),
    "no shape": ('{"a":{"dtype":"F32","data_offsets":[0,4]}}', 4),
    "no offsets": ('{"a":{"dtype":"F32","shape":[1]}}', 4),
    "no dtype": ('{"a":{"shape":[1],"data_offsets":[0,1]}}', 1),
    "a name twice": (f"{{{ONE},{ONE}}}", 8),
    "a name twice, as an escape": (f'{{{ONE},"\\u0061":{{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}}}', 16),
    "a name that is no text": ('{"\\udc00":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
    "a name that is half of a letter": ('{"\\ud800\\u0041":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
    "metadata twice": (f'{{"__metadata__":{{}},"__metadata__":{{}},{ONE}}}', 8),
    "metadata that is no text": (f'{{"__metadata__":{{"a":1}},{ONE}}}', 8),
    "minus zero": ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}', 8),
    "a negative shape": ('{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}', 8),
    "a shape of floats": ('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', 8),
    "three offsets": ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}', 8),
    "an overlap and a hole": (
        json.dumps({"a": entry("U8", [4], 0), "b": entry("U8", [4], 2), "c": entry("U8", [2], 8)}),
        10,
    ),
    "one inside another": (json.dumps({"a": entry("U8", [8], 0), "b": entry("U8", [2], 2)}), 8),
    "the same bytes twice": (json.dumps({"a": entry("U8", [4], 0), "b": entry("U8", [4], 0)}), 4),
    "an offset off its size": (json.dumps({"a": entry("U8", [1], 0), "b": entry("F32", [1], 1)}), 5),
    "too many dimensions": (json.dumps({"a": entry("U8", [1] * 65, 0)}), 1),
    "a number that no integer can be": ('{"a":{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,8]}}', 8),
    "a shape that fills every memory": (
        '{"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}',
        0,
    ),
    "text after the object": (f"{{{ONE}}} x", 8),
    "a space before it": (f" {{{ONE}}}", 8),
}


@pytest.mark.parametrize(("text", "available"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_one_by_one_is_refused_at_once(text: str, available: int) -> None:
    assert at_once(text.encode(), available) is None
    if text != "{}":
        assert one_by_one(text.encode(), available) is None


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.safetensors")), ids=lambda path: path.name)
def test_nothing_hostile_is_read_at_once(path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert at_once(data[8 : 8 + length], len(data) - 8 - length) is None


_PIECES = [
    rb'0 1 -0 - .0 4 8 , [ ] { } : " \u0061 [] null true t1',
    b'"a" "dtype" "shape" "data_offsets" "F32" "U8" "x":1, "__metadata__":{"a":"b"}, "shape":[2], "dtype":"F32",',
]
_PUT = st.sampled_from([b"", b" ", b"\xff", *(piece for line in _PIECES for piece in line.split())])


@settings(max_examples=rounds(1500), deadline=None)
@given(
    good=st.sampled_from(GOOD),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), _PUT), max_size=3),
    moved=st.sampled_from([0, 0, 0, 1, -1, 4, -4]),
)
@example(good=GOOD[0], edits=[], moved=0)
def test_what_is_read_at_once_is_what_is_read_one_by_one(
    good: tuple[bytes, int], edits: list[tuple[int, int, bytes]], moved: int
) -> None:
    text, available = good
    for at, removed, put in edits:
        text = text[:at] + put + text[at + removed :]
    found = at_once(text, available + moved)
    if found is not None:
        assert found == one_by_one(text, available + moved)


@settings(max_examples=rounds(300), deadline=None)
@given(
    shapes=st.lists(st.tuples(st.sampled_from(sorted(CODES)), st.lists(st.integers(0, 3), max_size=4)), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_tensors_in_any_order(shapes: list[tuple[str, list[int]]], order: Any) -> None:
    shapes.sort(key=lambda each: -CODES[each[0]])  # as writers do, so that each is aligned
    text, available = header(*shapes)
    entries = list(json.loads(text).items())
    order.shuffle(entries)
    text = json.dumps(dict(entries)).encode()
    expected = one_by_one(text, available)
    assert expected is not None
    found = at_once(text, available)
    assert found == (None if not shapes or any(0 in shape for _, shape in shapes) else expected)


def test_a_header_longer_than_the_first_read(tmp_path: Path, make: Any) -> None:
    arrays = {f"layers.{number}.{'x' * 60}.weight": make.ramp(2, start=number) for number in range(400)}
    path = make.write(tmp_path / "m.safetensors", arrays)
    assert int.from_bytes(path.read_bytes()[:8], "little") > 1 << 15
    weights = open_weights(path)
    assert {name: weight.read().tolist() for name, weight in weights.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_metadata_and_order_reach_the_set(tmp_path: Path, make: Any) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {"b": make.ramp(3, 2), "a": make.ramp(4, start=9)}
    safetensors.save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})
    weights = open_weights(tmp_path / "m.safetensors")
    assert weights["b"].read().tolist() == arrays["b"].tolist()
    assert weights["a"].read().tolist() == arrays["a"].tolist()
