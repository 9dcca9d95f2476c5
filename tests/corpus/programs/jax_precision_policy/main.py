import jax
import jax.numpy as jnp

import cachec
import policy
from policy import Policy

cache = cachec.Cache()
MIXED = Policy(compute="bfloat16")


def tower(x, depth):
    for _ in range(depth):
        x = jnp.sin(policy.matmul(x, x))
    return x


@cache.stage(tools=["jax", "jaxlib"])
def dtypes(depth: int) -> list[str]:
    text = jax.jit(tower, static_argnums=1).lower(jnp.ones((2, 2)), depth).as_text()
    return sorted({word.rstrip(",>)") for word in text.replace("tensor<", " ").split() if word.startswith("2x2x")})


def main():
    print("RESULT", dtypes(1))
    with policy.use(MIXED):
        print("RESULT", dtypes(1))
        print("RESULT", dtypes(2))


if __name__ == "__main__":
    main()
