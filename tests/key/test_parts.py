"""What of a part is hashed into a key, and what is only said beside it."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from cachec.base.hashing import Hasher
from cachec.key.argument_info import ArgumentInfo
from cachec.key.arguments import Annotation, Payload
from cachec.key.describe import MAX_VALUE, literal_text
from cachec.key.key_builder import _SHORT, CacheKey, _KeyParts
from cachec.launcher.command_key import CommandKey
from cachec.model import Part, PartKind, part_label
from tests.parts import part

PART = part("arg/batch", "3", value="3")


def keys(*parts: Part) -> tuple[str, bytes]:
    """What these parts make of the key of a command, and of a stage."""
    return CommandKey(parts, {}, has_base=False).digest, _KeyParts.of(parts).prefix


def test_a_label_says_kind_and_name_and_no_two_share_one() -> None:
    assert not any("/" in kind for kind in PartKind)
    pairs = list(product(PartKind, ("", "a", "a/b", "/", "arg", "arg/a", "weights/arg/a", "\0", "Ä")))
    assert len({Part(kind, name, "0" * 64).label for kind, name in pairs}) == len(pairs)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": PartKind.FILE},
        {"name": "batch "},
        {"digest": "0" * 64},
        {"kind": PartKind.ARGUMENT, "name": "arg/batch"},
    ],
)
def test_kind_name_and_digest_count(change: dict[str, Any]) -> None:
    key, prefix = keys(PART)
    other_key, other_prefix = keys(msgspec.structs.replace(PART, **change))
    assert key != other_key
    assert prefix != other_prefix


@pytest.mark.parametrize(
    "change", [{"detail": "4"}, {"detail": ""}, {"refs": ("0" * 64,)}, {"version": "2"}, {"value": "4"}]
)
def test_what_is_said_beside_does_not(change: dict[str, Any]) -> None:
    assert keys(msgspec.structs.replace(PART, **change)) == keys(PART)


def test_order_and_number_of_parts_count() -> None:
    other = part("arg/n", "1")
    assert len({keys(PART, other), keys(other, PART), keys(PART), keys(PART, PART)}) == 4


def _key(*payloads: Payload, parts: tuple[Part, ...] = (PART,)) -> str:
    return CacheKey(None, _KeyParts.of(parts), payloads, ArgumentInfo()).digest  # type: ignore[arg-type]  # no stage is asked


@pytest.mark.parametrize("size", [0, 1, _SHORT - 1, _SHORT, _SHORT + 1, 1 << 16])
def test_a_key_is_remembered_by_all_that_is_hashed_into_it(size: int) -> None:
    """Found again or hashed anew, it is BLAKE3 over every label and all data: of arguments that are long, too."""
    kinds, names = (PartKind.ARGUMENT, PartKind.PROGRAM, PartKind.FILE), ("x", "y", "")
    calls = [
        (parts, [Payload(kind, name, data, lambda: Annotation("")) for kind, name, data in said])
        for parts in ((), (PART,), (PART, PART))
        for said in product(product(kinds, names, (b"a" * size, b"b" * size)), repeat=2)
    ]
    digests = set()
    for parts, payloads in [*calls, *calls]:
        hasher = Hasher("key")
        for each in parts:
            hasher.part(each.label, each.digest.encode())
        for payload in payloads:
            hasher.part(part_label(payload.kind, payload.name), payload.data)
        assert _key(*payloads, parts=parts) == hasher.digest()
        digests.add(hasher.digest())
    assert len(digests) == len(calls) if size else len(digests) == len(calls) // 4


def test_a_payload_is_hashed_by_its_label_and_keeps_what_it_says() -> None:
    payload = Payload(PartKind.PROGRAM, "p", b"x", lambda: Annotation("words", ("0" * 64,), version="f"))
    assert _key(payload) == _key(msgspec.structs.replace(payload, annotate=lambda: Annotation("others")))
    made = payload.part()
    assert (made.label, made.detail, made.refs, made.version, made.value) == (
        "program/p",
        "words",
        ("0" * 64,),
        "f",
        "",
    )
    assert msgspec.json.decode(msgspec.json.encode(made), type=Part) == made


def test_a_part_of_an_unknown_kind_is_none() -> None:
    row = msgspec.json.encode(PART).replace(b'"arg"', b'"argh"')
    with pytest.raises(msgspec.ValidationError, match="argh"):
        msgspec.json.decode(row, type=Part)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("cuda", "'cuda'"),
        ("a…", "'a…'"),
        ("…" * (MAX_VALUE - 2), repr("…" * (MAX_VALUE - 2))),
        ("a" * (MAX_VALUE + 1), ""),
        (list(range(1000)), ""),
        (bytes(100), ""),
        (PartKind.FILE, "PartKind.FILE"),
    ],
)
def test_a_value_is_written_whole_or_not(value: object, text: str) -> None:
    assert literal_text(value, "v") == text
