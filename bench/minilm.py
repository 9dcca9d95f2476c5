"""A real trained model through real compilers: the example's pipeline, cold and with new weights."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.harness import Row, interleaved, settle
from bench.processes import cpu_of_children, environment
from cachec.base.distributions import Distributions

EXAMPLE = Path(__file__).parents[1] / "examples" / "minilm"
SENTENCES = ["The cat sits outside", "A man is playing guitar", "The new movie is awesome"]


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds; below 1 the model has one layer."""
    os.environ["CACHEC_DIR"] = str(folder / "cache")
    os.environ["CACHEC_LOG"] = "off"
    sys.path.insert(0, str(EXAMPLE))
    try:
        return _rows(folder, scale)
    finally:
        sys.path.remove(str(EXAMPLE))
        del os.environ["CACHEC_DIR"], os.environ["CACHEC_LOG"]


def _rows(folder: Path, scale: float) -> list[Row]:
    import checkpoint
    import pipeline
    from checkpoint import open_checkpoint
    from model import minilm
    from stages import build, lower

    published = checkpoint.folder() / "model.safetensors"
    source = _perturbed(published, folder / "model.safetensors", 0.0, scale)
    tuned = _perturbed(published, folder / "tuned.safetensors", 1e-3, scale)
    settle(folder)
    cold = []
    for _ in range(max(1, int(3 * scale))):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        started = time.perf_counter()
        pipeline.compiled(open_checkpoint(source), len(SENTENCES))
        cold.append(time.perf_counter() - started)
    cold_seconds = statistics.median(cold)
    settle(folder)

    def stages() -> Any:
        weights = open_checkpoint(tuned)
        return build(lower(minilm, weights, len(SENTENCES), pipeline.LENGTH))

    outcomes = pipeline.compiled(open_checkpoint(tuned), len(SENTENCES)).outcomes
    assert all(outcome.hit for outcome in outcomes.values()), outcomes
    times = interleaved(
        {"stages": stages, "linked": lambda: pipeline.compiled(open_checkpoint(tuned), len(SENTENCES))},
        max(3, int(300 * scale)),
    )
    ratio = cold_seconds / times["stages"]
    rows = [
        Row(
            "MiniLM, new weights, same process: hit of the pipeline",
            times["stages"] * 1e3,
            "ms",
            ">= 1,000x under cold",
            ratio >= 1000,
            f"cold {cold_seconds:.2f} s",
            ratio,
        ),
        Row("the same, linked as well", times["linked"] * 1e3, "ms", peer="cold", ratio=cold_seconds / times["linked"]),
    ]
    return rows + _new_process(folder, tuned, scale)


def _new_process(folder: Path, tuned: Path, scale: float) -> list[Row]:
    sentences = folder / "sentences.json"
    sentences.write_text(json.dumps(SENTENCES))
    plain = [sys.executable, str(EXAMPLE / "pipeline.py"), str(tuned), str(sentences)]
    runner = (
        "import runpy, sys, jax; sys.argv = sys.argv[1:]; "
        f"sys.path.insert(0, {str(EXAMPLE)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    with_jax = [sys.executable, "-c", runner, *plain[1:]]
    cold = []
    for number in range(max(1, int(3 * scale))):
        environ = {**os.environ, "CACHEC_DIR": str(folder / f"cold-{number}")}
        started = time.monotonic()
        done = subprocess.run(plain, check=True, capture_output=True, text=True, env=environ)
        cold.append(json.loads(done.stdout)["linked"] - started)
    cold_seconds = statistics.median(cold)
    wheel = environment(PYTHONPATH=str(_as_from_a_wheel(folder / "site")))
    subprocess.run(plain, check=True, capture_output=True, env=wheel)  # another cachec: another key
    settle(folder)
    found: dict[str, list[float]] = {"plain": [], "with jax": [], "wheel": []}
    used: dict[str, list[float]] = {name: [] for name in found}
    for number in range(-2, max(2, int(12 * scale))):
        for name, command in (("plain", plain), ("with jax", with_jax), ("wheel", plain)):
            environ = wheel if name == "wheel" else environment()
            before = cpu_of_children()
            started = time.monotonic()
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
            report = json.loads(done.stdout)
            assert all(reason == "hit" for reason, _ in report["outcomes"].values()), report["outcomes"]
            assert name == "with jax" or report["imported"] == [], report["imported"]
            if number >= 0:  # the first finds digests, the second has what the first has kept
                found[name].append(report["linked"] - started)
                used[name].append(cpu_of_children() - before)
    cpu = {name: statistics.median(each) for name, each in used.items()}
    seconds = {name: statistics.median(each) for name, each in found.items()}
    ratio = cold_seconds / seconds["plain"]
    return [
        Row(
            "MiniLM, new weights, new process: start to linked",
            seconds["plain"] * 1e3,
            "ms",
            ">= 10x under cold",
            ratio >= 10,
            f"cold, new process {cold_seconds:.2f} s",
            ratio,
        ),
        Row(
            "the same with a top-level `import jax`",
            seconds["with jax"] * 1e3,
            "ms",
            peer=f"cold, new process {cold_seconds:.2f} s",
            ratio=cold_seconds / seconds["with jax"],
        ),
        Row(
            "MiniLM, new process, as cachec is installed here",
            cpu["plain"] * 1e3,
            "ms CPU",
            "<= 1.1x of cachec from a wheel",
            cpu["plain"] <= 1.1 * cpu["wheel"],
            f"from a wheel {cpu['wheel'] * 1e3:.0f} ms",
            cpu["plain"] / cpu["wheel"],
        ),
    ]


def _as_from_a_wheel(site: Path) -> Path:
    """The packages of cachec and their RECORD in a folder of their own, as an installer puts them."""
    installed = Distributions().find("cachec")
    assert installed is not None
    targets = installed.entry_points("cachec.plugins").values()
    info = site / f"cachec-{installed.version}.dist-info"
    info.mkdir(parents=True)
    for name in dict.fromkeys(("cachec", *(target.partition(":")[0] for target in targets))):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations
        shutil.copytree(
            found.submodule_search_locations[0], site / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    (info / "entry_points.txt").write_text(installed.read("entry_points.txt"))
    rows = []
    for file in sorted(each for each in site.rglob("*") if each.is_file()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append(f"{file.relative_to(site)},sha256={digest},{file.stat().st_size}")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))
    return site


def left_out(scale: float) -> list[str]:
    """The weights of MiniLM that a benchmark of a small scale goes without: all layers but the first."""
    return [] if scale >= 1 else [f"encoder.layer.{number}.*" for number in range(1, 6)]


def _perturbed(source: Path, target: Path, noise: float, scale: float) -> Path:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    rng = np.random.default_rng(1)
    without = left_out(scale)
    tensors = {n: each for n, each in load_file(source).items() if not any(fnmatch(n, glob) for glob in without)}
    for name, value in tensors.items():
        if value.dtype.kind == "f":
            tensors[name] = value + (rng.standard_normal(value.shape) * noise).astype(value.dtype)
    save_file(tensors, target)
    return target
