"""Writing weights as the ``.ptd`` of a program. Imports neither executorch nor torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cachec.errors import LinkError, PluginError
from cachec.programs.artifact import File
from cachec.weights import WeightSet
from cachec.weights.formats.ptd import head_of
from cachec_executorch.pte_file import KIND, MethodForm, read_file


def write_files(artifact: File, weights: WeightSet, folder: str | os.PathLike[str], name: str) -> None:
    """See ``cachec_executorch.write``."""
    if artifact.kind != KIND:
        raise PluginError(f"{artifact!r} is not of kind {KIND!r}; cachec_executorch.compile makes such files")
    if artifact.manifest is not None:
        artifact.manifest.check(weights.specs)
    pte, form = read_file(artifact.path)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for suffix, pieces in ((".ptd", tensor_data(form, weights)), (".pte", iter([memoryview(pte)]))):
        whole = place / f"{name}{suffix}"
        unfinished = whole.with_name(f".{whole.name}.{os.getpid()}")
        try:
            with open(unfinished, "wb") as file:
                for piece in pieces:
                    file.write(piece)
            unfinished.rename(whole)
        finally:
            unfinished.unlink(missing_ok=True)


def tensor_data(form: MethodForm, weights: WeightSet) -> Iterator[memoryview]:
    """Return the bytes of a ``.ptd``, piece by piece. Raises LinkError if a weight is missing."""
    missing = sorted(name for name in form.names.values() if name not in weights)
    if missing:
        raise LinkError(f"the program needs {missing[0]!r}, and there is no such weight")
    head = head_of(form.names, {name: weights[name].spec for name in form.names.values()})
    yield memoryview(head.data)
    end = len(head.data)
    for name, at in head.places.items():
        yield memoryview(bytes(at - end))
        data = weights[name].raw()
        yield data
        end = at + data.nbytes
