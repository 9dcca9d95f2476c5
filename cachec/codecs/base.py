"""What every codec needs: reading artifacts, refusing values, validating a stored ``meta``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cachec.base import fsio
from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault, UnstorableResult
from cachec.model import ArtifactRef, Fault, Leaf

if TYPE_CHECKING:
    from cachec.store.artifacts import ArtifactSource

#: Nesting of a result beyond this is refused: it is a cycle, or would exhaust Python's own stack.
MAX_DEPTH: Final = 100


def corrupt(detail: str) -> StoreFault:
    """A row says something impossible: the call becomes a miss."""
    return StoreFault(Fault.ROW_CORRUPT, detail)


def unstorable(value: object, path: str, way_out: str, what: str = "") -> UnstorableResult:
    """A result can't be stored; ``path`` says where in the result it is."""
    cls = type(value)
    return UnstorableResult(f"{path} is {what or f'a {module_of(cls)}.{cls.__qualname__}'}; {way_out}")


T = TypeVar("T")


def meta_of(leaf: Leaf, form: type[T], artifacts: int | None = 1) -> T:
    """The validated ``meta`` of a leaf that must have so many artifacts. Raises StoreFault (row-corrupt)."""
    if artifacts is not None and len(leaf.artifacts) != artifacts:
        raise corrupt(f"codec {leaf.codec!r} has {len(leaf.artifacts)} artifacts, expected {artifacts}")
    try:
        return msgspec.convert(leaf.meta, form)
    except msgspec.ValidationError as error:
        raise corrupt(f"codec {leaf.codec!r}: {error}") from error


def open_artifact(path: Path, ref: ArtifactRef) -> int:
    """A descriptor of an artifact that is at ``path``, of the size that is recorded. Raises StoreFault."""
    try:
        fd = fsio.open_read(path)
    except FileNotFoundError as error:
        raise StoreFault(Fault.ARTIFACT_MISSING, f"artifact {ref.digest[:12]} is gone") from error
    except OSError as error:
        raise StoreFault(Fault.IO_ERROR, f"artifact {ref.digest[:12]}: {error}") from error
    size = os.fstat(fd).st_size
    if size != ref.size:
        os.close(fd)
        raise StoreFault(Fault.ARTIFACT_CORRUPT, f"artifact {ref.digest[:12]} has {size} bytes, expected {ref.size}")
    return fd


def read(source: ArtifactSource, ref: ArtifactRef) -> bytes:
    """The content of an artifact. Raises StoreFault."""
    return _read(source.path(ref), ref)


def _read(path: Path, ref: ArtifactRef) -> bytes:
    fd = open_artifact(path, ref)
    try:
        return fsio.pread_exact(fd, 0, ref.size)
    except (OSError, EOFError) as error:
        raise StoreFault(Fault.IO_ERROR, f"artifact {ref.digest[:12]}: {error}") from error
    finally:
        os.close(fd)


def reader(source: ArtifactSource, ref: ArtifactRef) -> Callable[[], bytes]:
    """Reads an artifact later. That it is there and whole is asked now, so that a hit does not fail after it was given;
    the bytes are checked again when they are read. The source lives on with the function, and with it the lease.
    """
    path = source.path(ref)

    def load(_source: ArtifactSource = source) -> bytes:
        data = _read(path, ref)
        if digest_bytes(data) != ref.digest:
            raise StoreFault(Fault.ARTIFACT_CORRUPT, f"artifact {ref.digest[:12]} was altered after it was checked")
        return data

    return load
