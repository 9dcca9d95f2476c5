"""One process at a time, where the others can take from the index what the first has found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.store.index import Index, is_only_looking
from cachec.store.locks import Locks

#: Seconds to wait for another.
_PATIENCE = 10.0


@contextmanager
def in_turn(locks: Locks, index: Index, name: str) -> Iterator[None]:
    """While no other process finds out what is remembered under this name; it is written then.

    A build begins with several commands at once, which would each hash the compiler. Who waits too long, or where there
    can be no lock, does it all the same; a question writes nothing, and takes none.
    """
    if is_only_looking():
        yield
        return
    lock = locks.of(digest_bytes(name.encode()))
    with suppress(StoreFault):
        lock.acquire(_PATIENCE)
    try:
        yield
        index.close()
    finally:
        lock.release()
