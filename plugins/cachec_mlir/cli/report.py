"""What ``cachec mlir`` prints for people: a stripped module as a bug report, and a difference in lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachec.base.display_text import clean, number_of
from cachec.programs.supported_versions import version_of
from cachec_mlir.blobs import Resource
from cachec_mlir.explain.module_diff import Difference, OperationChange
from cachec_mlir.explain.readable_text import ReadableModule

#: Packages whose versions are in a bug report, if installed.
_TOOLS = ("iree-base-compiler", "jaxlib", "torch-mlir", "apache-tvm")
_LISTED = 40
#: Characters up to which a constant is printed whole: what stays inline as no weight, so that the report parses.
WHOLE = 1024


def bug_report(name: str, size: int, weights: Sequence[Resource], readable: ReadableModule) -> str:
    """The stripped module as text under a comment: versions, sizes, the weights by name. It parses as it is, unless
    the comment says that constants were cut.
    """
    total = sum(each.nbytes for each in weights)
    tools = [f"{each} {number}" for each in _TOOLS if (number := version_of(each))]
    lines = [
        f"{clean(name)}: {size:,} bytes, {len(readable.text.encode()):,} without weights",
        f"stripped by cachec {version_of('cachec')}; installed: {', '.join(tools) or 'no compiler that it knows'}",
        f"{number_of(len(weights), 'weight')}, {number_of(total, 'byte')}, left out",
        *_weights(weights),
    ]
    if readable.notation != "text":
        lines.append(f"bytecode, printed in generic notation by the MLIR of {readable.notation}")
    if readable.cut:
        lines.append(
            f"{number_of(readable.cut, 'inline constant')} cut here; `cachec mlir strip -o FILE` writes them whole"
        )
    return "".join(f"// {line}\n" for line in lines) + "\n" + readable.text.rstrip() + "\n"


def difference_lines(difference: Difference, most: int) -> Iterator[str]:
    """A difference in lines, ``most`` operations and weights at most."""
    if difference.same:
        yield "the same program; only names, places or weight bytes may differ"
        return
    function = None
    after = ""
    for each in difference.operations[:most]:
        if each.function != function:
            function = each.function
            yield f"in @{function}:" if function else "at the top:"
        if each.after and each.after != after:
            yield f"      {each.after}"
        after = each.after
        yield from _change(each)
    if len(difference.operations) > most:
        yield f"and {number_of(len(difference.operations) - most, 'more operation')} (--json has all)"
    for weight in difference.weights[:most]:
        if weight.kind in {"changed", "values"}:
            yield f"weight {weight.name}: {weight.old} -> {weight.new}"
        else:
            sign = "+" if weight.kind == "added" else "-"
            yield f"{sign} weight {weight.name}: {weight.old or weight.new}"
    if len(difference.weights) > most:
        yield f"and {number_of(len(difference.weights) - most, 'more weight')} (--json has all)"


def _change(each: OperationChange) -> Iterator[str]:
    if each.kind == "connected":
        yield "  the same operations, connected or ordered otherwise, first where"
        yield f"  - … {each.old} …"
        yield f"  + … {each.new} …"
        return
    if each.old is not None:
        yield f"  - {each.old_line}: {each.old}"
    if each.new is not None:
        yield f"  + {each.new_line}: {each.new}"


def _weights(weights: Sequence[Resource]) -> Iterator[str]:
    for each in weights[:_LISTED]:
        yield clean(f"  {each.name}: {each.words()}")
    if len(weights) > _LISTED:
        yield f"  and {len(weights) - _LISTED:,} more"
