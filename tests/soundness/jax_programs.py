"""Random JAX programs, edits of them and swaps of their weights, against JAX without a cache.

A program is two or three pieces of the table, one after the other. ``$S`` is a number that decides what a piece
computes. In a piece ``w`` are the weights by name (``a``, ``b``: [4, 4], ``c``: [4]) and ``x`` is [2, 4].
"""

from __future__ import annotations

import importlib
import linecache
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import cachec
from cachec.errors import CachecError
from cachec.key.code.executed_source import executed_sources
from tests.soundness.runner import Report, judge

# Programs are easier to read as they are.
# ruff: noqa: E501


class Piece(NamedTuple):
    name: str
    text: str
    use: str


_PIECES = [
    Piece("activations in a table", "ACTS = {'a': jax.nn.relu, 'b': jax.nn.gelu, 'c': jnp.tanh}\ndef #(w, x): return ACTS['abc'[$S % 3]](x @ w['a'])\n", "#(w, x)"),
    Piece("activation by name", "def #(w, x): return getattr(jax.nn, ['relu', 'silu', 'tanh'][$S % 3])(x + w['c'])\n", "#(w, x)"),
    Piece("partial of a ufunc", "# = functools.partial(jnp.multiply, $S.0)\n", "#(x)"),
    Piece("partial of a function", "def #_(w, x, by): return x * by + w['c']\n# = functools.partial(#_, by=$S.)\n", "#(w, x)"),
    Piece("ufuncs in a list", "OPS = [jnp.add, jnp.multiply, jnp.subtract]\ndef #(w, x): return OPS[$S % 3](x, w['c'])\n", "#(w, x)"),
    Piece("closure", "def #_(k):\n    def inner(w, x): return x @ w['b'] * k\n    return inner\n# = #_($S.)\n", "#(w, x)"),
    Piece("closure over a closure", "def #_(f, k): return lambda w, x: f(x) / k\n# = #_(jnp.sin, $S.)\n", "#(w, x)"),
    Piece("jit with a global", "K_# = $S.\n@jax.jit\ndef #(x): return x * K_#\n", "#(x)"),
    Piece("jit with options", "@functools.partial(jax.jit, static_argnums=(1,))\ndef #(x, n): return x[:, ::n] if n == 1 else x + n\n", "#(x, $S)"),
    Piece("jit in a closure", "def #_(k): return jax.jit(lambda x: x + k)\n# = #_($S.)\n", "#(x)"),
    Piece("pytree of parameters", "def #(w, x):\n    p = {'one': {'w': w['a'], 'b': w['c']}, 'two': [w['b']]}\n    p = jax.tree.map(lambda v: v * $S., p)\n    return x @ p['one']['w'] + p['one']['b']\n", "#(w, x)"),
    Piece("registered dataclass", "@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass P#:\n    w: typing.Any\n    k: float = dataclasses.field(default=$S., metadata={'static': True})\ndef #(w, x):\n    p = jax.tree.map(lambda v: v + 1, P#(w['a']))\n    return x @ p.w * p.k\n", "#(w, x)"),
    Piece("named tuple of parameters", "class P#(typing.NamedTuple):\n    w: typing.Any\n    k: float = $S.\ndef #(w, x):\n    p = P#(w['b'])\n    return x @ p.w + p.k\n", "#(w, x)"),
    Piece("scan", "def #_(c, _): return c * 0.5 + $S., None\ndef #(x): return jax.lax.scan(#_, x, None, length=3)[0]\n", "#(x)"),
    Piece("length of a scan", "def #_(c, _): return c * 0.5, None\ndef #(x): return jax.lax.scan(#_, x, None, length=$S)[0]\n", "#(x)"),
    Piece("scan over weights", "def #_(c, row): return c + row * $S., None\ndef #(w, x): return jax.lax.scan(#_, x, w['a'])[0]\n", "#(w, x)"),
    Piece("cond", "def #(x): return jax.lax.cond(x.sum() > 0, lambda v: v + $S., lambda v: -v, x)\n", "#(x)"),
    Piece("switch", "BRANCHES_# = [lambda v: v, lambda v: v * 2, lambda v: v * $S.]\ndef #(x): return jax.lax.switch(jnp.int32(2), BRANCHES_#, x)\n", "#(x)"),
    Piece("loop", "def #(x): return jax.lax.fori_loop(0, $S, lambda i, v: v + 1, x)\n", "#(x)"),
    Piece("vmap", "# = jax.vmap(lambda row: row * $S.)\n", "#(x)"),
    Piece("vmap with axes", "def #_(row, k): return row + k\n# = jax.vmap(#_, in_axes=(1, None), out_axes=1)\n", "#(x, $S.)"),
    Piece("grad", "# = jax.grad(lambda v: (v ** 2).sum() * $S.)\n", "#(x)"),
    Piece("remat", "@jax.checkpoint\ndef #(x): return jnp.sin(x) * $S.\n", "#(x)"),
    Piece("custom_jvp", "@jax.custom_jvp\ndef #_(x): return x * 2\n@#_.defjvp\ndef _#(p, t): return #_(*p), t[0] * $S.\n# = jax.grad(lambda v: #_(v).sum())\n", "#(x) + x"),
    Piece("custom_vjp", "@jax.custom_vjp\ndef #_(x): return x * 2\ndef f_#(x): return #_(x), None\ndef b_#(r, g): return (g * $S.,)\n#_.defvjp(f_#, b_#)\n# = jax.grad(lambda v: #_(v).sum())\n", "#(x) + x"),
    Piece("configuration of the module", "CONFIG_# = types.SimpleNamespace(scale=$S., axis=-1)\ndef #(x): return jax.nn.softmax(x * CONFIG_#.scale, CONFIG_#.axis)\n", "#(x)"),
    Piece("configuration in a dataclass", "@dataclasses.dataclass(frozen=True)\nclass C#:\n    scale: float = $S.\nCONFIG_# = C#()\ndef #(x): return x * CONFIG_#.scale\n", "#(x)"),
    Piece("constant array", "TABLE_# = np.arange(4., dtype='f4') * $S\ndef #(x): return x + TABLE_#\n", "#(x)"),
    Piece("jax's array", "TABLE_# = jnp.full((4,), $S.)\ndef #(x): return x + TABLE_#\n", "#(x)"),
    Piece("einsum", "SPEC_# = ['ij,jk->ik', 'ij,kj->ik'][$S % 2]\ndef #(w, x): return jnp.einsum(SPEC_#, x, w['a'])\n", "#(w, x)"),
    Piece("dtype", "TYPE_# = [jnp.float16, jnp.bfloat16, jnp.float32][$S % 3]\ndef #(x): return x.astype(TYPE_#).astype(jnp.float32)\n", "#(x)"),
    Piece("module of layers", "class L#:\n    def __init__(self, name, k): self.name, self.k = name, k\n    def __call__(self, w, x): return x @ w[self.name] * self.k\nLAYERS_# = [L#('a', 1.), L#('b', $S.)]\ndef #(w, x):\n    for layer in LAYERS_#: x = layer(w, x)\n    return x\n", "#(w, x)"),
    Piece("vectorize", "# = jnp.vectorize(lambda v: v * $S., signature='()->()')\n", "#(x)"),
    Piece("random numbers", "def #(x): return x + jax.random.normal(jax.random.key($S), (4,))\n", "#(x)"),
    Piece("decorator", "def #_(k):\n    def decorate(f):\n        @functools.wraps(f)\n        def inner(*args): return f(*args) * k\n        return inner\n    return decorate\n@#_($S.)\ndef #(x): return jnp.cos(x)\n", "#(x)"),
    Piece("composed", "# = functools.reduce(lambda f, g: lambda v: g(f(v)), [jnp.sin, functools.partial(jnp.add, $S.), jnp.cos])\n", "#(x)"),
    Piece("which weight", "NAME_# = 'ab'[$S % 2]\ndef #(w, x): return x @ w[NAME_#]\n", "#(w, x)"),
    Piece("method of a jitted class", "class M#:\n    @functools.partial(jax.jit, static_argnums=0)\n    def __call__(self, x): return x + self.k\n    k = $S.\nM#_ = M#()\ndef #(x): return M#_(x)\n", "#(x)"),
    Piece("pallas", "from jax.experimental import pallas as pl\ndef #_(i, o): o[...] = i[...] * $S.\ndef #(x): return pl.pallas_call(#_, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)\n", "#(x)"),
    Piece("custom_vmap", "@jax.custom_batching.custom_vmap\ndef #_(x): return x\n#_.def_vmap(lambda n, b, v: (v * $S., True))\ndef #(x): return jax.vmap(#_)(x)\n", "#(x)"),
    Piece("linear solve", "def #(x): return jax.lax.custom_linear_solve(lambda v: v * 2, x, lambda mv, b: b * $S., symmetric=True)\n", "#(x)"),
    Piece("singledispatch", "@functools.singledispatch\ndef #_(k, x): return x\n@#_.register\ndef _(k: float, x): return x * $S.\ndef #(x): return #_(1.0, x)\n", "#(x)"),
    Piece("key in a global", "C_# = jax.random.key($S)\ndef #(x): return x * jax.random.normal(C_#, (4,))\n", "#(x)"),
    Piece("equal configs", "class C#:\n    def __init__(s, k): s.k = k\n    def __eq__(s, o): return True\n    def __hash__(s): return 1\n@functools.partial(jax.jit, static_argnums=0)\ndef #_(c, x): return x * c.k\nCFG_# = C#($S.)\ndef #(x): return #_(C#(1.), x) + #_(CFG_#, x) * 0 + x * CFG_#.k\n", "#(x)"),
    Piece("node with static data", "class N#:\n    def __init__(s, a): s.a = a\njax.tree_util.register_pytree_node(N#, lambda n: ((n.a,), $S), lambda aux, ch: N#(ch[0] * aux))\ndef #(x): return jax.tree.map(lambda v: v, N#(x)).a\n", "#(x)"),
    Piece("registry by subclass", "class B#:\n    R = []\n    def __init_subclass__(c, **k): B#.R.append(c)\nclass D#(B#):\n    def f(s, x): return x * $S.\ndef #(x): return B#.R[0]().f(x)\n", "#(x)"),
    Piece("super and mixin", "class A#:\n    k = $S.\n    def f(s, x): return x * s.k\nclass M#:\n    def f(s, x): return super().f(x) + 1\nclass C#(M#, A#): pass\ndef #(x): return C#().f(x)\n", "#(x)"),
    Piece("descriptor", "class De#:\n    def __set_name__(s, o, n): s.n = n\n    def __get__(s, o, t=None): return $S.\nclass C#:\n    k = De#()\ndef #(x): return x * C#.k\n", "#(x)"),
    Piece("metaclass", "class M#(type):\n    @property\n    def k(c): return $S.\nclass C#(metaclass=M#): pass\ndef #(x): return x * C#.k\n", "#(x)"),
    Piece("remat policy", "def #(x): return jax.grad(lambda v: jax.checkpoint(lambda q: jnp.sin(jnp.sin(q)), policy=[jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable][$S % 2])(v).sum())(x)\n", "#(x)"),
    Piece("shard_map", "def #(x): return jax.shard_map(lambda v: v * $S., mesh=jax.make_mesh((1,), ('a',), axis_types=(jax.sharding.AxisType.Auto,)), in_specs=jax.sharding.PartitionSpec('a'), out_specs=jax.sharding.PartitionSpec('a'))(x)\n", "#(x)"),
    Piece("jnp in a class body", "class C#:\n    T = jnp.arange(4.) * $S.\ndef #(x): return x * C#.T\n", "#(x)"),
]  # fmt: skip

