"""The native libraries in this process that register operations with torch, by content. Imports torch."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from cachec.base import elf
from cachec.model import Reason
from cachec_torch.project_modules import (
    FileIdentity,
    ProjectModules,
    UnstorableOperation,
    content_digest,
    file_identity,
)

#: Symbols by which a native library registers operations. Models of AOTInductor hold other words that begin with
#: ``torch_library_``.
_REGISTERING = re.compile(rb"5torch7Library|17RegisterOperators|torch_library_(?:def|fragment|impl|init|set)")

#: Folders of libraries that belong to the system.
_SYSTEM = ("/lib/", "/lib64/", "/usr/")

#: What the kernel appends to the path of a mapped file that is no longer there.
_DELETED = " (deleted)"


def library_parts(modules: ProjectModules, generated: str) -> Iterator[tuple[str, str]]:
    """Labels and digests of the libraries that register operations, and of those that they need.

    Those of torch and Inductor are no part, and needed ones of the system or of a distribution are none. generated: the
    folder of Inductor. Raises UnstorableOperation for one that was replaced or removed since it was loaded.
    """
    asked = frozenset(map(os.path.realpath, torch.ops.loaded_libraries))
    mapped = _mapped_files()
    found = [path for path in sorted({*asked, *mapped}) if _is_counted(path, mapped, asked, modules, generated)]
    for path in found:  # which grows
        if path.endswith(_DELETED) or not os.path.exists(path):
            path = path.removesuffix(_DELETED)
            raise UnstorableOperation(
                Reason.INPUT_CHANGED,
                f"the library {path} was replaced or removed after it was loaded; start the process again",
            )
        identity = file_identity(path)
        yield f"library {os.path.basename(path)}", content_digest(identity)
        for needed in _read_needed(identity):
            name = needed.partition(".so")[0] + ".so"
            for each in mapped:
                if os.path.basename(each).startswith(name) and each not in found and _is_of_project(each, modules):
                    found.append(each)


def _is_counted(
    path: str, mapped: dict[str, list[tuple[int, int]]], asked: frozenset[str], modules: ProjectModules, generated: str
) -> bool:
    """Whether a library registers operations, and is neither torch's nor Inductor's."""
    file = path.removesuffix(_DELETED)
    if modules.is_torch_file(file) or file.startswith(f"{generated}{os.sep}"):
        return False
    if file in asked:
        return True
    if file != path or not os.path.exists(path):
        return _is_registering_memory(mapped.get(path, []))
    return _is_registering(file_identity(path))


def _is_of_project(path: str, modules: ProjectModules) -> bool:
    is_own = not modules.is_torch_file(path) and not path.startswith(_SYSTEM)
    return is_own and modules.distribution(path) is None


def _mapped_files() -> dict[str, list[tuple[int, int]]]:
    """The native libraries in the memory of this process, with the addresses where each is."""
    found: dict[str, list[tuple[int, int]]] = {}
    executable = set()
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/") and "r" in rights:
            start, _, end = addresses.partition("-")
            found.setdefault(path[0], []).append((int(start, 16), int(end, 16)))
            executable |= {path[0]} if "x" in rights else set()
    return {path: pieces for path, pieces in found.items() if path in executable}


def _is_registering_memory(pieces: list[tuple[int, int]]) -> bool:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return any(_REGISTERING.search(os.pread(memory.fileno(), end - start, start)) for start, end in pieces)


@functools.lru_cache(maxsize=4096)
def _read_needed(identity: FileIdentity) -> tuple[str, ...]:
    try:
        return elf.read_dynamic(identity.path).needed
    except elf.ElfError:
        return ()


@functools.lru_cache(maxsize=4096)
def _is_registering(identity: FileIdentity) -> bool:
    """Whether a library registers operations."""
    if not any(name.startswith(("libtorch", "libc10")) for name in _read_needed(identity)):
        return False
    return bool(_REGISTERING.search(Path(identity.path).read_bytes()))
