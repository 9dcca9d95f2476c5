"""``cachec exec``: a hit as a whole process, against bare Python and ccache on the same C file, and a real compile.

The console script is stood in for by one line that does what the installed one does; byte code is compiled before, as
an installer does.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.harness import Row, interleaved, settle
from bench.minilm import EXAMPLE

_IREE = Path(sys.executable).with_name("iree-compile")
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-type=stablehlo",
    "--iree-llvmcpu-target-cpu=host",
)


class _Setting(NamedTuple):
    folder: Path
    script: Path
    environ: Mapping[str, str]

    def exec(self, *line: str, options: Sequence[str] = ()) -> None:
        """One command line behind `cachec exec`."""
        self.call([str(self.script), "exec", *options, "--", *line])

    def call(self, line: Sequence[str]) -> None:
        """One process, in the folder."""
        subprocess.run(line, cwd=self.folder, env=self.environ, check=True, capture_output=True)

    def last(self) -> str:
        """The reason of the newest outcome."""
        log = max((self.folder / "store" / "log").iterdir())
        return log.read_text().splitlines()[-1].split('"')[3]


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds, and of the bytes of the model."""
    setting = _setting(folder)
    clang = next((name for name in ("clang-19", "clang", "cc") if shutil.which(name)), "cc")
    rows = _against_python(setting, clang, max(3, int(101 * scale)))
    if _IREE.exists():
        rows += _iree(setting, max(3, int(7 * scale)), scale)
    return rows


def _setting(folder: Path) -> _Setting:
    script = folder / "cachec"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom cachec.__main__ import main\nsys.exit(main())\n")
    script.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHEC_")}
    environ |= {"CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off", "CCACHE_DIR": str(folder / "ccache")}
    environ |= {"PYTHONPYCACHEPREFIX": str(folder / "pycache"), "CACHEC_SERVER": "off"}  # hits need none
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return _Setting(folder, script, environ)


def _against_python(setting: _Setting, clang: str, rounds: int) -> list[Row]:
    folder = setting.folder
    (folder / "a.c").write_text('#include <stdio.h>\nint f(void) { return puts("x"); }\n')
    line = (clang, "-O2", "-c", "a.c", "-o", "a.o")
    for _ in range(2):
        setting.exec(*line)
        settle(folder / "store")
    tasks: dict[str, Callable[[Path], object]] = {
        "bare": lambda _: setting.call([sys.executable, "-c", "pass"]),
        "hit": lambda _: setting.exec(*line),
        "compile": lambda _: setting.call(line),
    }
    if shutil.which("ccache"):
        tasks["ccache"] = lambda _: setting.call(["ccache", *line])
    numbers = itertools.count()

    def counted(_: Path) -> None:
        copy = str(folder / f"stats-{next(numbers)}")  # as a build system has one for each build
        setting._replace(environ={**setting.environ, "CACHEC_STATS_FILE": copy}).exec(*line)

    tasks["counted"] = counted
    times = interleaved(tasks, rounds, fresh=dict.fromkeys(tasks, lambda: (folder / "a.o").unlink(missing_ok=True)))
    assert setting.last() == "hit"
    ratio = times["hit"] / times["bare"]
    rows = [
        Row(
            "cachec exec hit, whole process",
            times["hit"] * 1e3,
            "ms",
            "<= 2.0x python -c pass",
            ratio <= 2.0,
            f"python -c pass {times['bare'] * 1e3:.1f} ms",
            ratio,
        ),
        Row(
            "the same with a new CACHEC_STATS_FILE",
            times["counted"] * 1e3,
            "ms",
            "<= 1.3x of any hit",
            times["counted"] <= 1.3 * times["hit"],
            f"any hit {times['hit'] * 1e3:.1f} ms",
            times["counted"] / times["hit"],
        ),
        Row("the compile that it saves", times["compile"] * 1e3, "ms"),
    ]
    if "ccache" in times:
        rows.append(Row("ccache hit on the same file", times["ccache"] * 1e3, "ms"))
    peak = _peak_kib(setting, line) / 1024
    return [*rows, Row("cachec exec hit, peak memory", peak, "MiB", "< 20", peak < 20)]