_TOP = "import dataclasses, functools, types, typing\nimport jax, jax.numpy as jnp, numpy as np\n"
_MAIN = """import os
import cachec, cachec_jax, jax, numpy as np
import program
cache = cachec.Cache(os.environ["SOUNDNESS_STORE"], log="off", mode="on")

@cache.stage
def lower(w: cachec.WeightSet):
    return cachec_jax.to_stablehlo(program.apply, w, jax.ShapeDtypeStruct((2, 4), "float32"))

@cache.stage
def value(w: cachec.WeightSet, x):
    return np.asarray(jax.jit(program.apply)({name: w[name].read() for name in w}, x))
"""


class _Program(NamedTuple):
    name: str
    pieces: tuple[Piece, ...]
    numbers: tuple[int, ...]

    def text(self, edited: int | None = None, other: int = 0, comment: str = "") -> str:
        """The module; ``edited`` piece with the number ``other``."""
        parts, body = [_TOP], ["def apply(w, x):"]
        for place, (piece, number) in enumerate(zip(self.pieces, self.numbers, strict=True)):
            own = str(other if place == edited else number)
            parts.append(f"{piece.text}\n".replace("#", f"f{place}").replace("$S", own) + comment)
            body.append(f"    x = {piece.use}".replace("#", f"f{place}").replace("$S", own))
        return "\n".join([*parts, *body, "    return x\n"])


