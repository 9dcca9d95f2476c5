"""Writes the hostile checkpoints of ``formats/``, and ``formats.json``: file name -> what the error must say.

Run it after adding a case: ``python tests/hostile/make_formats.py``. A test checks that nothing else is there.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


# --- GGUF


def text(value: bytes) -> bytes:
    """A string of GGUF."""
    return U64.pack(len(value)) + value


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry."""
    return text(key) + U32.pack(kind) + value


def info(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """What is said of a tensor."""
    return text(name) + U32.pack(len(dims)) + b"".join(map(U64.pack, dims)) + U32.pack(kind) + U64.pack(offset)


def gguf(*parts: bytes, tensors: int = 1, entries: int = 0, version: int = 3, data: bytes = bytes(64)) -> bytes:
    """A file of header, these parts, and data aligned to 32."""
    head = struct.pack("<4sIQQ", b"GGUF", version, tensors, entries) + b"".join(parts)
    return head + bytes(-len(head) % 32) + data


GGUF = {
    "magic-only": (b"GGUF", "the header"),
    "version-1": (gguf(info(b"a", [4], 0, 0), version=1), "version expected 2 or 3, found 1"),
    "version-99": (gguf(info(b"a", [4], 0, 0), version=99), "found 99"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
    "reversed-magic": (b"FUGG" + bytes(20), "big-endian"),
    "tensors-max": (gguf(tensors=2**64 - 1), "expected to fit into"),
    "entries-max": (gguf(tensors=0, entries=2**64 - 1), "expected to fit into"),
    "name-length-max": (gguf(U64.pack(2**64 - 1)), "at most 65535 bytes"),
    "key-length-max": (gguf(U64.pack(2**63), tensors=0, entries=1), "at most 65535 bytes"),
    "name-utf8": (gguf(info(b"\xff", [4], 0, 0)), "UTF-8"),
    "name-empty": (gguf(info(b"", [4], 0, 0)), "a name of its own"),
    "name-twice": (gguf(info(b"a", [4], 0, 0), info(b"a", [4], 0, 32), tensors=2), "'a' twice"),
    "key-twice": (
        gguf(entry(b"k", 4, bytes(4)), entry(b"k", 4, bytes(4)), tensors=0, entries=2),
        "metadata key 'k' twice",
    ),
    "value-type": (gguf(entry(b"k", 13, bytes(8)), tensors=0, entries=1), "found type 13"),
    "string-length-max": (gguf(entry(b"k", 8, U64.pack(2**64 - 8)), tensors=0, entries=1), "'k'"),
    "array-count-max": (gguf(entry(b"k", 9, U32.pack(10) + U64.pack(2**61)), tensors=0, entries=1), "'k'"),
    "array-of-strings-max": (gguf(entry(b"k", 9, U32.pack(8) + U64.pack(2**61)), tensors=0, entries=1), "'k'"),
    "array-of-arrays-max": (gguf(entry(b"k", 9, U32.pack(9) + U64.pack(2**60)), tensors=0, entries=1), "'k'"),
    "arrays-nested": (
        gguf(entry(b"k", 9, (U32.pack(9) + U64.pack(1)) * 1000), tensors=0, entries=1),
        "nested at most 4 deep",
    ),
    "bool-2": (gguf(entry(b"k", 7, b"\2"), tensors=0, entries=1), "booleans"),
    "alignment-0": (gguf(entry(b"general.alignment", 4, U32.pack(0)), tensors=0, entries=1), "power of two"),
    "alignment-48": (gguf(entry(b"general.alignment", 4, U32.pack(48)), tensors=0, entries=1), "power of two"),
    "alignment-text": (gguf(entry(b"general.alignment", 8, text(b"32")), tensors=0, entries=1), "uint32"),
    "dims-max": (gguf(text(b"a") + U32.pack(2**32 - 1)), "'a': expected at most 4 dimensions"),
    "dims-5": (gguf(info(b"a", [1] * 5, 0, 0)), "at most 4 dimensions, found 5"),
    "shape-overflow": (gguf(info(b"a", [2**32, 2**32], 0, 0)), "2**63"),
    "shape-overflow-empty": (gguf(info(b"a", [0, 2**63, 4], 0, 0)), "2**63"),
    "type-unknown": (gguf(info(b"a", [4], 99, 0)), "a ggml type"),
    "type-removed": (gguf(info(b"a", [32], 4, 0)), "a ggml type"),
    "block-cut": (gguf(info(b"a", [33], 8, 0)), "a multiple of 32 (q8_0)"),
    "block-scalar": (gguf(info(b"a", [], 8, 0)), "a multiple of 32 (q8_0)"),
    "offset-misaligned": (gguf(info(b"a", [4], 0, 4)), "a multiple of 32, found 4"),
    "offset-max": (gguf(info(b"a", [4], 0, 2**64 - 32)), "'a' expected within"),
    "beyond-end": (gguf(info(b"a", [4], 0, 64)), "'a' expected within"),
    "truncated": (gguf(info(b"a", [17], 0, 0)), "'a' expected within"),
    "overlap": (gguf(info(b"a", [16], 0, 0), info(b"b", [4], 0, 32), tensors=2), "'b'"),
}


# --- IRPA


def irpa_entry(
    kind: int, body: bytes, *, name: tuple[int, int] = (0, 1), size: int | None = None, align: int = 0
) -> bytes:
    """An entry of the table, filled up to 16."""
    whole = 60 + len(body) if size is None else size
    data = struct.pack("<QIQQQQQQ", whole, kind, 0, *name, 0, 0, align) + body
    return data + bytes(-len(data) % 16)


def irpa(
    *entries: bytes, count: int | None = None, names: bytes = b"ab", data: bytes = bytes(64), **changes: int
) -> bytes:
    """An archive; changes: other values for the fields of the header."""
    table = b"".join(entries)
    at = 96 + len(table) + len(names)
    start = at + -at % 64
    fields = {
        "magic": 0x41505249, "major": 0, "minor": 0, "size": 88, "next": 0, "flags": 0,
        "count": len(entries) if count is None else count, "entries": 96, "entries_size": len(table),
        "names_at": 96 + len(table), "names_size": len(names), "storage": start, "storage_size": len(data),
    } | changes  # fmt: skip
    head = struct.pack("<IHH10Q", *fields.values())
    return head + bytes(8) + table + names + bytes(start - at) + data


def external(path: bytes) -> bytes:
    """An archive whose entry refers to 4 bytes of another file."""
    return irpa(irpa_entry(3, struct.pack("<QQQQ", 1, len(path), 0, 4)), names=b"a" + path)


DATA = irpa_entry(2, struct.pack("<QQ", 0, 8), align=64)
IRPA = {
    "magic-only": (b"IRPA", "the header"),
    "major-1": (irpa(DATA, major=1), "version 0.0"),
    "minor-1": (irpa(DATA, minor=1), "version 0.0"),
    "header-size": (irpa(DATA, size=96), "a header of 88 bytes"),
    "next-beyond-end": (irpa(DATA, next=1 << 40), "the header"),
    "next-misaligned": (irpa(DATA, next=8), "multiple of 16"),
    "next-is-data": (irpa(DATA, next=96), "magic b'IRPA' at offset 96"),
    "next-max": (irpa(DATA, next=2**64 - 16), "the header"),
    "count-max": (irpa(DATA, count=2**64 - 1), "entries expected within"),
    "count-one-more": (irpa(DATA, count=2), "entry"),
    "entries-beyond-end": (irpa(DATA, entries=2**63), "entry segment"),
    "names-beyond-end": (irpa(DATA, names_at=2**63), "metadata segment"),
    "storage-wraps": (irpa(DATA, storage=2**64 - 8, storage_size=16), "storage segment"),
    "storage-truncated": (irpa(DATA)[:-1], "storage segment"),
    "type-unknown": (irpa(irpa_entry(4, bytes(16))), "a type from 0 to 3, found 4"),
    "entry-too-small": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), size=60)), "at least 76 bytes, found 60"),
    "entry-max": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), size=2**64 - 1)), "entry segment"),
    "name-outside": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), name=(1, 5))), "metadata segment"),
    "name-max": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), name=(0, 2**64 - 1))), "at most 65536 bytes"),
    "name-wraps": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), name=(2**64 - 1, 2))), "metadata segment"),
    "name-empty": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), name=(0, 0))), "a name of its own"),
    "name-utf8": (irpa(DATA, names=b"\xff"), "UTF-8"),
    "name-twice": (irpa(DATA, DATA), "'a' twice"),
    "data-outside": (irpa(irpa_entry(2, struct.pack("<QQ", 60, 8))), "'a' expected within the 64 bytes"),
    "data-wraps": (irpa(irpa_entry(2, struct.pack("<QQ", 2**64 - 4, 8))), "'a' expected within the 64 bytes"),
    "data-misaligned": (irpa(irpa_entry(2, struct.pack("<QQ", 4, 8), align=64)), "a multiple of 64"),
    "alignment-3": (irpa(irpa_entry(2, struct.pack("<QQ", 0, 8), align=3)), "power of two, found 3"),
    "splat-pattern-0": (irpa(irpa_entry(1, struct.pack("<Q16sB", 8, b"", 0))), "1, 2, 4, 8 or 16 bytes, found 0"),
    "splat-pattern-255": (irpa(irpa_entry(1, struct.pack("<Q16sB", 8, b"", 255))), "found 255"),
    "splat-uneven": (irpa(irpa_entry(1, struct.pack("<Q16sB", 7, b"", 2))), "a multiple of its pattern's 2 bytes"),
    "splat-max": (irpa(irpa_entry(1, struct.pack("<Q16sB", 2**64 - 1, b"", 1))), "2**63"),
    "external-up": (external(b"../secret"), "within the folder"),
    "external-absolute": (external(b"/etc/hostname"), "within the folder"),
    "external-missing": (external(b"missing.bin"), "missing.bin"),
    "external-self": (external(b"irpa-external-self.irpa/x"), "'a'"),
}


