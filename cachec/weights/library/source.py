"""Where the bytes of an owned revision are: objects of the store, opened when they are used."""

from __future__ import annotations

from cachec.base import fsio
from cachec.errors import StoreFault, WeightsChanged
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

    def _stated(self, tensor: Tensor) -> str:
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
