import jax
import jax.numpy as jnp
import numpy as np

import cachec
from ode.field import Field
from ode.solve import SOLVERS, integrate

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib", "equinox"])
def trajectory(method: str, steps: int, dt: float, seed: int = 0) -> np.ndarray:
    field = Field(2, key=jax.random.key(seed))
    y0 = jnp.array([1.0, -1.0])
    return np.asarray(jax.jit(lambda y: integrate(field, y, steps, dt, method))(y0))


if __name__ == "__main__":
    for method in sorted(SOLVERS):
        print("RESULT", method, np.round(trajectory(method, 5, 0.1)[-1], 4).tolist())