# --- npy and npz


def npy(header: str | bytes, data: bytes = b"", *, version: int = 1, length: int | None = None) -> bytes:
    """An array file; ``length`` lies where given."""
    raw = header if isinstance(header, bytes) else header.encode()
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + raw + data


def head(descr: str = "'<f4'", fortran: str = "False", shape: str = "(2,)", more: str = "") -> str:
    """The text of a header."""
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, {more}}}\n"


EIGHT = bytes(8)
NPY = {
    "magic-only": (b"\x93NUMPY", "at least 10 bytes"),
    "version-4": (npy(head(), EIGHT, version=4), "version 1.0, 2.0 or 3.0"),
    "header-beyond-end": (npy(head(), EIGHT, length=9999), "truncated"),
    "header-max": (npy(head(), EIGHT, version=2, length=2**32 - 1), "a header of at most"),
    "header-code": (npy("__import__('os').system('touch hostile')"), "Python literal"),
    "header-deep": (npy("[" * 9000), "Python literal"),
    "header-list": (npy("[1, 2]"), "the keys"),
    "header-more-keys": (npy(head(more="'x': 1"), EIGHT), "the keys"),
    "objects": (npy(head("'|O'"), EIGHT), "never loaded"),
    "structured": (npy(head("[('a', '<f4')]"), EIGHT), "structured"),
    "void": (npy(head("'|V4'"), EIGHT), "untyped"),
    "big-endian": (npy(head("'>f4'"), EIGHT), "little-endian"),
    "no-order": (npy(head("'f4'"), EIGHT), "little-endian"),
    "unknown-type": (npy(head("'<q4'"), EIGHT), "<q4"),
    "fortran": (npy(head(fortran="True", shape="(2, 2)"), bytes(16)), "row-major"),
    "fortran-number": (npy(head(fortran="0"), EIGHT), "True or False"),
    "shape-negative": (npy(head(shape="(-2,)"), EIGHT), "integers from 0"),
    "shape-bool": (npy(head(shape="(True, 2)"), EIGHT), "tuple of integers"),
    "shape-list": (npy(head(shape="[2]"), EIGHT), "tuple of integers"),
    "shape-overflow": (npy(head(shape=f"({2**62}, 4)"), EIGHT), "2**63"),
    "shape-huge": (npy(head(shape=f"({10**40},)"), EIGHT), "2**63"),
    "shape-many": (npy(head(shape=f"({'1,' * 65})"), bytes(4)), "64 dimensions"),
    "truncated": (npy(head(), bytes(7)), "8 bytes for float32 of shape [2], found 7"),
    "extra": (npy(head(), bytes(9)), "found 9"),
}


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive of fixed bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members:
            item = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            item.create_system = 3
            item.compress_type = method
            item.external_attr = 0o600 << 16
            file.writestr(item, data)
    return buffer.getvalue()


