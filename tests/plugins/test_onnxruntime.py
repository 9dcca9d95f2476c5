"""cachec_onnxruntime: models optimised without the bytes of their weights, against ONNX Runtime without a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cachec
import cachec_onnxruntime as co
from cachec.model import Reason
from cachec.testing.conformance import PluginConformance
from tests import pages
from tests.needs import Later
from tests.plugins.onnx_models import (
    FLOAT,
    SIZES,
    X,
    arrays,
    expected,
    helper,
    model,
    node,
    numpy_helper,
    onnx,
    perceptron,
    saved,
)

ort = Later("onnxruntime")

#: All are outside, those without dimensions too.
NAMES = ["down", "eight", "nine", "one", "up", "zero"]
CONSTANTS = ("factor", "shape")


class TestConformance(PluginConformance):
    plugin = co.plugin
    compilers = ("onnxruntime", "onnx", "cachec_onnxruntime.optimizer")
    runtimes = ("onnxruntime",)

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage(tools=["onnx"])
        def lower(weights: cachec.WeightSet, factor: float) -> cachec.Program:
            return co.strip(perceptron(arrays(0), factor), weights, constants=CONSTANTS)

        @cache.stage(tools=["onnxruntime"])
        def build(program: cachec.Program) -> cachec.File:
            return co.optimize(program)

        return lower, build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        return cachec.WeightSet.from_arrays(arrays(0)), cachec.WeightSet.from_arrays(arrays(1))

    def inputs(self) -> Sequence[Any]:
        return (X,)


def reference(path: Path, feeds: dict[str, Any]) -> Any:
    """What ONNX Runtime gives for a file, without a cache."""
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def agrees(path: Path, feeds: dict[str, Any], weights: cachec.WeightSet | None = None, **how: Any) -> cachec.Program:
    """A model, stripped, optimised and linked, gives what it gives without a cache. Returns the program."""
    weights = cachec.open_weights(path) if weights is None else weights
    program = co.strip(path, weights, **how)
    result = cachec.link(co.optimize(program), weights).run(None, feeds)[0]
    there = reference(path, feeds)
    np.testing.assert_allclose(result.astype("f8"), there.astype("f8"), rtol=1e-4, atol=1e-5)
    return program


# --- what is outside


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("constants", [None, CONSTANTS])
def test_a_fine_tune_gives_its_own_numbers(tmp_path: Path, external: bool, constants: Any) -> None:
    """With ``zero`` by value, as it is unless it is said otherwise, the program of other weights is another."""
    programs = [
        agrees(
            saved(tmp_path / f"{seed}.onnx", perceptron(arrays(seed)), external=external),
            {"x": X},
            constants=constants,
        )
        for seed in (0, 1)
    ]
    assert (programs[0] == programs[1]) is (constants is not None)
    assert list(programs[0].manifest.weights) == [name for name in NAMES if name != "zero" or constants]
    assert all(arrays(1)[name].tobytes() not in programs[1].ir for name in ("up", "down", "eight", "nine"))


def test_every_weight_is_the_linked_one(tmp_path: Path) -> None:
    """Also those of few elements, which other compilers take by value."""
    path = saved(tmp_path / "m.onnx", perceptron(arrays(0)))
    base = cachec.open_weights(path).select(NAMES)
    file = co.optimize(co.strip(path, base, constants=CONSTANTS))
    for name in NAMES:
        mixed = arrays(0) | {name: arrays(1)[name]}
        result = cachec.link(file, cachec.WeightSet.from_arrays(mixed))(X)
        np.testing.assert_allclose(result, expected(mixed), rtol=1e-4)
    assert set(SIZES) < set(NAMES)


def test_what_is_optimised_has_no_values_and_is_the_same_each_time(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", perceptron(arrays(1)))
    program = co.strip(path, constants=CONSTANTS)
    first, second = co.optimize(program), co.optimize(program)
    assert first.read_bytes() == second.read_bytes()
    assert co.plugin.compare(first, second) is None
    other = co.optimize(co.strip(perceptron(arrays(1), factor=3), constants=CONSTANTS))
    assert "difference" in str(co.plugin.compare(first, other))
    made = onnx.load_from_string(first.read_bytes())
    assert {each.name: each.data_location for each in made.graph.initializer if each.name in NAMES} == dict.fromkeys(
        NAMES, 1
    )
    # With the bytes there, both transpositions of a weight are gone, and the weight with them.
    assert "Transpose" not in {each.op_type for each in made.graph.node}
    assert [each.name for each in made.graph.input] == ["x"]


def _shapes() -> dict[str, Any]:
    """Models in which something else than a matrix is an initialiser -> (model, input, names outside)."""
    draw = np.random.default_rng(3)
    w = draw.normal(size=(8, 9)).astype("f4")
    image = {"x": (FLOAT, (1, 4, 6, 6))}
    pixels = draw.normal(size=(1, 4, 6, 6)).astype("f4")
    value = helper.make_tensor_value_info
    branches = {
        f"{kind}_branch": helper.make_graph(
            [node("MatMul", f"x {name}", kind)],
            kind,
            [],
            [value(kind, FLOAT, [2, 9])],
            [numpy_helper.from_array(w, name)] if name == "own" else [],
        )
        for kind, name in (("then", "w"), ("else", "own"))
    }
    quantised = [
        node("QuantizeLinear", "x xs xz", "xq"),
        node("DequantizeLinear", "xq xs xz", "xd"),
        node("DequantizeLinear", "w ws wz", "wd"),
        node("MatMul", "xd wd", "m"),
        node("QuantizeLinear", "m xs xz", "mq"),
        node("DequantizeLinear", "mq xs xz", "y"),
    ]
    scales = {"xs": np.float32(0.1), "xz": np.uint8(128), "ws": np.float32(0.1), "wz": np.int8(0)}
    return {
        "scales of Resize": (
            model([node("Resize", "x - s", "y")], {"s": np.array([1, 1, 2, 2], "f4")}, **image), pixels, []
        ),
        "no elements": (model([node("Concat", "x e", "y", axis=0)], {"e": np.zeros((0, 8), "f4")}), X, ["e"]),
        "unused": (model([node("MatMul", "x w", "y")], {"w": w, "other": w}), X, ["other", "w"]),
        "an output": (model([node("MatMul", "x w", "y")], {"w": w}, outputs=["y", "w"]), X, ["w"]),
        "a subgraph's": (
            model(
                [
                    node("ReduceSum", "x", "s", keepdims=0),
                    node("Greater", "s z", "c"),
                    node("If", "c", "y", **branches),
                ],
                {"w": w, "z": np.float32(0)},
            ),
            X,
            ["w"],
        ),
        "an input too": (
            model([node("MatMul", "x w", "y")], {"w": w}, inputs=[value("w", FLOAT, [8, 9])]), X, ["w"]
        ),
        "an input too, before version 4": (
            model(
                [node("MatMul", "x w", "a"), node("Mul", "a k", "y")],
                {"w": w, "k": np.float32(3)},
                inputs=[value("w", FLOAT, [8, 9]), value("k", FLOAT, [])],
                ir=3,
                opset=8,
            ),
            X,
            ["w"],
        ),
        "convolutions": (
            model(
                [node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Conv", "r v", "y")],
                {
                    "w": draw.normal(size=(32, 4, 3, 3)).astype("f4"),
                    "b": draw.normal(size=32).astype("f4"),
                    "v": draw.normal(size=(4, 32, 3, 3)).astype("f4"),
                },
                **image,
            ),
            pixels,
            ["b", "v", "w"],
        ),
        "quantised": (model(quantised, {**scales, "w": np.arange(72, dtype="i1").reshape(8, 9)}), X, ["w"]),
        "strings": (
            model(
                [node("MatMul", "x w", "y"), node("Identity", "words", "z")],
                {"w": w, "words": helper.make_tensor("words", 8, [1], [b"word"])},
            ),
            X,
            ["w"],
        ),
    }  # fmt: skip


def test_weights_that_shapes_are_inferred_by(tmp_path: Path) -> None:
    """Where a caller keeps none in the program, a session is made with those that say how large things are."""
    for made in (
        model([node("Reshape", "x s", "y")], {"s": np.array([4, 4])}),
        model([node("Slice", "x a b c", "y")], {"a": np.array([0]), "b": np.array([1]), "c": np.array([0])}),
        model([node("Pad", "x p v", "y")], {"p": np.array([0, 0, 0, 1]), "v": np.float32(3)}),
        model([node("ReduceSum", "x a", "s"), node("Expand", "s e", "y")], {"a": np.array([0]), "e": np.array([2, 8])}),
        model(
            [node("Reshape", "x s", "a"), node("Resize", "a - k", "y")],
            {"s": np.array([1, 2, 2, 4]), "k": np.array([1, 1, 2, 2], "f4")},
        ),
        model([node("Tile", "x t", "y")], {"t": np.array([1, 2])}),
    ):
        program = agrees(saved(tmp_path / "m.onnx", made), {"x": X}, constants=())
        assert list(program.manifest.weights) == sorted(each.name for each in made.graph.initializer)


def test_models_of_every_shape(tmp_path: Path) -> None:
    for label, (made, x, outside) in _shapes().items():
        path = saved(tmp_path / "m.onnx", made)
        if label == "strings":  # no weight has them, so a checkpoint with them is none
            weights = cachec.WeightSet.from_arrays({"w": numpy_helper.to_array(made.graph.initializer[0])})
        else:
            weights = cachec.open_weights(path)
        program = agrees(path, {"x": x}, weights)
        assert list(program.manifest.weights) == outside, label


def test_weights_of_every_type(tmp_path: Path) -> None:
    types = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"]
    others = {16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn, 19: ml_dtypes.float8_e5m2}
    values = np.arange(72).reshape(8, 9) % 7
    cases = [numpy_helper.from_array(values.astype(kind), "w") for kind in types]
    cases += [helper.make_tensor("w", n, [8, 9], values.astype(kind).tobytes(), raw=True) for n, kind in others.items()]
    nodes = [node("Cast", "w", "wf", to=FLOAT), node("MatMul", "x wf", "y")]
    for each in cases:
        program = agrees(saved(tmp_path / "m.onnx", model(nodes, {"w": each})), {"x": X})
        assert list(program.manifest.weights) == ["w"]


# --- what a key holds


def _edited(edit: Any, weights: Any = None) -> Any:
    made = perceptron(arrays(0) if weights is None else weights)
    edit(made)
    return made


def _stack(made: Any) -> None:
    entry = made.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.stack_trace", "File /somewhere/model.py"


#: Edit of a model -> whether its program is another.
_EDITS = {
    "producer": (lambda m: setattr(m, "producer_name", "other"), False),
    "version of the producer": (lambda m: setattr(m, "producer_version", "9"), False),
    "words": (lambda m: setattr(m, "doc_string", "other"), False),
    "words of a node": (lambda m: setattr(m.graph.node[0], "doc_string", "other"), False),
    "a traceback": (_stack, False),
    "order of initialisers": (lambda m: m.graph.initializer.append(m.graph.initializer.pop(0)), False),
    "operation": (lambda m: setattr(m.graph.node[1], "op_type", "Add"), True),
    "attribute": (lambda m: m.graph.node[2].attribute[0].ints.reverse(), True),
    "edge": (lambda m: m.graph.node[9].input.__setitem__(0, "g"), True),
    "constant": (lambda m: m.graph.initializer[6].CopyFrom(numpy_helper.from_array(np.float32(3), "factor")), True),
    "shape of an input": (lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 4), True),
    "name of an input": (lambda m: m.graph.node[0].input.__setitem__(0, "up"), True),
    "set of operations": (lambda m: setattr(m.opset_import[0], "version", 21), True),
    "metadata": (lambda m: m.metadata_props.add(key="labels", value="cat,dog"), True),
}  # fmt: skip


@pytest.mark.parametrize("what", _EDITS)
def test_what_counts_of_a_model(what: str) -> None:
    edit, counts = _EDITS[what]
    plain = co.strip(perceptron(arrays(0)), constants=CONSTANTS)
    assert (co.strip(_edited(edit), constants=CONSTANTS) != plain) is counts
    assert co.strip(_edited(edit, arrays(1)), constants=CONSTANTS) == co.strip(_edited(edit), constants=CONSTANTS)


def test_names_shapes_and_types_of_weights_count() -> None:
    def program(name: str, shape: tuple[int, ...], kind: str) -> cachec.Program:
        return co.strip(model([node("MatMul", f"x {name}", "y")], {name: np.ones(shape, kind)}))

    plain = program("w", (8, 9), "f4")
    assert plain == program("w", (8, 9), "f4")
    assert len({plain, program("v", (8, 9), "f4"), program("w", (8, 7), "f4"), program("w", (8, 9), "f2")}) == 4


def test_options_and_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(tools=["onnxruntime"])
    def build(program: cachec.Program, *, level: str = "all") -> cachec.File:
        return co.optimize(program, level=level)

    program = co.strip(perceptron(arrays(0)))
    outcomes = [
        cache.call(build, program)[1],
        cache.call(build, program)[1],
        cache.call(build, program, level="basic")[1],
    ]
    monkeypatch.setenv("ORT_MLAS_QKGEMM_S8_APPROX_VNNI", "1")
    assert co.plugin.ambient() == {"ORT_MLAS_QKGEMM_S8_APPROX_VNNI": "1"}
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    assert co.plugin.ambient() == {"ORT_MLAS_QKGEMM_S8_APPROX_VNNI": "1"}
    outcomes.append(cache.call(build, program)[1])
    assert [each.reason.kind for each in outcomes] == ["miss", "hit", "miss", "miss"]
    assert outcomes[2].reason is Reason.OPTION_CHANGED


def test_what_why_says(tmp_path: Path) -> None:
    plain = co.strip(perceptron(arrays(0)), constants=CONSTANTS)

    def said(what: str) -> str:
        return co.plugin.difference(plain.ir, co.strip(_edited(_EDITS[what][0]), constants=CONSTANTS).ir)

    assert said("operation") == "node 1 Mul 'b' -> Add 'b'"
    assert said("attribute") == "node 2 Transpose 't' has other names or attributes"
    assert said("constant") == "constant 'factor'"
    assert said("shape of an input") == "input 'x'"
    assert said("metadata") == "outputs, versions or metadata"
    assert co.plugin.title(plain.ir) == "tiny"


# --- a hit


def test_constants_of_the_weights_are_compared_when_linked(tmp_path: Path) -> None:
    """In a stage, too: what ``strip`` read of the weights is in the program."""
    paths = [saved(tmp_path / f"{seed}.onnx", perceptron(arrays(seed))) for seed in (0, 1)]
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage
    def lower(path: Path, weights: cachec.WeightSet) -> cachec.Program:
        return co.strip(path, weights)

    @cache.stage(tools=["onnxruntime"])
    def build(program: cachec.Program) -> cachec.File:
        return co.optimize(program)

    first, second = map(cachec.open_weights, paths)
    for kind in ("miss", "hit"):
        program, outcome = cache.call(lower, paths[0], first)
        assert outcome.reason.kind == kind
        file = build(program)
        np.testing.assert_allclose(cachec.link(file, first)(X), expected(arrays(0)), rtol=1e-4)
        with pytest.raises(cachec.LinkError, match="'zero' was read by a stage"):
            cachec.link(file, second)
    assert cache.call(lower, paths[1], second)[1].reason.kind == "miss"


# --- what is refused


def test_what_strip_refuses(tmp_path: Path) -> None:
    made = perceptron(arrays(0))
    path = saved(tmp_path / "m.onnx", made, external=True)
    weights = cachec.open_weights(path)
    with pytest.raises(cachec.UnknownWeight, match=r"no initializer 'upp'; did you mean 'up'\?"):
        co.strip(path, weights.rename({"up": "upp"}))
    with pytest.raises(cachec.UnknownWeight, match="no initializer of the model matches 'shap'"):
        co.strip(path, constants=["factor", "shap"])
    for name, value in (("up", np.ones((8, 8), "f4")), ("up", np.ones((8, 9), "f8")), ("factor", np.ones(1, "f4"))):
        with pytest.raises(cachec.PluginError, match=f"weight {name!r}: the model expects float32"):
            co.strip(path, cachec.WeightSet.from_arrays({name: value}))
    with pytest.raises(cachec.PluginError, match="in another file: pass the path of the model"):
        co.strip(onnx.load(path, load_external_data=False), constants=["up"])
    assert arrays(0)["up"].tobytes() in co.strip(path, constants=["up"]).ir
    made.graph.initializer.append(made.graph.initializer[0])
    with pytest.raises(cachec.PluginError, match="names of their own"):
        co.strip(made)


def test_a_tensor_of_a_node_in_another_file_is_refused() -> None:
    """No key would have it: ONNX Runtime looks for it beside the current folder."""
    elsewhere = helper.make_tensor("inner", FLOAT, [2, 9], bytes(72), raw=True)
    onnx.external_data_helper.set_external_data(elsewhere, "somewhere")
    elsewhere.ClearField("raw_data")
    constant = node("Constant", "", "y", value=elsewhere)
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("y", FLOAT, [2, 9])])
    cond = node("Constant", "", "c", value=numpy_helper.from_array(np.array(True)))
    nested = [cond, node("If", "c", "y", then_branch=branch, else_branch=branch)]
    for nodes in ([constant], nested):
        with pytest.raises(cachec.PluginError, match="'inner' of a node is in another file"):
            co.strip(model(nodes, {}))


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    whole = perceptron(arrays(0)).SerializeToString()
    plain = co.strip(perceptron(arrays(0)))
    path = tmp_path / "m.onnx"
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        try:
            program = co.strip(path)
        except cachec.PluginError:
            continue
        assert program != plain  # a model of fewer fields
    file = co.optimize(plain)
    weights = cachec.WeightSet.from_arrays({**arrays(0), "factor": np.float32(2), "shape": np.array([4, 4])})
    version = ort.__version__.encode()
    other = file.read_bytes().replace(version, b"0" * len(version))
    for data in (b"", b"\x00", file.read_bytes()[:-40], whole, other):
        path.write_bytes(data)
        with pytest.raises(cachec.LinkError, match=r"m\.onnx"):
            co.plugin.link(cachec.File(path, kind=file.kind), weights)


def test_what_optimize_and_link_refuse() -> None:
    program = co.strip(perceptron(arrays(0)), constants=CONSTANTS)
    with pytest.raises(cachec.UsageError, match=r"level expected one of basic, extended,.* all"):
        co.optimize(program, level="none")
    with pytest.raises(cachec.UsageError, match="no CUDAExecutionProvider; it has"):
        co.optimize(program, providers=["CUDAExecutionProvider"])
    with pytest.raises(cachec.UsageError, match="cachec chooses the place"):
        co.optimize(program, configuration={"session.optimized_model_external_initializers_file_name": "x"})
    for wrong in ("CPUExecutionProvider", [], [1]):
        with pytest.raises(cachec.UsageError, match="providers expected names"):
            co.optimize(program, providers=wrong)  # type: ignore[arg-type]
    with pytest.raises(cachec.PluginError, match="takes programs of"):
        co.optimize(cachec.Program("x", format="mlir:text", manifest=program.manifest))
    with pytest.raises(cachec.PluginError, match="optimize makes such files"):
        cachec.link(program, cachec.WeightSet.from_arrays(arrays(0)))
    linked = cachec.link(co.optimize(program), cachec.WeightSet.from_arrays(arrays(0)))
    with pytest.raises(TypeError, match=r"expected 1 inputs \(x\), found 2"):
        linked(X, X)


def test_a_session_has_the_configuration_that_was_given(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", perceptron(arrays(1)))
    weights = cachec.open_weights(path)
    program = co.strip(path, weights)
    linked = cachec.link(co.optimize(program, configuration={"session.disable_prepacking": "1"}), weights)
    options = linked.get_session_options()
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert linked.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_allclose(linked(X), expected(arrays(1)), rtol=1e-4)


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    pages.scripts("reference/frameworks.md", tmp_path, "## ONNX Runtime")
    values = {name: value for name, value in arrays(1).items() if name != "zero"} | {"zero": arrays(0)["zero"]}
    saved(tmp_path / "base.onnx", perceptron(arrays(0)))
    saved(tmp_path / "tuned.onnx", perceptron(values))
    first, second, stats = pages.outputs(pages.commands("reference/frameworks.md", "## ONNX Runtime"), tmp_path)
    assert float(first) != float(second)
    assert re.search(r"optimize .*50", stats), stats


def test_a_session_holds_on_to_its_weights(tmp_path: Path) -> None:
    """ONNX Runtime does not: without them it reads what is there by then."""
    path = saved(tmp_path / "m.onnx", perceptron(arrays(1)), external=True)
    weights = cachec.open_weights(path)
    linked = cachec.link(co.optimize(co.strip(path, weights)), weights)
    del weights
    path.with_suffix(".data").unlink()
    np.testing.assert_allclose(linked(X), expected(arrays(1)), rtol=1e-4)
    np.testing.assert_allclose(linked.run(["y"], {"x": X})[0], expected(arrays(1)), rtol=1e-4)
