import jax
import pytest

import cachec
from kernels import gaussian

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def compile_kernel(n: int, dim: int):
    x = jax.ShapeDtypeStruct((n, dim), "float32")
    return jax.jit(gaussian).lower(x).compile()


@pytest.fixture(scope="session")
def compiled():
    return compile_kernel(4, 2)