def _programs(seed: int) -> Iterator[_Program]:
    rng = random.Random(seed)
    while True:
        pieces = tuple(rng.sample(_PIECES, rng.choice((2, 3))))
        numbers = tuple(rng.randrange(1, 4) for _ in pieces)
        yield _Program(" + ".join(piece.name for piece in pieces), pieces, numbers)


def _weights(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"a": (4, 4), "b": (4, 4), "c": (4,)}
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


class _Session:
    """One process in which programs are imported one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._x = np.random.default_rng(9).normal(size=(2, 4)).astype("f4")
        (folder / "main.py").write_text(_MAIN)
        sys.path.insert(0, str(folder))

    def close(self) -> None:
        self._forget()
        sys.path.remove(str(self._folder))

    def _forget(self) -> None:
        main = sys.modules.pop("main", None)
        if main is not None:
            main.cache.close()
        sys.modules.pop("program", None)
        linecache.clearcache()
        importlib.invalidate_caches()

    def import_anew(self, text: str) -> None:
        """As a new process would: the program is this text."""
        self._forget()
        (self._folder / "program.py").write_text(text)
        executed_sources.cache_clear()
        executed_sources()._started = time.time() + 1

    def change(self, name: str, number: int) -> bool:
        """Set a global of the program that is imported, where it has that."""
        program = importlib.import_module("program")
        if not isinstance(getattr(program, name, None), float):
            return False
        setattr(program, name, float(number))
        return True

    def looks(self, weights: dict[str, Any], *, values: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the cache answers, and what JAX gives without one: the lowered program, and its ``values``."""
        import jax

        main = importlib.import_module("main")
        for stage, args in ((main.lower, ()), (main.value, (self._x,)))[: 1 + values]:
            given = cachec.WeightSet.from_arrays(weights)
            answer: dict[str, Any]
            try:
                result, outcome = stage.call(given, *args)
                answer = {"value": _said(result), "reason": outcome.reason.value, "detail": outcome.detail}
            except CachecError as error:
                answer = {"value": None, "reason": "refused", "detail": str(error)}
            jax.clear_caches()
            truth = stage.uncached(given, *args)
            answer["truth"] = _said(truth)
            yield stage.options.name, answer


