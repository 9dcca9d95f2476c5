"""A summary of a module in figures: its operations by name, its weights by spec. No byte of a weight is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cachec.errors import CachecError
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.explain.readable_text import literals, make_readable, operations, typed_resources
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.strip_and_link import open_unlinked, strip

#: Constants in the IR that are listed, the largest first.
_LARGEST = 10


def summarize(source: Source, *, bindings: str | None = None) -> dict[str, Any]:
    """Return the plain data of ``cachec mlir inspect --json``.

    operations, dialects: null if bytecode can't be printed here, with the reason in ``unread``. Raises CheckpointError,
    OSError.
    """
    module = open_input(source)
    figures: dict[str, Any] = {"path": module.label, "kind": "text", "size": module.size}
    figures |= {"version": None, "producer": None}
    stripped = strip(source)
    constants: list[dict[str, Any]] = []
    if is_bytecode(source):
        opened = Bytecode(source)
        figures |= {"kind": "bytecode", "version": opened.version, "producer": opened.producer.decode(errors="replace")}
    else:
        constants = [{"line": line, "type": kind, "characters": size} for line, kind, size in literals(stripped.ir)]
        constants.sort(key=lambda each: -each["characters"])
    names: Counter[str] | None = None
    unread, readable = None, None
    try:
        readable = make_readable(stripped.ir, bindings)
        names = Counter(each.name for each in operations(readable.text) if each.name)
    except CachecError as error:
        unread = str(error)
    dialects: Counter[str] = Counter()
    for name, count in (names or {}).items():
        dialects[name.partition(".")[0]] += count
    return figures | {
        "stripped_size": len(stripped.ir),
        "operations": None if names is None else names.total(),
        "dialects": None if names is None else dict(dialects.most_common()),
        "operation_names": None if names is None else dict(names.most_common()),
        "unread": unread,
        "resources": [
            {
                "name": each.name,
                "type": each.type,
                "nbytes": each.nbytes,
                "alignment": each.alignment,
                "lifted": each.name in stripped.lifted,
            }
            for each in typed_resources(stripped, readable)
        ],
        "resource_bytes": sum(each.nbytes for each in stripped.resources.values()),
        "declared": [name for name in open_unlinked(stripped.ir).wanted if name not in stripped.resources],
        "constants": constants[:_LARGEST],
    }
