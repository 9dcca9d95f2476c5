"""Results that the codec of a plugin does not take: their caller gets them, and the call is a bypass that says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import cachec
from cachec import Mode, Reason
from cachec.base.distributions import Distributions
from cachec.errors import CachecError, LinkError, PluginError, UnstorableValue, UsageError
from cachec.programs.plugin import ArtifactWriter, Plugin
from cachec.programs.registry import Plugins
from cachec.programs.supported_versions import GONE


def torch_values() -> dict[str, Any]:
    import torch

    flowing = torch.ones(2, requires_grad=True)
    trained = torch.ones(2, requires_grad=True)
    trained.sum().backward()
    named = torch.ones(2)
    named.label = "a"  # type: ignore[attr-defined]
    return {
        "detach": flowing * 2,
        "make it dense": torch.eye(2).to_sparse(),
        "on meta": torch.ones(2, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "more to it than bytes": torch.nn.Buffer(torch.ones(2)).as_subclass(type("Other", (torch.Tensor,), {})),
        "a gradient": trained,
        "attributes of its own": named,
    }


def jax_values() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    def calls_python(x: Any) -> Any:
        return jax.pure_callback(np.sin, x, x)

    return {
        "key_data": jax.random.key(0),
        "ShapeDtypeStruct": jax.ShapeDtypeStruct((1,), "float32"),
        "calls Python": jax.jit(calls_python).lower(jnp.ones(2)),
        "devices of this process": jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    }


def mlir_values() -> dict[str, Any]:
    from iree.compiler import ir

    data = (1 << 14).to_bytes(4, "little") + bytes(4)
    text = (
        "module { func.func @f() -> tensor<1xf32> { %0 = arith.constant dense_resource<w> : tensor<1xf32>\n"
        "return %0 : tensor<1xf32> } }\n"
        f'{{-# dialect_resources: {{ builtin: {{ w: "0x{data.hex()}" }} }} #-}}'
    )
    with ir.Context():
        return {"aligned to 16384": ir.Module.parse(text)}


#: Plugins that store values, and values that they do not store, by words of the detail.
TABLE: Mapping[str, Callable[[], dict[str, Any]]] = {
    "torch": torch_values,
    "jax": jax_values,
    "mlir": mlir_values,
}


@dataclasses.dataclass
class Holder:
    inside: Any


#: Where a value may be in a result, and how it is got out of it.
PLACES: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bare": (lambda value: value, lambda result: result),
    "in a dict": (lambda value: {"a": 1, "b": value}, lambda result: result["b"]),
    "in a list": (lambda value: [[value]], lambda result: result[0][0]),
    "in a dataclass": (lambda value: Holder(value), lambda result: result.inside),
}


def test_every_plugin_that_stores_values_is_in_the_table() -> None:
    stores = {plugin.name for plugin in Plugins(Distributions()).all() if type(plugin).encode is not Plugin.encode}
    assert stores - {"toy"} == TABLE.keys()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", TABLE)
def test_a_value_without_a_stored_form_is_returned(name, place, cache) -> None:
    put, get = PLACES[place]

    @cache.stage(version="1", ignore=["value"])
    def stage(words: str, value: Any) -> Any:
        return put(value)

    for words, value in TABLE[name]().items():
        result, outcome = cache.call(stage, words, value)
        assert get(result) is value, words
        assert outcome.reason in {Reason.UNSTORABLE, Reason.PROCESS_BOUND}, (words, outcome)
        assert words in outcome.detail
        assert not outcome.stored


class Failing(Plugin):
    """Stores nothing of its type: encoding raises, or gives back no JSON."""

    name = "failing"
    types = (f"{__name__}.Odd",)
    package = "failing"

    def __init__(self, fails: Any) -> None:
        self.fails = fails

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        out.write(b"a part")
        if isinstance(self.fails, Exception):
            raise self.fails
        return self.fails

    def decode(self, meta: Mapping[str, Any], artifacts: Any) -> Any:
        return Odd()


class Odd:
    pass


FAILURES = [
    *(kind("of the codec") for kind in (PluginError, UnstorableValue, UsageError, LinkError, CachecError)),
    *(kind("of the codec") for kind in (ValueError, RuntimeError, OSError, MemoryError, RecursionError, KeyError)),
    *(kind("of the codec") for kind in (TypeError, AttributeError, ImportError)),
    *({"of the codec": odd} for odd in (b"", (), {1}, float("nan"))),
    ["of the codec"],
]


def test_whatever_a_codec_raises_the_result_is_returned(tmp_path, monkeypatch) -> None:
    plugin = Failing({})
    monkeypatch.setattr(Plugins, "all", lambda self: (plugin,))
    cache, odd = cachec.Cache(tmp_path / "cache", log="off", record="off"), Odd()

    @cache.stage(version="1", ignore=["value"], deterministic=False)
    def stage(value: Any) -> Any:
        return value

    assert stage(odd) is not odd, "it is stored, and is what was decoded"
    for fails in FAILURES:
        plugin.fails = fails
        monkeypatch.setattr(stage, "mode", Mode.REFRESH)
        result, outcome = cache.call(stage, odd)
        assert (result, outcome.stored) == (odd, False)
        assert outcome.reason is (Reason.UNSUPPORTED_VERSION if isinstance(fails, GONE) else Reason.UNSTORABLE)
        assert "codec" in outcome.detail or "JSON" in outcome.detail, outcome
    for fails, words in ((PluginError("so"), "so"), (TypeError("so"), "so"), ({"n": 1}, "does not compare")):
        plugin.fails = fails
        monkeypatch.setattr(stage, "mode", Mode.VERIFY)
        result, outcome = cache.call(stage, odd)
        assert (result, outcome.reason) == (odd, Reason.VERIFY_DIFFERS)
        assert words in outcome.detail, outcome
        plugin.fails = {}
        monkeypatch.setattr(stage, "mode", Mode.REFRESH)
        assert stage(odd) is not odd
