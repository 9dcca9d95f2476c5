"""Which weights a result contains by value: all weights that were read to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cachec.model import Node, OwnedWeight, Read, Record, Sequence, Weights
from cachec.weights import WeightSet
from cachec.weights.manifest import Folded, content_of, merge_ties

#: The contents of the weights of these names that a stage made, and returned beside what it compiled.
Made = Callable[[Mapping[str, object]], Iterable[tuple[str, str]]]


def collect_inlined(reads: Iterable[Read], weights: Mapping[str, WeightSet], given: Folded, made: Made) -> Folded:
    """What was folded into the result of a run, by the caller's names.

    reads: of the run, of these weights by argument. given: what was folded into the programs and files that it was
    given. A weight that the stage made anew fits as well as the one that it was made from: the stage knows which of the
    two its program takes.
    """
    specs = {read: weights[read.where][read.name].spec for read in reads if read.kind == "weight"}
    folds = merge_ties(given, *({read.name: (content_of(spec, read.digest),)} for read, spec in specs.items()))
    if folds:
        for name, content in made(folds):
            if folds[name] and content not in folds[name]:
                folds[name] = (*folds[name], content)
    return folds


def made_in_node(node: Node) -> Made:
    """Those of a stored result."""

    def made_weights(names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        return (
            (name, content_of(each.spec, each.artifact.digest)) for name, each in _owned_weights(node) if name in names
        )

    return made_weights


def _owned_weights(node: Node) -> Iterator[tuple[str, OwnedWeight]]:
    if isinstance(node, Sequence | Record):
        for item in node.items:
            yield from _owned_weights(item)
    elif isinstance(node, Weights):
        for name, weight in zip(node.names, node.items, strict=False):
            if isinstance(weight, OwnedWeight):
                yield name, weight


def made_in_value(value: Any) -> Made:
    """Those of a result that is not stored. Its weights are made for it; the stage's handles are still open."""

    def made_weights(names: Mapping[str, object]) -> Iterable[tuple[str, str]]:
        contents: list[tuple[str, str]] = []

        def observe(weights: WeightSet, _path: str) -> WeightSet:
            own = (name for name in names if name in weights and weights.origin(name) is None)
            contents.extend((name, weights[name].content()) for name in own)
            return weights

        from cachec.key.weight_guards import replace_weights  # a hit folds nothing

        replace_weights(value, "result", observe)
        return contents

    return made_weights
