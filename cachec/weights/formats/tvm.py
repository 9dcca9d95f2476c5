"""TVM's tensor cache: ``tensor-cache.json`` (before 0.21 ``ndarray-cache.json``) and the files that it names.

    {"metadata": {...}, "records": [
        {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": n, "md5sum": "...", "records": [
            {"name": "...", "shape": [...], "dtype": "float16", "format": "raw", "nbytes": n, "byteOffset": n}]}]}

Source: ``python/tvm/contrib/tvmjs.py`` and ``src/runtime/vm/tensor_cache_support.cc``. The format ``f32-to-bf16``
concerns float32 alone, whose bytes are then bfloat16: that is refused, never reinterpreted. The MD5 of each file is
kept for ``checksums.py``, not computed here. Pre-sharded names are ``<name>_shard-<i>-of-<n>``, i from 1.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cachec.model import MALFORMED_JSON
from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, refuse_overlaps, size_in_bytes
from cachec.weights.formats.safetensors import decode_object, refuse_duplicates
from cachec.weights.tensor import Tensor

_MAX_JSON = 100_000_000
#: Names that older versions gave to types of today.
_RENAMED = {"e4m3_float8": "float8_e4m3fn", "e5m2_float8": "float8_e5m2"}

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Param(msgspec.Struct, rename="camel"):
    name: str
    shape: list[Natural]
    dtype: str
    format: str
    nbytes: Natural
    byte_offset: Natural


class _Shard(msgspec.Struct, rename="camel"):
    data_path: str
    format: str
    nbytes: Natural
    records: list[_Param]
    md5sum: str = ""


class _Cache(msgspec.Struct):
    records: list[_Shard]


def read(path: str, opener: Opener) -> Contents:
    """The tensors of a cache. Raises CheckpointError."""
    main = opener.main
    if main.size > _MAX_JSON:
        raise main.error(f"expected at most {_MAX_JSON} bytes of JSON, found {main.size}")
    text = main.at(0, main.size, "the JSON")
    try:
        cache = msgspec.json.decode(text, type=_Cache)
    except MALFORMED_JSON as error:
        decode_object(path, "tensor cache", text)  # says so where it is no JSON at all
        raise main.error(f"expected a TVM tensor cache: {error}") from error
    refuse_duplicates(path, "tensor cache", text, -1)
    tensors: dict[str, Tensor] = {}
    checksums: dict[int, str] = {}
    names: set[str] = set()
    for shard in cache.records:
        what = f"the file {shard.data_path!r}"
        if shard.format != "raw-shard":
            raise main.error(f"{what}: format expected 'raw-shard', found {shard.format!r}")
        file = opener.open_sibling(shard.data_path, what)
        if shard.data_path in names:
            raise main.error(f"{what} twice")
        if file.size != shard.nbytes:
            raise main.error(f"{what}: expected {shard.nbytes} bytes, found {file.size}")
        names.add(shard.data_path)
        if shard.md5sum:
            checksums[file.number] = f"md5:{shard.md5sum}"
        spans: list[tuple[int, int, str]] = []
        for param in shard.records:
            if not param.name or param.name in tensors:
                raise main.error(f"expected tensors with names of their own, found {param.name!r} twice or empty")
            tensor = tensors[param.name] = _tensor(main, file, param)
            spans.append((tensor.offset, tensor.offset + tensor.nbytes, param.name))
        refuse_overlaps(main, spans)
    return Contents(tensors, checksums=checksums)


def _tensor(main: CheckpointFile, file: CheckpointFile, param: _Param) -> Tensor:
    name = param.name
    dtype = _RENAMED.get(param.dtype, param.dtype)
    if dtype not in SIZES:
        raise main.bad(name, f"a dtype of {', '.join(sorted(SIZES))}", repr(param.dtype))
    if param.format not in {"raw", "f32-to-bf16"}:
        raise main.bad(name, "format 'raw'", repr(param.format))
    if param.format == "f32-to-bf16" and dtype == "float32":
        raise main.bad(
            name,
            "format 'raw'",
            "'f32-to-bf16': the bytes are bfloat16, the dtype says float32; dump it with encode_format='raw'",
        )
    nbytes = size_in_bytes(main, name, dtype, param.shape)
    if nbytes != param.nbytes:
        raise main.bad(name, f"{nbytes} bytes for {dtype} of shape {param.shape}", param.nbytes)
    if param.byte_offset + nbytes > file.size:
        raise main.bad(
            name, f"its bytes within the {file.size} of {file.path}", f"{nbytes} at offset {param.byte_offset}"
        )
    return Tensor(dtype, tuple(param.shape), nbytes, param.byte_offset, file.number)
