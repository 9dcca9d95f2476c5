"""Alignments of resources, in the header of the safetensors file that ``cachec mlir strip`` writes their bytes to.

A checkpoint has no alignments. The key ``cachec.alignments`` of the header's ``__metadata__`` is a JSON object
name -> bytes, of the resources whose alignment is not that of their type.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from cachec.errors import CheckpointError, UsageError
from cachec_mlir.blobs import Resource
from cachec_mlir.module_input import open_input
from cachec_mlir.weight_binding import check_alignment, natural_alignment

_KEY = "cachec.alignments"
_SUFFIX = ".safetensors"


class _Header(msgspec.Struct, rename={"metadata": "__metadata__"}):
    metadata: dict[str, str] = {}


def alignment_metadata(resources: Iterable[Resource]) -> dict[str, str]:
    """The metadata to save with the weights of these resources; empty where every alignment follows from the type."""
    special = {}
    for resource in resources:
        spec = resource.spec()
        natural = {natural_alignment(spec), natural_alignment(spec, (resource.type,) if resource.type else ())}
        if natural != {resource.alignment}:
            special[resource.name] = resource.alignment
    return {_KEY: msgspec.json.encode(special).decode()} if special else {}


def saved_alignments(path: str | os.PathLike[str]) -> dict[str, int]:
    """Name -> alignment, as ``alignment_metadata`` gave them; empty for a file of another kind or without them.

    path: of a file that ``open_weights`` has opened, so its header is valid. Raises CheckpointError, OSError.
    """
    if not os.fspath(path).endswith(_SUFFIX) or not os.path.isfile(path):
        return {}
    source = open_input(path)
    length = int.from_bytes(source.at(0, 8, "the length of the header"), "little")
    header = msgspec.json.decode(source.at(8, length, "the header"), type=_Header)
    if _KEY not in header.metadata:
        return {}
    try:
        found = msgspec.json.decode(header.metadata[_KEY], type=dict[str, int])
        check_alignment(found)
    except (msgspec.DecodeError, UsageError) as error:
        raise CheckpointError(f"{os.fspath(path)}: metadata {_KEY!r} expected alignments by name: {error}") from error
    return found
