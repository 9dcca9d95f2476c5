"""Weights by name: checkpoints mapped in place, handles that record what is read, placeholders without bytes."""

from cachec.weights.sets import WeightSet, open_weights
from cachec.weights.sources import TensorPlace
from cachec.weights.weight import Weight

from_arrays = WeightSet.from_arrays

__all__ = ["TensorPlace", "Weight", "WeightSet", "from_arrays", "open_weights"]
