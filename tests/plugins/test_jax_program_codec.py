"""JAX's programs as bytes and back, without pickle: structures, placements, what is compiled and what is lowered."""

from __future__ import annotations

import collections
import dataclasses
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import cachec
from cachec import Reason
from cachec.errors import PluginError, UnsupportedVersion
from cachec_jax import internals, plugin
from cachec_jax.program_codec import decode_program, encode_program
from cachec_jax.program_format import Toolchain, TreeForm, parse_program
from cachec_jax.pytree_codec import form_of, structure_of
from tests.effort import rounds
from tests.plugins.jax_persistent_cache import new_ref

SPEC = jax.ShapeDtypeStruct


class State(NamedTuple):
    mu: Any
    count: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    w: Any
    scale: Any = dataclasses.field(default=1.0, metadata={"static": True})


TREES: list[Any] = [
    0,
    None,
    {"b": 1, "a": [2, (3, None)], "empty": {}},
    {1: 0, 2: (0,)},
    State(1, {"x": 2}),
    Dense(1, 0.5),
    Dense([1], {"a": (1, None), "b": [True, "x"]}),
    Dense(1, jnp.tanh),
    Dense(1, jax.nn.relu),
    Dense(1, Path),
    collections.OrderedDict(z=1, a=2),
    collections.defaultdict(list, a=1),
]


#: JAX 0.6.1 to 0.7.2 has no function that makes a structure with a node of a class.
MAKES_CLASSES = internals._maker_of_structures() is not None


def _holds_classes(structure: Any) -> bool:
    node = structure.node_data()
    plain = {dict, list, tuple, type(None)}
    is_class = node is not None and node[0] not in plain and not hasattr(node[0], "_fields")
    return is_class or any(map(_holds_classes, structure.children()))


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_structures_come_back(tree: Any) -> None:
    structure = jax.tree.structure(tree)
    if not MAKES_CLASSES and _holds_classes(structure):
        with pytest.raises(UnsupportedVersion, match="in a tree again"):
            form_of(structure)
        return
    form = msgspec.json.decode(msgspec.json.encode(form_of(structure)), type=TreeForm)
    assert structure_of(form) == structure
    assert jax.tree.structure(structure_of(form).unflatten(jax.tree.leaves(tree))) == structure


@pytest.mark.parametrize("static", [lambda x: x, object(), {1, 2}, np.ones(2)], ids=range(4))
def test_static_data_without_a_stored_form_is_refused(static: Any) -> None:
    if not MAKES_CLASSES:
        pytest.skip("JAX 0.6.1 to 0.7.2 makes no structure of a class")
    with pytest.raises(PluginError, match="can't be stored"):
        form_of(jax.tree.structure(Dense(1, static)))


@pytest.mark.parametrize(
    "form",
    [
        TreeForm("dict", {"tuple": ["a", "b"]}, (TreeForm("leaf"),)),
        TreeForm("dict", ["a"], (TreeForm("leaf"),)),
        TreeForm("dict", {"tuple": 3}, ()),
        TreeForm("dict", {"set": []}, ()),
        TreeForm("node", ["os:system", None], (TreeForm("leaf"),)),
        TreeForm("node", ["not_loaded:Class", None], ()),
        TreeForm("node", [f"{__name__}:Dense", {"name": "a" * 999}], ()),
        TreeForm("node", ["builtins:dict", None], ()),
        TreeForm("node", [3, None], ()),
        TreeForm("node", None, ()),
        TreeForm("node", [f"{__name__}:Path.home", None], ()),
    ],
    ids=str,
)
def test_malformed_structures_are_refused(form: TreeForm) -> None:
    with pytest.raises(PluginError):
        structure_of(form)


# --- programs


def net(p: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ p["w"] + p["b"]), "n": [p["b"].sum()]}


PARAMS = {"w": np.linspace(-1, 1, 16, dtype="f4").reshape(4, 4), "b": np.ones(4, "f4"), "unused": np.ones(3, "f4")}
X = np.linspace(0, 1, 8, dtype="f4").reshape(2, 4)

PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "trees": (jax.jit(net), (PARAMS, X)),
    "donated": (jax.jit(lambda x: x + 1, donate_argnums=0), (X,)),
    "static": (jax.jit(lambda x, n: x * n, static_argnums=1), (X, 3)),
    "key": (jax.jit(lambda k, x: (jax.random.split(k), jax.random.normal(k, x.shape))), (jax.random.key(1), X)),
    "bf16": (jax.jit(lambda x: x * 2), (jnp.ones(3, jnp.bfloat16),)),
    "weak": (jax.jit(lambda x, s: x * s), (X, 2.0)),
    "grad": (jax.jit(jax.value_and_grad(lambda p, x: net(p, x)["y"].sum())), (PARAMS, X)),
    "scan": (jax.jit(lambda x: jax.lax.scan(lambda c, r: (c + r, c), jnp.zeros(4), x)), (X,)),
    "closed": (jax.jit(lambda x: x @ jnp.asarray(PARAMS["w"])), (X,)),
    "none": (jax.jit(lambda: jnp.arange(3)), ()),
    "empty": (jax.jit(lambda x: (x, None, [])), (np.zeros((0, 2), "f4"),)),
    "vmap": (jax.jit(jax.vmap(net, in_axes=(None, 0))), (PARAMS, X)),
    "classes": (jax.jit(lambda d: State(d.w * d.scale, Dense(d.w, jnp.tanh))), (Dense(X, 2.0),)),
}


def same(a: Any, b: Any) -> bool:
    def content(leaf: Any) -> tuple[Any, ...]:
        keys = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf) if keys else leaf).tobytes()

    equal = [content(one) == content(other) for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return all(equal) and jax.tree.structure(a) == jax.tree.structure(b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_come_back(name: str) -> None:
    if name == "classes" and not MAKES_CLASSES:
        pytest.skip("JAX 0.6.1 to 0.7.2 makes no structure of a class")
    jitted, inputs = PROGRAMS[name]
    dynamic = inputs[:1] if name == "static" else inputs
    lowered = jitted.lower(*inputs)
    compiled = lowered.compile()
    expected = jitted(*jax.tree.map(np.copy, inputs) if name == "donated" else inputs)
    for program in (compiled, lowered):
        back = decode_program(*parse_program(encode_program(program)))
        assert type(back) is type(program)
        runs = back.compile() if program is lowered else back
        for _ in range(2):
            assert same(runs(*dynamic), expected)
        assert (back.in_tree, back.out_tree) == (program.in_tree, program.out_tree)
        assert str(back.in_avals) == str(program.in_avals)
        assert str(getattr(back, "out_info", None)) == str(getattr(program, "out_info", None))  # from JAX 0.7 on
        assert [
            leaf.donated for leaf in jax.tree.leaves(back.args_info, is_leaf=lambda held: hasattr(held, "donated"))
        ] == [
            leaf.donated for leaf in jax.tree.leaves(program.args_info, is_leaf=lambda held: hasattr(held, "donated"))
        ]


def test_a_donated_argument_is_donated_still() -> None:
    run = decode_program(*parse_program(encode_program(PROGRAMS["donated"][0].lower(X).compile())))
    given = jnp.array(X)
    run(given)
    assert given.is_deleted()


def test_other_inputs_are_refused_as_by_jax() -> None:
    run = decode_program(*parse_program(encode_program(jax.jit(net).lower(PARAMS, X).compile())))
    with pytest.raises(TypeError, match=r"Argument 'x' compiled with float32\[2,4\] and called with float32\[1,4\]"):
        run(PARAMS, X[:1])
    with pytest.raises(TypeError, match="pytree"):
        run([PARAMS], X)


def test_no_pickle_is_in_it_and_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("pickle")

    for name in ("dumps", "loads", "load", "dump", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    data = encode_program(jax.jit(net).lower(PARAMS, X).compile())
    decode_program(*parse_program(data))(PARAMS, X)


def printing(x: Any) -> Any:
    jax.debug.print("{}", x[0])
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (printing, "calls Python back"),
        (lambda x: jax.pure_callback(np.sin, SPEC((2, 4), "f4"), x), "calls Python back"),
    ],
)
def test_what_is_bound_to_this_process_is_refused(function: Any, words: str) -> None:
    lowered = jax.jit(function).lower(X)
    for program in (lowered, lowered.compile()):
        with pytest.raises(PluginError, match=words):
            encode_program(program)


def test_an_array_that_can_be_written_is_refused() -> None:
    held = new_ref(jnp.zeros(4))

    def counts(x: Any) -> Any:
        held[...] += x[0]
        return x

    with pytest.raises(PluginError, match="can be written"):
        encode_program(jax.jit(counts).lower(X).compile())


def test_other_bytes_are_refused() -> None:
    data = encode_program(jax.jit(net).lower(PARAMS, X).compile())
    _, rest = parse_program(data)
    end = len(data) - len(rest)
    draw = random.Random(7)
    for cut in [0, 5, 13, 16, 17, end // 2, end - 1]:
        with pytest.raises(PluginError):
            parse_program(data[:cut])
    header = json.loads(data[17:end])
    for field in header:
        for value in (None, [], {}, -1, "x", [[]], header[field][1:] if isinstance(header[field], list) else 7):
            if value == header[field]:
                continue
            changed = msgspec.json.encode(header | {field: value})
            refused(data[:13] + len(changed).to_bytes(4, "little") + changed + rest)
    for _ in range(rounds(400)):
        place = draw.randrange(13, end)
        refused(data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :])


def refused(data: bytes) -> None:
    """It is refused, or is a program as good as any: a name of an argument may be another, say."""
    try:
        form, rest = parse_program(data)
        decode_program(form, rest)
    except PluginError:
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"jax": "0.10.1"},
        {"jaxlib": "0.9"},
        {"version": "cuda 13"},
        {"kinds": ("H200",)},
        {"platform": "tpu"},
        {"devices": (9,)},
    ],
    ids=str,
)
def test_another_release_or_device_is_refused(change: dict[str, Any]) -> None:
    form, rest = parse_program(encode_program(jax.jit(net).lower(PARAMS, X).compile()))
    toolchain: Toolchain = msgspec.structs.replace(form.toolchain, **change)
    with pytest.raises(PluginError):
        decode_program(msgspec.structs.replace(form, toolchain=toolchain), rest)


