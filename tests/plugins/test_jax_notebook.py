"""Stages of JAX in the cells of a notebook: helpers are defined again, and cells run again, in one process."""

from __future__ import annotations

import linecache
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import cachec
import cachec_jax
from cachec.key.code.module_sources import is_cell
from tests.plugins.jax_persistent_cache import entries, kept_as_it_was

X = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)
WEIGHTS = {"w": np.random.default_rng(0).normal(size=(4, 4)).astype("f4")}

IMPORTS = """
    import dataclasses, functools
    import jax, jax.numpy as jnp, numpy as np
    import cachec, cachec_jax
    X = jax.ShapeDtypeStruct((2, 4), "float32")
"""

#: Cells that define what a model reaches, of which the first is run again with another number in it.
HELPERS = {
    "of a helper": ["@jax.jit\ndef inner(x):\n    return x * $",
                    "@jax.jit\ndef helper(x):\n    return inner(x) + 1"],
    "function": ["def helper(x):\n    return x * $"],
    "jitted": ["@jax.jit\ndef helper(x):\n    return x * $"],
    "hoisted": ["@cachec_jax.jit\ndef helper(x):\n    return x * $"],
    "global": ["FACTOR = $", "def helper(x):\n    return x * FACTOR"],
    "array": ["TABLE = np.full(4, $, 'f4')", "@jax.jit\ndef helper(x):\n    return x * TABLE"],
    "lambda": ["helper = lambda x: x * $"],
    "partial": ["helper = functools.partial(jnp.multiply, $)"],
    "dataclass": ["@dataclasses.dataclass(frozen=True)\nclass Config:\n    factor: float = $",
                  "def helper(x):\n    return x * Config().factor"],
    "class": ["class Layer:\n    def __call__(self, x):\n        return x * $",
              "def helper(x):\n    return Layer()(x)"],
    "gradient": ["@jax.custom_vjp\ndef helper(x):\n    return x * $\n"
                 "helper.defvjp(lambda x: (helper(x), x), lambda x, g: (g * x,))"],
    "closure": ["def make(n):\n    @jax.jit\n    def scale(x):\n        return x * n\n    return scale\n"
                "helper = make($)"],
}  # fmt: skip

#: Of a class without a method of its own nothing tells which cell made it, once there are two. It counts by what it is.
_UNTOLD = {"dataclass"}

MODEL = "def model(p, x):\n    return helper(x @ p['w'])"

#: The stage, and the numbers of what it gives.
STAGES: dict[str, tuple[str, Callable[..., Any]]] = {
    "compile_xla": (
        "def stage(weights: cachec.WeightSet) -> cachec.File:\n"
        "    return cachec_jax.compile_xla(model, weights.placeholders(), X)",
        lambda file, weights: cachec.link(file, weights)(X),
    ),
    "to_stablehlo": (
        "def stage(weights: cachec.WeightSet) -> cachec.Program:\n"
        "    return cachec_jax.to_stablehlo(model, weights.placeholders(), X)",
        lambda program, weights: program.text,
    ),
    "compiled": (
        "def stage(weights: cachec.WeightSet) -> object:\n"
        "    return jax.jit(model).lower({'w': jax.ShapeDtypeStruct((4, 4), 'float32')}, X).compile()",
        lambda compiled, weights: compiled(WEIGHTS, X),
    ),
}


class Notebook:
    """Its kernel's ``__main__``; what another one has run in this process is gone."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name in [name for name in linecache.cache if is_cell(name)]:
            del linecache.cache[name]
        self.main = types.ModuleType("__main__")
        self._count = 0
        patch.setitem(sys.modules, "__main__", self.main)
        self.run(textwrap.dedent(IMPORTS))

    def run(self, text: str) -> None:
        """Run a cell as IPython does: a file that is not there, whose text ``linecache`` has."""
        self._count += 1
        name = f"<ipython-input-{self._count}-{id(self)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self.main))


@pytest.fixture
def notebook(monkeypatch):
    with monkeypatch.context() as patch:
        yield Notebook(patch)


@pytest.mark.sampled
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_that_is_defined_again(notebook, monkeypatch, tmp_path, stage, helper):
    """Other numbers where it is another, at once and in a new kernel; a hit where it is the same again."""
    with kept_as_it_was():
        cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
        cachec_jax.install(cachec.Cache(tmp_path / "programs", log="off", mode="off"))
        text, numbers = STAGES[stage]
        weights = cachec.WeightSet.from_arrays(WEIGHTS)

        told = []

        def called(book: Notebook) -> tuple[Any, bool]:
            value, outcome = cache.call(cache.stage(tools=["jax", "jaxlib"])(book.main.stage), weights)
            told.append(f"{outcome.reason.value}: {outcome.detail} (stored: {outcome.stored})")
            return np.asarray(numbers(value, weights)).tolist(), outcome.hit

        def defined(book: Notebook, factor: float, *, whole: bool) -> None:
            first, *others = HELPERS[helper]
            for cell in [first, *(others if whole else ())]:
                book.run(cell.replace("$", str(factor)))

        defined(notebook, 2.0, whole=True)
        for cell in (MODEL, text):
            notebook.run(cell)
        two = called(notebook)
        assert (two[1], called(notebook)) == (False, (two[0], True)), told
        defined(notebook, 3.0, whole=False)
        three = called(notebook)
        assert not three[1], told
        assert three[0] != two[0]
        defined(notebook, 2.0, whole=False)
        again = called(notebook)
        assert again[0] == two[0]
        assert again[1] or helper in _UNTOLD, told
        notebook.run(MODEL)
        notebook.run(text)
        assert called(notebook) == (two[0], True), ("the same text in another cell", told)

        if stage != "to_stablehlo":
            assert two[0] == np.asarray(jax.jit(notebook.main.model)(WEIGHTS, X)).tolist()
        other = Notebook(monkeypatch)
        defined(other, 2.0, whole=True)
        for cell in (MODEL, text):
            other.run(cell)
        assert called(other) == (two[0], True), ("another kernel", told)


def test_a_hoisted_function_of_a_cell_that_is_run_again(notebook, tmp_path):
    """Each run of the cell makes a function, which closes over what is there now; the program is one."""
    with kept_as_it_was():
        cache = cachec_jax.install(cachec.Cache(tmp_path / "store", log="off", mode="on"))
        for seed in range(3):
            notebook.main.w = w = np.random.default_rng(seed).normal(size=(4, 4)).astype("f4")
            notebook.run("@cachec_jax.jit\ndef infer(x):\n    return x @ w")
            assert np.array_equal(notebook.main.infer(X), jax.jit(lambda w, x: x @ w)(w, X))
        assert len(entries(cache)) == 1
