"""What ``compile_xla`` made, called without JAX: bit for bit what plain JAX gives, and what is JAX's is left to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

import cachec
from cachec.errors import PluginError
from cachec.programs.supported_versions import compare
from cachec.weights import WeightSet
from cachec_jax import compile_xla, jaxlib_runner
from cachec_jax.program_format import parse_program
from tests.plugins.aligned_arrays import at

pytestmark = pytest.mark.skipif(
    compare(jax.__version__, ">=0.10,<0.11") != 0, reason="JAX runs programs of other releases itself"
)

#: Each is compiled and run by JAX in one process, and found and run without JAX in the next. Of each: the function,
#: the weights, the inputs, and options of ``jax.jit``. The last part says how it ends.
PROGRAMS = '''
import collections
import sys
from pathlib import Path

import numpy as np

import cachec

def value(shape, dtype, seed=0):
    if dtype.startswith(("bfloat", "float8")):
        import ml_dtypes
        dtype = getattr(ml_dtypes, dtype)
    drawn = np.random.default_rng(seed).normal(0, 3, shape)
    return (drawn > 0 if dtype == "bool" else drawn).astype(dtype)

DTYPES = ("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
          "complex128 float8_e4m3fn float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz").split()

def dtypes(p, x):
    return {n: (p[n], x[n] if n == "bool" else (x[n] + p[n]).astype(x[n].dtype)) for n in p}, x

def trees(p, x, /, *, more, none=None):
    return [x["a"][0] @ p["w"], None, (), {"b": more[1], "a": (x["a"][1] * p["b"][0],)}, {10: x["a"][0], 9: 2}]

def sizes(p, *x):
    return [each * 2 for each in x], [w + 1 for w in p["w"]]

def given_back(p, x, n):
    return x, n, p["w"]

def partly(p, x, unused):
    return x["y"] + p["first"]["used"]

def train(p, momentum, x):
    import jax
    loss = lambda p: ((jax.numpy.tanh(x @ p["w"]) @ p["v"]) ** 2).mean()
    value, gradient = jax.value_and_grad(loss)(p)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return value, momentum, jax.tree.map(lambda w, m: w - 0.01 * m, p, momentum)

def loops(p, x):
    import jax
    total, all = jax.lax.scan(lambda c, r: (c + r, c * r), p["w"], x)
    return jax.lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 2, abs(total) + 1), all, jax.numpy.sort(x, 0)

def random(p, seed):
    import jax
    return jax.random.normal(jax.random.key(seed), (5,)) + p["w"]

def fourier(p, x):
    import jax
    return jax.numpy.fft.fft(x).real + p["w"]

def cholesky(p, x):
    import jax
    return jax.numpy.linalg.cholesky(x @ x.T + 10 * jax.numpy.eye(3)) + p["w"]

def named(p, x):
    return Pair(x, p["w"])

def keys(p, x):
    import jax
    return jax.random.split(jax.random.key(0)), x + p["w"]

Pair = collections.namedtuple("Pair", "a b")
F4 = lambda *shape, seed=0: value(shape, "float32", seed)
ONE = {"w": F4(3)}

CASES = {
    "dtypes": (dtypes, {n: value((3, 5), n, 1) for n in DTYPES if n != "float8_e4m3b11fnuz"},
               ({n: value((3, 5), n) for n in DTYPES},), {}, {}),
    "trees": (trees, {"w": F4(4, 4), "b": (F4(2),)}, ({"a": [F4(3, 4), F4(2)]},), {"more": (F4(1), F4(2, 2))}, {}),
    "sizes": (sizes, {"w": [F4(*s) for s in ((), (1,), (8,), (9,), (0,), (3, 0, 2))]},
              (F4(), F4(1), F4(8), F4(9), F4(0), F4(4, 0), np.arange(24.0).reshape(2, 3, 4).T), {}, {}),
    "given_back": (given_back, {"w": F4(3)}, (F4(3, 3), np.int32(7)), {}, {}),
    "donated": (given_back, ONE, (F4(64, 64), np.int32(7)), {}, {"donate_argnums": (1,)}),
    "numbers": (trees, {"w": F4(1, 1), "b": (F4(1),)}, ({"a": [F4(1, 1), 2.5]},), {"more": (True, 3)}, {}),
    "partly": (partly, {"first": {"used": F4(2), "unused": F4(9)}, "unused": F4(1)}, ({"y": F4(2)}, F4(7)), {}, {}),
    "train": (train, {"w": F4(8, 8), "v": F4(8)}, ({"w": F4(8, 8, seed=1), "v": F4(8, seed=2)}, F4(16, 8)), {}, {}),
    "loops": (loops, {"w": F4(5)}, (F4(7, 5),), {}, {}),
    "random": (random, {"w": F4(5)}, (np.uint32(3),), {}, {}),
    "fourier": (fourier, ONE, (F4(3),), {}, {}),
    "cholesky": (cholesky, ONE, (F4(3, 3),), {}, {}),
    "named": (named, ONE, (F4(3),), {}, {}),
    "keys": (keys, ONE, (F4(3),), {}, {}),
}
#: Those that JAX has to be imported for: of LAPACK, of another kind of node, of another type.
JAX = {"cholesky", "named", "keys"}

folder, names, given = Path(sys.argv[1]), sys.argv[2].split(","), len(sys.argv) > 3
cache = cachec.Cache(folder / "store", log="off", mode="on")

@cache.stage(tools=["jax", "jaxlib"])
def build(function: object, weights: cachec.WeightSet, inputs: object, named: dict, options: dict) -> cachec.File:
    import cachec_jax
    return cachec_jax.compile_xla(function, weights.placeholders(), *inputs, options=options, **named)

def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree, key=str) for leaf in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for each in tree for leaf in leaves(each)]
    return [tree]

def said(tree):
    """Structure, types and all bits."""
    if hasattr(tree, "dtype") and "key" in str(tree.dtype):
        import jax
        tree = jax.random.key_data(tree)
    if isinstance(tree, dict):
        return {key: said(each) for key, each in sorted(tree.items(), key=str)}
    if isinstance(tree, (list, tuple)):
        return type(tree).__name__, [said(each) for each in tree]
    if tree is None:
        return None
    array = np.asarray(tree)
    return str(array.dtype), array.shape, array.tobytes().hex()

for name in names:
    function, params, inputs, named, options = CASES[name]
    weights = cachec.WeightSet.from_tree(params)
    file, outcome = cache.call(build, function, weights, inputs, named, options)
    run = cachec.link(file, weights)
    if not given:
        import jax
        print(name, said(jax.jit(function, **options)(params, *inputs, **named)))
        continue
    assert outcome.reason.value == "hit", (name, outcome)
    before = repr(said([params, inputs, named]))
    result = run.numpy(*inputs, **named) if name != "keys" else run(*inputs, **named)
    assert ("jax" in sys.modules) == (name in JAX), name
    assert name in JAX or all(isinstance(each, np.ndarray) and not each.flags.writeable or not each.size
                              for each in leaves(result) if each is not None), name
    print(name, said(result))
    assert before == repr(said([params, inputs, named])), "an argument was written to"
    if name == "trees":
        more = said(run.numpy(*inputs, **named))
        assert more == said(result)
    if name == "given_back":
        weights = cachec.WeightSet.from_tree({"w": F4(3, seed=9)})
        assert said(cachec.link(file, weights).numpy(*inputs)) == said((*inputs, F4(3, seed=9)))
        params["w"][:] = 0  # is not the weights' any more, as with JAX
        assert said(run.numpy(*inputs)) == said(result)
        assert "jax" not in sys.modules
    if name == "loops":
        assert said(run(*inputs)) == said(result)  # JAX's arrays, and JAX is imported for them
        import jax
        assert isinstance(run(*inputs)[0], jax.Array)
        assert said(cachec.link(file, weights).numpy(*inputs)) == said(result)
'''


def ran(folder: Path, names: str, *more: str) -> str:
    script = folder / "programs.py"
    script.write_text(PROGRAMS)
    command = [sys.executable, str(script), str(folder), names, *more]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_programs_in_a_process_without_jax(tmp_path: Path) -> None:
    """Each that JAX has to be imported for is in a process of its own, after those that do without."""
    without = "dtypes,trees,sizes,given_back,donated,numbers,partly,train,random,fourier,loops"
    needing = ["cholesky", "named", "keys"]
    expected = ran(tmp_path, ",".join([without, *needing]))
    found = ran(tmp_path, without, "hits") + "".join(ran(tmp_path, name, "hits") for name in needing)
    for one, two in zip(expected.splitlines(), found.splitlines(), strict=True):
        assert one == two


def program() -> tuple[jaxlib_runner.JaxlibProgram, Any]:
    weights = WeightSet.from_arrays({"w": np.eye(2, dtype="f4")})
    example = jax.ShapeDtypeStruct((2, 2), "float32")
    file = compile_xla(lambda p, x, more: x["a"] @ p["w"] + more[0], weights.placeholders(), {"a": example}, [example])
    form, data = parse_program(file.read_bytes())
    return jaxlib_runner.JaxlibProgram(form, data, [weights["w"].read()]), form


X = np.ones((2, 2), "f4")


@pytest.mark.parametrize(
    ("inputs", "named", "message"),
    [
        (({"a": X},), {}, r"the arguments: expected a tuple of 2, found a tuple of 1"),
        (({"a": X}, [X], X), {}, r"expected a tuple of 2, found a tuple of 3"),
        (({"a": X}, [X]), {"z": X}, r"the keywords: expected a dict of \[\], found a dict of \['z'\]"),
        (({"b": X}, [X]), {}, r"the arguments\[0\]: expected a dict of \['a'\], found a dict of \['b'\]"),
        (({"a": X}, (X,)), {}, r"the arguments\[1\]: expected a list of 1, found a tuple of 1"),
        (({"a": X}, [None]), {}, r"more\[0\]: expected float32\[2, 2\], found object"),
        (({"a": X.astype("f8")}, [X]), {}, r"x\['a'\]: expected float32\[2, 2\], found float64\[2, 2\]"),
        (({"a": X.astype(">f4")}, [X]), {}, r"x\['a'\]: expected float32\[2, 2\], found >f4\[2, 2\]"),
        (({"a": np.ma.masked_array(X, X > 0)}, [X]), {}, r"x\['a'\]: expected .*, found a masked float32\[2, 2\]"),
        (({"a": X[0]}, [X]), {}, r"x\['a'\]: expected float32\[2, 2\], found float32\[2\]"),
        (({"a": X}, [1.0]), {}, r"more\[0\]: expected float32\[2, 2\], found float32\[\]"),
    ],
)
def test_other_inputs_are_refused(inputs: Any, named: Any, message: str) -> None:
    run, _ = program()
    with pytest.raises(TypeError, match=message):
        run(inputs, named)
    np.testing.assert_array_equal(run(({"a": X}, [X]), {}), X + X)


def test_what_needs_jax() -> None:
    """Trees of other nodes, random keys, several devices, other memory, other layouts, malformed trees."""
    _, form = program()
    assert jaxlib_runner.runs_without_jax(form, b"")
    assert not jaxlib_runner.runs_without_jax(form, b"lapack_spotrf_ffi")
    replace = msgspec.structs.replace
    aval, place, layout = form.arguments[0], form.in_shardings[0], form.in_layouts[0]
    node, leaf = form.in_tree, form.in_tree.children[0].children[0].children[0]
    others = {
        "kind": replace(form, kind="lowered"),
        "platform": replace(form, toolchain=replace(form.toolchain, platform="cuda")),
        "devices": replace(form, toolchain=replace(form.toolchain, devices=(0, 1))),
        "key": replace(form, arguments=(replace(aval, dtype="key<fry>"), *form.arguments[1:])),
        "int4": replace(form, results=(replace(aval, dtype="int4"),)),
        "axes": replace(form, results=(replace(aval, axes=(("a", 1, "Auto"),)),)),
        "named": replace(form, in_shardings=(replace(place, kind="named"), *form.in_shardings[1:])),
        "memory": replace(form, out_shardings=(replace(place, memory="pinned_host"),)),
        "order": replace(form, out_layouts=(replace(layout, order=(1, 0)),)),
        "tiling": replace(form, in_layouts=(replace(layout, tiling=((8,),)), *form.in_layouts[1:])),
        "node": replace(form, out_tree=replace(leaf, kind="node", children=(leaf,))),
        "many": replace(form, out_tree=replace(leaf, kind="list", children=(leaf, leaf))),
        "call": replace(form, in_tree=replace(node, kind="list", children=node.children[:1])),
        "keys": replace(form, out_tree=replace(leaf, kind="dict", data={"tuple": []}, children=(leaf,))),
        "data": replace(form, out_tree=replace(leaf, kind="dict", data="ab", children=(leaf,))),
        "names": replace(
            form, out_tree=replace(leaf, kind="dict", data={"tuple": [{"name": "a:b"}]}, children=(leaf,))
        ),
    }
    assert [name for name, other in others.items() if jaxlib_runner.runs_without_jax(other, b"")] == []


@pytest.mark.parametrize("given", [X.astype(">f4"), np.ma.masked_array(X, X > 0)], ids=["big-endian", "masked"])
def test_where_jax_runs_it_arrays_are_what_they_are(given: Any) -> None:
    """JAX refuses these, until it has been called with others: then it takes their bytes."""
    weights = cachec.WeightSet.from_tree({"w": X})
    run = cachec.link(compile_xla(lambda p, x: x + p["w"], weights.placeholders(), X), weights)
    assert np.array_equal(run.numpy(X), X + X)
    with pytest.raises(TypeError, match="expected an array of the program's dtype, found"):
        run.numpy(given)


@pytest.mark.parametrize("offset", [0, 4, 16, 32])
def test_weights_in_memory_are_those_of_the_link(offset: int) -> None:
    """Also where XLA could use their memory (0)."""
    weights = WeightSet.from_arrays({"w": np.eye(2, dtype="f4")})
    example = jax.ShapeDtypeStruct((2, 2), "float32")
    file = compile_xla(lambda p, x: x @ p["w"], weights.placeholders(), example)
    mine = at(offset, np.eye(2, dtype="f4"))
    run = cachec.link(file, WeightSet.from_arrays({"w": mine}))
    mine[:] = 0
    np.testing.assert_array_equal(run(X), X)
    np.testing.assert_array_equal(run.weights[0], np.eye(2))


def test_a_result_of_another_size_is_refused() -> None:
    """Whose bytes would be read beyond its end: what a store says is not believed."""
    weights = WeightSet.from_arrays({"w": X})
    form, data = parse_program(compile_xla(lambda p, x: x + p["w"], weights.placeholders(), X).read_bytes())
    larger = msgspec.structs.replace(form, results=(msgspec.structs.replace(form.results[0], shape=(64, 64)),))
    run = jaxlib_runner.JaxlibProgram(larger, data, [X])
    with pytest.raises(PluginError, match="a stored program gives 16 bytes for float32"):
        run((X,), {})
