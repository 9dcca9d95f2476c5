"""Modules to test on: bytecode built here by hand, and what IREE and JAX print."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import cachec_iree

#: The program itself; the script of that name beside Python's takes ten times as long.
IREE_OPT = cachec_iree.find_iree_compile().with_name("iree-opt")
EXAMPLE = Path(__file__).parents[3] / "examples" / "minilm"


def number(value: int, *, wide: bool = False) -> bytes:
    """A PrefixVarInt, by the table in BytecodeFormat.md; wide: in nine bytes."""
    if wide:
        return b"\0" + value.to_bytes(8, "little")
    for more in range(8):
        if value < 1 << (7 * (more + 1)):
            return ((value << (more + 1)) | (1 << more)).to_bytes(more + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


class Builder:
    """Bytecode, a piece at a time. wide: every number of the resource sections in nine bytes."""

    def __init__(self, *, wide: bool = False, align: int = 16) -> None:
        self.wide = wide
        self.align = align
        self.out = b"ML\xefR" + number(6) + b"by hand\0"
        self.table: list[bytes] = []

    def n(self, value: int) -> bytes:
        return number(value, wide=self.wide)

    def string(self, text: str) -> int:
        raw = text.encode() + b"\0"
        if raw not in self.table:
            self.table.append(raw)
        return self.table.index(raw)

    def section(self, number_: int, data: bytes, align: int = 1) -> None:
        head = bytes([number_ | (0x80 if align > 1 else 0)]) + number(len(data))
        if align > 1:
            head += number(align)
            head += b"\xcb" * (-(len(self.out) + len(head)) % align)
        self.out += head + data

    def blob(self, at: int, data: bytes, align: int) -> bytes:
        head = self.n(align) + self.n(len(data))
        return head + b"\xcb" * (-(at + len(head)) % align) + data

    def finish(
        self,
        blobs: Sequence[tuple[str, bytes | None]],
        settings: Sequence[tuple[str, int, bytes]] = (),
        group="builtin",
    ) -> bytes:
        """blobs: name and bytes, or None for one that is declared only. settings: external ones, name, kind, value."""
        for each in (1, 3, 2, 4):
            self.section(each, bytes([each]) * (10 + each))
        data, offsets = b"", self.n(1 if settings else 0)
        if settings:
            offsets += self.n(self.string("owner")) + self.n(len(settings))
            for name, kind, value in settings:
                offsets += self.n(self.string(name)) + self.n(len(value)) + bytes([kind])
                data += value
        offsets += self.n(self.string(group)) + self.n(len(blobs))
        for name, raw in blobs:
            blob = b"" if raw is None else self.blob(len(data), raw, self.align)
            offsets += self.n(self.string(name)) + self.n(len(blob)) + b"\0"
            data += blob
        self.section(6, offsets)
        self.section(5, data, self.align)
        lengths = b"".join(number(len(each)) for each in reversed(self.table))
        self.section(0, number(len(self.table)) + lengths + b"".join(self.table))
        return self.out


BLOBS = (("w", bytes(range(40))), ("naïve name", b"\xff" * 24), ("last", b"\1\2\3\4"))
SETTINGS = (("flag", 1, b"\1"), ("text", 2, number(0)))


@pytest.fixture
def bytecode() -> bytes:
    return Builder().finish(BLOBS, SETTINGS)


PROGRAM = """\
module @m {{
  util.global private @w1 = {w1} : tensor<8x16xf32>
  util.global private @w2 = {w2} : tensor<16x8xf32>
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
    %w1 = util.global.load @w1 : tensor<8x16xf32>
    %w2 = util.global.load @w2 : tensor<16x8xf32>
    %c = arith.constant dense<0.0> : tensor<4x16xf32>
    %h = linalg.matmul ins(%x, %w1 : tensor<4x8xf32>, tensor<8x16xf32>) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
    %t = math.tanh %h : tensor<4x16xf32>
    %d = arith.constant dense<0.0> : tensor<4x8xf32>
    %y = linalg.matmul ins(%t, %w2 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%d : tensor<4x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }}
}}
"""


def arrays(seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {"w1": r.normal(size=(8, 16)).astype("f4"), "w2": r.normal(size=(16, 8)).astype("f4")}


def trailer(items: dict[str, np.ndarray], alignment: int = 16) -> str:
    head = alignment.to_bytes(4, "little").hex()
    body = ",\n".join(f'      {name}: "0x{head}{value.tobytes().hex().upper()}"' for name, value in items.items())
    return "{-#\n  dialect_resources: {\n    builtin: {\n" + body + "\n    }\n  }\n#-}\n"


def program(seed: int) -> str:
    """Two matmuls, weights in the trailer."""
    return PROGRAM.format(w1="dense_resource<w1>", w2="dense_resource<w2>") + trailer(arrays(seed))


def inline_program(seed: int) -> str:
    """The same with weights as constants."""
    return PROGRAM.format(**{name: f'dense<"0x{value.tobytes().hex()}">' for name, value in arrays(seed).items()})


@pytest.fixture(scope="session")
def iree_opt() -> Callable[..., bytes]:
    """Run iree-opt on a module (bytes, by a file) and give what it prints."""

    def run(module: bytes, *options: str) -> bytes:
        done = subprocess.run([IREE_OPT, *options, "-"], input=module, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def minilm() -> tuple[str, str]:
    """MiniLM's StableHLO as JAX prints it, without and with locations; weights are arguments."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import jax
        from checkpoint import open_checkpoint
        from layers import inputs
        from model import minilm

        specs = open_checkpoint().specs
        named = {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for name, spec in specs.items()}
        lowered = jax.jit(minilm).trace(named, *inputs(2, 8)).lower(lowering_platforms=("cpu",))
        return lowered.as_text(), lowered.as_text(debug_info=True)
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in ("checkpoint", "layers", "model"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def mlir_opt() -> Callable[..., bytes]:
    """Run Debian's mlir-opt-19 on a module and give what it prints."""
    import os
    import shutil

    if shutil.which("mlir-opt-19") is None:
        if os.environ.get("CI"):
            pytest.fail("mlir-opt-19 is not installed: apt install mlir-19-tools")
        pytest.skip("mlir-opt-19 is not installed")

    def run(module: bytes, *options: str) -> bytes:
        done = subprocess.run(["mlir-opt-19", *options, "-"], input=module, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
        return done.stdout

    return run
