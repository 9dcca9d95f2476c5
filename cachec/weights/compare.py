"""How two descriptions of weights differ by name, and by how much the values of two weights differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights.dtypes import numpy_dtype
from cachec.weights.io.copying import pieces, source_of
from cachec.weights.manifest import differing_fields
from cachec.weights.weight import Weight

if TYPE_CHECKING:
    import numpy as np

#: Bytes of each weight that are compared at once; a multiple of every item size.
_CHUNK = 1 << 20


class ChangedWeight(NamedTuple):
    """A weight that both have."""

    name: str
    #: What differs of its spec; empty where only the content does.
    fields: tuple[tuple[str, object, object], ...]


class Comparison(NamedTuple):
    """What changes from one set to another."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedWeight, ...]
    same: tuple[str, ...]
    #: Weights of equal spec of which no digest tells more.
    unknown: tuple[str, ...]


class ValueDifference(NamedTuple):
    """By how much the values of two weights of one spec differ."""

    #: Elements that differ (bytes, for blocks of quantised values).
    number: int
    #: The greatest absolute difference; None for blocks.
    largest: float | None
    #: Pairs of which just one is not a number.
    unordered: int


def compare_weights(
    old: Mapping[str, WeightSpec],
    new: Mapping[str, WeightSpec],
    old_digests: Mapping[str, str],
    new_digests: Mapping[str, str],
) -> Comparison:
    """What changes from ``old`` to ``new``, without a byte being read. Digests may be empty: then only specs tell."""
    changed: list[ChangedWeight] = []
    same: list[str] = []
    unknown: list[str] = []
    for name, spec in old.items():
        if name not in new:
            continue
        fields = differing_fields(spec, new[name])
        ours, theirs = old_digests.get(name), new_digests.get(name)
        if fields or (ours is not None and theirs is not None and ours != theirs):
            changed.append(ChangedWeight(name, fields))
        elif ours is None or theirs is None:
            unknown.append(name)
        else:
            same.append(name)
    added = tuple(name for name in new if name not in old)
    removed = tuple(name for name in old if name not in new)
    return Comparison(added, removed, tuple(changed), tuple(same), tuple(unknown))


def value_difference(old: Weight, new: Weight) -> ValueDifference:
    """Compare two weights element by element, in pieces of 1 MiB. Equal: equal values, or neither a number.

    Raises UsageError where dtype, shape or layout differ, and as ``Weight.read`` does.
    """
    import numpy as np

    ours, theirs = old.tensor, new.tensor
    if (ours.dtype, ours.shape, ours.layout) != (theirs.dtype, theirs.shape, theirs.layout):
        raise UsageError(
            f"the values of {old.name!r} {ours.dtype} {list(ours.shape)} and {new.name!r} {theirs.dtype} "
            f"{list(theirs.shape)} can't be compared; expected one dtype and shape"
        )
    blocks = ours.layout != "row-major"
    dtype = np.dtype(np.uint8) if blocks else numpy_dtype(ours.dtype)
    count = unordered = 0
    largest = 0.0
    for one, other in zip(pieces(source_of(old), _CHUNK), pieces(source_of(new), _CHUNK), strict=True):
        if np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)):
            continue
        difference = _difference(np.frombuffer(one, dtype), np.frombuffer(other, dtype))
        missing = int(np.isnan(difference).sum()) if difference.dtype.kind == "f" else 0
        count += difference.size
        unordered += missing
        if difference.size > missing:
            largest = max(largest, float(np.nanmax(difference) if missing else difference.max()))
    return ValueDifference(count, None if blocks else largest, unordered)


def _difference(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the absolute differences of the elements that differ; NaN if exactly one of them is NaN."""
    import numpy as np

    if old.dtype.kind == "b":
        return np.ones(np.count_nonzero(old != new), np.uint64)
    if old.dtype.kind in "iu":
        differs = old != new
        high, low = (pick(old, new)[differs].astype(np.uint64) for pick in (np.maximum, np.minimum))
        found: np.ndarray[Any, Any] = np.subtract(high, low)  # modulo 2**64, so exact for negative ones too
        return found
    wide = np.dtype(np.complex128 if old.dtype.kind == "c" else np.float64)
    one, other = old.astype(wide), new.astype(wide)
    differs = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    with np.errstate(invalid="ignore", over="ignore"):
        apart: np.ndarray[Any, Any] = np.abs(one[differs] - other[differs])
    return apart
