"""``cachec_jax.jit``: as ``jax.jit``, and a function that closes over other arrays is not compiled again."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import cachec
import cachec_jax
from cachec.model import Reason, artifacts
from cachec_jax.internals import enable_x64
from cachec_jax.jaxpr_interning import JaxprInterner
from tests.effort import WHOLE
from tests.plugins.aligned_arrays import at
from tests.plugins.jax_persistent_cache import entries, forget_durations, kept_as_it_was, new_ref, reasons, set_mesh

N = 4
X = np.linspace(-1, 1, 3 * N, dtype="f4").reshape(3, N)
MISS, HIT = "miss:first-run", "hit"


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


@pytest.fixture(autouse=True)
def _installed(cache):
    jax.clear_caches()  # as in a new process: what JAX holds is in no store
    with kept_as_it_was():
        yield cachec_jax.install(cache)


def weight(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape or (N, N)).astype("f4")


def same(one: Any, other: Any) -> None:
    """Two results that nobody can tell apart."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(a) is type(b)
        if isinstance(a, jax.Array):
            assert (a.aval, a.sharding, a.committed) == (b.aval, b.sharding, b.committed)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --- what is closed over


def closed_over_numpy(w):
    return lambda x: jnp.tanh(x @ w) + w[0]


def closed_over_tree(w):
    p = {"layers": [{"w": jnp.asarray(w), "b": jnp.asarray(w[0])}], "f": weight(0)}

    def f(x):
        for layer in p["layers"]:
            x = x @ layer["w"] + layer["b"]
        return {"y": x @ p["f"], "s": [x.sum(), None], "f": layer["w"]}

    return f


def returned(w):
    w = jnp.asarray(w)
    return lambda x: (w, x, w)


def partial_and_default(w):
    def f(scale, x, *, shift=jnp.asarray(w[1])):
        return x @ scale + shift

    return functools.partial(f, w)


def method(w):
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return jnp.sin(x @ self.w)

    return Model(w).__call__


def jitted_inside(w):
    inner = jax.jit(lambda x: jnp.cos(x @ w))
    return lambda x: inner(inner(x)) + w[:3]


def jitted_twice_inside(w):
    innermost = jax.jit(lambda x: x * w[:3])
    inner = jax.jit(lambda x: innermost(x) + w[0])
    return lambda x: inner(x) - innermost(x)


def hoisted_inside(w):
    inner = cachec_jax.jit(lambda x: jnp.cos(x @ w))
    return lambda x: inner(x) @ w


def scanned(w):
    return lambda x: jax.lax.scan(lambda c, s: (jnp.tanh(c @ w) + s, c.sum()), x, w[:, :1])


def branched(w):
    return lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x * w[0], x)


def looped(w):
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x)


def rematerialised(w):
    f = jax.checkpoint(lambda x: jnp.sin(x @ w))
    return lambda x: jax.grad(lambda x: f(x).sum())(x)


def custom(w):
    @jax.custom_vjp
    def f(x):
        return x @ w

    f.defvjp(lambda x: (x @ w, x), lambda x, g: (g @ w * 2 + x,))
    return lambda x: (f(x), jax.grad(lambda x: (f(x) ** 2).sum())(x))


def gradient(w):
    return jax.value_and_grad(lambda x: jnp.tanh(x @ w).sum())


def mapped(w):
    return jax.vmap(lambda x: x @ w)


def called_back(w):
    shape = jax.ShapeDtypeStruct(X.shape, "float32")
    return lambda x: jax.pure_callback(np.sin, shape, x @ w)


def random_numbers(w):
    key = jax.random.key(3)
    return lambda x: (x @ w + jax.random.normal(key, (N,)), jax.random.split(key))


def half_precision(w):
    w = jnp.asarray(w, "bfloat16")
    return lambda x: (x.astype("bfloat16") @ w, w.astype("int8"), w > 0)


def looked_at(w):
    """The numbers decide what is traced: another program for each, by value."""
    return lambda x: (x if w[0, 0] > 0 else -x) @ w * float(np.abs(w).max())


