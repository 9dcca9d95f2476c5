"""JAX's values as arguments and results of stages."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from cachec.errors import PluginError
from cachec_jax import plugin
from cachec_jax.internals import enable_x64


class Writer:
    """Writes artifacts into a folder, as the store would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def write(self, data: bytes | memoryview) -> None:
        path = self.folder / str(len(self.paths))
        path.write_bytes(data)
        self.paths.append(path)

    def copy(self, path: Path) -> None:
        self.write(path.read_bytes())


def key(value: object) -> str:
    return plugin.fingerprint(value).digest


def test_the_types_are_those_of_the_installed_jax():
    values = [jnp.ones(2), jax.random.key(0), jax.ShapeDtypeStruct((1,), "f4"), jax.jit(lambda x: x).lower(1.0)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    values += [jax.devices()[0], mesh, mesh.abstract_mesh, jax.sharding.SingleDeviceSharding(jax.devices()[0])]
    values.append(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
    for value in values:
        names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(value).__mro__}
        assert names & set(plugin.types), type(value)


def test_equal_arrays_have_equal_fingerprints():
    assert key(jnp.arange(3.0)) == key(jnp.arange(3.0))
    assert key(jax.ShapeDtypeStruct((2,), "f4")) == key(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert key(jax.random.key(1)) == key(jax.random.key(1))


@pytest.mark.parametrize(
    "other",
    [
        jnp.array([0.0, 1.0, 3.0]),
        jnp.array([[0.0, 1.0, 2.0]]),
        jnp.array([0, 1, 2]),
        jnp.array([0.0, 1.0, 2.0], jnp.bfloat16),
        jax.device_put(jnp.arange(3.0), jax.devices()[0]),
        jax.ShapeDtypeStruct((3,), "f4"),
        jax.random.key(0),
    ],
)
def test_what_changes_a_fingerprint(other):
    assert key(other) != key(jnp.arange(3.0))


def test_a_weak_type_and_a_key_count():
    assert key(jnp.asarray(1.0)) != key(jnp.asarray(1.0, jnp.float32))
    assert key(jax.random.key(0)) != key(jax.random.key(1))
    assert key(jax.random.key(0)) != key(jax.random.key(0, impl="rbg"))


def test_a_lowered_counts_by_its_text():
    def lowered(factor):
        return jax.jit(lambda x: x * factor).lower(jnp.ones(2))

    assert key(lowered(2.0)) == key(lowered(2.0))
    assert key(lowered(2.0)) != key(lowered(3.0))


@pytest.mark.parametrize(
    "value",
    [
        jnp.arange(6.0).reshape(2, 3),
        jnp.zeros((0, 4), jnp.int8),
        jnp.array(True),
        jnp.array([1, 2], jnp.bfloat16),
        jnp.array([1.5, np.nan], jnp.float8_e4m3fn),
        jnp.asarray(1.0),
        jnp.full((2,), 1.0),
        jnp.array([1 + 2j], jnp.complex64),
    ],
)
def test_round_trip(value, tmp_path):
    out = Writer(tmp_path)
    meta = plugin.encode(value, out)
    back = plugin.decode(meta, out.paths)
    assert (back.dtype, back.shape, back.weak_type) == (value.dtype, value.shape, value.weak_type)
    assert np.asarray(back).tobytes() == np.asarray(value).tobytes()
    assert plugin.compare(value, back) is None


def test_a_key_is_not_stored(tmp_path):
    with pytest.raises(PluginError, match="key_data"):
        plugin.encode(jax.random.key(0), Writer(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float31"},
        {"dtype": 3},
        {"shape": [4]},
        {"shape": [-3]},
        {"shape": [True]},
        {"shape": "3"},
        {"weak": 1},
        {"extra": 1},
        {"dtype": "float64", "shape": [3]},
    ],
)
def test_malformed_meta_is_refused(change, tmp_path):
    out = Writer(tmp_path)
    meta = plugin.encode(jnp.arange(3.0), out) | change
    with pytest.raises(PluginError):
        plugin.decode(meta, out.paths)


def test_a_cut_artifact_is_refused(tmp_path):
    out = Writer(tmp_path)
    meta = plugin.encode(jnp.arange(3.0), out)
    out.paths[0].write_bytes(out.paths[0].read_bytes()[:-1])
    with pytest.raises(PluginError, match="11 bytes, not 12"):
        plugin.decode(meta, out.paths)
    with pytest.raises(PluginError, match="2 artifacts"):
        plugin.decode(meta, out.paths * 2)


def test_a_64_bit_array_is_not_narrowed_silently(tmp_path):
    out = Writer(tmp_path)
    with enable_x64(True):
        meta = plugin.encode(jnp.arange(3, dtype="int64"), out)
        assert plugin.decode(meta, out.paths).dtype == np.int64
    with pytest.raises(PluginError, match="jax_enable_x64"):
        plugin.decode(meta, out.paths)


def test_compare_is_numeric():
    a = jnp.array([1.0, 1000.0], jnp.float32)
    assert plugin.compare(a, a * (1 + 2e-7)) is None
    assert "largest difference" in plugin.compare(a, a * (1 + 1e-4))
    assert plugin.compare(a, a.astype(jnp.bfloat16)) is not None
    assert plugin.compare(jnp.array([1.0, jnp.nan]), jnp.array([1.0, jnp.nan])) is None
    assert "NaN" in plugin.compare(jnp.array([1.0, jnp.nan]), jnp.array([jnp.nan, 1.0]))
    assert "NaN" in plugin.compare(jnp.array([jnp.inf]), jnp.array([-jnp.inf]))
    assert plugin.compare(jnp.array([1]), jnp.array([2])) == "the integers differ"
    assert plugin.compare(jnp.array([1], ml_dtypes.bfloat16), jnp.array([1.5], ml_dtypes.bfloat16)) is not None


#: Places that a stage reads from its module. Arguments: how many devices a mesh has, and the name of its axis.
PLACES = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
import cachec

DEVICE = jax.devices()[int(sys.argv[1])]
MESH = Mesh(np.array(jax.devices()[:int(sys.argv[1])]), (sys.argv[2],))
ABSTRACT = AbstractMesh(MESH.axis_sizes, MESH.axis_names)
SPEC = PartitionSpec(sys.argv[2])
NAMED = NamedSharding(MESH, SPEC)
SINGLE = SingleDeviceSharding(DEVICE)

cache = cachec.Cache("store", log="off")
stages = [
    cache.stage(function)
    for function in (
        lambda: str(DEVICE), lambda: str(MESH), lambda: str(ABSTRACT), lambda: str(SPEC), lambda: str(NAMED),
        lambda: str(SINGLE),
    )
]
print(*(cache.call(stage)[1].reason.value for stage in stages))
"""


@pytest.mark.long
def test_places_of_a_module_count_by_their_axes_and_devices(tmp_path: Path) -> None:
    (tmp_path / "places.py").write_text(PLACES)

    def reasons(*args: str) -> list[str]:
        done = subprocess.run([sys.executable, "places.py", *args], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    assert set(reasons("2", "x")) <= {"miss:first-run", "miss:code-changed"}
    assert reasons("2", "x") == ["hit"] * 6
    # Another axis changes all but the devices, another number of devices all but the specification of an axis.
    assert [each == "hit" for each in reasons("2", "y")] == [True, False, False, False, False, True]
    assert [each == "hit" for each in reasons("3", "x")] == [False, False, False, True, False, False]