def poked(data: bytes, signature: bytes, offset: int, value: bytes, *, last: bool = False) -> bytes:
    """The bytes with others at ``offset`` after a signature."""
    at = (data.rindex(signature) if last else data.index(signature)) + offset
    return data[:at] + value + data[at + len(value) :]


ONE = archive(("a.npy", npy(head(), EIGHT)))
TWO = archive(("a.npy", npy(head(), EIGHT)), ("b.npy", npy(head(), EIGHT)))
END, CENTRAL, LOCAL = b"PK\5\6", b"PK\1\2", b"PK\3\4"
NPZ = {
    "local-only": (ONE[: ONE.index(CENTRAL)], "end record"),
    "no-end": (ONE[:-10], "end record"),
    "junk-at-end": (ONE + b"junk", "end with the file"),
    "junk-at-start": (b"PK\3\4" + ONE, "directory expected to end"),
    "comment-longer": (poked(ONE, END, 20, b"\x05\x00"), "end with the file"),
    "count-more": (poked(poked(ONE, END, 8, b"\x02\x00"), END, 10, b"\x02\x00"), "2 members expected"),
    "count-less": (poked(poked(TWO, END, 8, b"\x01\x00"), END, 10, b"\x01\x00"), "directory expected to end"),
    "several-disks": (poked(ONE, END, 4, b"\x01\x00"), "part of several"),
    "directory-size": (poked(ONE, END, 12, U32.pack(2**31)), "at most"),
    "directory-offset": (poked(ONE, END, 16, U32.pack(2**31)), "directory expected to end"),
    "zip64-missing": (poked(ONE, END, 16, U32.pack(2**32 - 1)), "zip64"),
    "local-offset": (poked(ONE, CENTRAL, 42, U32.pack(2**31)), "'a.npy' expected within"),
    "local-name": (poked(ONE, LOCAL, 30, b"b"), "agree with the directory"),
    "size-more": (
        poked(poked(ONE, CENTRAL, 20, U32.pack(2**30)), CENTRAL, 24, U32.pack(2**30)),
        "'a.npy' expected within",
    ),
    "into-directory": (
        poked(poked(ONE, CENTRAL, 20, U32.pack(120)), CENTRAL, 24, U32.pack(120)),
        "before the directory",
    ),
    "overlap": (poked(TWO, CENTRAL, 42, U32.pack(0), last=True).replace(b"b.npy", b"a.npy"), "'a.npy' twice"),
    "encrypted": (poked(ONE, CENTRAL, 8, b"\x01\x00"), "encrypted"),
    "compressed": (archive(("a.npy", npy(head(), EIGHT)), method=zipfile.ZIP_DEFLATED), "numpy.savez "),
    "twice": (TWO.replace(b"b.npy", b"a.npy"), "'a.npy' twice"),
    "not-npy": (archive(("a.txt", b"hello")), "only .npy members"),
    "objects": (archive(("a.npy", npy(head("'|O'"), EIGHT))), "never loaded"),
    "truncated-member": (archive(("a.npy", npy(head(), bytes(7)))), "found 7"),
}


