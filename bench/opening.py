"""Opening checkpoints: headers only, whatever the size."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import Row, settle, sparse_checkpoint

_CHILD = """
import os, sys, time
import cachec
from cachec.weights import open_weights

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

before = resident()
started = time.perf_counter()
weights = open_weights(sys.argv[1])
taken = time.perf_counter() - started
assert len(weights) == int(sys.argv[2])
print(taken, resident() - before)
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of bytes and rounds."""
    file = sparse_checkpoint(folder / "big.safetensors", 2000, int(500e9 * scale))
    settle(folder)
    from safetensors import safe_open

    mine, peers, memory = [], [], []
    for _ in range(max(2, int(9 * scale))):
        # a new process each time: a second opening of the same file would be remembered
        out = subprocess.run([sys.executable, "-c", _CHILD, file, "2000"], capture_output=True, text=True, check=True)
        taken, grown = out.stdout.split()
        mine.append(float(taken))
        memory.append(float(grown))
        started = time.perf_counter()
        with safe_open(file, "numpy") as peer:
            assert len(list(peer.keys())) == 2000
        peers.append(time.perf_counter() - started)
    took, peer_took, grew = statistics.median(mine), statistics.median(peers), statistics.median(memory)
    return [
        Row(
            "open_weights, sparse 500 GB, 2,000 tensors",
            took * 1e3,
            "ms",
            "<= 4x of safe_open",
            took <= 4 * peer_took,
            f"safetensors.safe_open {peer_took * 1e3:.1f} ms",
            took / peer_took,
        ),
        Row("memory of that", grew / 1e6, "MB", "< 20", grew < 20e6),
    ]