#: Function of a weight -> how its programs of three weights are found in the store.
SAME, OTHERS, UNTOLD = [[MISS], [HIT], [HIT]], [[MISS], [MISS], [MISS]], [[], [], []]
FUNCTIONS = {
    **dict.fromkeys([closed_over_numpy, closed_over_tree, returned, partial_and_default, method, jitted_inside], SAME),
    **dict.fromkeys([jitted_twice_inside, hoisted_inside, scanned, branched, looped, rematerialised, custom], SAME),
    **dict.fromkeys([gradient, mapped, random_numbers, half_precision], SAME),
    called_back: UNTOLD,  # JAX stores no program that calls back
    looked_at: OTHERS,
}


@pytest.mark.sampled
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_other_arrays_are_the_same_program_with_jax_s_own_numbers(cache, function):
    seen = []
    for seed in (1, 2, 3):
        jax.clear_caches()
        made = function(weight(seed))
        hoisted = cachec_jax.jit(made)
        before = len(reasons(cache))
        got = [hoisted(X), hoisted(X), hoisted(jnp.asarray(-X))]
        seen.append([reason for reason in reasons(cache)[before:] if reason in {MISS, HIT}])
        plain = jax.jit(made)
        for each, x in zip(got, (X, X, -X), strict=True):
            same(each, plain(x))
    assert seen == FUNCTIONS[function]


def ruled(function, rule):
    function.defjvps(rule)
    return function


#: Programs of which two are the same only where they have the same name: by w, which differs, and n.
KINDS = {
    "plus": lambda w, n: lambda x: x @ w + n,
    "minus": lambda w, n: lambda x: x @ w - n,
    "other way round": lambda w, n: lambda x: n - x @ w,
    "twice": lambda w, n: lambda x: x @ w @ w + n,
    "two": lambda w, n: lambda x: x @ w @ (w + 0) + n,
    "float": lambda w, n: lambda x: x @ w + float(n),
    "half": lambda w, n: lambda x: (x @ w).astype("f2") + n,
    "precise": lambda w, n: lambda x: jnp.matmul(x, w, precision="highest") + n,
    "by hand": lambda w, n: lambda x: (x[:, :, None] * w).sum(1) + n,
    "shape": lambda w, n: lambda x: x @ w[:, : n + 1],
    "axis": lambda w, n: lambda x: jnp.cumsum(x @ w, n % 2),
    "index": lambda w, n: lambda x: (x @ w)[:, n],
    "table": lambda w, n: lambda x: x @ w + np.arange(N, dtype="f4") * n,
    "bits": lambda w, n: lambda x: jax.lax.bitcast_convert_type(x @ w, ("int32", "float32", "uint32")[n]),
    "beyond": lambda w, n: lambda x: jnp.take(x @ w, np.array([0, 9]), 1, mode=("clip", "wrap", "fill")[n]),
    "scattered": lambda w, n: lambda x: getattr((x @ w).at[np.array([1, 1])], ("add", "max", "set")[n])(w[0]),
    "contracted": lambda w, n: lambda x: jnp.round(jax.lax.dot_general(x @ w, w, (((1,), (n % 2,)), ((), ())))),
    "windows": lambda w, n: lambda x: jax.lax.reduce_window(x @ w, -9.0, jax.lax.max, (n + 1, 2), (1, 1), "VALID"),
    "drawn": lambda w, n: lambda x: jnp.round(x @ w) + jax.random.randint(jax.random.key(n), (N,), 0, 9),
    "zero": lambda w, n: lambda x: jnp.where(x @ w > 9, x @ w, (0.0, -0.0)[n % 2]),
    "nan": lambda w, n: lambda x: x @ w + (np.nan if n else 1.0),
    "softmax": lambda w, n: lambda x: jax.nn.softmax(x @ w + n),
    "relu": lambda w, n: lambda x: jax.nn.relu(x @ w - n),
    "scan": lambda w, n: lambda x: jax.lax.scan(lambda c, r: (c + r @ w, c * n), x[0], x),
    "scan back": lambda w, n: lambda x: jax.lax.scan(lambda c, r: (c + r @ w, c * n), x[0], x, reverse=True),
    "branches": lambda w, n: lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x - n),
    "loop": lambda w, n: lambda x: jax.lax.fori_loop(0, n, lambda i, c: jnp.tanh(c @ w), x),
    "gradient": lambda w, n: jax.grad(lambda x: (jnp.sin(x @ w) * n).sum()),
    "jitted": lambda w, n: lambda x: jax.jit(lambda y: y @ w + n)(x),
    "called back": lambda w, n: lambda x: jax.pure_callback(lambda y: y * n, jax.ShapeDtypeStruct((3, N), "f4"), x @ w),
    "own rule": lambda w, n: ruled(jax.custom_jvp(lambda x: x @ w + n), lambda t, y, x: t @ w),
}


