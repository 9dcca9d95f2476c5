"""Optimised models linked to weights. Imports ONNX Runtime and numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from cachec.errors import LinkError, PluginError
from cachec.programs.artifact import File
from cachec.weights import Weight, WeightSet
from cachec_onnxruntime.kinds import CONFIGURATION, PROVIDERS, VERSION
from cachec_onnxruntime.onnx_models import initializers, insert_values, metadata
from cachec_onnxruntime.programs import needed_by_value

#: Types that only ml_dtypes has -> an unsigned type of that size.
_BITS = {
    "bfloat16": "uint16",
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), "uint8"),
}


class LinkedSession(ort.InferenceSession):  # type: ignore[misc]  # it has no types
    """A session that uses mapped weights in place, and keeps them alive. Call it with one array for each input."""

    def __init__(self, model: bytes, options: ort.SessionOptions, providers: list[str], values: dict[str, Any]) -> None:
        options.add_external_initializers(list(values), list(values.values()))
        self._weights = values  # a session does not keep them alive
        super().__init__(model, options, providers=providers)

    def __call__(self, *inputs: Any) -> Any:
        """Run with arguments for ``numpy.asarray``, one for each input. Returns an array, or a list of them."""
        names = [each.name for each in self.get_inputs()]
        if len(inputs) != len(names):
            raise TypeError(f"expected {len(names)} inputs ({', '.join(names)}), found {len(inputs)}")
        outputs = self.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs


def link(artifact: File, weights: WeightSet) -> LinkedSession:
    """Make a session of an optimised model. Raises LinkError for another file, or another release of onnxruntime."""
    data = Path(artifact.path).read_bytes()
    try:
        notes, there = metadata(memoryview(data)), initializers(memoryview(data))
        providers, configuration = json.loads(notes[PROVIDERS]), json.loads(notes[CONFIGURATION])
        version = notes[VERSION]
        if not isinstance(providers, list) or not isinstance(configuration, dict):
            raise PluginError(f"its session would be for {providers!r}, {configuration!r}")
    except (PluginError, KeyError, ValueError) as error:
        raise LinkError(f"{artifact.path} is no model of cachec_onnxruntime.optimize: {error}") from error
    if version != ort.__version__:
        raise LinkError(f"{artifact.path} was made by onnxruntime {version}, this is {ort.__version__}; optimise again")
    given = {name: each for name, each in there.items() if name in weights}
    # A session infers shapes, too. The values for this must be in the model.
    inside = needed_by_value(memoryview(data), given)
    if inside:
        data = insert_values(memoryview(data), {name: weights[name].raw() for name in inside})
    values = {name: _value(weights[name], each.data_type) for name, each in given.items() if name not in inside}
    options = ort.SessionOptions()
    for key, value in configuration.items():
        options.add_session_config_entry(key, value)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return LinkedSession(data, options, providers, values)
    except Exception as error:
        raise LinkError(f"{artifact.path} can't be linked: {error}") from error


def _value(weight: Weight, data_type: int) -> Any:
    """Return the bytes of a weight, in place, as a value for a session. data_type: TensorProto.DataType."""
    array = np.frombuffer(weight.raw(), _BITS.get(weight.dtype, weight.dtype)).reshape(weight.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, data_type)
