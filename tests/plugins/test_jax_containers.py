"""Trees of parameters as JAX has them: registered classes, programs that get the tree, arguments that are one."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import cachec
from cachec import Reason
from cachec.errors import PluginError, UnkeyableArgument, UnstorableValue, UnusableHere
from cachec.weights import WeightSet
from cachec_jax import compile_xla, internals, lowering, pytree_codec, to_stablehlo
from cachec_jax.program_format import TreeForm

X = jax.ShapeDtypeStruct((2, 3), jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    w: Any
    b: Any
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})
    activation: Any = dataclasses.field(default=jnp.tanh, metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A node whose children have no names."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return (self.held,), None

    @classmethod
    def tree_unflatten(cls, _aux: None, children: tuple[Any, ...]) -> Opaque:
        return cls(*children)


class State(NamedTuple):
    mu: Any
    count: Any


def array(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def params(seed: int = 0, **static: Any) -> Any:
    dense = [Dense(array(seed, 3, 4), array(seed + 1, 4), **static), Dense(array(seed + 2, 4, 3), None)]
    opaque = Opaque(array(seed + 3, 3))
    return {"dense": dense, "rest": collections.OrderedDict(z=opaque, a=State(array(seed + 4, 3), array(seed + 5)))}


def apply(p: Any, x: Any) -> Any:
    for layer in p["dense"]:
        x = layer.activation(x @ layer.w * layer.scale)
        x = x if layer.b is None else x + layer.b
    return x * p["rest"]["z"].held + p["rest"]["a"].mu * p["rest"]["a"].count


def test_names_are_jax_s_own_and_the_tree_comes_back() -> None:
    tree = params()
    weights = WeightSet.from_tree(tree)
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert list(weights) == sorted(jax.tree_util.keystr(path) for path, _ in paths)
    back = weights.unflatten(lambda weight: weight.jax())
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True))
    for path, leaf in paths:
        assert np.shares_memory(weights[jax.tree_util.keystr(path)].read(), np.asarray(leaf))


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b: collections.OrderedDict(z=a, a=b),
        lambda a, b: collections.OrderedDict([((1, 2), a), ("x", [b])]),
        lambda a, b: collections.defaultdict(list, z=a, a=b),
        lambda a, b: {"in": collections.defaultdict(None, {10: a, 2: collections.OrderedDict(y=b)})},
        lambda a, b: collections.OrderedDict(),
    ],
)
def test_mappings_of_the_library_are_jax_s_nodes_before_it_is_imported(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = made(np.ones(2, "f4"), np.zeros(3, "f4"))
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    with_jax = WeightSet.from_tree(tree)
    monkeypatch.delitem(sys.modules, "jax")
    without = WeightSet.from_tree(tree)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    for weights in (with_jax, without):
        assert weights.layout.nesting is not None
        assert list(weights.layout.nesting.names) == names
        back = weights.unflatten()
        assert repr(back) == repr(jax.tree.unflatten(structure, [leaf for _, leaf in paths]))
    assert without.layout.nesting.form == with_jax.layout.nesting.form


def test_a_program_gets_the_tree_and_names_its_leaves() -> None:
    weights = WeightSet.from_tree(params())
    program = to_stablehlo(apply, weights.placeholders(), X)
    for name in weights:
        assert f'#flow.parameter.named<"model"::"{name}">' in program.text.replace("\\22", '"')
    flat = {f"w{number}": weights[name] for number, name in enumerate(weights)}
    short = {name: f"w{number}" for number, name in enumerate(weights)}
    by_checkpoint = WeightSet.from_weights(flat).tree(like=params(), names=short)
    again = to_stablehlo(apply, by_checkpoint.placeholders(), X)
    assert '<"model"::"w0">' in again.text
    assert "dense" not in again.text.replace("dense<", "")


def test_one_weight_may_hang_in_two_places() -> None:
    one = WeightSet.from_arrays({"w": np.ones((3, 3), "f4")})
    weights = one.tree(like={"in": 0, "out": 0}, names={"['in']": "w", "['out']": "w"})
    program = to_stablehlo(lambda p, x: x @ p["in"] @ p["out"].T, weights, X)
    assert program.text.count("util.global private") == 1


def test_of_arguments_that_are_the_same_tree_the_first_is_the_weights() -> None:
    tree = {"a": array(0, 2, 3)}
    weights = WeightSet.from_tree(tree)
    other = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    program = to_stablehlo(lambda p, q: p["a"] * 2 + q["a"], weights, other)
    assert program.text.count("util.global private") == 1
    lowered = jax.jit(lambda p, q: p["a"] * 2 + q["a"]).lower(lowering.abstract(weights), other)
    with pytest.raises(PluginError, match="2 arguments"):
        lowering.strip(lowered, weights)


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off")


def test_static_fields_count_in_a_key(cache: cachec.Cache) -> None:
    @cache.stage
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        return to_stablehlo(apply, weights.placeholders(), X)

    def outcome(tree: Any) -> Reason:
        weights = WeightSet.from_tree(tree)
        program, outcome = cache.call(lower, weights)
        assert program == lower.uncached(weights)
        return outcome.reason

    assert outcome(params()) is Reason.FIRST_RUN
    assert outcome(params(50)) is Reason.HIT
    assert outcome(params(scale=2.0)) is Reason.WEIGHT_SPEC_CHANGED
    assert outcome(params(50, scale=2.0)) is Reason.HIT
    assert outcome(params(activation=jnp.sin)) is not Reason.HIT
    assert outcome(params(activation=jax.nn.relu)) is not Reason.HIT
    assert outcome(params(80, activation=jax.nn.relu)) is Reason.HIT
    assert outcome(params(activation=lambda x: x * 2)) is not Reason.HIT
    assert outcome(params(activation=lambda x: x * 3)) is not Reason.HIT
    with pytest.raises(UnkeyableArgument):
        lower(WeightSet.from_tree(params(scale=iter([1.0]))))


def test_arrays_of_jax_in_an_argument_are_warned_of_once(cache: cachec.Cache) -> None:
    @cache.stage
    def total(params: object) -> float:
        return 0.0

    with pytest.warns(cachec.errors.CachecWarning) as caught:
        total([{"w": jnp.zeros((512, 512)), "b": jnp.zeros(4)} for _ in range(3)])
    assert "params: 6 arrays, 3 MB, keyed by content" in str(caught[0].message)
    assert len(caught) == 1


def test_no_tree_of_built_in_containers_imports_jax() -> None:
    code = """
