"""The code of docs/reference/frameworks.md for IREE and MLIR, run as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from tests import pages

MODULE = """\
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %w = arith.constant dense_resource<w0> : tensor<8x16xf32>
  %y = arith.addf %x, %w : tensor<8x16xf32>
  return %y : tensor<8x16xf32>
}
"""
CHECKS = """
import numpy as np
x = np.ones((8, 16), "f4")
assert np.array_equal(run(x), x + found.weights["w0"].read())
assert cache.call(build, found.program)[1].reason.value == "hit"
"""


def test_the_code_runs(tmp_path):
    w = np.arange(128, dtype="f4").reshape(8, 16)
    trailer = '{-# dialect_resources: { builtin: { w0: "0x10000000' + w.tobytes().hex() + '" } } #-}\n'
    (tmp_path / "big.mlir").write_text(MODULE + trailer)
    (block,) = pages.blocks("python", "reference/frameworks.md", "## IREE and MLIR")
    (tmp_path / "script.py").write_text(block + CHECKS)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "CACHEC_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
