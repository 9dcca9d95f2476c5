import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()

TOLERANCE = 1e-4
PROBLEMS = {
    "root": lambda x: x**2 - 2.0,
    "cubic": lambda x: x**3 - x - 1.0,
    "log": lambda x: jnp.log(x) - 0.5,
}


def newton(f, x0):
    df = jax.grad(f)

    def unfinished(state):
        x, i = state
        return (jnp.abs(f(x)) > TOLERANCE) & (i < 50)

    def update(state):
        x, i = state
        return x - f(x) / df(x), i + 1

    return jax.lax.while_loop(unfinished, update, (x0, 0))


@cache.stage(tools=["jax", "jaxlib"])
def solve(problem: str, x0: float) -> tuple[float, int]:
    x, i = jax.jit(lambda x: newton(PROBLEMS[problem], x))(x0)
    return round(float(x), 5), int(i)


if __name__ == "__main__":
    for problem in PROBLEMS:
        print("RESULT", problem, solve(problem, 1.5))
