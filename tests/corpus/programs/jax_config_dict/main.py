import sys

import jax
import jax.numpy as jnp

import cachec
from config import get_config

cache = cachec.Cache()
cfg = get_config()


def net(x):
    act = getattr(jnp, cfg.model.act)
    w = jnp.ones((x.shape[1], cfg.model.units)) / x.shape[1]
    return cfg.scale * act(x @ w)


@cache.stage(tools=["jax", "jaxlib"])
def evaluate() -> list[float]:
    x = jax.random.normal(jax.random.key(cfg.data.seed), (cfg.data.rows, 4))
    return [round(float(v), 4) for v in jax.jit(net)(x).mean(axis=1)]


@cache.stage(tools=["jax", "jaxlib"])
def cost(config: dict, rows: int) -> int:
    return rows * 4 * config["units"] * (2 if config["act"] == "tanh" else 1)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        cfg.override(text)
    print("RESULT", evaluate())
    print("RESULT", cost(dict(cfg.model), cfg.data.rows))
