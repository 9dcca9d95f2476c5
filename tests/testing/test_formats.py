"""A format of another package, as its author would ship it: found by its entry point, and held to the suite."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.errors import PluginError, UsageError
from cachec.testing.formats import FormatConformance
from cachec.weights import from_arrays, open_weights

#: "TOY!", u32 length of a JSON object name -> [dtype, shape], that object, the data.
MODULE = """
import json, struct

from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import Contents, Plan, size_in_bytes
from cachec.weights.tensor import Tensor


class Toy:
    def read(self, path, opener):
        file = opener.main
        magic, length = struct.unpack("<4sI", file.at(0, 8, "the header"))
        if magic != b"TOY!":
            raise file.error(f"expected the magic b'TOY!', found {magic!r}")
        try:
            table = json.loads(file.at(8, length, "the table"))
            entries = [(name, dtype, tuple(map(int, shape))) for name, (dtype, shape) in table.items()]
        except (ValueError, AttributeError, TypeError, OverflowError) as error:
            raise file.error(f"the table: expected name -> [dtype, shape]: {error}") from error
        tensors, at = {}, 8 + length
        for name, dtype, shape in entries:
            if type(dtype) is not str or dtype not in SIZES:
                raise file.bad(name, "a known dtype", repr(dtype))
            nbytes = size_in_bytes(file, name, dtype, shape)
            file.within(at, nbytes, f"tensor {name!r}")
            tensors[name] = Tensor(dtype, shape, nbytes, at)
            at += nbytes
        if at != file.size:
            raise file.error(f"expected {at} bytes, found {file.size}")
        return Contents(tensors)

    def plan(self, path, weights, metadata):
        table = json.dumps({weight.name: [weight.dtype, weight.shape] for weight in weights}).encode()
        places, at = [], 8 + len(table)
        for weight in weights:
            places.append((weight, at))
            at += weight.nbytes
        return Plan(path, struct.pack("<4sI", b"TOY!", len(table)) + table, tuple(places), at)


class ReadOnly:
    read = Toy.read


toy, read_only, nothing = Toy(), ReadOnly(), 3
"""
POINTS = """[cachec.formats]
.toy = toy_checkpoints:toy
0x544f5921 = toy_checkpoints:toy
.fixed = toy_checkpoints:read_only
.odd = toy_checkpoints:nothing
.gone = no_such_module:format
.npy = toy_checkpoints:nothing
"""


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution of its own on the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "toy_checkpoints.py").write_text(MODULE)
    info = site / "toy_checkpoints-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-checkpoints\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("toy_checkpoints", None)


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    table = json.dumps({name: [array.dtype.name, array.shape] for name, array in arrays.items()}).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(struct.pack("<4sI", b"TOY!", len(table)) + table + data)
    return path


class TestToy(FormatConformance):
    suffix = ".toy"
    has_magic = True
    is_written = True

    def write(self, path: Path, arrays: Any) -> Path:
        return write(path, arrays)


def test_it_is_imported_when_a_file_asks_for_it(tmp_path: Path) -> None:
    from_arrays({"a": np.ones(2)}).save(tmp_path / "m.safetensors")
    np.save(tmp_path / "m.npy", np.ones(2))
    (tmp_path / "m").write_bytes((tmp_path / "m.safetensors").read_bytes())
    for name in ("m.safetensors", "m.npy", "m"):  # and what ships with cachec is not replaced
        open_weights(tmp_path / name)
    assert "toy_checkpoints" not in sys.modules
    open_weights(write(tmp_path / "m.toy", {"a": np.ones(2)}))
    assert "toy_checkpoints" in sys.modules


def test_one_that_is_broken_says_so(tmp_path: Path) -> None:
    for name, message in (("m.odd", "is a int, expected a .*Format"), ("m.gone", "can't be loaded.*no_such_module")):
        (tmp_path / name).write_bytes(b"something")
        with pytest.raises(PluginError, match=message):
            open_weights(tmp_path / name)


def test_one_that_only_reads(tmp_path: Path) -> None:
    (tmp_path / "m.fixed").write_bytes(write(tmp_path / "m.toy", {"a": np.ones(2)}).read_bytes())
    assert open_weights(tmp_path / "m.fixed")["a"].nbytes == 16
    with pytest.raises(UsageError, match=r"\.fixed \(toy_checkpoints:read_only\) can be read and not written"):
        from_arrays({"a": np.ones(2)}).save(tmp_path / "n.fixed")
