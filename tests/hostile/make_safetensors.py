"""Writes the hostile checkpoints of this folder, and ``safetensors.json``: file name -> what the error must say.

Run it after adding a case: ``python tests/hostile/make_safetensors.py``. A test checks that nothing else is there.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path


def entry(dtype: str = "F32", shape: object = (2,), begin: object = 0, end: object = 8) -> str:
    """One header entry as JSON."""
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})


def whole(header: str | bytes, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A file of length, header and data; ``length`` lies where given."""
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


A = entry()
B = entry(begin=8, end=16)
GOOD = f'{{"a": {A}}}'

#: name -> (bytes, part of the message)
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "at least 8 bytes"),
    "short-length": (b"\x08\x00\x00", "at least 8 bytes"),
    "length-beyond-file": (whole(GOOD, length=5000), "truncated"),
    "length-over-limit": (whole(GOOD, length=100_000_001), "at most 100000000"),
    "length-max-u64": (whole(GOOD, length=2**64 - 1), "at most 100000000"),
    "length-zero": (whole(GOOD, length=0), "begin with '{'"),
    "truncated-header": (whole(GOOD)[:40], "truncated"),
    "truncated-data": (whole(GOOD)[:-3], "'a'"),
    "extra-at-end": (whole(GOOD, bytes(9)), "extra bytes"),
    "data-without-tensors": (whole("{}", bytes(4)), "extra bytes"),
    "no-object": (whole("[1, 2]"), "begin with '{'"),
    "leading-space": (whole(" " + GOOD), "begin with '{'"),
    "bad-json": (whole(GOOD[:-1] + ",}"), "not valid JSON"),
    "trailing-text": (whole(GOOD + "x"), "not valid JSON"),
    "bad-utf8": (whole(b'{"a\xff": ' + A.encode() + b"}"), "not valid JSON"),
    "lone-surrogate": (whole(f'{{"\\ud800": {A}}}'), "not valid JSON"),
    "deep-json": (whole('{"a":' + "[" * 5_000 + "]" * 5_000 + "}"), "not valid JSON"),
    "deep-object": (whole('{"a":' * 5_000 + "1" + "}" * 5_000), "not valid JSON"),
    "duplicate-tensor": (whole(f'{{"a": {A}, "a": {A}}}'), "'a' twice"),
    "duplicate-tensor-escaped": (whole(f'{{"a": {A}, "\\u0061": {A}}}'), "'a' twice"),
    "duplicate-field": (
        whole('{"a": {"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "'dtype' twice",
    ),
    "duplicate-offsets": (
        whole('{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,4],"data_offsets":[0,8]}}'),
        "'data_offsets' twice",
    ),
    "duplicate-metadata": (whole(f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{A}}}'), "'__metadata__' twice"),
    "duplicate-metadata-key": (whole(f'{{"__metadata__":{{"k":"1","k":"2"}},"a":{A}}}'), "'k' twice"),
    "metadata-number": (whole(f'{{"__metadata__":{{"k":1}},"a":{A}}}'), "expected a string"),
    "metadata-list": (whole(f'{{"__metadata__":[],"a":{A}}}'), "expected an object"),
    "unknown-dtype": (whole(f'{{"a":{entry("F128")}}}'), "'F128'"),
    "dtype-number": (whole(GOOD.replace('"F32"', "32")), "32"),
    "packed-dtype": (whole(f'{{"a":{entry("F4", (16,))}}}'), "packs elements below one byte"),
    "missing-field": (whole('{"a":{"dtype":"F32","shape":[2]}}'), "'data_offsets'"),
    "entry-list": (whole('{"a":["F32",[2],[0,8]]}'), "an object"),
    "shape-negative": (whole(f'{{"a":{entry(shape=(-2,))}}}'), "integers from 0"),
    "shape-minus-zero": (whole('{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}'), "-0"),
    "shape-float": (whole(f'{{"a":{entry(shape=(2.0,))}}}'), "integers from 0"),
    "shape-bool": (whole('{"a":{"dtype":"F32","shape":[2,true],"data_offsets":[0,8]}}'), "integers from 0"),
    "shape-string": (whole(f'{{"a":{entry(shape="2")}}}'), "dimensions"),
    "shape-too-many": (whole(f'{{"a":{entry(shape=[1] * 65 + [2])}}}'), "64 dimensions"),
    "shape-times-size": (whole(f'{{"a":{entry(shape=(3,))}}}'), "12 bytes"),
    "shape-overflow": (whole(f'{{"a":{entry(shape=(2**62, 2**62))}}}'), "2**63"),
    "shape-wraps-to-fit": (whole(f'{{"a":{entry(shape=(2**63 + 1, 2), end=8)}}}'), "2**63"),
    "shape-overflow-empty": (whole(f'{{"a":{entry(shape=(0, 2**63, 4), end=0)},"b":{A}}}'), "2**63"),
    "shape-huge-number": (whole(f'{{"a":{entry(shape=(10**30,))}}}'), "'a'"),
    "offsets-reversed": (whole(f'{{"a":{entry(begin=8, end=0)}}}'), "begin <= end"),
    "offsets-negative": (whole(f'{{"a":{entry(begin=-8, end=0)}}}'), "begin <= end"),
    "offsets-three": (whole('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}'), "[begin, end]"),
    "offsets-past-end": (whole(f'{{"a":{entry(shape=(2**40,), end=2**42)}}}'), "within the 8 bytes"),
    "overlap": (whole(f'{{"a":{A},"b":{entry(begin=4, end=12)}}}', bytes(12)), "overlaps 'a'"),
    "same-bytes-twice": (whole(f'{{"a":{A},"b":{A}}}'), "overlaps 'a'"),
    "hole": (whole(f'{{"a":{A},"b":{entry(begin=12, end=20)}}}', bytes(20)), "a hole"),
    "hole-at-start": (whole(f'{{"b":{B}}}', bytes(16)), "a hole"),
    "misaligned-entry": (
        whole(f'{{"a":{entry("U8", (3,), 0, 3)},"b":{entry("F32", (1,), 3, 7)}}}', bytes(7)),
        "multiple of 4",
    ),
}


def write(folder: Path) -> None:
    """All cases into ``folder``."""
    for name, (data, _) in CASES.items():
        (folder / f"{name}.safetensors").write_bytes(data)
    messages = {f"{name}.safetensors": message for name, (_, message) in CASES.items()}
    (folder / "safetensors.json").write_text(json.dumps(messages, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(__file__).parent)