import sys, collections, numpy as np, cachec
Pair = collections.namedtuple("Pair", "a b")
weights = cachec.WeightSet.from_tree({"x": [np.ones(2), Pair(np.ones(1), None)]})
assert weights.unflatten()["x"][1].b is None
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_that_libraries_made_are_arguments_by_what_they_wrap(cache: cachec.Cache) -> None:
    @cache.stage
    def at_one(function: Any) -> float:
        return float(function(1.0))

    def scaled(factor: float) -> Any:
        return jax.jit(lambda x: x * factor)

    functions = [np.tanh, np.sin, jnp.tanh, jnp.sin, jax.nn.relu, jax.nn.silu, scaled(2.0), scaled(3.0)]
    keys = [at_one.key(function) for function in functions]
    assert len(set(keys)) == len(keys)
    assert keys == [at_one.key(function) for function in functions]


class Absent:
    """A class without state, one object of which says that nothing is there."""


ABSENT = Absent()


class Counting:
    def __init__(self) -> None:
        self.count = 1


COUNTING = Counting()


#: JAX 0.6.1 to 0.7.2 has no function that makes a structure with a node of a class.
makes_classes = pytest.mark.skipif(internals._maker_of_structures() is None, reason="JAX 0.6.1 to 0.7.2")


def structure(static: Any) -> Any:
    return jax.tree.structure(Dense(0.0, None, activation=static))


@makes_classes
def test_a_sentinel_in_static_data_is_found_by_its_name() -> None:
    there = pytree_codec.structure_of(pytree_codec.form_of(structure((ABSENT, {"a": ABSENT}))))
    assert there == structure((ABSENT, {"a": ABSENT}))


@makes_classes
@pytest.mark.parametrize("value", [Absent(), COUNTING, object(), array], ids=["another", "state", "object", "array"])
def test_other_objects_in_static_data_are_refused_with_a_way_out(value) -> None:
    value = array(0, 2) if value is array else value
    with pytest.raises(UnstorableValue, match="unflatten them in the function"):
        pytree_codec.form_of(structure(value))


@makes_classes
@pytest.mark.parametrize("name", ["COUNTING", "Absent", "GONE", "array", 1])
def test_a_stored_name_that_is_no_sentinel_is_refused(name) -> None:
    form = pytree_codec.form_of(structure(ABSENT))
    place = f"{__name__}:{name}" if name != 1 else 1
    changed = msgspec.json.decode(
        msgspec.json.encode(form).replace(f'"{__name__}:ABSENT"'.encode(), msgspec.json.encode(place)), type=TreeForm
    )
    with pytest.raises(UnusableHere, match="no sentinel here"):
        pytree_codec.structure_of(changed)


def test_modules_of_equinox_are_compiled_and_linked() -> None:
    eqx = pytest.importorskip("equinox")
    key, x = jax.random.key(0), np.linspace(-1, 1, 4, dtype="f4")
    for module in (eqx.nn.Linear(4, 4, key=key), eqx.nn.LayerNorm(4), eqx.nn.MLP(4, 4, 4, 1, key=key)):
        arrays, static = eqx.partition(module, eqx.is_array)
        weights = WeightSet.from_tree(arrays)
        built = compile_xla(
            lambda p, x, static=static: eqx.combine(p, static)(x),
            weights.placeholders(),
            jax.ShapeDtypeStruct((4,), "float32"),
        )
        np.testing.assert_allclose(cachec.link(built, weights)(x), module(x), rtol=1e-5)
