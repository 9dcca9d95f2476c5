"""flax.training's TrainState with optax, from a dataclass of the configuration."""

import argparse
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

import cachec

cache = cachec.Cache()


@dataclasses.dataclass
class Config:
    hidden: int = 8
    learning_rate: float = 0.05
    weight_decay: float = 0.01
    epochs: int = 5


class Regressor(nn.Module):
    config: Config

    def setup(self):
        self.hidden = nn.Dense(self.config.hidden)
        self.out = nn.Dense(1)

    def __call__(self, x):
        return self.out(nn.tanh(self.hidden(x)))


def create_state(config, key):
    model = Regressor(config)
    params = model.init(key, jnp.ones((1, 1)))["params"]
    tx = optax.adamw(config.learning_rate, weight_decay=config.weight_decay)
    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@jax.jit
def train_step(state, x, y):
    def loss_fn(params):
        return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


@cache.stage(tools=["jax", "jaxlib", "flax", "optax"])
def losses(config: Config, seed: int) -> list[float]:
    state = create_state(config, jax.random.key(seed))
    x = jnp.linspace(-1, 1, 10)[:, None]
    found = []
    for _ in range(config.epochs):
        state, loss = train_step(state, x, x**2)
        found.append(round(float(loss), 4))
    return found


def main():
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    args = parser.parse_args()
    print("RESULT", losses(Config(**vars(args)), 0))


if __name__ == "__main__":
    main()
