"""The difference between two models, as text."""

from __future__ import annotations

from itertools import zip_longest

from cachec_onnxruntime.onnx_models import split_model


def difference(before: bytes, after: bytes) -> str:
    """Describe the first node, or else the constants or fields, that differ. Raises PluginError for other files."""
    old, new = split_model(memoryview(before)), split_model(memoryview(after))
    for number, (a, b) in enumerate(zip_longest(old.nodes, new.nodes)):
        if a != b:
            was, now = ("no node" if each is None else each.label for each in (a, b))
            return (
                f"node {number} {was} -> {now}" if was != now else f"node {number} {now} has other names or attributes"
            )
    for what, there, here in (("constant", old.constants, new.constants), ("input", old.inputs, new.inputs)):
        names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        if names:
            return f"{what} {', '.join(map(repr, names[:3]))}" + (f" and {len(names) - 3} more" if names[3:] else "")
    return "outputs, versions or metadata"
