"""Whether this package works with the installed JAX: run in a process of its own for a newer release than it was tried
with (``Plugin.self_test``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cachec.cache import Cache
from cachec.events import read_log
from cachec.model import Reason
from cachec.programs.artifact import File
from cachec.programs.linker import link
from cachec.weights import WeightSet

if TYPE_CHECKING:
    import jax

_X = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)


def self_test() -> None:
    """Compile programs, look them up again, and compare the numbers. Raises an error if any of this fails."""
    # On the CPU: the process that waits for this one may use the accelerator.
    os.environ["JAX_PLATFORMS"] = "cpu"
    _check_settings()
    _check_stage()
    _check_programs()
    _check_install()


def _check_settings() -> None:
    """A setting that changes results counts."""
    import jax

    from cachec_jax import plugin

    before = plugin.ambient()
    with jax.default_matmul_precision("highest"):
        _expect(plugin.ambient() != before, "a changed option counts")


def _function(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.tanh(x @ weights["a"])


def _compile(weights: WeightSet) -> File:
    import cachec_jax

    return cachec_jax.compile_xla(_function, weights.placeholders(), _X)


def _check_stage() -> None:
    """A new cache object finds a stored program, with other weights."""
    for seed, reason in ((0, Reason.FIRST_RUN), (1, Reason.HIT)):
        cache = Cache()
        arrays = {"a": np.random.default_rng(seed).normal(size=(4, 4)).astype("f4")}
        weights = WeightSet.from_arrays(arrays)
        program, outcome = cache.call(cache.stage(tools=["jax", "jaxlib"], isolated=False)(_compile), weights)
        _expect(
            outcome.reason is reason, f"a compiled program is a {reason.value}: {outcome.reason.value} {outcome.detail}"
        )
        _expect_equal(link(program, weights).numpy(_X), np.tanh(_X @ arrays["a"]))


def _check_programs() -> None:
    """A lowered program can be encoded and decoded, and StableHLO takes its weights by name."""
    import jax

    import cachec_jax
    from cachec_jax import program_codec
    from cachec_jax.program_format import parse_program

    lowered = jax.jit(lambda x: np.float32(2) * x).lower(_X)
    again = program_codec.decode_program(*parse_program(program_codec.encode_program(lowered)))
    _expect_equal(again.compile()(_X), 2 * _X)
    weights = WeightSet.from_arrays({"a": np.ones((4, 4), "f4")})
    text = cachec_jax.to_stablehlo(_function, weights.placeholders(), _X).text
    _expect('"model"::"a"' in text, "a weight has its name in StableHLO")


def _check_install() -> None:
    """Plain ``jax.jit`` and ``cachec_jax.jit`` find in the store what was compiled."""
    import jax

    import cachec_jax

    cache = cachec_jax.install(Cache(Path("installed").absolute()), min_compile_time=0, strict=True)
    for _ in range(2):
        _expect_equal(jax.jit(lambda x: x * 3 - 1)(_X), _X * 3 - 1)
        jax.clear_caches()
    for seed in range(2):
        array = np.random.default_rng(seed).normal(size=(4, 4)).astype("f4")
        _expect_equal(_closing_over(jax.numpy.asarray(array))(_X), _X @ array)
        jax.clear_caches()
    hits = [each for each in read_log(cache.dir) if each.reason is Reason.HIT]
    _expect(len(hits) >= 2, f"programs are found in the store: {len(hits)} were")
    cachec_jax.uninstall()


def _closing_over(array: Any) -> Any:
    import cachec_jax

    return cachec_jax.jit(lambda x: x @ array)


def _expect_equal(found: Any, expected: np.ndarray[Any, Any]) -> None:
    _expect(np.allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5), f"the numbers are {expected}: {found}")


def _expect(true: bool, what: str) -> None:
    if not true:
        raise AssertionError(f"expected that {what}")
