"""PyTorch's checkpoints against PyTorch."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.errors import CheckpointError, WeightsChanged
from cachec.weights import open_weights
from tests.needs import Later
from tests.weights.formats.suite import ShippedFormat

torch: Any = Later("torch")

EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)
ONE = st.tuples(st.integers(0, 1 << 16), st.just(1), st.binary(min_size=1, max_size=1))


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes, row-major."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes of a flat state dict, as torch loads it without a map."""
    return {name: raw(tensor) for name, tensor in torch.load(path, weights_only=True).items()}


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "w": torch.randn(30, 40),
        "b": torch.randn(5, dtype=torch.bfloat16),
        "h": torch.randn(2, 3).half(),
        "i": torch.arange(7),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "f8": torch.randn(4).to(torch.float8_e4m3fn),
        "c": torch.randn(2, dtype=torch.complex64),
    }


class TestTorch(ShippedFormat):
    suffix = ".pt"
    official = staticmethod(official)

    def write(self, path: Path, arrays: Any) -> Path:
        torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, path)
        return path


def test_a_state_dict_in_place(tmp_path: Path, check: Any) -> None:
    wanted = state()
    path = tmp_path / "m.pt"
    torch.save(wanted, path)
    weights = check.reads(path, {name: raw(tensor) for name, tensor in wanted.items()})
    for name, tensor in wanted.items():
        assert weights[name].shape == tuple(tensor.shape)
        assert f"torch.{weights[name].dtype}" == str(tensor.dtype)
        assert weights[name].place().path == path
    np.testing.assert_array_equal(weights["w"].read(), wanted["w"].numpy())
    torch.testing.assert_close(weights["b"].torch(), wanted["b"], rtol=0, atol=0)
    assert official(path) == {name: raw(tensor) for name, tensor in wanted.items()}


@pytest.mark.parametrize("name", ["m.pth", "m.ckpt", "pytorch_model.bin", "m"])
def test_any_name(tmp_path: Path, check: Any, name: str) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / name)
    check.reads(tmp_path / name, {"a": raw(torch.ones(3))})


@pytest.mark.long
def test_a_module_and_its_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = tmp_path / "m.pt"
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "x"}, path)
    weights = open_weights(path)
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(weights[f"model.{name}"].read(), tensor.numpy())
    moment = optimizer.state_dict()["state"][0]["exp_avg"]
    np.testing.assert_array_equal(weights["optimizer.state.0.exp_avg"].read(), moment.numpy())
    torch.save([torch.ones(2), {"a": (torch.zeros(1),)}], path)
    with pytest.raises(CheckpointError, match=r"expected a dict of tensors \(a state dict\), found list"):
        open_weights(path)
    torch.save({"l": [torch.ones(2), {"a": (torch.zeros(1),)}]}, path)
    assert set(open_weights(path)) == {"l.0", "l.1.a.0"}
    torch.save(OrderedDict(p=torch.nn.Parameter(torch.ones(2))), path)
    np.testing.assert_array_equal(open_weights(path)["p"].read(), np.ones(2))


