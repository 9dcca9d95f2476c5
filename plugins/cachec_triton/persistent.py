"""What Triton compiles while kernels are called, kept in a cachec store: its own keys, its own folder beside it.

Triton asks for a group of files a kernel, by their paths, and puts file after file. A group is one value here; so is a
file that is asked for by itself (a launcher, results of tuning). Imports triton.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from triton.runtime.cache import FileCacheManager

if TYPE_CHECKING:
    from cachec.cache import Cache

#: The name under which what Triton compiles is listed.
NAME = "triton"


class _Kept:
    """A cache, and Triton's part of it: one object for all keys, as it knows which of them were missed."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.foreign = cache.foreign(NAME, selective=True)


class StoredKernels(FileCacheManager):  # type: ignore[misc]  # it has no types
    """A cache manager of Triton's for one of its keys. What is found in the store is written to Triton's folder."""

    #: The cache, and what keeps bytes in it; None for the default one.
    cachec_cache: ClassVar[_Kept | None] = None

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        # Files for who debugs a kernel are no results.
        self._foreign = None if override or dump else _kept(type(self)).foreign
        self._asked: set[str] = set()

    def get_file(self, filename: str) -> str | None:
        """The place of a file, from the store or else from Triton's folder."""
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
            files = None if data is None else _unpacked(data)
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


def storing_in(cache: Cache | None) -> type[StoredKernels]:
    """The manager for a cache; for None that of the default one."""
    return StoredKernels if cache is None else type("StoredKernels", (StoredKernels,), {"cachec_cache": _Kept(cache)})


def opened(manager: type[StoredKernels]) -> Cache:
    """The cache of a manager."""
    return _kept(manager).cache


def _kept(manager: type[StoredKernels]) -> _Kept:
    return manager.cachec_cache or _default()


@lru_cache(maxsize=1)
def _default() -> _Kept:
    from cachec.cache import Cache

    return _Kept(Cache())


def _path(found: Any) -> str | None:
    return None if found is None else str(found)


def _unpacked(data: bytes) -> dict[str, bytes] | None:
    """None for what is no group of files of one folder."""
    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return files if all(name and "/" not in name and name not in {".", ".."} for name in files) else None