# --- ONNX


def varint(number: int) -> bytes:
    """A protobuf number."""
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def message(number: int, data: bytes) -> bytes:
    """A protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx(*tensors: bytes) -> bytes:
    """A model with these initialisers."""
    return message(7, b"".join(message(5, tensor) for tensor in tensors))


def outside(**pairs: str) -> bytes:
    """A model with an external initialiser."""
    entries = {"location": "x.bin", "offset": "0", "length": "8"} | pairs
    data = b"".join(message(13, message(1, k.encode()) + message(2, v.encode())) for k, v in entries.items())
    return onnx(b"\x08\x02\x10\x01" + message(8, b"t") + data + b"\x70\x01")


NAME, RAW = message(8, b"t"), message(9, EIGHT)
ONNX = {
    "empty": (b"", "found none"),
    "text": (b"not a model", "onnx-text.onnx"),
    "length-max": (b"\x3a" + b"\xff" * 9 + b"\x01", "truncated"),
    "varint-endless": (b"\x80" * 64, "64 bits"),
    "group": (b"\x0b" * 64, "wire type"),
    "graph-twice": (onnx() + onnx(), "one graph"),
    "dims-overflow": (onnx((b"\x08" + varint(2**40)) * 3 + b"\x10\x01" + NAME + RAW), "2**63"),
    "dims-negative": (onnx(b"\x08" + varint(2**64 - 1) + b"\x10\x01" + NAME + RAW), "from 0"),
    "dims-bomb": (onnx(message(1, b"\x01" * 5000) + b"\x10\x01" + NAME + RAW), "at most 64 dimensions"),
    "wraps-to-fit": (onnx((b"\x08" + varint(2**62 + 1)) + b"\x08\x04" + b"\x10\x01" + NAME + RAW), "2**63"),
    "raw-short": (onnx(b"\x08\x03\x10\x01" + NAME + RAW), "12 bytes for float32"),
    "values-bomb": (onnx(b"\x08" + varint(2**40) + b"\x10\x06" + NAME + message(5, b"\x01")), "at most 67108864"),
    "strings": (onnx(b"\x08\x02\x10\x08" + NAME + RAW), "strings"),
    "packed": (onnx(b"\x08\x10\x10\x16" + NAME + RAW), "INT4"),
    "external-up": (outside(location="../secret"), "within the folder"),
    "external-inner-up": (outside(location="a/../../secret"), "within the folder"),
    "external-absolute": (outside(location="/etc/hostname"), "within the folder"),
    "external-empty": (outside(location=""), "within the folder"),
    "external-nul": (outside(location="x\0.bin"), "within the folder"),
    "external-missing": (outside(location="missing.bin"), "missing.bin"),
    "external-folder": (outside(location="."), "'t'"),
    "external-negative": (outside(location="onnx-text.onnx", offset="-1"), "a number from 0"),
    "external-beyond-end": (outside(location="onnx-text.onnx", offset=str(2**60)), "truncated"),
    "external-huge": (outside(location="onnx-text.onnx", length=str(2**60)), "8 bytes for float32"),
}


# --- TVM


def tvm(change: dict[str, object], shard: dict[str, object] | None = None) -> bytes:
    """A tensor cache over ``onnx-text.onnx``, which has 11 bytes."""
    param = {"name": "a", "shape": [2], "dtype": "float32", "format": "raw", "nbytes": 8, "byteOffset": 0} | change
    file = {"dataPath": "onnx-text.onnx", "format": "raw-shard", "nbytes": 11, "md5sum": "", "records": [param]}
    return json.dumps({"metadata": {}, "records": [file | (shard or {})]}).encode()


TVM = {
    "empty": (b"", "not valid JSON"),
    "list": (b"[]", "expected to be a JSON object"),
    "no-records": (b"{}", "records"),
    "deep": (b'{"records":' + b"[" * 5000, "not valid JSON"),
    "key-twice": (tvm({}).replace(b'"nbytes": 8', b'"nbytes": 8, "nbytes": 8'), "twice"),
    "offset-max": (tvm({"byteOffset": 2**63 - 1}), "'a': expected its bytes within"),
    "offset-negative": (tvm({"byteOffset": -1}), "byteOffset"),
    "offset-u64": (tvm({"byteOffset": 2**64}), "byteOffset"),
    "beyond-end": (tvm({"byteOffset": 4}), "'a': expected its bytes within"),
    "shape-overflow": (tvm({"shape": [2**62, 2**62]}), "2**63"),
    "shape-bool": (tvm({"shape": [True]}), "shape"),
    "bf16": (tvm({"format": "f32-to-bf16", "nbytes": 4}), "encode_format='raw'"),
    "dtype": (tvm({"dtype": "object"}), "object"),
    "path-up": (tvm({}, {"dataPath": "../secret"}), "within the folder"),
    "path-absolute": (tvm({}, {"dataPath": "/etc/hostname"}), "within the folder"),
    "path-missing": (tvm({}, {"dataPath": "missing.bin"}), "missing.bin"),
    "size": (tvm({}, {"nbytes": 12}), "12 bytes, found 11"),
}


# --- PyTorch: the pickle runs code if anybody loads it as one (protocol 2, os.system)

CODE = b"\x80\x02cposix\nsystem\nX\x0d\x00\x00\x00touch hostile\x85R."
PT = {
    "code": (archive(("m/data.pkl", CODE)), "weights_only=True"),
    "legacy-code": (CODE, "zip format"),
    "no-pickle": (archive(("m/data/0", EIGHT)), "found 0"),
    "two-pickles": (archive(("m/data.pkl", b"\x80\x02}."), ("n/data.pkl", b"\x80\x02}.")), "found 2"),
    "word-endless": (archive(("m/data.pkl", b"\x80\x02c" + b"a" * 9000 + b"\nb\n.")), "words of at most"),
    "empty-pickle": (archive(("m/data.pkl", b"")), "refused it"),
    "compressed": (archive(("m/data.pkl", b"\x80\x02}."), method=zipfile.ZIP_DEFLATED), "compressed"),
    "big-endian": (archive(("m/data.pkl", b"\x80\x02}."), ("m/byteorder", b"big")), "big-endian"),
    "truncated": (archive(("m/data.pkl", b"\x80\x02}."))[:-5], "end record"),
}

CASES: dict[str, tuple[bytes, str]] = {
    f"{folder}-{name}{suffix}": case
    for folder, suffix, cases in (
        ("gguf", ".gguf", GGUF),
        ("irpa", ".irpa", IRPA),
        ("npy", ".npy", NPY),
        ("npz", ".npz", NPZ),
        ("onnx", ".onnx", ONNX),
        ("tvm", ".json", TVM),
        ("pt", ".pt", PT),
    )
    for name, case in cases.items()
}


def write(folder: Path) -> None:
    """All cases into ``folder``."""
    folder.mkdir(exist_ok=True)
    for name, (data, _) in CASES.items():
        (folder / name).write_bytes(data)
    messages = {name: message for name, (_, message) in CASES.items()}
    (folder / "formats.json").write_text(json.dumps(messages, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(__file__).parent / "formats")
