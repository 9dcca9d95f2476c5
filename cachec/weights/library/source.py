"""Where the bytes of an owned revision are: objects of the store, opened when they are used, or fetched before."""

from __future__ import annotations

from collections.abc import Callable

from cachec.base import fsio
from cachec.base.hashing import FileDigests
from cachec.errors import HandleClosed, StoreFault, WeightError, WeightsChanged
from cachec.model import ArtifactRef
from cachec.store.objects import Objects
from cachec.weights.sources import FileSource, OpenedFile
from cachec.weights.tensor import Tensor


class OwnedSource(FileSource):
    """The objects of one revision, opened when used, a bounded number of them at a time.

    The digest of a whole weight is the name of its object; a part of one is hashed.
    """

    def __init__(self, objects: Objects, revision: str, refs: tuple[ArtifactRef, ...]) -> None:
        """objects: with a lease on the revision, and on nothing else; it is given up by ``release``, or with this.

        refs: what ``Tensor.file`` counts.
        """
        super().__init__(())
        self._many = True
        self._objects = objects
        self._revision = revision
        self._refs = refs
        self._checked: dict[int, fsio.Identity] = {}

    def state(self) -> bytes:
        return f"owned:{self._revision}".encode()

    def release(self) -> None:
        super().release()
        self._objects.release()

    def _stated_digest(self, tensor: Tensor) -> str:
        ref = self._refs[tensor.file]
        return ref.digest if (tensor.offset, tensor.nbytes) == (0, ref.size) else ""

    def _file(self, name: str, number: int) -> OpenedFile:
        ref = self._refs[number]
        path = self._objects.place(ref.digest)
        try:
            # Binding again what had to be hashed, and can't be sealed by this user, must not hash it again.
            if self._checked.get(number) != fsio.identity(path):
                self._objects.path(ref, lease=False)
            identity = self._checked[number] = fsio.identity(path)
        except (OSError, StoreFault) as error:
            what = "is gone" if isinstance(error, FileNotFoundError) else f"can't be reached: {error}"
            detail = error.detail if isinstance(error, StoreFault) else f"object {ref.digest} {what}"
            raise WeightsChanged(f"weight {name!r}: {detail}; add the weights again") from error
        return OpenedFile(path, identity, 0, "", artifact=True, checksum=f"blake3:{ref.digest}")


class FetchedSource(OwnedSource):
    """The objects of a revision that is elsewhere: each is fetched when its bytes are first used, and then the store's.

    The digest of a whole weight is known without its bytes, so what is only compared is not fetched.
    """

    def __init__(
        self,
        objects: Objects,
        revision: str,
        refs: tuple[ArtifactRef, ...],
        fetch: Callable[[str, ArtifactRef, Objects], None],
    ) -> None:
        """objects: to be leased one by one; ``release`` gives them up.

        fetch: stores an object, checked, that the weight of this name needs; raises WeightError where it can't.
        """
        super().__init__(objects, revision, refs)
        self._fetch = fetch

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        if self._bound is None:
            raise HandleClosed(f"weight {name!r}: its set was released; open the weights again")
        return self._stated_digest(tensor) or super().digest(name, tensor, digests)

    def _provide(self, name: str, number: int) -> None:
        ref = self._refs[number]
        try:
            if not self._objects.has(ref):
                self._fetch(name, ref, self._objects)
        except StoreFault as fault:
            raise WeightError(f"weight {name!r}: {fault.detail}") from fault
