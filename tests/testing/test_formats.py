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
from tests.recipes import block, entry_points, install

#: The one of the recipe, and what its author might do besides.
MODULE = (
    block("toy_checkpoints.py")
    + """

class ReadOnly:
    read = Toy.read


read_only, nothing = ReadOnly(), 3
"""
)
POINTS = {
    **entry_points("toy_checkpoints")["cachec.formats"],
    ".fixed": "toy_checkpoints:read_only",
    ".odd": "toy_checkpoints:nothing",
    ".gone": "no_such_module:format",
    ".npy": "toy_checkpoints:nothing",
}


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution of its own on the path."""
    site = tmp_path_factory.mktemp("site")
    install(site, "toy_checkpoints", MODULE, {"cachec.formats": POINTS})
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
