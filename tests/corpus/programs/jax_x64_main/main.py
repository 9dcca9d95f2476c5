import argparse
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


def logdet(a):
    sign, value = jnp.linalg.slogdet(a @ a.T + jnp.eye(a.shape[0]))
    return sign * value


@cache.stage(tools=["jax", "jaxlib"])
def compile_logdet(n: int) -> str:
    return jax.jit(logdet).lower(jnp.zeros((n, n))).as_text()


@cache.stage(tools=["jax", "jaxlib"])
def evaluate(n: int) -> tuple[str, float]:
    value = jax.jit(logdet)(jnp.arange(n * n, dtype=float).reshape(n, n) / n)
    return str(value.dtype), float(value)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--size", type=int, default=4)
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", not args.single)
    text = compile_logdet(args.size)
    print("RESULT", hashlib.sha256(text.encode()).hexdigest()[:12], "f64" in text)
    dtype, value = evaluate(args.size)
    print("RESULT", dtype, np.round(value, 6))


if __name__ == "__main__":
    main()