def test_each_program_is_itself_again(cache):
    """In one process, where what was compiled of one is used for what says the same, whatever was traced between."""
    seeds, numbers, step = (range(4), (0, 1, 2), 1) if WHOLE else (range(2), (0, 2), 6)
    for seed in seeds:
        for make in [*KINDS.values()][::step]:
            for n in numbers:
                made = make(weight(seed), n)
                same(cachec_jax.jit(made)(X), jax.jit(made)(X))


def test_functions_that_call_one_another_twice_are_looked_at_once():
    """Thirty of them would be called a thousand million times."""
    function = lambda x: x + 1  # noqa: E731
    for _ in range(30):
        function = jax.jit(lambda x, f=function: f(x) - f(x * 2))
    closed = jax.make_jaxpr(function)(1.0)
    programs = JaxprInterner()
    same_as = lambda other: id(programs.intern(other)) == id(closed)  # noqa: E731 # pytest would print all the calls
    assert same_as(closed)
    again = lambda x: x + 1  # noqa: E731
    for _ in range(30):
        again = jax.jit(lambda x, f=again: f(x) - f(x * 2))
    assert same_as(jax.make_jaxpr(again)(1.0))
    assert not same_as(jax.make_jaxpr(again)(1))


def test_under_other_settings_it_is_another_program():
    """Under those too that are in no key of a trace: what was compiled for others is not used."""
    programs, make = JaxprInterner(), lambda: jax.make_jaxpr(lambda x: x + 1)(1.0)
    before = programs.intern(make())
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        other = programs.intern(make())
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert other is not before
    assert programs.intern(make()) is before


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_other_arrays_in_one_process_are_not_lowered_again(kind):
    """From the third time at most: what is known by itself alone has to be met twice."""
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, _seconds, **_: events.append(event))
    lowered = []
    for seed in range(4):
        made, before = cachec_jax.jit(KINDS[kind](weight(seed), 2)), len(events)
        made(X)
        lowered.append(sum("jaxpr_to_mlir_module" in event for event in events[before:]))
    forget_durations(jax._src.monitoring._event_duration_secs_listeners[-1])
    again = kind in {"called back", "own rule", "relu"}  # other functions each time: a rule of relu's is made with it
    assert (lowered[0] > 0, lowered[3] > 0) == (True, again), lowered


def test_the_arrays_of_functions_that_are_gone_are_not_kept():
    """Of one that holds a rule of its own, which holds the array."""
    alive = []
    for seed in range(3):
        w = jnp.asarray(weight(seed))
        alive.append(weakref.ref(w))
        cachec_jax.jit(KINDS["own rule"](w, 1))(X)
    del w
    jax.clear_caches()
    gc.collect()
    assert [each() is None for each in alive] == [True] * 3


def test_where_xla_would_compute_with_what_it_knows_the_numbers_are_those_of_arguments():
    w = weight(1)
    f = lambda w, x: (x @ w @ w.T * 2) @ w.T  # noqa: E731
    same(cachec_jax.jit(lambda x: f(w, x))(X), jax.jit(f)(w, X))


