"""``compile_xla``: keyed before any tracing, weights as arguments by name, numbers as JAX's own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

import cachec
from cachec import Reason
from cachec.errors import LinkError, PluginError, UsageError, WeightReadError
from cachec.weights import WeightSet, open_weights
from cachec_jax import compile_xla, xla_target
from cachec_jax.internals import enable_x64
from cachec_jax.program_codec import decode_program, encode_program
from cachec_jax.program_format import parse_program
from tests.plugins.jax_persistent_cache import forget_durations, kept_as_it_was

X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


@dataclass(frozen=True)
class Config:
    depth: int = 2
    scale: float = 0.5


def forward(config: Config, p: Any, x: Any) -> Any:
    for layer in p["layers"][: config.depth]:
        x = jnp.tanh(x @ layer["w"] + layer["b"]) * config.scale
    return {"y": x, "s": [x.sum()]}


def params(seed: int) -> Any:
    r = np.random.default_rng(seed)
    layer = lambda: {"w": r.normal(size=(4, 4)).astype("f4"), "b": r.normal(size=4).astype("f4")}  # noqa: E731
    return {"layers": [layer() for _ in range(3)], "unused": np.ones(5, "f4")}


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off")


def stage_of(cache: cachec.Cache, **options: Any) -> Any:
    @cache.stage(tools=["jax", "jaxlib"], **options)
    def build(config: Config, weights: cachec.WeightSet, rows: int) -> cachec.File:
        example = jax.ShapeDtypeStruct((rows, 4), "float32")
        return compile_xla(functools.partial(forward, config), weights.placeholders(), example)

    return build


@pytest.fixture
def work() -> Iterator[list[str]]:
    """What JAX has traced, lowered and compiled since."""
    events: list[str] = []

    def listen(event: str, _seconds: float, **_: Any) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    forget_durations(listen)


def same(a: Any, b: Any) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(np.array_equal(one, two) for one, two in leaves)


def plain(config: Config, seed: int, x: Any) -> Any:
    return jax.jit(functools.partial(forward, config))(params(seed), x)


def test_other_weights_hit_and_give_their_own_numbers(cache: cachec.Cache, work: list[str]) -> None:
    build, expected = stage_of(cache), {seed: plain(Config(), seed, X) for seed in (0, 7)}
    made = WeightSet.from_tree(params(0))
    file, outcome = cache.call(build, Config(), made, 3)
    assert outcome.reason is Reason.FIRST_RUN
    assert (file.kind, set(file.manifest.weights)) == ("jax:xla", set(made))
    assert any("backend_compile" in event for event in work)
    expected, given = jax.tree.map(np.asarray, expected), jnp.asarray(X)
    work.clear()
    for seed in (0, 7):
        weights = WeightSet.from_tree(params(seed))
        file, outcome = cache.call(build, Config(), weights, 3)
        assert outcome.reason is Reason.HIT
        run = cachec.link(file, weights)
        assert same(run(X), expected[seed])
        assert same(run(given), expected[seed])
    assert not work


def test_the_names_of_a_checkpoint_and_a_flat_set(cache: cachec.Cache, tmp_path: Path) -> None:
    build = stage_of(cache)
    paths = {name: f"t{number}" for number, name in enumerate(WeightSet.from_tree(params(1)))}
    WeightSet.from_tree(params(1)).rename(paths).save(tmp_path / "m.safetensors")
    weights = open_weights(tmp_path / "m.safetensors").tree(like=params(0), names=paths)
    assert same(cachec.link(build(Config(), weights, 3), weights)(X), plain(Config(), 1, X))
    flat = WeightSet.from_arrays({"w": params(0)["layers"][0]["w"]})
    file = compile_xla(lambda w, x: x @ w["w"], flat.placeholders(), X)
    assert same(cachec.link(file, flat)(X), jax.jit(jnp.matmul)(X, flat["w"].read()))
    empty = WeightSet.from_arrays({})
    assert same(cachec.link(compile_xla(lambda w, x: x + 1, empty, X), empty)(X), X + 1)


def test_an_unused_weight_is_not_read(cache: cachec.Cache) -> None:
    weights = WeightSet.from_tree(params(0))
    form, _ = parse_program(stage_of(cache)(Config(), weights, 3).read_bytes())
    assert form.names == tuple(f"['layers'][{n}]['{leaf}']" for n in range(2) for leaf in "bw")


def test_options_of_jit(cache: cachec.Cache) -> None:
    weights = WeightSet.from_arrays({"w": np.eye(4, dtype="f4")})

    def step(p: Any, x: Any, n: int, *, bias: Any) -> Any:
        return x @ p["w"] * n + bias

    file = compile_xla(
        step,
        weights,
        X,
        3,
        bias=np.ones(4, "f4"),
        options={"static_argnums": 2, "donate_argnums": 1, "keep_unused": True},
    )
    given = jnp.asarray(X)
    run = cachec.link(file, weights)
    expected = jax.jit(step, static_argnums=2)({"w": np.eye(4, dtype="f4")}, X, 3, bias=np.ones(4, "f4"))
    assert same(run(given, bias=np.ones(4, "f4")), expected)
    assert given.is_deleted()
    with pytest.raises(UsageError, match="can't be donated"):
        compile_xla(step, weights, X, 3, bias=np.ones(4, "f4"), options={"static_argnums": 2, "donate_argnums": 0})
    with pytest.raises(TypeError, match="pytree"):
        run(given)


def test_a_gradient_and_an_optimiser_with_random_keys(cache: cachec.Cache) -> None:
    def loss(p: Any, key: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return (forward(Config(), p, x * keep)["y"] ** 2).mean()

    def step(p: Any, state: Any, key: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, key, x)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradient)
        return jax.tree.map(lambda w, m: w - 0.1 * m, p, state), state, value

    weights = WeightSet.from_tree(params(0))
    state = jax.tree.map(jnp.zeros_like, params(0))
    given = (state, jax.random.key(3), X)
    run = cachec.link(compile_xla(step, weights.placeholders(), *given), weights)
    assert same(run(*given), jax.jit(step)(params(0), *given))


def test_a_look_at_the_bytes_of_a_weight_is_refused(cache: cachec.Cache) -> None:
    weights = WeightSet.from_tree(params(0)).placeholders()
    with pytest.raises(WeightReadError):
        compile_xla(lambda p, x: x @ weights["['layers'][0]['w']"].read(), weights, X)


# --- the key, and what is recorded


def test_what_misses_and_what_hits(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build, weights = stage_of(cache), WeightSet.from_tree(params(0))
    build(Config(), weights, 3)
    assert build.check(Config(), WeightSet.from_tree(params(9)), 3).reason is Reason.HIT
    assert build.check(Config(scale=0.25), weights, 3).reason is not Reason.HIT
    assert build.check(Config(), weights, 4).reason is Reason.OPTION_CHANGED
    other = params(0) | {"unused": np.ones(6, "f4")}
    assert build.check(Config(), WeightSet.from_tree(other), 3).reason is Reason.WEIGHT_SPEC_CHANGED
    with jax.default_matmul_precision("highest"):
        assert build.check(Config(), weights, 3).reason is Reason.AMBIENT_CHANGED
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert build.check(Config(), weights, 3).reason is Reason.AMBIENT_CHANGED


def test_what_jax_has_in_its_own_cache_is_compiled_again(tmp_path: Path) -> None:
    """XLA leaves the code out of what it serialises of a program that was loaded."""
    weights = WeightSet.from_tree(params(0))
    function = functools.partial(forward, Config())
    with kept_as_it_was():
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()
        for known in (False, True):
            jax.clear_caches()
            compiled = jax.jit(function).lower(params(0), X).compile()
            file = compile_xla(function, weights.placeholders(), X)
            assert same(cachec.link(file, weights)(X), plain(Config(), 0, X))
            if known:
                with pytest.raises(PluginError, match="may be from JAX's compilation cache"):
                    encode_program(compiled)
            else:
                assert same(
                    decode_program(*parse_program(encode_program(compiled)))(params(0), X), plain(Config(), 0, X)
                )


def test_flags_that_xla_does_not_go_by_are_refused(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build, weights = stage_of(cache), WeightSet.from_tree(params(0))
    jnp.zeros(1).block_until_ready()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_backend_optimization_level=1")
    with pytest.raises(UsageError, match="is not what XLA goes by in this process"):
        build(Config(), weights, 3)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_max_hlo_modules=-1")  # the default: changed, and nothing by it
    assert cache.call(build, Config(), weights, 3)[1].stored


def test_the_processor_is_recorded_where_the_key_leaves_it_out(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, weights = stage_of(cache, portable=True), WeightSet.from_tree(params(0))
    build(Config(), weights, 3)
    assert build.check(Config(), weights, 3).reason is Reason.HIT
    for place in ("cachec.key.trace_validation.processor_digest", "cachec.commands.run.processor_digest"):
        monkeypatch.setattr(place, lambda: "0" * 64)
    assert build.check(Config(), weights, 3).reason is Reason.DEPENDENCY_CHANGED


def test_accelerators_are_recorded_where_one_is_compiled_for(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, weights = stage_of(cache), WeightSet.from_tree(params(0))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    build(Config(), weights, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert build.check(Config(), weights, 3).reason is Reason.DEPENDENCY_CHANGED


@pytest.mark.long
def test_verify_finds_the_same_program(tmp_path: Path) -> None:
    weights = WeightSet.from_tree(params(0))
    for mode, reason in (("on", Reason.FIRST_RUN), ("verify", Reason.VERIFIED)):
        build = stage_of(cachec.Cache(tmp_path / "store", log="off", mode=mode), deterministic=False)
        assert build.call(Config(), weights, 3)[1].reason is reason


# --- what lies in the store


def test_an_altered_artifact_is_a_miss(cache: cachec.Cache) -> None:
    build, weights = stage_of(cache), WeightSet.from_tree(params(0))
    file = build(Config(), weights, 3)
    other = build(Config(depth=1), weights, 3)
    for content in (file.read_bytes()[:-1] + b"\0", other.read_bytes()):
        file.path.chmod(0o644)
        file.path.write_bytes(content)
        fresh = cachec.Cache(cache.dir, log="off")
        again, outcome = fresh.call(stage_of(fresh), Config(), weights, 3)
        assert outcome.reason is Reason.ARTIFACT_CORRUPT
        assert same(cachec.link(again, weights)(X), plain(Config(), 0, X))
        file = again  # XLA's bytes are others each time


@pytest.mark.parametrize("field", ["jax", "jaxlib", "version"])
def test_a_program_of_another_release_is_refused(field: str, cache: cachec.Cache, tmp_path: Path) -> None:
    weights = WeightSet.from_tree(params(0))
    data = stage_of(cache)(Config(), weights, 3).read_bytes()
    header = json.loads(data[17 : 17 + int.from_bytes(data[13:17], "little")])
    header["toolchain"][field] = "0.0.1"
    text = json.dumps(header).encode()
    path = tmp_path / "other.xla"
    path.write_bytes(
        data[:13] + len(text).to_bytes(4, "little") + text + data[17 + int.from_bytes(data[13:17], "little") :]
    )
    with pytest.raises(LinkError, match=f"{field} '0.0.1', here"):
        cachec.link(cachec.File(path, kind="jax:xla", manifest=weights.manifest), weights)


@pytest.mark.parametrize(
    "content", [b"", b"cachec-jax-1\n", b"\x80\x04cos\nsystem\n", b"cachec-jax-1\n\xff\xff\xff\xff{}"]
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.xla"
    path.write_bytes(content)
    empty = WeightSet.from_arrays({})
    with pytest.raises(LinkError, match="can't be loaded"):
        cachec.link(cachec.File(path, kind="jax:xla"), empty)
    path.write_bytes(encode_program(jax.jit(lambda x: x).lower(X).compile()))
    with pytest.raises(LinkError, match="takes no weights"):
        cachec.link(cachec.File(path, kind="jax:xla"), empty)


def test_weights_that_jax_would_narrow_are_refused(cache: cachec.Cache) -> None:
    weights = WeightSet.from_arrays({"w": np.ones(3)})
    with enable_x64(True):
        file = compile_xla(lambda p, x: p["w"] * x, weights, np.ones(3))
        assert cachec.link(file, weights)(np.ones(3)).dtype == "float64"
    with pytest.raises(LinkError, match="jax_enable_x64"):
        cachec.link(file, weights)


# --- a new process


MODEL = """
    import helper

    def forward(config, p, x):
        import jax.numpy as jnp
        for layer in p["layers"][:config.depth]:
            x = helper.activate(x @ layer["w"] + layer["b"]) * config.scale
        return {"y": x}
