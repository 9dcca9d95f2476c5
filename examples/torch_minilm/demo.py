"""MiniLM through torch, cold and with other weights: ``python demo.py [FOLDER]``, by default ``.demo-torch``.

Each line is a process of its own. Those of ``torch.compile`` find an empty Inductor folder each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "minilm")]

from checkpoint import folder as checkpoint_folder  # noqa: E402

#: What differs between compiled and eager torch at most: rows have length 1.
TOLERANCE = 1e-5


def fine_tuned(path: Path, place: Path) -> Path:
    """The checkpoint with other numbers, as training would leave it."""
    from safetensors.numpy import load_file, save_file

    random, tensors = np.random.default_rng(0), load_file(path)
    for name, tensor in tensors.items():
        if tensor.dtype == np.float32:
            tensors[name] = tensor + 0.02 * tensor.std() * random.standard_normal(tensor.shape, "f4")
    save_file(tensors, place)
    return place


def run(how: str, weights: Path, work: Path) -> tuple[np.ndarray, float]:
    """The embeddings, and the seconds from the start of the process to its end."""
    inductor, output = work / "inductor", work / "embeddings.npy"
    shutil.rmtree(inductor, ignore_errors=True)
    environ = os.environ | {"CACHEC_DIR": str(work / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(inductor)}
    started = time.perf_counter()
    subprocess.run([sys.executable, HERE / "run.py", how, weights, output], env=environ, check=True)
    return np.load(output), time.perf_counter() - started


def main() -> None:
    work = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo-torch").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    trained = checkpoint_folder() / "model.safetensors"
    sets = {"trained": trained, "fine-tuned": fine_tuned(trained, work / "tuned.safetensors")}
    expected = {name: run("eager", path, work)[0] for name, path in sets.items()}
    print(f"{'':24}{'weights':12}{'seconds':>8}  against eager torch")
    for how, words in (("aoti", "export and AOTInductor"), ("compile", "torch.compile")):
        for name, path in sets.items():
            result, seconds = run(how, path, work)
            error = float(abs(result - expected[name]).max())
            print(f"{words:24}{name:12}{seconds:8.1f}  {error:.1e}", flush=True)
            if not error < TOLERANCE:
                sys.exit(f"{words} gives other numbers than eager torch")
    subprocess.run(
        [sys.executable, "-m", "cachec", "--dir", work / "cache", "stats"],
        check=True,
    )


if __name__ == "__main__":
    main()
