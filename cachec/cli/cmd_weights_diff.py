"""``cachec weights diff``: how weights differ, and whether they fit what was compiled for others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from cachec.base.display_text import number_of
from cachec.cli import weight_sources as sources
from cachec.cli.meter import Meter
from cachec.cli.session import Session, json_option, pass_session, print_as_json
from cachec.cli.weight_sources import LocatedWeights, say
from cachec.errors import LinkError, UsageError

if TYPE_CHECKING:
    from cachec.weights import WeightSet
    from cachec.weights.compare import Comparison, ValueDifference
    from cachec.weights.library.stored_weights import WeightStore


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--values", is_flag=True, help="Read weights of equal spec, and say by how much their values differ.")
@click.option("--fit", is_flag=True, help="Say whether B can be linked to what was compiled for A.")
@json_option
@pass_session
def diff(session: Session, a: str, b: str, values: bool, fit: bool) -> None:
    """Say what changes from A to B: names in the store, revisions, or paths.

    By digest where the store owns both, and by specification (names, dtypes, shapes, ties) otherwise: then equal means
    that what was compiled for one fits the other, not that their values are equal.

    \b
    Examples:
      cachec weights diff base tuned
      cachec weights diff base tuned/ --values
      cachec weights diff --fit base other.safetensors --json

    \b
    JSON: {"a", "b", "by": "digest" or "specification", "added": [name], "removed": [name],
           "changed": [{"name", "fields": {field: [in A, in B]}}], "same",
           "values" (with --values): [{"name", "differing", "largest", "unordered"}]}
    fields is empty where only the content differs; same counts the others. values: elements that differ, the greatest
    absolute difference (null if infinite, or of quantised blocks, where bytes are counted), and pairs of which just one
    is not a number; weights without a difference are left out.
    JSON of --fit: {"a", "b", "fits", "words" or null}
    Exit code 1: they differ, B does not fit, or one of them is not there.
    """
    if fit and values:
        raise UsageError("--fit compares no values; leave --values out")
    store = sources.weight_store(session)
    old, new = (sources.locate_weights(session, store, text) for text in (a, b))
    with old.open(store) as ours, new.open(store) as theirs:
        if fit:
            _fit(old, new, ours, theirs)
        else:
            _compare(store, old, new, ours, theirs, values)


def _fit(old: LocatedWeights, new: LocatedWeights, ours: WeightSet, theirs: WeightSet) -> None:
    words = None
    try:
        ours.manifest.check(theirs.specs)
    except LinkError as error:
        words = str(error)
    if not print_as_json({"a": old.text, "b": new.text, "fits": words is None, "words": words}):
        say(f"{new.text} fits what was compiled for {old.text}" if words is None else words)
    if words is not None:
        click.get_current_context().exit(1)


def _compare(
    store: WeightStore, old: LocatedWeights, new: LocatedWeights, ours: WeightSet, theirs: WeightSet, values: bool
) -> None:
    from cachec.weights.compare import compare_weights

    digests = [dict(each.revision.digests) if each.revision is not None else {} for each in (old, new)]
    by = "digest" if all(each.revision is not None and each.revision.owned for each in (old, new)) else "specification"
    if by == "specification":
        digests = [{}, {}]
    comparison = compare_weights(ours.specs, theirs.specs, *digests)
    differing = _values(comparison, ours, theirs) if values else None
    if not print_as_json(_document(old, new, by, comparison, differing)):
        _print(old, new, by, comparison, differing)
    if comparison.added or comparison.removed or comparison.changed or differing:
        click.get_current_context().exit(1)


def _values(comparison: Comparison, ours: WeightSet, theirs: WeightSet) -> dict[str, ValueDifference]:
    """Return the weights with equal specs and different values."""
    from cachec.weights.compare import value_difference

    names = [change.name for change in comparison.changed if not change.fields] + list(comparison.unknown)
    total, done = sum(ours[name].nbytes for name in names), 0
    differing: dict[str, ValueDifference] = {}
    with Meter("compare values") as meter:
        for name in names:
            each = value_difference(ours[name], theirs[name])
            if each.number:
                differing[name] = each
            done += ours[name].nbytes
            meter(done, total)
    return differing


def _document(
    old: LocatedWeights,
    new: LocatedWeights,
    by: str,
    comparison: Comparison,
    differing: dict[str, ValueDifference] | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "a": old.text,
        "b": new.text,
        "by": by,
        "added": comparison.added,
        "removed": comparison.removed,
        "changed": [
            {"name": change.name, "fields": {field: [one, other] for field, one, other in change.fields}}
            for change in comparison.changed
        ],
        "same": len(comparison.same) + len(comparison.unknown),
    }
    if differing is not None:
        document["values"] = [
            {
                "name": name,
                "differing": each.number,
                "largest": each.largest if each.largest is not None and math.isfinite(each.largest) else None,
                "unordered": each.unordered,
            }
            for name, each in differing.items()
        ]
    return document


def _print(
    old: LocatedWeights,
    new: LocatedWeights,
    by: str,
    comparison: Comparison,
    differing: dict[str, ValueDifference] | None,
) -> None:
    same = len(comparison.same) + len(comparison.unknown)
    say(
        f"{old.text} -> {new.text}, by {by}: {len(comparison.changed)} changed, {len(comparison.added)} added, "
        f"{len(comparison.removed)} removed, {same} same"
    )
    for name in comparison.removed:
        say(f"  - {name}")
    for name in comparison.added:
        say(f"  + {name}")
    for change in comparison.changed:
        words = ", ".join(f"{field} {_text(one)} -> {_text(other)}" for field, one, other in change.fields)
        say(f"  ~ {change.name}: {words or 'content'}")
    if differing is None:
        if comparison.unknown:
            say("their values were not compared; --values does")
        return
    say(f"values: {number_of(len(differing), 'weight')} {'differs' if len(differing) == 1 else 'differ'}")
    for name, each in differing.items():
        largest = "in blocks" if each.largest is None else f"by at most {each.largest:.6g}"
        unordered = f", {each.unordered} of them not a number on one side" if each.unordered else ""
        unit = "bytes" if each.largest is None else "elements"
        say(f"  {name}: {each.number} {unit} differ {largest}{unordered}")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)