def _said(result: Any) -> str:
    return result.text if isinstance(result, cachec.Program) else f"{result.dtype} {result.tobytes().hex()}"


def run_jax(seed: int, folder: Path) -> Iterator[Report]:
    """Reports without end, one for each program: first as it is and then with neutral text, other weights, one piece
    edited, back, and a changed global. Each of these is a case: of lowering, and of the values where these can differ."""
    rng = random.Random(seed)
    with (
        mock.patch.dict(os.environ, {"SOUNDNESS_STORE": str(folder / "store")}),
        # Python takes what it has compiled for that of any text of the same size and second.
        mock.patch.object(sys, "dont_write_bytecode", True),
    ):
        session = _Session(folder)
        try:
            for program in _programs(seed):
                yield _run(program, session, rng)
        finally:
            session.close()


def _run(program: _Program, session: _Session, rng: random.Random) -> Report:
    report = Report(projects=1)
    place = rng.randrange(len(program.pieces))
    other = program.numbers[place] % 4 + 1
    ways = [
        ("first", "", program.text(), 1),
        ("neutral", "neutral", program.text(comment="# a comment\n\n"), 1),
        ("other weights", "weights", program.text(), 2),
        ("edited", "decides", program.text(place, other), 1),
        ("edited back", "neutral", program.text(), 1),
    ]
    for what, kind, text, weights in ways:
        session.import_anew(text)
        looks = session.looks(_weights(weights), values=what in {"first", "other weights", "edited"})
        _count(report, f"{program.name}, {what}", kind, looks)
    changed = [session.change(f"K_f{each}", 7) for each in range(len(program.pieces))]
    if any(changed):
        _count(report, f"{program.name}, a changed global", "decides", session.looks(_weights(1), values=True))
    return report


def _count(report: Report, name: str, kind: str, looks: Iterator[tuple[str, dict[str, Any]]]) -> None:
    report.cases += kind != ""
    for stage, answer in looks:
        judge(report, f"{name}, {stage}", answer)
        if kind == "neutral" or (kind == "weights" and stage.endswith("lower")):
            report.neutral += 1
            if answer["reason"] not in {"hit", "refused"}:
                report.needless.append(f"{name}, {stage}: {answer['reason']} {answer['detail']}")
