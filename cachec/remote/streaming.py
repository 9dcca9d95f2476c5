"""Streaming of weights from a remote: the first read of a tensor's bytes fetches it into the store.

Names, shapes and types, and the digest of each tensor, are in the revision's manifest. What a tensor is has been
checked before it is an object of the store, so what broke off, or was fetched for another set, is not fetched again;
of the threads and processes that want the same one, one fetches it.
"""

from __future__ import annotations

from collections.abc import Callable

from cachec.errors import StoreFault, WeightError
from cachec.model import ArtifactRef
from cachec.remote.chain import Remote, Remotes
from cachec.remote.engines.base import RemoteBlob
from cachec.remote.revisions import RemoteRevision, RemoteWeights, longest
from cachec.remote.schemes import import_clients
from cachec.store.objects import Objects
from cachec.store.store import Store
from cachec.weights.library.source import FetchedSource
from cachec.weights.library.stored_weights import WeightStore
from cachec.weights.sets import WeightSet


def stream_weights(remotes: Remotes, name: str) -> WeightSet | None:
    """Return the weights of ``name`` from the first remote that has it, or None.

    Raises UsageError for what is no name, WeightError where a remote fails: the next may have others by that name.
    """
    store = remotes.store
    for remote in remotes.all:
        if not remote.address.is_read:
            continue
        import_clients([remote.address.scheme])
        there = RemoteWeights(remote, WeightStore(store))
        try:
            listed = there.find(name)
        except StoreFault as fault:
            raise WeightError(
                f"weights {name!r} can't be looked for at {remote.address.shown}: {_words(fault)}"
            ) from fault
        if listed is not None:
            fetch = _fetching(store, remote, there, name, listed)
            objects = store.objects.leasing()
            contents = listed.contents
            return WeightSet(contents.layout, FetchedSource(objects, listed.revision, contents.refs, fetch))
    return None


def _fetching(
    store: Store, remote: Remote, there: RemoteWeights, name: str, listed: RemoteRevision
) -> Callable[[str, ArtifactRef, Objects], None]:
    def fetch(weight: str, ref: ArtifactRef, objects: Objects) -> None:
        lock = store.locks.of(ref.digest)
        lock.acquire(longest(ref.size))  # whoever has it longer than that fetches it in vain
        try:
            if not objects.has(ref):  # another process fetched it
                there.receive(RemoteBlob(ref.digest, ref.size, listed.sums.get(ref.digest, "")), objects, name)
        except StoreFault as fault:
            raise WeightError(
                f"weight {weight!r} of {name!r} is not here, and {remote.address.shown} did not give its {ref.size} "
                f"bytes (object {ref.digest}): {_words(fault)}. What came before is kept: read it again once the "
                f"remote answers"
            ) from fault
        finally:
            lock.release()

    return fetch


def _words(fault: StoreFault) -> str:
    return f"{fault.fault.value}: {fault.detail}"
