"""The client of buckets: the package ``obstore``, its stores, and what its errors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Literal

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import STALL_SECONDS

if TYPE_CHECKING:
    from obstore import GetResult

    from cachec.remote.urls import Address

CONNECT_SECONDS = 1.0

#: What a request may take in all: the caller's time ends before.
_REQUEST_SECONDS = 3600.0

#: Bytes that come at once, and of a part that is sent; how many parts are sent together.
_PIECE, _PART, _TOGETHER = 1 << 20, 8 << 20, 2

#: By what an error says, the first that fits. The package has classes of them for few.
_FAULTS: tuple[tuple[str, Fault], ...] = (
    (r"NoSuchBucket|ContainerNotFound|bucket does not exist", Fault.REMOTE_REFUSED),
    (r"AccessKeyId|credential|status code: 40[137]|ertificate", Fault.REMOTE_REFUSED),
    (r"Quota|StorageFull|EntityTooLarge|InsufficientCapacity|status code: (413|507)", Fault.REMOTE_FULL),
    (r"status code: (408|429|502|503|504)", Fault.REMOTE_UNREACHABLE),
    (r"status code: ", Fault.REMOTE_CORRUPT),
    (r"[Tt]imed ?[Oo]ut", Fault.REMOTE_TIMEOUT),
    (r"error sending request|body error|[Cc]onnect", Fault.REMOTE_UNREACHABLE),
)

#: What a server answers that knows no condition of a put.
_UNCONDITIONAL = r"status code: 501|NotImplemented"


@cache
def asked_by() -> int:
    """Return the number of the process, or of its parent, that made the first call and has the package's threads."""
    return os.getpid()


class StoredObject:
    """An object that is there. size: in bytes, as the server says."""

    def __init__(self, result: GetResult, shown: str) -> None:
        self._result = result
        self._shown = shown
        self.size: int = result.meta["size"]

    def whole(self) -> bytes:
        """All of it. Raises StoreFault."""
        with _faults(self._shown):
            return bytes(self._result.bytes())

    def pieces(self) -> Iterator[bytes]:
        """The bytes as they come. Raises StoreFault."""
        with _faults(self._shown):
            for piece in self._result.stream(min_chunk_size=_PIECE):
                yield bytes(piece)


class Client:
    """Objects below the prefix of a bucket. Raises StoreFault."""

    def __init__(self, address: Address) -> None:
        self._shown = address.shown
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": address.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "read_timeout": timedelta(seconds=STALL_SECONDS),
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
            },
            "retry_config": {"max_retries": 0},
        }
        if address.path.strip("/"):
            options["prefix"] = address.path.strip("/")
        for name in ("endpoint", "region"):
            if getattr(address, name):
                options[name] = getattr(address, name)
        store_class: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[address.scheme]
        with _faults(self._shown):
            self._store = store_class(address.host, **options)

    def get(self, path: str) -> StoredObject | None:
        """Return the object, or None."""
        with _faults(self._shown):
            try:
                return StoredObject(self._store.get(path), self._shown)
            except FileNotFoundError as error:
                _refuse_no_bucket(error)
                return None

    def size(self, path: str) -> int | None:
        """Return the size of an object, or None."""
        with _faults(self._shown):
            try:
                size: int = self._store.head(path)["size"]
            except FileNotFoundError as error:
                _refuse_no_bucket(error)
                return None
            return size

    def put(self, path: str, content: bytes | IO[bytes], *, replace: bool) -> bool:
        """Write an object; False if there is one that must not be replaced, as far as the server reports it."""
        with _faults(self._shown):
            try:
                self._put(path, content, "overwrite" if replace else "create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
            except (exceptions.NotSupportedError, exceptions.GenericError) as error:
                if replace or (
                    isinstance(error, exceptions.GenericError) and not re.search(_UNCONDITIONAL, str(error))
                ):
                    raise
                self._put(path, content, "overwrite")
            return True

    def _put(self, path: str, content: bytes | IO[bytes], mode: Literal["create", "overwrite"]) -> None:
        obstore.put(self._store, path, content, mode=mode, chunk_size=_PART, max_concurrency=_TOGETHER)

    def delete(self, path: str) -> bool:
        """Remove an object; whether there was one, as far as the server tells."""
        with _faults(self._shown):
            try:
                self._store.delete(path)
            except FileNotFoundError as error:
                _refuse_no_bucket(error)
                return False
            return True


def _refuse_no_bucket(error: FileNotFoundError) -> None:
    """Raise the error where no object is there as its bucket is not."""
    if re.search(_FAULTS[0][0], str(error)):
        raise error


@contextmanager
def _faults(shown: str) -> Iterator[None]:
    try:
        yield
    except StoreFault:
        raise
    except (FileNotFoundError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise _fault(Fault.REMOTE_REFUSED, shown, error) from error
    except Exception as error:
        for pattern, fault in _FAULTS:
            if re.search(pattern, str(error)):
                raise _fault(fault, shown, error) from error
        raise _fault(Fault.REMOTE_CORRUPT, shown, error) from error


def _fault(fault: Fault, shown: str, error: Exception) -> StoreFault:
    text = str(error)
    code = re.search(r"<Code>(\w{1,64})</Code>", text) or re.search(r"status code: (\d+ [\w ]{0,40})", text)
    words = code[1] if code else text.partition("\n")[0][:200]
    return StoreFault(fault, f"{shown}: {words}")
