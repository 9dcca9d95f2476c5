"""MLIR: strip, relink and hash modules of gigabytes, against MLIR's own tools and ``cp``."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import Row, against, settle
from bench.minilm import EXAMPLE, SENTENCES, left_out

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).parents[1]
MLIR_OPT = "mlir-opt-19"
RESOURCES = 2000

#: Strip a text in a process of its own and print the seconds, and by how much its anonymous memory grew at most.
_STRIP = """
import json, sys, threading, time
from cachec_mlir import strip
def private():
    with open("/proc/self/status") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
before = most = private()
done = threading.Event()
def watch():
    global most
    while not done.wait(0.002):
        most = max(most, private())
threading.Thread(target=watch, daemon=True).start()
started = time.perf_counter()
stripped = strip(sys.argv[1])
taken = time.perf_counter() - started
done.set()
print(json.dumps([taken, max(most, private()) - before, len(stripped.resources), len(stripped.ir)]))
"""

#: The same for bytecode: seconds, and the growth of the counters of proc(5), ``/proc/self/io``.
_STRIP_COLD = """
import json, sys, time
from cachec_mlir import strip
def read():
    with open("/proc/self/io") as lines:
        return {k: int(v) for k, v in (line.split(": ") for line in lines) if k in {"rchar", "read_bytes"}}
before = read()
started = time.perf_counter()
stripped = strip(sys.argv[1])
taken = time.perf_counter() - started
after = read()
print(json.dumps([taken, after["rchar"] - before["rchar"], after["read_bytes"] - before["read_bytes"],
                  len(stripped.resources)]))
"""


#: What another process has hashed before, in a file that this one has never seen: seconds of BLAKE3 over the bytes of a
#: file in the page cache, of the look, and of the program with its manifest.
_KNOWN = """
import json, shutil, sys, time
from pathlib import Path
from cachec.base.hashing import digest_bytes
from cachec.store.store import Store
from cachec_mlir import Topologies, program
module = Path(sys.argv[1])
copy = Path(shutil.copy(module, module.with_suffix(".copy")))
store = Store(module.with_suffix(".store"))
copy.read_bytes()
started = time.perf_counter()
digest_bytes(copy.read_bytes())
hashed = time.perf_counter() - started
started = time.perf_counter()
Topologies(store.digests).of(copy)
taken = time.perf_counter() - started
started = time.perf_counter()
program(copy, digests=store.digests)
stripped = time.perf_counter() - started
store.close()
print(json.dumps([hashed, taken, stripped]))
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the bytes and rounds; below 1 MiniLM has one layer. Raises RuntimeError without a tool."""
    if shutil.which(MLIR_OPT) is None:
        raise RuntimeError(f"bench.mlir needs {MLIR_OPT} (Debian: mlir-19-tools)")
    rows: list[Row] = []
    for part in (_bytecode, _text, _topology):
        place = folder / part.__name__.strip("_")
        place.mkdir()
        rows += part(place, scale, max(2, int(9 * scale)))
        shutil.rmtree(place)
    return rows


# --- bytecode: strip in place, relink


def _bytecode(folder: Path, scale: float, rounds: int) -> list[Row]:
    from cachec.weights import from_arrays
    from cachec_mlir import link, relink, relink_by_reference

    each = max(64, int(GIB * scale) // RESOURCES // 64 * 64)
    names = [f"layers.{i}.weight" for i in range(RESOURCES)]
    ir = folder / "stripped.mlirbc"
    ir.write_bytes(_declared(names, each // 4))
    module = folder / "module.mlirbc"
    link(ir, from_arrays({name: _noise(each // 4, i) for i, name in enumerate(names)}), module, fsync=True)
    settle(folder)
    nbytes = module.stat().st_size
    cold = [_cold(module) for _ in range(rounds)]
    assert all(answer[3] == RESOURCES for answer in cold)
    seconds, read = (statistics.median(answer[i] for answer in cold) for i in (0, 1))
    from_disk = statistics.median(answer[2] for answer in cold)
    made = {name: folder / name for name in ("cp", "relink", "reference")}
    tasks: dict[str, Callable[[], object]] = {
        "cp": lambda: subprocess.run(["cp", module, made["cp"]], check=True),
        "relink": lambda: relink(ir, module, made["relink"]),
        "reference": lambda: relink_by_reference(ir, module, made["reference"]),
    }
    took = _in_turn(tasks, rounds, lambda name: made[name].unlink())
    relink(ir, module, made["relink"])
    assert _equal(made["relink"], module)
    ratio = took["cp"] / took["relink"]
    return [
        against("strip bytecode, 1 GiB in 2,000 resources, cold", seconds, 0.1, "cp", took["cp"]),
        Row("bytes that reads (/proc/self/io)", read / 1e6, "MB", "< 1", read < 1e6, f"disk {from_disk / 1e6:.2f} MB"),
        Row(
            "relink new IR with 1 GiB of resources",
            nbytes / took["relink"] / GIB,
            "GiB/s",
            ">= 0.8x of cp",
            ratio >= 0.8,
            f"cp {nbytes / took['cp'] / GIB:.2f} GiB/s",
            ratio,
        ),
        against("the same by reference", took["reference"], 0.1, "cp", took["cp"]),
    ]


def _declared(names: list[str], elements: int) -> bytes:
    """Bytecode of IREE's that uses resources it has no bytes of."""
    lines = (f'"op"() {{value = dense_resource<{name}> : tensor<{elements}xf32>}} : () -> ()' for name in names)
    command = [_iree("iree-opt"), "--allow-unregistered-dialect", "--emit-bytecode", "-"]
    return subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True).stdout


