"""Files that the formats' own projects write, or ship as data of their tests: where fuzzing of a reader begins."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

#: More is slow, and nothing else.
_LARGEST = 8192


def shipped(package: str, pattern: str) -> list[bytes]:
    """What an installed project ships for its own tests, as far as it is small."""
    folder = Path(__import__(package).__file__ or "").parent
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    return [path.read_bytes() for path in files if path.stat().st_size <= _LARGEST]


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """By the ``safetensors`` package."""
    from safetensors.numpy import save

    return save(arrays, {"format": "np"})


def gguf(folder: Path) -> bytes:
    """By the ``gguf`` package of llama.cpp, with a quantised tensor."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(folder / "own.gguf", "llama")
    writer.add_block_count(2)
    writer.add_array("tokens", ["a", "é"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("a", np.ones((2, 4), "f4"))
    writer.add_tensor("q", np.zeros((1, 34), "u1"), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "own.gguf").read_bytes()


def irpa(folder: Path) -> bytes:
    """By the IREE runtime, with a splat."""
    import iree.runtime

    index = iree.runtime.ParameterIndex()
    index.add_buffer("a", np.arange(6, dtype="f4").tobytes(), metadata="m")
    index.add_splat("z", np.float32(1).tobytes(), 16)
    index.create_archive_file(str(folder / "own.irpa"))
    return (folder / "own.irpa").read_bytes()


def bytecode(text: str) -> bytes:
    """By MLIR itself."""
    from jaxlib.mlir import ir

    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        out = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(out)
    return out.getvalue()
