import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


class Net(nn.Module):
    momentum: float = 0.9
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(6, dtype=self.dtype)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)(x)
        return nn.Dense(1, dtype=self.dtype)(nn.elu(x))


@cache.stage(tools=["jax", "jaxlib", "flax"])
def statistics(momentum: float, batches: int) -> dict[str, list[float]]:
    net = Net(momentum=momentum)
    rng = np.random.default_rng(0)
    variables = net.init(jax.random.key(0), jnp.ones((1, 3)), train=False)
    for _ in range(batches):
        x = rng.normal(1.0, 2.0, size=(8, 3)).astype(np.float32)
        _, updates = net.apply(variables, x, train=True, mutable=["batch_stats"])
        variables = {**variables, **updates}
    stats = variables["batch_stats"]["BatchNorm_0"]
    return {name: [round(float(v), 3) for v in value] for name, value in sorted(stats.items())}


@cache.stage(tools=["jax", "jaxlib", "flax"])
def table(width: int) -> str:
    text = nn.tabulate(Net(), jax.random.key(0), console_kwargs={"width": width, "force_terminal": False})(
        jnp.ones((1, 3)), train=False
    )
    return text


def main():
    for momentum in (0.9, 0.5):
        print("RESULT", momentum, statistics(momentum, 3))
    print("RESULT", [line.strip() for line in table(100).splitlines() if "Total" in line])


main()
