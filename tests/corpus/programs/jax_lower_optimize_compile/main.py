"""Three stages: lower, look at the program, compile."""

import hashlib
from dataclasses import dataclass
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


class Norm(Enum):
    NONE = "none"
    RMS = "rms"


@dataclass(frozen=True)
class Spec:
    widths: tuple[int, ...]
    norm: Norm = Norm.RMS


@dataclass
class Summary:
    operations: dict[str, int]
    parameters: int

    @property
    def total(self):
        return sum(self.operations.values())


def rms(x):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def forward(spec, ws, x):
    for w in ws:
        x = jax.nn.swish(x @ w)
        if spec.norm is Norm.RMS:
            x = rms(x)
    return x


@cache.stage(tools=["jax", "jaxlib"])
def lower(spec: Spec, batch: int) -> jax.stages.Lowered:
    ws = [jax.ShapeDtypeStruct(s, jnp.float32) for s in zip(spec.widths, spec.widths[1:])]
    return jax.jit(lambda ws, x: forward(spec, ws, x)).lower(ws, jax.ShapeDtypeStruct((batch, spec.widths[0]), jnp.float32))


@cache.stage(tools=["jax", "jaxlib"])
def summarize(lowered: jax.stages.Lowered, spec: Spec) -> Summary:
    counts: dict[str, int] = {}
    for word in lowered.as_text().split():
        if word.startswith("stablehlo."):
            counts[word] = counts.get(word, 0) + 1
    return Summary(counts, sum(a * b for a, b in zip(spec.widths, spec.widths[1:])))


@cache.stage(tools=["jax", "jaxlib"])
def compile_it(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    return lowered.compile()


def main():
    spec = Spec((4, 8, 3))
    lowered = lower(spec, 2)
    summary = summarize(lowered, spec)
    print("RESULT", summary.total, summary.parameters, sorted(summary.operations.items())[:3])
    ws = [np.full(s, 0.1, np.float32) for s in zip(spec.widths, spec.widths[1:])]
    y = compile_it(lowered)(ws, np.arange(8, dtype=np.float32).reshape(2, 4))
    print("RESULT", np.round(np.asarray(y), 4).tolist())


if __name__ == "__main__":
    main()