#: Starts a command from a small process: what a large one starts is counted with the pages of its parent (fs/exec.c).
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0)])
_, status, usage = os.wait4(pid, 0)
print(status, usage.ru_maxrss)
"""


def _peak_kib(setting: _Setting, line: Sequence[str]) -> int:
    started = [sys.executable, "-I", "-S", "-c", _MEASURE, str(setting.script), "exec", "--", *line]
    done = subprocess.run(started, cwd=setting.folder, env=setting.environ, check=True, capture_output=True, text=True)
    status, peak = map(int, done.stdout.split())
    assert status == 0
    assert setting.last() == "hit"
    return peak


def _iree(setting: _Setting, rounds: int, scale: float) -> list[Row]:
    """A model as text with its weights inline: hit against compile; and other weights with ``--strip``.

    MiniLM at full scale, else two small matrices, without bars.
    """
    folder = setting.folder
    if scale >= 1:
        _write_minilm(folder)
    else:
        for seed, name in ((1, "m"), (2, "tuned")):
            (folder / f"{name}.mlir").write_text(_model(seed, 64, 2))
    line = (str(_IREE), "m.mlir", "-o", "m.vmfb", *_FLAGS)
    for _ in range(2):
        setting.exec(*line)
        settle(folder)
    times = interleaved({"hit": lambda: setting.exec(*line), "compile": lambda: setting.call(line)}, rounds)
    stripped = (str(_IREE), "m.mlir", "-o", "s.vmfb", *_FLAGS)
    setting.exec(*stripped, options=["--strip"])
    settle(folder)
    tuned = []
    for _ in range(rounds):
        (folder / "m.mlir").rename(folder / "other.mlir")
        (folder / "tuned.mlir").rename(folder / "m.mlir")
        (folder / "other.mlir").rename(folder / "tuned.mlir")
        (folder / "m.mlir").read_bytes()  # into the page cache
        started = time.perf_counter()
        setting.exec(*stripped, options=["--strip"])
        tuned.append(time.perf_counter() - started)
        assert setting.last() == "hit"
    ratio = times["compile"] / times["hit"]
    share = statistics.median(tuned) / times["compile"]
    compiled = f"compile {times['compile'] * 1e3:.0f} ms"
    size = f"{(folder / 'm.mlir').stat().st_size / 1e6:.0f} MB"
    fast, cheap = (ratio >= 50, share <= 0.1) if scale >= 1 else (None, None)
    name = "iree-compile of MiniLM" if scale >= 1 else "iree-compile"
    return [
        Row(f"{name}, {size} of text: hit", times["hit"] * 1e3, "ms", ">= 50x", fast, compiled, ratio),
        Row(
            f"{name}, fine-tuned, --strip: hit and weights written",
            statistics.median(tuned) * 1e3,
            "ms",
            "<= 10% of the compile",
            cheap,
            compiled,
            share,
        ),
    ]


def _write_minilm(folder: Path) -> None:
    """``m.mlir`` and ``tuned.mlir``: MiniLM with its weights inline, and with others."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import checkpoint
        from layers import inputs
        from model import minilm
    finally:
        sys.path.remove(str(EXAMPLE))
    from cachec_jax import to_stablehlo
    from cachec_mlir import link

    weights = checkpoint.open_checkpoint()
    program = to_stablehlo(minilm, weights.placeholders(), *inputs(3, 16))
    data = bytearray((checkpoint.folder() / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    body = np.frombuffer(data, "u1", offset=start)
    body[::4] ^= 1  # the last bits of every number
    (folder / "tuned.safetensors").write_bytes(data)
    tuned = checkpoint.open_checkpoint(folder / "tuned.safetensors")
    for held, name in ((weights, "m"), (tuned, "tuned")):
        link(program.ir, held, folder / f"{name}.mlir", references="parameter", inline=list(held))


def _model(seed: int, width: int, layers: int) -> str:
    rng = np.random.default_rng(seed)
    kind, square = f"tensor<8x{width}xf32>", f"tensor<{width}x{width}xf32>"
    lines = [f"func.func @main(%x0: {kind}) -> {kind} {{"]
    for layer in range(layers):
        data = rng.standard_normal((width, width)).astype("f4").tobytes().hex().upper()
        lines += [
            f'  %w{layer} = stablehlo.constant dense<"0x{data}"> : {square}',
            f"  %y{layer} = stablehlo.dot_general %x{layer}, %w{layer}, contracting_dims = [1] x [0] "
            f": ({kind}, {square}) -> {kind}",
            f"  %x{layer + 1} = stablehlo.tanh %y{layer} : {kind}",
        ]
    return "\n".join([*lines, f"  return %x{layers} : {kind}", "}\n"])
