"""A policy of dtypes that a context changes for a part of the program."""

import contextlib
from contextvars import ContextVar
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Policy(NamedTuple):
    compute: str = "float32"
    output: str = "float32"


_current = ContextVar("policy", default=Policy())


@contextlib.contextmanager
def use(policy):
    token = _current.set(policy)
    try:
        yield policy
    finally:
        _current.reset(token)


def matmul(a, b):
    policy = _current.get()
    return jnp.matmul(a.astype(policy.compute), b.astype(policy.compute)).astype(policy.output)