def test_shared_storages_are_no_ties(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.float32)
    path = tmp_path / "m.pt"
    torch.save({"all": base, "again": base, "part": base[4:8], "grid": base.view(3, 4)}, path)
    weights = open_weights(path)
    assert all(spec.alias is None for spec in weights.specs.values())
    np.testing.assert_array_equal(weights["part"].read(), base[4:8].numpy())
    np.testing.assert_array_equal(weights["grid"].read(), base.view(3, 4).numpy())
    assert weights["all"].place() == weights["again"].place()
    assert open_weights(path, tied=[("all", "again")]).specs["all"].alias == "again"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"a": torch.ones(3, 4).T}, r"tensor 'a': expected row-major strides, found \(1, 4\).*contiguous"),
        (lambda: {"a": torch.ones(4)[::2]}, "row-major strides"),
        (lambda: {"a": torch.ones(1).expand(4)}, "row-major strides"),
        (lambda: {"a": torch.eye(3).to_sparse()}, "'a'.*dense"),
        (lambda: {"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, "'a'.*dense"),
        (lambda: {"a": torch.ones(3, device="meta")}, "meta"),
        (lambda: {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, "'a.b' twice"),
        (lambda: {(1, 2): torch.ones(1)}, "expected names"),
        (lambda: torch.ones(3), "found Tensor"),
    ],
)
def test_refused_with_a_way_out(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "m.pt"
    torch.save(make(), path)
    with pytest.raises(CheckpointError, match=message) as error:
        open_weights(path)
    assert str(path) in str(error.value)


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.where, "w")


def test_no_code_is_run(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"a": torch.ones(1), "e": Evil(str(tmp_path / "ran"))}, path)
    with pytest.raises(CheckpointError, match="weights_only=True"):
        open_weights(path)
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(CheckpointError, match="weights_only=True"):
        open_weights(path)
    path.write_bytes(pickle.dumps({"e": Evil(str(tmp_path / "ran"))}))
    with pytest.raises(CheckpointError, match=r"zip format \(1\.6 or later\)"):
        open_weights(path)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="zip format"):
        open_weights(path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    with pytest.raises(CheckpointError, match=r"m\.pt"):
        open_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/y", b"")
    with pytest.raises(CheckpointError, match=r"data\.pkl, found 0"):
        open_weights(path)


def _rewritten(source: Path, target: Path, change: Any) -> None:
    """The archive with other members."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data, method = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data, compress_type=method)


def test_archives_that_were_changed(tmp_path: Path) -> None:
    good, path = tmp_path / "good.pt", tmp_path / "m.pt"
    torch.save({"a": torch.arange(100)}, good)
    stored = zipfile.ZIP_STORED

    _rewritten(good, path, lambda name, data: (data, stored))
    np.testing.assert_array_equal(open_weights(path)["a"].read(), np.arange(100))
    _rewritten(good, path, lambda name, data: (data, zipfile.ZIP_DEFLATED if name.endswith("data/0") else stored))
    with pytest.raises(CheckpointError, match="compressed"):
        open_weights(path)
    _rewritten(good, path, lambda name, data: (data[:-8] if name.endswith("data/0") else data, stored))
    with pytest.raises(CheckpointError, match=r"'a'.*in a storage of the archive"):
        open_weights(path)
    _rewritten(good, path, lambda name, data: (None if name.endswith("data/0") else data, stored))
    with pytest.raises(CheckpointError, match="refused it"):
        open_weights(path)
    _rewritten(good, path, lambda name, data: (b"big" if name.endswith("byteorder") else data, stored))
    with pytest.raises(CheckpointError, match="big-endian"):
        open_weights(path)


@pytest.mark.parametrize("nest", [lambda inner: {"a": inner}, lambda inner: [inner]], ids=["dict", "list"])
def test_as_deep_as_may_be(tmp_path: Path, nest: Any) -> None:
    value: Any = torch.ones(1)
    for _ in range(63):
        value = nest(value)
    torch.save({"m": value}, tmp_path / "m.pt")
    assert len(open_weights(tmp_path / "m.pt")) == 1
    torch.save({"m": nest(value)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="nested 64 deep"):
        open_weights(tmp_path / "m.pt")


@pytest.mark.long
def test_what_contains_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    loop: dict[str, Any] = {"a": torch.ones(1)}
    loop["self"] = loop
    torch.save(loop, path)
    with pytest.raises(CheckpointError, match="nested 64 deep"):
        open_weights(path)
    bomb: dict[str, Any] = {}
    for _ in range(50):
        bomb = {"a": bomb, "b": bomb}
    torch.save(bomb, path)
    with pytest.raises(CheckpointError, match="1000000 values"):
        open_weights(path)


@pytest.mark.long
def test_later_reads_need_no_torch(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    code = (
        "import sys, cachec.weights as w; assert 'torch' not in sys.modules; s = w.open_weights(sys.argv[1]);"
        "maps = open('/proc/self/maps').read(); assert sys.argv[1] not in maps, 'torch still maps it';"
        "print(s['a'].read().sum())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.pt")], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "3.0", found.stderr


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"a": torch.ones(3)}, path)
    weights = open_weights(path)
    torch.save({"a": torch.zeros(3)}, path)
    with pytest.raises(WeightsChanged, match=r"m\.pt"):
        weights["a"].read()


@pytest.fixture(scope="module")
def original() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(4), "b": torch.ones(2, 2)}, buffer)
    return buffer.getvalue()


@pytest.mark.fuzz
def test_mutations(original: bytes, check: Any) -> None:
    assert check.mutated(original, [], ".pt", official)
    pkl = original.index(b"archive/data.pkl") if b"archive/data.pkl" in original else original.index(b"data.pkl")
    near = st.tuples(st.integers(pkl, pkl + 400), st.just(1), st.binary(min_size=1, max_size=1))

    @check.quick
    @given(st.lists(ONE | near, min_size=1, max_size=2) | EDITS)
    def run(edits: list) -> None:
        check.mutated(original, edits, ".pt", official)

    run()
