import jax
import jax.numpy as jnp
import numpy as np
import optax
import yaml

import cachec

cache = cachec.Cache()


def make_schedule(name, **options):
    return getattr(optax, name)(**options)


def make_optimizer(config):
    schedule = make_schedule(**config["schedule"])
    return optax.chain(
        optax.clip_by_global_norm(config.get("clip", 1.0)),
        getattr(optax, config["name"])(schedule),
    )


@cache.stage(tools=["jax", "jaxlib", "optax"])
def optimise(config: dict, steps: int) -> list[float]:
    optimizer = make_optimizer(config)
    x = jnp.array([2.0, -1.0])
    state = optimizer.init(x)

    def rosenbrock(x):
        return (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2

    @jax.jit
    def step(x, state):
        updates, state = optimizer.update(jax.grad(rosenbrock)(x), state, x)
        return optax.apply_updates(x, updates), state

    for _ in range(steps):
        x, state = step(x, state)
    return [round(float(v), 4) for v in x]


@cache.stage(tools=["jax", "optax"])
def curve(config: dict, steps: int) -> np.ndarray:
    return np.array([float(make_schedule(**config["schedule"])(i)) for i in range(steps)])


def main():
    with open("optimizers.yaml") as f:
        configs = yaml.safe_load(f)
    for label, config in configs.items():
        print("RESULT", label, optimise(config, 6), np.round(curve(config, 6), 5).tolist())


if __name__ == "__main__":
    main()
