"""A two-layer perceptron in MLIR: y = relu(x w1 + b1) w2, its weights outside or inside.

A weight outside is a ``memref.global`` without initialiser: an undefined symbol of the library. ``constant``: the code
does not write to it. It must not be "private": MLIR gives a private one without initialiser any value (``undef``) and
drops what reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cachec
from cachec.model import WeightSpec

if TYPE_CHECKING:
    import numpy as np

BODY = """\
func.func @mlp(%x: memref<{batch}x{width}xf32>, %y: memref<{batch}x{width}xf32>) attributes {{llvm.emit_c_interface}} {{
  %w1 = memref.get_global @w1 : memref<{width}x{hidden}xf32>
  %b1 = memref.get_global @b1 : memref<{hidden}xf32>
  %w2 = memref.get_global @w2 : memref<{hidden}x{width}xf32>
  %h = memref.alloc() : memref<{batch}x{hidden}xf32>
  %zero = arith.constant 0.0 : f32
  %cut = arith.constant {cut} : f32
  linalg.broadcast ins(%b1 : memref<{hidden}xf32>) outs(%h : memref<{batch}x{hidden}xf32>) dimensions = [0]
  linalg.matmul ins(%x, %w1 : memref<{batch}x{width}xf32>, memref<{width}x{hidden}xf32>)
    outs(%h : memref<{batch}x{hidden}xf32>)
  linalg.map ins(%h : memref<{batch}x{hidden}xf32>) outs(%h : memref<{batch}x{hidden}xf32>)
    (%each: f32) {{
      %positive = arith.maximumf %each, %cut : f32
      linalg.yield %positive : f32
    }}
  linalg.fill ins(%zero : f32) outs(%y : memref<{batch}x{width}xf32>)
  linalg.matmul ins(%h, %w2 : memref<{batch}x{hidden}xf32>, memref<{hidden}x{width}xf32>)
    outs(%y : memref<{batch}x{width}xf32>)
  memref.dealloc %h : memref<{batch}x{hidden}xf32>
  return
}}
"""


def mlp(weights: Mapping[str, WeightSpec], batch: int, *, threshold: float = 0.0) -> str:
    """The module with its weights outside. weights: the specs of ``w1`` (width, hidden), ``b1`` and ``w2``, float32.

    threshold: a small constant that no name stands for: what ``relu`` cuts at.
    """
    width, hidden = weights["w1"].shape
    globals_ = [f"memref.global constant @{name} : {_type(spec.shape)}\n" for name, spec in weights.items()]
    return "".join(globals_) + BODY.format(batch=batch, width=width, hidden=hidden, cut=f"{threshold:e}")


def inline_mlp(arrays: Mapping[str, np.ndarray[Any, Any]], batch: int) -> str:
    """The same with the weights inside, as hexadecimal."""
    width, hidden = arrays["w1"].shape
    globals_ = [
        f'memref.global constant @{name} : {_type(each.shape)} = dense<"0x{each.tobytes().hex().upper()}">\n'
        for name, each in arrays.items()
    ]
    return "".join(globals_) + BODY.format(batch=batch, width=width, hidden=hidden, cut="0.0")


def types(weights: cachec.WeightSet, batch: int) -> tuple[tuple[str, tuple[int, int]]]:
    """dtype and shape of the input, and of the output: what ``NativeLinked.function`` wants to know."""
    width = weights["w1"].shape[0]
    return (("float32", (batch, width)),)


def _type(shape: tuple[int, ...]) -> str:
    return f"memref<{'x'.join([*map(str, shape), 'f32'])}>"