SHARDED = """
import sys, jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from cachec_jax.program_codec import decode_program, encode_program
from cachec_jax.program_format import parse_program
x = np.arange(64, dtype="f4").reshape(8, 8)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind, kind))
    rows, both = NamedSharding(mesh, P("a")), NamedSharding(mesh, P("a", "b"))
    for options in ({}, {"out_shardings": both}, {"in_shardings": (rows, None), "out_shardings": (both, None)}):
        jitted = jax.jit(lambda x, y: (x @ y, x * 2), **options)
        given = (jax.device_put(x, rows), x)
        lowered = jitted.lower(*given)
        expected = jitted(*given)
        stored = [encode_program(each) for each in (lowered.compile(), lowered)]
        compiled, again = (decode_program(*parse_program(each)) for each in stored)
        for run in (compiled, again.compile()):
            got = run(*given)
            for one, other in zip(got, expected, strict=True):
                assert one.sharding.is_equivalent_to(other.sharding, one.ndim), (one.sharding, other.sharding)
                assert np.array_equal(one, other)
print("whole")
"""


@pytest.mark.long
def test_shardings_come_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env={"JAX_NUM_CPU_DEVICES": "4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "whole\n", ran.stderr


# --- as results of stages


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off")


def test_a_stage_may_return_programs_and_take_them(cache: cachec.Cache) -> None:
    @cache.stage(tools=["jax"])
    def lower(factor: float) -> object:
        return jax.jit(lambda x: x * factor).lower(SPEC((2, 4), "f4"))

    @cache.stage(tools=["jax"])
    def build(lowered: object) -> dict[str, Any]:
        return {"program": lowered.compile(), "note": 1}  # type: ignore[attr-defined]

    for reason in (Reason.FIRST_RUN, Reason.HIT):
        lowered, outcome = cache.call(lower, 3.0)
        assert outcome.reason is reason
        made, outcome = cache.call(build, lowered)
        assert outcome.reason is reason
        assert same(made["program"](X), jax.jit(lambda x: x * 3.0)(X))
    assert cache.call(build, lower(4.0))[1].reason is not Reason.HIT
    assert plugin.fingerprint(made["program"]) == plugin.fingerprint(build(lowered)["program"])
    assert plugin.compare(build.uncached(lowered)["program"], made["program"]) is None


@pytest.mark.long
def test_what_a_result_is_compiled_for_is_recorded(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    @cache.stage(tools=["jax"], portable=True)
    def build(n: int) -> object:
        return jax.jit(lambda x: x * n).lower(X).compile()

    build(2)
    assert build.check(2).reason is Reason.HIT
    for place in ("cachec.key.trace_validation.processor_digest", "cachec.commands.run.processor_digest"):
        monkeypatch.setattr(place, lambda: "0" * 64)
    assert build.check(2).reason is Reason.DEPENDENCY_CHANGED
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_backend_optimization_level=1")
    outcome = cache.call(build, 2)[1]
    assert outcome.reason is Reason.UNSTORABLE
    assert "is not what XLA goes by" in outcome.detail


def test_an_exported_program_is_stored_in_jax_s_own_format(cache: cachec.Cache) -> None:
    pytest.importorskip("flatbuffers")

    @cache.stage(tools=["jax"])
    def export(factor: float) -> object:
        return jax.export.export(jax.jit(lambda x: {"y": x * factor}))(SPEC(jax.export.symbolic_shape("n"), "f4"))

    for reason in (Reason.FIRST_RUN, Reason.HIT):
        value, outcome = cache.call(export, 2.0)
        assert outcome.reason is reason
        assert same(value.call(X[0]), {"y": jnp.asarray(X[0] * 2)})
    assert plugin.fingerprint(value) != plugin.fingerprint(export(3.0))


def symbolic() -> Any:
    return jax.jit(lambda x: x * 2).lower(SPEC(jax.export.symbolic_shape("n"), "f4"))


#: Results that have no stored form, and words of the reason. Each is made in the stage.
UNSTORABLE: dict[str, tuple[Any, str]] = {
    "an Exported with a class of its own": (
        lambda: jax.export.export(jax.jit(lambda d: d.w))(Dense(SPEC((2,), "f4"))),
        "an Exported can't be stored",
    ),
    "a Lowered with symbolic dimensions": (symbolic, "symbolic dimensions"),
    "a Compiled without code": (lambda: jax.jit(lambda x: x).lower(X).compile(), "may be from JAX's compilation cache"),
    "a Lowered with static data": (
        lambda: jax.jit(lambda d: d).lower({"a": jax.tree_util.Partial(lambda x: x, SPEC((2,), "f4"))}),
        "static data",
    ),
    "a random key": (lambda: jax.random.key(0), "key_data"),
    "an abstract value": (lambda: SPEC((2,), "f4"), "can't be stored"),
    "a device": (lambda: jax.devices()[0], "names devices of this process"),
    "a mesh": (lambda: jax.sharding.Mesh(np.array(jax.devices()), ("d",)), "names devices of this process"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNSTORABLE)
def test_what_has_no_stored_form_is_a_fresh_result(
    name: str, cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words = UNSTORABLE[name]
    monkeypatch.setattr("cachec_jax.cache_bypass.compilation_cache.is_persistent_cache_enabled", lambda: True)

    @cache.stage(version="1")
    def made() -> Any:
        return make()

    for _ in range(2):
        value, outcome = cache.call(made)
        assert type(value) is type(make())
        assert not outcome.stored
        if MAKES_CLASSES or words != "static data":
            assert outcome.reason is Reason.UNSTORABLE
            assert words in outcome.detail


def test_what_this_process_can_not_use_is_no_fault(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here another release made it; a function that is not registered is in test_jax_callbacks."""

    @cache.stage(version="1")
    def build(n: int) -> object:
        return jax.jit(lambda x: x * n).lower(X).compile()

    assert cache.call(build, 2)[1].reason is Reason.FIRST_RUN
    assert cache.call(build, 2)[1].reason is Reason.HIT
    monkeypatch.setattr(jax, "__version__", f"{jax.__version__}.99")
    value, outcome = cache.call(build, 2)
    assert (outcome.reason, outcome.fault) == (Reason.UNUSABLE_HERE, None)
    assert ".99'" in outcome.detail
    assert same(value(X), jax.jit(lambda x: x * 2)(X))
