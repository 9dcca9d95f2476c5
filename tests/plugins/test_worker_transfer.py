"""JAX arrays and torch tensors on their way to a worker: unchanged, and without a copy."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cachec.errors import PluginError
from cachec.programs.registry import installed_plugins
from cachec.worker.protocol import MessageChannel
from cachec.worker.value_transfer import ValueTransfer

#: More than what else a message holds.
_LARGE = 1_000_000


@pytest.fixture
def channels() -> Iterator[tuple[MessageChannel, MessageChannel]]:
    pair = [MessageChannel(each.detach()) for each in socket.socketpair()]
    yield pair[0], pair[1]
    for each in pair:
        each.close()


def _through(channels: tuple[MessageChannel, MessageChannel], value: Any) -> Any:
    channels[0].send(value, ValueTransfer(installed_plugins()))
    return channels[1].receive()[0]


def _pickled(value: Any) -> int:
    """The bytes of a message that are not buffers."""
    import io

    from cachec.worker.protocol import _MessagePickler

    file = io.BytesIO()
    _MessagePickler(file, ValueTransfer(installed_plugins()), []).dump(value)
    return len(file.getvalue())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "weak", "empty", "scalar", "large"])
def test_arrays_of_jax(channels: tuple[MessageChannel, MessageChannel], kind: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    value = {
        "float32": jnp.arange(6.0).reshape(2, 3),
        "bfloat16": jnp.ones(4, jnp.bfloat16),
        "weak": jax.device_put(2.5),
        "empty": jnp.zeros((0, 3), jnp.int32),
        "scalar": jnp.int32(7),
        "large": jnp.zeros(_LARGE),
    }[kind]
    got = _through(channels, value)
    assert (got.dtype, got.shape, got.weak_type) == (value.dtype, value.shape, value.weak_type)
    assert (got == value).all()
    assert _pickled(value) < _LARGE // 100


def test_an_array_that_would_have_another_type_is_refused(channels: tuple[MessageChannel, MessageChannel]) -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        value = jax.numpy.ones(3, "float64")
    with pytest.raises(PluginError, match="float64 would become float32"):
        _through(channels, value)


@pytest.mark.parametrize("kind", ["turned", "part", "bfloat16", "parameter", "empty", "scalar", "large"])
def test_tensors_of_torch(channels: tuple[MessageChannel, MessageChannel], kind: str) -> None:
    torch = pytest.importorskip("torch")
    value = {
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "part": torch.arange(9)[2:8:2],
        "bfloat16": torch.ones(4, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
        "large": torch.zeros(_LARGE),
    }[kind]
    got = _through(channels, value)
    assert (type(got), got.dtype, got.shape, got.stride()) == (type(value), value.dtype, value.shape, value.stride())
    assert got.requires_grad == value.requires_grad
    assert torch.equal(got, value)
    assert _pickled(value) < _LARGE // 100
    if kind == "turned":
        got[0] = 100.0
        assert value[0, 0] == 0