# --- what is asked of it


class Point(NamedTuple):
    x: Any
    y: Any


def positional(p, n=2, *, flip=False):
    """A function with arguments of every kind."""
    x, y = p
    z = sum([x @ W[0]] * n) + y
    return OrderedDict(z=-z if flip else z, p=Point(x, n * 1.0))


W = [weight(0)]

OPTIONS: dict[str, tuple[dict[str, Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "none": ({}, [((Point(X, X),), {}), (((X, 1.0),), {}), (((X, np.float32(1)),), {}), (((X[0], 1),), {})]),
    "static": ({"static_argnums": (1,), "static_argnames": "flip"},
               [(((X, X),), {}), (((X, X), 3), {"flip": True}), (((X, X), 3), {"flip": False}), (((X, X), 1), {})]),
    "static by name": ({"static_argnames": ["n", "flip"]}, [((), {"p": (X, 1), "n": 3}), (((X, 1),), {"flip": True})]),
    "donated": ({"donate_argnums": 0, "static_argnums": 1}, [(((jnp.asarray(X), jnp.asarray(X)),), {})]),
    "donated by name": ({"donate_argnames": "p", "static_argnames": "n"}, [((), {"p": (jnp.asarray(X), 1), "n": 2})]),
    "unused": ({"keep_unused": True, "static_argnums": 1}, [(((X, X), 2), {})]),
    "inline": ({"inline": True, "static_argnums": 1}, [(((X, X), 2), {})]),
    "placed": ({"out_shardings": "sharding", "static_argnums": 1}, [(((X, X), 1), {})]),
    "compiler": ({"compiler_options": {"xla_cpu_enable_fast_math": False}, "static_argnums": 1}, [(((X, X), 1), {})]),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_jax_jit(name):
    options, calls = OPTIONS[name]
    mesh = jax.make_mesh((1,), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    options = {key: sharding if value == "sharding" else value for key, value in options.items()}
    results = []
    for jit in (jax.jit, cachec_jax.jit):
        made = jit(lambda p, n=2, *, flip=False: positional(p, n, flip=flip), **options)
        given = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, calls)
        results.append([made(*args, **kwargs) for args, kwargs in given for _ in range(1 if "donated" in name else 2)])
        donated = [leaf.is_deleted() for leaf in jax.tree.leaves(given) if isinstance(leaf, jax.Array)]
        assert donated == [True] * len(donated)
    for plain, hoisted in zip(*results, strict=True):
        same(hoisted, plain)


def in_sharding(jit):
    mesh = jax.make_mesh((1,), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    w = weight(1)
    return jit(lambda x: x @ w, in_shardings=sharding, out_shardings=sharding)(X)


def in_a_mesh(jit):
    w = weight(1)
    spec = jax.sharding.PartitionSpec("d")
    with set_mesh(jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))):
        return jit(lambda x: jax.sharding.reshard(x @ w, spec))(X)


def of_a_mesh(jit):
    """A closed-over array on a mesh stays in the program."""
    mesh = jax.make_mesh((1,), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    w = jax.device_put(weight(1), sharding)
    return jit(lambda x: x @ w)(X)


def differentiated(jit):
    w = weight(1)
    f = jit(lambda x: jnp.tanh(x @ w))
    return jax.grad(lambda x: f(x).sum())(X), jax.jvp(f, (X,), (X,)), jax.hessian(lambda x: f(x).sum())(X[0])


def batched(jit):
    w = weight(1)
    f = jit(lambda x: jnp.tanh(x @ w))
    mapped = np.asarray(jax.pmap(f)(X[None]))  # JAX 0.8 makes a mesh of its own for each
    return jax.vmap(f)(X), jax.vmap(jax.grad(lambda x: f(x).sum()))(X), mapped


def inside_others(jit):
    w = weight(1)
    f = jit(lambda x: jnp.tanh(x @ w))
    return jax.jit(lambda x: f(x) + f(2 * x))(X), jax.lax.scan(lambda c, _: (f(c), c.sum()), X, None, length=3)


def of_a_tracer(jit):
    """A function that is made while another is traced closes over what is traced, and over what is not."""
    w = jnp.asarray(weight(1))

    @jax.jit
    def outer(x, y):
        return jit(lambda y: x @ w + y)(y), jax.grad(jit(lambda y: (x @ w * y).sum()))(y)

    return outer(X, X)


def with_64_bits(jit):
    w = weight(1).astype("f8")
    f = jit(lambda x: x @ w)
    narrow = f(X)
    with enable_x64(True):
        return narrow, f(X), f(X.astype("f8"))


def of_64_bits_afterwards(jit):
    """An array that was made under another setting than the call's."""
    with enable_x64(True):
        w = jnp.arange(N) / 3
    f, results = jit(lambda x: (x * w, w)), []
    for wide in (False, True, False):
        with enable_x64(wide), warnings.catch_warnings(action="ignore"):  # JAX narrows it
            results.append(jax.tree.map(np.asarray, f(X)))
    return results


def of_a_primitive_that_is_not_jax_s(jit):
    """Whose rule goes by what has changed when the function is made again."""
    scaled, by = Primitive("scaled"), 1
    scaled.def_abstract_eval(lambda x: x)
    mlir.register_lowering(scaled, mlir.lower_fun(lambda x: x * by, multiple_results=False))
    results = []
    for each in range(1, 5):
        by = each
        w = weight(each)
        results += [jit(lambda x: scaled.bind(x @ w))(X), jit(lambda x: jax.jit(scaled.bind)(x @ w))(X)]
    return results


def under_a_guard(jit):
    w, x = weight(1), jnp.asarray(X)
    with jax.transfer_guard("disallow_explicit"):
        return jit(lambda x: x @ w)(x)


def of_a_reference(jit):
    w, total = weight(1), new_ref(jnp.zeros(X.shape))

    def f(x):
        total[...] += x @ w
        return x + 1

    made = jit(f)
    return made(X), made(X), total[...]


def with_effects(jit):
    w, seen = weight(1), []

    def f(x):
        jax.debug.callback(lambda y: seen.append(float(y)), (x @ w).sum())
        return jax.experimental.io_callback(lambda y: y + 1, jax.ShapeDtypeStruct(X.shape, "f4"), x @ w)

    made = jit(f)
    results = [made(X), made(X)]
    jax.effects_barrier()
    return results, np.asarray(seen)


def of_keys(jit):
    keys = jax.random.split(jax.random.key(1), 20)
    return jit(lambda i: (keys[i], jax.random.normal(keys[i])))(3)


def weakly_typed(jit):
    w = jnp.full((20,), 2)[None] * jnp.ones(())
    weak = jax.jit(lambda: jnp.broadcast_to(2.0, (20,)))()
    return jit(lambda x: (x * weak.sum(), weak, w, x.astype("bfloat16")[0, 0] * weak))(X)


def ahead_of_time(jit):
    made = jit(lambda x, n: x @ weight(1) * n, static_argnums=1)
    shape = made.eval_shape(X, 2)
    assert jax.__version_info__ < (0, 7) or made.trace(X, 2).out_info == made.lower(X, 2).out_info == shape
    return made.lower(X, 2).compile()(X)


def on_another_device(jit):
    with jax.default_device(jax.devices()[-1]):
        w = jax.device_put(weight(1), jax.devices()[0])
        return jit(lambda x: x @ w)(X)


def large_and_small(jit):
    small, scalar = np.arange(8, dtype="f4"), jnp.float32(3)
    return jit(lambda x: (x[0, 0] ** small, x / scalar, small.sum() * scalar))(X)


def nothing(jit):
    return jit(lambda: weight(1))(), jit(lambda x: None)(X), jit(lambda x: ())(X)


def disabled(jit):
    w, seen = weight(1), []
    made = jit(lambda x: (seen.append(type(x)), x @ w)[1])
    with jax.disable_jit():
        first = made(X)
    return first, made(X), np.asarray([issubclass(each, jax.core.Tracer) for each in seen])


def of_a_class(jit):
    class Model:
        def __init__(self, seed):
            self.w = weight(seed)

        @functools.partial(jit, static_argnums=0)
        def infer(self, x):
            return x @ self.w

    models = [Model(1), Model(2)]
    return [model.infer(X) for model in models * 2]


def cleared(jit):
    w = [weight(1)]
    made = jit(lambda x: x @ w[0])
    first = made(X)
    w[0] = weight(2)
    second = made(X)
    made.clear_cache()
    return first, second, made(X)


CASES = [in_sharding, in_a_mesh, of_a_mesh, differentiated, batched, inside_others, of_a_tracer, with_64_bits,
         of_64_bits_afterwards, of_a_primitive_that_is_not_jax_s, of_a_reference, with_effects, of_keys, weakly_typed,
         ahead_of_time, on_another_device, large_and_small, under_a_guard, nothing, disabled, of_a_class, cleared,
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_jax_jit_does(case):
    same(case(cachec_jax.jit), case(jax.jit))


ERRORS = {
    "value": lambda jit: jit(lambda x: x if x.sum() > W[0].sum() else -x)(X),
    "own": lambda jit: jit(lambda x: {}["no such key"])(X),
    "shapes": lambda jit: jit(lambda x: x @ weight(1, 5, 5))(X),
    "argument": lambda jit: jit(lambda x: x)("text"),
    "result": lambda jit: jit(lambda x: "text")(X),
    "count": lambda jit: jit(lambda x: x @ W[0])(X, X),
    "static": lambda jit: jit(lambda x, n: x @ W[0], static_argnums=1)(X, []),
    "option": lambda jit: jit(lambda x: x, static_argnum=1),
    "range": lambda jit: jit(lambda x: x, donate_argnums=5),
    "callable": lambda jit: jit(5),
    "keyword and sharding": lambda jit: jit(lambda x: x @ W[0], in_shardings=(None,))(x=X),
    "nan": lambda jit: jax.debug_nans(True)(jit(lambda x: jnp.log(x - 2) @ W[0]))(X),
    "devices": lambda jit: jit(lambda x: x @ W[0], out_shardings="wrong")(X),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_jax_s_own(name):
    raised = []
    for jit in (jax.jit, cachec_jax.jit):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            ERRORS[name](jit)
        raised.append((caught.type, str(caught.value).replace("cachec_jax", "jax").partition(" at 0x")[0]))
    assert raised[0] == raised[1]


# --- arrays


@pytest.mark.parametrize("offset", [0, 4, 16, 32])
def test_the_arrays_are_those_of_the_trace(cache, offset):
    """As for jax.jit: whatever becomes of them afterwards, also where XLA could use their memory (0)."""
    mine, numpy = jnp.asarray(weight(1)), at(offset, weight(2))
    expected = np.asarray(jax.jit(lambda x: x @ mine + numpy[0])(X))
    hoisted = cachec_jax.jit(lambda x: (x @ mine + numpy[0], mine))
    for change in (lambda: None, mine.delete, lambda: numpy.fill(0), lambda: hoisted(X)[1].delete()):
        change()
        assert np.asarray(hoisted(X)[0]).tobytes() == expected.tobytes()


def test_an_argument_that_is_closed_over_may_be_donated():
    w = jnp.asarray(weight(1))
    hoisted = cachec_jax.jit(lambda x: x @ w, donate_argnums=0)
    expected = np.asarray(w) @ np.asarray(w)
    assert np.allclose(hoisted(w), expected)
    assert np.allclose(hoisted(expected - expected + 1), np.ones((N, N)) @ weight(1))


def test_nothing_is_kept_of_a_function_that_is_gone():
    w = weight(1)
    alive = []

    def made():
        f = lambda x: x @ w  # noqa: E731
        alive.append(weakref.ref(f))
        cachec_jax.jit(f)(X)

    made()
    jax.clear_caches()
    gc.collect()
    assert alive[0]() is None


def test_threads():
    """Each with functions of its own and with one that they share."""
    shared = cachec_jax.jit(lambda x: x @ W[0])
    results = {}

    def work(seed):
        w = weight(seed)
        own = cachec_jax.jit(lambda x: x @ w)
        results[seed] = [(own(X), shared(X)) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        w = weight(seed)
        same(results[seed], [(jax.jit(lambda x: x @ w)(X), jax.jit(lambda x: x @ W[0])(X))] * 5)


def test_no_python_runs_once_it_is_compiled():
    w, seen = weight(1), []
    hoisted = cachec_jax.jit(lambda x: (seen.append(1), x @ w)[1])
    for _ in range(3):
        hoisted(X)
    assert seen == [1]
    assert hoisted._cache_size() == 1


# --- the store


def test_a_decorator_with_and_without_options():
    @cachec_jax.jit
    def one(x):
        return x @ W[0]

    @cachec_jax.jit(static_argnames="n")
    def two(x, n):
        """Its words."""
        return x @ W[0] * n

    assert np.array_equal(one(X) * 2, two(X, n=2))
    assert (two.__name__, two.__doc__) == ("two", "Its words.")


def test_what_changes_the_program_misses(cache):
    for factor, seed in ((1.0, 1), (2.0, 1), (2.0, 2), (1.0, 3)):
        jax.clear_caches()
        w = weight(seed)
        cachec_jax.jit(lambda x: x @ w * factor)(X)
    cachec_jax.jit(lambda x: x @ weight(1, N, 5))(X)
    assert reasons(cache) == [MISS, MISS, HIT, HIT, MISS]


def test_no_byte_of_an_array_is_stored(cache):
    w = weight(1, N, 50_000)  # random numbers, which no compression makes smaller
    cachec_jax.jit(lambda x: x @ w)(X)
    (entry,) = entries(cache)
    assert sum(ref.size for ref in artifacts(entry.traces[0].value)) < w.nbytes // 20


def test_a_poisoned_entry_is_never_loaded(cache):
    def call(seed):
        jax.clear_caches()
        w = weight(seed)
        return np.asarray(cachec_jax.jit(lambda x: x @ w)(X))

    expected = call(1)
    (entry,) = entries(cache)
    (ref,) = artifacts(entry.traces[0].value)
    path = cache.store.objects.path(ref)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert call(1).tobytes() == expected.tobytes()
    assert reasons(cache) == [MISS, Reason.ARTIFACT_CORRUPT.value]
    call(2)
    assert reasons(cache)[-1] == HIT


def test_it_installs_the_cache_of_the_settings(tmp_path, monkeypatch):
    cachec_jax.uninstall()
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "mine"))
    hoisted = cachec_jax.jit(lambda x: x @ W[0])
    assert not jax.config.jax_compilation_cache_dir
    hoisted(X)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert len(entries(cachec_jax.install())) == 1


@pytest.mark.long
def test_a_stage_that_reaches_such_a_function(cache, tmp_path, monkeypatch, request):
    """It counts by its code, and what was traced of earlier code is not used."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "project_of_jit.py").write_text(
        textwrap.dedent("""
            import cachec_jax, jax.numpy as jnp
            W = jnp.arange(16.0).reshape(4, 4)
            FACTOR = 2.0

            @cachec_jax.jit
            def helper(x):
                return x @ W * FACTOR

            def stage(n: int) -> float:
                return float(helper(jnp.ones((1, 4))).sum()) + n
        """)
    )
    import project_of_jit as project

    # Its file is gone then, and a test of torch in this process would ask for it.
    request.addfinalizer(lambda: sys.modules.pop("project_of_jit"))
    stage = cache.stage(tools=["jax", "jaxlib"])(project.stage)
    assert [cache.call(stage, 1)[0] for _ in range(2)] == [241.0, 241.0]
    project.FACTOR = 3.0
    value, outcome = cache.call(stage, 1)
    assert (value, outcome.hit) == (361.0, False)
    project.W = project.W + 1
    assert cache.call(stage, 1)[0] == 409.0
    project.FACTOR = 2.0
    project.W = project.W - 1
    assert [cache.call(stage, 1)[1].hit, cache.call(stage, 1)[0]] == [True, 241.0]


_PROCESS = """
    import sys, hashlib
    import numpy as np
    import cachec, cachec_jax
    cache = cachec_jax.install(cachec.Cache(sys.argv[1], log="off", mode="on"))
    import jax, jax.numpy as jnp
    rng = np.random.default_rng(int(sys.argv[2]))
    w = [rng.standard_normal((64, 64), "f4") for _ in range(3)]

    def f(x):
        for each in w:
            x = jnp.tanh(x @ each)
        return x

    x = np.ones((2, 64), "f4")
    y = cachec_jax.jit(f)(x)
    print([reason.kind for reason, count in cache.events.counts.items() if count])
    assert np.asarray(y).tobytes() == np.asarray(jax.jit(f)(x)).tobytes()
"""


@pytest.mark.long
def test_another_process_with_another_seed_hits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_PROCESS))
    seen = [
        subprocess.run(
            [sys.executable, script, tmp_path / "store", str(seed)], check=True, capture_output=True, text=True
        ).stdout
        for seed in range(3)
    ]
    assert seen == ["['miss']\n", "['hit']\n", "['hit']\n"]


_DEVICES = """
    import sys
    import numpy as np
    import cachec, cachec_jax
    import jax, jax.numpy as jnp
    cachec_jax.install(cachec.Cache(sys.argv[1], log="off", mode="on"))
    mesh = jax.make_mesh((4,), ("d",))
    split, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("d",), ()))
    draw = np.random.default_rng(0)
    w = {"numpy": draw.normal(size=(8, 8)).astype("f4")}
    w["first"], w["last"] = (jax.device_put(w["numpy"] * 2, device) for device in (jax.devices()[0], jax.devices()[3]))
    w["split"], w["whole"] = (jax.device_put(w["numpy"] * 3, sharding) for sharding in (split, whole))
    x = draw.normal(size=(4, 8)).astype("f4")
    # XLA of older releases computes a split product of a constant in another order.
    equal = np.array_equal if jax.__version_info__ >= (0, 10) else np.allclose
    inputs = [x, jax.device_put(x, jax.devices()[2]), jax.device_put(x, split), jax.device_put(x, whole)]
    for name, each in w.items():
        for given in inputs:
            for options in ({}, {"out_shardings": split}):
                f = lambda x: jnp.tanh(x @ each)
                results = []
                for jit in (jax.jit, cachec_jax.jit):
                    try:
                        made = jit(f, **options)
                        made(given)
                        results.append(made(given))
                    except ValueError as error:
                        results.append(str(error).partition("0x")[0])
                plain, hoisted = results
                if isinstance(plain, str):
                    assert plain == hoisted, (name, plain, hoisted)
                    continue
                assert equal(plain, hoisted), name
                assert (plain.sharding, plain.committed) == (hoisted.sharding, hoisted.committed), (name, hoisted)
        made = cachec_jax.jit(lambda x: jnp.tanh(x @ w["numpy"]))  # one function, wherever it is called
        for given in inputs * 2:
            plain, hoisted = jax.jit(lambda x: jnp.tanh(x @ w["numpy"]))(given), made(given)
            assert equal(plain, hoisted)
            assert (plain.sharding, plain.committed) == (hoisted.sharding, hoisted.committed)
        with jax.transfer_guard("disallow"):  # of what is no argument nothing is transferred
            for given in inputs[1:]:
                for jit in (jax.jit, cachec_jax.jit):
                    made = jit(lambda x: jnp.tanh(x @ w["numpy"]))
                    made(given), made(given)
    print("done")
"""


@pytest.mark.long
def test_several_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_DEVICES))
    done = subprocess.run([sys.executable, script, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