"""
HELPER = """
    def activate(x):
        import jax.numpy as jnp
        return jnp.tanh(x)
"""
PROGRAM = """
    import functools, json, sys
    from dataclasses import dataclass
    import numpy as np
    import cachec, model

    @dataclass(frozen=True)
    class Config:
        depth: int = 2
        scale: float = 0.5

    cache = cachec.Cache(sys.argv[1], log="off")

    @cache.stage(tools=["jax", "jaxlib"])
    def build(config: Config, weights: cachec.WeightSet) -> cachec.File:
        import jax, cachec_jax
        example = jax.ShapeDtypeStruct((3, 4), "float32")
        return cachec_jax.compile_xla(functools.partial(model.forward, config), weights.placeholders(), example)

    def params(seed):
        r = np.random.default_rng(seed)
        layer = lambda: {"w": r.normal(size=(4, 4)).astype("f4"), "b": r.normal(size=4).astype("f4")}
        return {"layers": [layer() for _ in range(2)]}

    if __name__ == "__main__":
        seed, x = int(sys.argv[2]), np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)
        weights = cachec.WeightSet.from_tree(params(seed))
        config = Config(scale=float(sys.argv[3]))
        file, outcome = cache.call(build, config, weights)
        imported = "jax" in sys.modules
        import jax, jax.monitoring
        events = []
        jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
        y = np.asarray(cachec.link(file, weights)(x)["y"])
        done = list(events)
        expected = jax.jit(functools.partial(model.forward, config))(params(seed), x)["y"]
        print(json.dumps([outcome.reason.value, imported, done, bool(np.array_equal(y, expected))]))
"""


@pytest.mark.long
def test_a_new_process_traces_lowers_and_compiles_nothing(tmp_path: Path) -> None:
    for name, text in {"model": MODEL, "helper": HELPER, "program": PROGRAM}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    def run(seed: int = 0, scale: float = 0.5, **variables: str) -> str:
        command = [sys.executable, "program.py", "store", str(seed), str(scale)]
        ran = subprocess.run(
            command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        reason, imported, done, equal = json.loads(ran.stdout)
        assert equal
        assert not done, done
        assert imported is (reason != "hit")
        return str(reason)

    assert run() == "miss:first-run"
    assert run() == "hit"
    assert run(seed=5) == "hit"
    assert run(scale=0.25) == "miss:option-changed"
    assert run(XLA_FLAGS="--xla_cpu_enable_fast_math=true") == "miss:ambient-changed"
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER).replace("tanh", "sin"))
    assert run() == "miss:code-changed"
    assert run(seed=6) == "hit"


def test_what_a_process_was_started_with() -> None:
    assert xla_target._initial_variable(b"NOT_A_VARIABLE_OF_ANYONE") == b""
