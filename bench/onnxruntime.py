"""ONNX Runtime after a fine-tune: what ``optimize`` made of other weights, against a session that optimises."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import cachec
import cachec_onnxruntime
from bench.harness import Row, against, interleaved, settle
from bench.processes import cpu_of_children, environment

_PLAIN = """
import sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
np.save(sys.argv[2], session.run(None, {"x": np.load(sys.argv[3])})[0])
"""

_OURS = """
import sys, numpy as np, cachec, cachec_onnxruntime
cache = cachec.Cache(sys.argv[4], log="off", mode="on")

@cache.stage(tools=["onnxruntime"])
def optimize(program: cachec.Program) -> cachec.File:
    return cachec_onnxruntime.optimize(program)

weights = cachec.open_weights(sys.argv[1])
file, outcome = cache.call(optimize, cachec_onnxruntime.strip(sys.argv[1], weights))
np.save(sys.argv[2], cachec.link(file, weights)(np.load(sys.argv[3])))
assert outcome.reason.value == sys.argv[5], outcome
"""

#: Largest difference of a result from that without a cache, relative to its largest element.
_TOLERANCE = 1e-5


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of layers, widths and rounds."""
    layers, width, rounds = (24, 256, 5) if scale == 1.0 else (2, 64, 1)
    models = [_saved(folder / f"{seed}.onnx", layers, width, seed) for seed in (0, 1)]
    np.save(folder / "x.npy", np.random.default_rng(5).normal(size=(16, width)).astype("f4"))
    settle(folder)
    said = f"{layers} layers of {width}"
    return [_new_process(folder, models, rounds, said), *_same_process(folder, models, rounds, said)]


def _new_process(folder: Path, models: list[Path], rounds: int, said: str) -> Row:
    for name, text in {"plain": _PLAIN, "ours": _OURS}.items():
        (folder / f"{name}.py").write_text(text)

    def child(script: str, model: Path, *more: str) -> None:
        out = folder / f"{script}.npy"
        command = [sys.executable, *map(str, (folder / f"{script}.py", model, out, folder / "x.npy")), *more]
        subprocess.run(command, env=environment(), check=True)

    def ours(model: Path, outcome: str) -> None:
        child("ours", model, str(folder / "store"), outcome)

    ours(models[0], "miss:new-input")
    tasks = {"plain": lambda: child("plain", models[1]), "ours": lambda: ours(models[1], "hit")}
    seconds = interleaved(tasks, rounds, clock=cpu_of_children)
    _check(np.load(folder / "ours.npy"), np.load(folder / "plain.npy"))
    name = f"onnxruntime, new process, other weights, to the first result ({said}), of the processor"
    return against(name, seconds["ours"], 0, "ONNX Runtime alone", seconds["plain"])


def _same_process(folder: Path, models: list[Path], rounds: int, said: str) -> list[Row]:
    import onnxruntime as ort

    cache = cachec.Cache(folder / "here", log="off", mode="on")
    x = np.load(folder / "x.npy")

    @cache.stage(tools=["onnxruntime"])
    def optimize(program: cachec.Program, configuration: dict[str, str]) -> cachec.File:
        return cachec_onnxruntime.optimize(program, configuration=configuration)

    def ours(model: Path, configuration: dict[str, str]) -> Any:
        weights = cachec.open_weights(model)
        return cachec.link(optimize(cachec_onnxruntime.strip(model, weights), configuration), weights)

    rows = []
    for words, configuration in (("", {}), (", weights not packed", {"session.disable_prepacking": "1"})):
        options = ort.SessionOptions()
        for key, value in configuration.items():
            options.add_session_config_entry(key, value)

        def plain(options: Any = options) -> Any:
            return ort.InferenceSession(str(models[1]), options)

        ours(models[0], configuration)
        tasks = {"plain": plain, "ours": lambda: ours(models[1], configuration)}  # noqa: B023 - called in this round
        seconds = interleaved(tasks, 4 * rounds, clock=time.process_time)
        _check(tasks["ours"]()(x), plain().run(None, {"x": x})[0])
        name = f"onnxruntime, a session of other weights{words} ({said}), of the processor"
        rows.append(against(name, seconds["ours"], 0, "ONNX Runtime alone, the same", seconds["plain"]))
    return rows


def _check(ours: Any, theirs: Any) -> None:
    if not abs(ours - theirs).max() <= _TOLERANCE * abs(theirs).max():
        raise AssertionError(f"other numbers than ONNX Runtime alone, by {abs(ours - theirs).max()}")


def _saved(path: Path, layers: int, width: int, seed: int) -> Path:
    """Perceptrons with norms that are written out, as exporters write them, in a file with external data."""
    import onnx
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(seed)
    values: dict[str, Any] = {"two": np.float32(2), "eps": np.float32(1e-5), "root": np.float32(2**0.5)}
    values |= {"one": np.float32(1), "half": np.float32(0.5), "axes": np.array([-1])}
    nodes: list[Any] = []

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(name: str, *shape: int) -> str:
        values[name] = draw.normal(0, 0.05, shape).astype("f4")
        return name

    x = "x"
    for each in range(layers):
        centred = op("Sub", x, op("ReduceMean", x, "axes"))
        spread = op("Sqrt", op("Add", op("ReduceMean", op("Pow", centred, "two"), "axes"), "eps"))
        normal = op("Mul", op("Div", centred, spread), weight(f"{each}.scale", width))
        normal = op("Add", normal, weight(f"{each}.shift", width))
        up = op("Add", op("MatMul", normal, weight(f"{each}.up", width, 4 * width)), weight(f"{each}.bias", 4 * width))
        erf = op("Add", op("Erf", op("Div", up, "root")), "one")
        x = op("Add", x, op("MatMul", op("Mul", op("Mul", up, erf), "half"), weight(f"{each}.down", 4 * width, width)))
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    shape = [16, width]
    graph = helper.make_graph(
        nodes,
        "perceptrons",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=path.stem + ".data")
    return path
