"""A trainer whose steps are stages."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


@dataclass
class Trainer:
    rate: float = 0.1
    momentum: float = 0.9
    history: list = field(default_factory=list, compare=False)

    def loss(self, w, x, y):
        return jnp.mean((x @ w - y) ** 2)

    def step(self, state, batch):
        w, v = state
        g = jax.grad(self.loss)(w, *batch)
        v = self.momentum * v - self.rate * g
        return (w + v, v), jnp.sum(g**2)

    @cache.stage(tools=["jax", "jaxlib"])
    def epoch(self, w: np.ndarray, seed: int) -> tuple[np.ndarray, list[float]]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(4, 8, w.shape[0])).astype(np.float32)
        y = x @ np.arange(w.shape[0], dtype=np.float32)
        (w, _), norms = jax.lax.scan(self.step, (jnp.asarray(w), jnp.zeros_like(w)), (x, y))
        return np.asarray(w), [round(float(n), 3) for n in norms]


def main():
    trainer = Trainer(rate=0.05)
    w = np.zeros(3, np.float32)
    for seed in range(3):
        w, norms = trainer.epoch(w, seed)
        print("RESULT", seed, np.round(w, 3).tolist(), norms[-1])


if __name__ == "__main__":
    main()
