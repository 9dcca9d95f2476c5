"""Kernels of Triton for the tests of cachec_triton. Imports triton."""

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(3)
SIGNATURE = {"x": "*fp32", "w": "*fp32", "out": "*fp32", "n": "i32", "size": "constexpr"}


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def shifted(x):
    return x + FACTOR


@triton.jit
def weighted(x, w, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    mask = at < n
    tl.store(out + at, scaled(tl.load(x + at, mask=mask)) * tl.load(w + at, mask=mask) + 1.0, mask=mask)


@triton.jit
def other(x, w, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


tuned = triton.autotune(configs=[triton.Config({"size": 128})], key=["n"])(weighted)
