"""Writes the hostile modules of ``mlir/`` beside it, and ``mlir/mlir.json``: file name -> what the error must say.

Run it after adding a case: ``python tests/hostile/make_mlir.py``. A test checks that nothing else is there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def number(value: int) -> bytes:
    """A PrefixVarInt in nine bytes, so that every value has its place."""
    return b"\0" + value.to_bytes(8, "little")


def section(kind: int, data: bytes, *, length: int | None = None, alignment: int = 0) -> bytes:
    """A section without padding; its length lies where given."""
    head = bytes([kind | (0x80 if alignment else 0)]) + number(len(data) if length is None else length)
    return head + (number(alignment) if alignment else b"") + data


STRINGS = number(2) + number(2) + number(8) + b"builtin\0w\0"
HEAD = b"ML\xefR" + number(6) + b"hostile\0"
BODY = b"".join(section(kind, b"x" * 4) for kind in (1, 3, 2, 4))


def module(offsets: bytes, data: bytes, *, strings: bytes = STRINGS, more: bytes = b"") -> bytes:
    """Bytecode with these resource sections. String 0 is ``builtin``, string 1 is ``w``."""
    return HEAD + BODY + section(6, offsets) + section(5, data) + section(0, strings) + more


def group(entries: Sequence[tuple[int, int, int]], *, owner: int = 0, count: int | None = None) -> bytes:
    """A group of section 6: entries of string, size and kind."""
    body = b"".join(number(key) + number(nbytes) + bytes([kind]) for key, nbytes, kind in entries)
    return number(owner) + number(len(entries) if count is None else count) + body


def one(head: bytes, data: bytes = b"") -> bytes:
    """A module with one blob, of this head and these bytes."""
    return module(number(0) + group([(1, len(head + data), 0)]), head + data)


HUGE = (1 << 64) - 1
DIGITS = "00" * 400
CONSTANT = '"op"() {value = dense<"0x%s"> : tensor<400xi8>} : () -> ()\n'

#: name -> (bytes, part of the message)
CASES: dict[str, tuple[bytes, str]] = {
    "empty-header.mlirbc": (b"ML\xefR", "ends in the middle of a number"),
    "version-max.mlirbc": (b"ML\xefR" + number(HUGE) + b"p\0", "version expected at most"),
    "producer-endless.mlirbc": (b"ML\xefR" + number(6) + b"p" * 5000, "producer expected to end"),
    "no-sections.mlirbc": (HEAD, "section 0 expected"),
    "section-9.mlirbc": (HEAD + section(9, b""), "0 to 8"),
    "section-twice.mlirbc": (HEAD + BODY + section(4, b""), "section 4 expected once"),
    "section-length-max.mlirbc": (HEAD + section(1, b"", length=HUGE), "within"),
    "section-alignment-0.mlirbc": (HEAD + b"\x81" + number(0) + number(0), "power of two"),
    "section-alignment-48.mlirbc": (HEAD + section(1, b"", alignment=48), "power of two"),
    "section-alignment-max.mlirbc": (HEAD + section(1, b"", alignment=1 << 63), "power of two"),
    "section-padding.mlirbc": (HEAD + section(1, b"\0" * 64, length=0, alignment=64), "padding"),
    "only-offsets.mlirbc": (HEAD + BODY + section(6, number(0)) + section(0, STRINGS), "both or neither"),
    "strings-count-max.mlirbc": (HEAD + BODY + section(0, number(HUGE)), "strings"),
    "strings-length-max.mlirbc": (HEAD + BODY + section(0, number(1) + number(HUGE) + b"a\0"), "fill"),
    "strings-without-nul.mlirbc": (HEAD + BODY + section(0, number(1) + number(1) + b"a"), "NUL"),
    "name-not-utf8.mlirbc": (
        module(number(0) + group([(1, 4, 0)]), b"\x03\x03\x01x", strings=STRINGS.replace(b"w\0", b"\xff\0")),
        "UTF-8",
    ),
    "groups-external-max.mlirbc": (module(number(HUGE), b""), "external groups expected"),
    "group-owner.mlirbc": (module(number(0) + group([], owner=7), b""), "one of 2 strings"),
    "group-twice.mlirbc": (module(number(0) + group([]) + group([]), b""), "once"),
    "group-count-max.mlirbc": (module(number(0) + group([], count=HUGE), b""), "expected within"),
    "entry-twice.mlirbc": (module(number(0) + group([(1, 0, 0), (1, 0, 0)]), b""), "once"),
    "entry-string.mlirbc": (module(number(0) + group([(5, 0, 0)]), b""), "one of 2 strings"),
    "entry-size-max.mlirbc": (module(number(0) + group([(1, HUGE, 0)]), b"x"), "within 1 bytes"),
    "entry-kind.mlirbc": (module(number(0) + group([(1, 0, 3)]), b""), "kind"),
    "entry-without-bytes.mlirbc": (module(number(0) + group([(1, 0, 1)]), b""), "only a dialect's blob"),
    "bytes-of-no-entry.mlirbc": (module(number(0), b"left"), "fill their section"),
    "blob-head-cut.mlirbc": (one(b"\0"), "ends in the middle"),
    "blob-alignment-0.mlirbc": (one(number(0) + number(1), b"x"), "power of two"),
    "blob-alignment-3.mlirbc": (one(number(3) + number(1), b"x"), "power of two"),
    "blob-alignment-max.mlirbc": (one(number(1 << 63) + number(1), b"x"), "power of two"),
    "blob-alignment-beyond.mlirbc": (one(number(1 << 31) + number(1), b"x"), "expected to end with its entry"),
    "blob-size-short.mlirbc": (one(number(1) + number(1), b"xy"), "expected to end with its entry"),
    "blob-size-max.mlirbc": (one(number(1) + number(HUGE), b"xy"), "expected to end with its entry"),
    "blob-padding.mlirbc": (one(number(256) + number(0), b"\0" * 255), "expected"),
    "string-open.mlir": (b'"op"() {a = "b} : () -> ()\n', "does not end on its line"),
    "string-over-lines.mlir": (b'"op"() {a = "b\n"} : () -> ()\n', "does not end on its line"),
    "string-ends-in-escape.mlir": (b'"a\\', "does not end on its line"),
    "digits-open.mlir": (b'{-# dialect_resources: {builtin: {w: "0x04000000', "does not end"),
    "digits-odd.mlir": (CONSTANT.replace("%s", DIGITS[1:]).encode(), "even number"),
    "digits-other.mlir": (CONSTANT.replace("%s", DIGITS[1:] + "g").encode(), "hexadecimal digit expected"),
    "digits-nul.mlir": (CONSTANT.replace("%s", DIGITS[1:] + "\0").encode(), "hexadecimal digit expected"),
    "nul.mlir": (b"module {\0}\n", "found a NUL"),
    "trailer-odd.mlir": (b'{-# dialect_resources: {builtin: {w: "0x040000001"}} #-}', "even number"),
    "trailer-short.mlir": (b'{-# dialect_resources: {builtin: {w: "0x04"}} #-}', "8 digits of an alignment"),
    "trailer-alignment-0.mlir": (b'{-# dialect_resources: {builtin: {w: "0x0000000001"}} #-}', "power of two"),
    "trailer-alignment-3.mlir": (b'{-# dialect_resources: {builtin: {w: "0x03000000"}} #-}', "power of two"),
    "trailer-twice.mlir": (b'{-# a: {b: {c: "x", "c": "y"}} #-}', "once"),
    "trailer-open.mlir": (b'{-# a: {b: {c: "x"}}', "expected in the trailer"),
    "trailer-nested.mlir": (b"{-# a: {b: {c: {d: 1}}} #-}", "string, number or word"),
    "trailer-deep.mlir": (b"{-# " + b"a: {" * 10_000, "expected"),
    "trailer-key-not-utf8.mlir": (b'{-# a: {"\\FF": {}} #-}', "UTF-8"),
    "type-of-another-size.mlir": (
        b'"op"() {a = dense_resource<w> : tensor<9xf32>} : () -> ()\n'
        b'{-# dialect_resources: {builtin: {w: "0x0400000000000000"}} #-}',
        "takes 36 bytes",
    ),
}

FOLDER = Path(__file__).parent / "mlir"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, (data, _) in CASES.items():
        (FOLDER / name).write_bytes(data)
    texts = {name: words for name, (_, words) in CASES.items()}
    (FOLDER / "mlir.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    main()
