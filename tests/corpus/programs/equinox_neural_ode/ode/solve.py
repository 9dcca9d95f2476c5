import jax
import jax.numpy as jnp

SOLVERS = {}


def solver(fn):
    SOLVERS[fn.__name__] = fn
    return fn


@solver
def euler(f, t, y, dt):
    return y + dt * f(t, y)


@solver
def heun(f, t, y, dt):
    k1 = f(t, y)
    k2 = f(t + dt, y + dt * k1)
    return y + dt / 2 * (k1 + k2)


def integrate(f, y0, steps, dt, method):
    step = SOLVERS[method]

    def body(y, t):
        y = step(f, t, y, dt)
        return y, y

    return jax.lax.scan(body, y0, dt * jnp.arange(steps))[1]
