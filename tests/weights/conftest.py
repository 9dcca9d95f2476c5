"""Checkpoints for the tests: written byte by byte, so that any header can be made."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.weights.formats import safetensors

CODES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8", "bfloat16": "BF16", "bool": "BOOL"}


class Make:
    """Makes checkpoints."""

    @staticmethod
    def file_bytes(header: bytes | str, data: bytes = b"") -> bytes:
        """Length, header and data as one file."""
        header = header.encode() if isinstance(header, str) else header
        return struct.pack("<Q", len(header)) + header + data

    @staticmethod
    def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> Path:
        """A checkpoint with these tensors in this order, header padded to 8."""
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
        data = b""
        for name, array in tensors.items():
            raw = array.tobytes()
            shape = list(array.shape)
            header[name] = {
                "dtype": CODES[array.dtype.name],
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
        text = json.dumps(header).encode()
        path.write_bytes(Make.file_bytes(text + b" " * (-len(text) % 8), data))
        return path

    @staticmethod
    def ramp(*shape: int, start: float = 0.0) -> np.ndarray:
        """float32 values that differ."""
        return (np.arange(np.prod(shape), dtype=np.float32) + np.float32(start)).reshape(shape)


@pytest.fixture
def make() -> type[Make]:
    """The maker of checkpoints."""
    return Make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three tensors: w [4, 8], b [8], scale [1], all float32."""
    return Make.write(
        tmp_path / "m.safetensors", {"w": Make.ramp(4, 8), "b": Make.ramp(8, start=100), "scale": Make.ramp(1, start=7)}
    )


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of every header that is parsed from now on."""
    calls: list[str] = []
    real: Callable[..., Any] = safetensors.parse_header

    def counting(path: str, data: bytes, size: int) -> Any:
        calls.append(path)
        return real(path, data, size)

    monkeypatch.setattr(safetensors, "parse_header", counting)
    return calls
