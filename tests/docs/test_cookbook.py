"""docs/cookbook.md: the files and the commands of each recipe, in a folder and a store of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec.events import read_outcomes
from tests.needs import need, need_packages

TEXT = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()

#: Recipe -> its text.
RECIPES = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))


class Kitchen:
    """A folder with the files of a recipe, in which its commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        script = folder / "bin" / "cachec"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m cachec "$@"\n')
        script.chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "CACHEC_DIR": str(folder / "store"),
            "CACHEC_STATS_FILE": str(folder / "stats"),
            "CACHEC_SERVER": "off",
        }

    def cook(self, recipe: str) -> Counter[str]:
        """Write its files, run its commands; how often each stage had each kind of outcome."""
        for language, name, text in re.findall(
            r"^```(\w+)\n(?:#|//) (\S+)\n(.*?)^```$", RECIPES[recipe], re.DOTALL | re.M
        ):
            assert language != "console"
            (self.folder / name).write_text(text)
        lines = re.findall(r"^\$ (.*?)$", RECIPES[recipe], re.MULTILINE)
        assert lines
        done = subprocess.run(
            ["sh", "-ec", "\n".join(lines)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        if not (self.folder / "stats").exists():
            return Counter()
        return Counter(f"{each.reason.kind} {each.stage}" for each in read_outcomes(self.folder / "stats"))


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


def something(kitchen: Kitchen) -> None:
    """One entry, of a stage that needs no compiler."""
    cache = cachec.Cache(kitchen.folder / "store", log="off")
    cache.stage(name="doubled")(lambda n: 2 * n)(4)
    cache.close()


def test_every_recipe_is_tried() -> None:
    tried: set[str] = {"JAX", "PyTorch", "ONNX Runtime", "IREE in CMake", "CI", "Containers", "A team"}
    assert set(RECIPES) == tried


@pytest.mark.long
def test_jax(kitchen: Kitchen) -> None:
    pytest.importorskip("jax")
    outcomes = kitchen.cook("JAX")
    assert outcomes["hit jax.xla"] >= 1


@pytest.mark.costly
def test_torch(kitchen: Kitchen) -> None:
    pytest.importorskip("torch")
    need("g++")
    outcomes = kitchen.cook("PyTorch")
    assert outcomes["hit torch.inductor"] == outcomes["miss torch.inductor"] == 1
    assert outcomes["hit torch.cxx"] == outcomes["miss torch.cxx"]


@pytest.mark.long
def test_onnxruntime(kitchen: Kitchen, mlp: Callable[[Path, int], None]) -> None:
    pytest.importorskip("onnxruntime")
    mlp(kitchen.folder / "base.onnx", 0)
    mlp(kitchen.folder / "tuned.onnx", 1)
    outcomes = kitchen.cook("ONNX Runtime")
    assert outcomes == {"miss __main__.optimize": 1, "hit __main__.optimize": 1}


@pytest.fixture
def mlp() -> Callable[[Path, int], None]:
    """Writes a model of two layers, with the weights of a seed."""
    import numpy as np

    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper

    def write(path: Path, seed: int) -> None:
        made = np.random.default_rng(seed)
        weights = [made.normal(size=size).astype("f4") for size in ((8, 16), (16, 8))]
        nodes = [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w1"], ["y"]),
        ]
        ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8]) for name in "xy"]
        held = [numpy_helper.from_array(each, f"w{number}") for number, each in enumerate(weights)]
        graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], held)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)

    return write


@pytest.mark.long
def test_iree_in_cmake(kitchen: Kitchen) -> None:
    need("cmake", "ninja")
    need_packages("iree-base-compiler")
    outcomes = kitchen.cook("IREE in CMake")
    assert outcomes == {"miss exec:iree-compile": 1, "hit exec:iree-compile": 1}


@pytest.mark.long
def test_ci(kitchen: Kitchen) -> None:
    something(kitchen)
    kitchen.cook("CI")


@pytest.mark.long
def test_containers(kitchen: Kitchen) -> None:
    something(kitchen)
    kitchen.cook("Containers")
    assert (kitchen.folder / "opt" / "objects").is_dir()


@pytest.mark.long
def test_a_team(kitchen: Kitchen) -> None:
    pytest.importorskip("cryptography")
    kitchen.cook("A team")
