"""Triton's cache manager over a cachec store, for kernels that Triton compiles when they are called. Imports triton.

The keys are Triton's own. Triton reads a group of files for a kernel, by their paths, and writes file after file. A
group is one value in the store, and so is a single file (a launcher, results of tuning). Triton's own folder has all
files, too.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from triton.runtime.cache import FileCacheManager

if TYPE_CHECKING:
    from cachec.cache import Cache

#: The name of Triton's kernels in lists.
NAME = "triton"


class _KernelCache:
    """A cache, and its blob cache for Triton: one object for all keys, because it knows the keys of misses."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.foreign = cache.foreign(NAME, selective=True)


class StoredKernels(FileCacheManager):  # type: ignore[misc]  # it has no types
    """A cache manager of Triton for one key. It writes files from the store to Triton's folder."""

    #: None for the default cache.
    cachec_cache: ClassVar[_KernelCache | None] = None

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        # Files for debugging a kernel are not results.
        self._foreign = None if override or dump else _kernel_cache(type(self)).foreign
        self._asked: set[str] = set()

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file, from the store or else from Triton's folder."""
        if self._foreign is None:
            return _path(super().get_file(filename))
        data = self._foreign.get(f"{self.key}/{filename}")
        if data is not None:
            return _path(super().put(data, filename))
        self._asked.add(filename)
        return _path(super().get_file(filename))

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        place = str(super().put(data, filename, binary))
        if self._foreign is not None and filename in self._asked:
            self._foreign.put(f"{self.key}/{filename}", Path(place).read_bytes())
        return place

    def get_group(self, filename: str) -> dict[str, str] | None:
        if self._foreign is not None:
            data = self._foreign.get(f"{self.key}/{filename} and others")
            files = None if data is None else _decode_group(data)
            if files is not None and filename in files:
                group = {name: str(super(StoredKernels, self).put(content, name)) for name, content in files.items()}
                super().put_group(filename, group)
                return group
        found: dict[str, str] | None = super().get_group(filename)
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> Any:
        made = super().put_group(filename, group)
        if self._foreign is not None:
            files = {name: Path(place).read_bytes() for name, place in sorted(group.items())}
            self._foreign.put(
                f"{self.key}/{filename} and others", msgspec.msgpack.encode(files), detail=f"kernel: {filename}"
            )
        return made


def manager_for(cache: Cache | None) -> type[StoredKernels]:
    """Return the manager class for a cache; for None that of the default cache."""
    return (
        StoredKernels
        if cache is None
        else type("StoredKernels", (StoredKernels,), {"cachec_cache": _KernelCache(cache)})
    )


def cache_of(manager: type[StoredKernels]) -> Cache:
    """Return the cache of a manager."""
    return _kernel_cache(manager).cache


def _kernel_cache(manager: type[StoredKernels]) -> _KernelCache:
    return manager.cachec_cache or _default_kernel_cache()


@lru_cache(maxsize=1)
def _default_kernel_cache() -> _KernelCache:
    from cachec.cache import Cache

    return _KernelCache(Cache())


def _path(found: Any) -> str | None:
    return None if found is None else str(found)


def _decode_group(data: bytes) -> dict[str, bytes] | None:
    """Return the files of a group by their names; None for bytes that are not such a group."""
    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return files if all(name and "/" not in name and name not in {".", ".."} for name in files) else None