def _cold(module: Path) -> list[float]:
    """Strip after the kernel has let go of the file's pages."""
    fd = os.open(module, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return _child(_STRIP_COLD, module)


# --- text


def _text(folder: Path, scale: float, rounds: int) -> list[Row]:
    from cachec.weights import from_arrays
    from cachec_mlir import link

    count = 16
    elements = max(64, int(128 * MIB * scale) // count // 4)
    ir = "".join(f'"op"() {{value = dense_resource<w{i}> : tensor<{elements}xf32>}} : () -> ()\n' for i in range(count))
    module = folder / "module.mlir"
    link(ir.encode(), from_arrays({f"w{i}": _noise(elements, i) for i in range(count)}), module, alignment=16)
    times: dict[str, list[float]] = {name: [] for name in ("mine", "iree-opt", MLIR_OPT)}
    grown = []
    for number in range(max(2, rounds // 3)):
        for name in _rotated(list(times), number):
            if name == "mine":
                seconds, private, found, size = _child(_STRIP, module)
                assert (found, size < 4096) == (count, True)
                grown.append(private)
            else:
                seconds = _stripped_by(name, module, folder / "out.mlir")
            times[name].append(seconds)
    took = {name: statistics.median(each) for name, each in times.items()}
    fastest = min(("iree-opt", MLIR_OPT), key=took.__getitem__)
    ratio, most = took[fastest] / took["mine"], max(grown)
    return [
        Row(
            "strip a text of 256 MiB of digits",
            took["mine"] * 1e3,
            "ms",
            ">= 5x faster than the faster peer",
            ratio >= 5,
            ", ".join(f"{name} {took[name] * 1e3:.0f} ms" for name in ("iree-opt", MLIR_OPT)),
            ratio,
        ),
        Row("private memory of that", most / MIB, "MiB", "< 100", most < 100 * MIB),
    ]


def _stripped_by(tool: str, module: Path, out: Path) -> float:
    """Seconds that a tool takes to read the module and to print it without the bytes."""
    executable = _iree(tool) if tool == "iree-opt" else tool
    options = ["--allow-unregistered-dialect", "--mlir-elide-resource-strings-if-larger=16"]
    started = time.perf_counter()
    subprocess.run([executable, *options, module, "-o", out], check=True)
    return time.perf_counter() - started


# --- topology


def _topology(folder: Path, scale: float, rounds: int) -> list[Row]:
    from cachec.store.store import Store
    from cachec_mlir.topology_hash import Topologies, topology

    module = folder / "minilm.mlir"
    module.write_bytes(_minilm(scale))
    copies = max(2, int(10e6 * scale / module.stat().st_size))
    large, part = folder / "large.mlir", folder / "part.mlir"
    large.write_bytes(_repeated(module.read_bytes(), copies))
    tenth = max(1, copies // 10)
    part.write_bytes(_repeated(module.read_bytes(), tenth))
    settle(folder)
    rows = []
    for path, title, compile_seconds, peer in (
        (module, "MiniLM's StableHLO", _compile(module), ""),
        (large, "a StableHLO text of 10 MB", _compile(part) * copies / tenth, f", by 1/{copies // tenth} of it"),
    ):
        remembered = Topologies()
        assert remembered.of(path) == topology(path)
        looks: dict[str, Callable[[], object]] = {
            "hash": partial(topology, path),
            "again": partial(remembered.of, path),
        }
        took = _in_turn(looks, rounds)
        share = took["hash"] / compile_seconds
        size = path.stat().st_size
        peer = f"iree-compile {compile_seconds:.2f} s{peer}"
        rows += [
            Row(f"topology hash of {title}", size / 1e6 / took["hash"], "MB/s"),
            Row(f"share of the compile, {title}", share * 100, "%", "< 2", share < 0.02, peer, 1 / share),
            against(f"second look at {title}", took["again"], 0.1, "the hash", took["hash"]),
        ]
    Store(large.with_suffix(".store")).prepare()
    _child(_KNOWN, large)  # the first process
    pairs = [_child(_KNOWN, large) for _ in range(rounds)]
    for at, what in ((1, "topology"), (2, "program")):
        share = statistics.median(each[at] / each[0] for each in pairs)
        rows.append(
            Row(
                f"{what} that another process knows, 10 MB of text",
                statistics.median(each[at] for each in pairs) * 1e3,
                "ms",
                "<= 1.2x of BLAKE3 over its bytes",
                share <= 1.2 if scale >= 1 else None,
                f"BLAKE3 {statistics.median(each[0] for each in pairs) * 1e3:.1f} ms",
                share,
            )
        )
    return rows


def _minilm(scale: float) -> bytes:
    """The program that the example's first stage makes; below full scale of one layer."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import pipeline
        from checkpoint import open_checkpoint
        from layers import inputs
        from model import minilm

        from cachec_jax import to_stablehlo

        with open_checkpoint().select(exclude=left_out(scale)) as weights:
            return to_stablehlo(minilm, weights.placeholders(), *inputs(len(SENTENCES), pipeline.LENGTH)).ir
    finally:
        sys.path.remove(str(EXAMPLE))


def _repeated(module: bytes, copies: int) -> bytes:
    """The module with its functions so many times, under names of their own; its globals once."""
    first, _, rest = module.partition(b"\n")
    lines = rest.rstrip().removesuffix(b"}").splitlines(keepends=True)
    kept = b"".join(line for line in lines if b"util.global private" in line)
    functions = b"".join(line for line in lines if b"util.global private" not in line)
    return b"".join(
        [first, b"\n", kept, *(re.sub(rb"@(\w+)\(", rb"@\1_%d(" % i, functions) for i in range(copies)), b"}\n"]
    )


def _compile(module: Path) -> float:
    """Seconds of iree-compile."""
    options = ["--iree-input-type=stablehlo", "--iree-hal-target-device=local"]
    options += ["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
    started = time.perf_counter()
    subprocess.run([_iree("iree-compile"), *options, module, "-o", os.devnull], check=True, capture_output=True)
    return time.perf_counter() - started


# --- helpers


def _in_turn(
    tasks: Mapping[str, Callable[[], object]], rounds: int, clean: Callable[[str], object] | None = None
) -> dict[str, float]:
    """The median seconds of each task; each round runs all, beginning with another one. clean: after each, untimed."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(-1, rounds):
        for name in _rotated(list(tasks), number):
            started = time.perf_counter()
            tasks[name]()
            taken = time.perf_counter() - started
            if clean is not None:
                clean(name)
            if number >= 0:
                times[name].append(taken)
    return {name: statistics.median(each) for name, each in times.items()}


def _rotated(names: list[str], number: int) -> list[str]:
    first = number % len(names)
    return names[first:] + names[:first]


def _child(code: str, module: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, module], cwd=ROOT, capture_output=True, check=False, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: list[float] = json.loads(done.stdout)
    return answer


def _iree(tool: str) -> str:
    """A tool of the installed compiler: beside the interpreter, else on PATH."""
    beside = Path(sys.executable).with_name(tool)
    found = str(beside) if beside.exists() else shutil.which(tool)
    if found is None:
        raise RuntimeError(f"bench.mlir needs {tool} (pip install 'cachec[iree]')")
    return found


def _noise(count: int, seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).random(count, np.float32)


def _equal(one: Path, other: Path) -> bool:
    return subprocess.run(["cmp", one, other], check=False).returncode == 0
