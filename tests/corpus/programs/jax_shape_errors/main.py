"""Which of several architectures can be compiled for a given input?"""

import jax
import jax.numpy as jnp

import cachec

cache = cachec.Cache()


class Unsupported(Exception):
    def __init__(self, name, cause):
        super().__init__(f"{name}: {cause}")
        self.name = name


def conv(x):
    k = jnp.ones((4, x.shape[1], 3))
    return jax.lax.conv(x, k, (1,), "VALID")


def dense(x):
    return x.reshape(x.shape[0], -1) @ jnp.ones((12, 2))


MODELS = {"conv": conv, "dense": dense}


@cache.stage(tools=["jax", "jaxlib"])
def output_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return jax.eval_shape(MODELS[name], jax.ShapeDtypeStruct(shape, jnp.float32)).shape
    except TypeError as error:
        raise Unsupported(name, str(error).splitlines()[0][:40]) from error


def main():
    for name in MODELS:
        for shape in [(2, 3, 4), (2, 3, 5), (1, 2, 6)]:
            try:
                print("RESULT", name, shape, output_shape(name, shape))
            except Unsupported as error:
                print("RESULT", name, shape, "unsupported", error.name, error)


if __name__ == "__main__":
    main()
