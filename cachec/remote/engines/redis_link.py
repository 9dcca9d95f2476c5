"""A connection to a server of Redis by the package ``redis``, which ends in time and takes no more than was asked for.

The package has a time-out for each time that bytes come, and none for all of them, and takes as many as the server says
there are. So its socket is one that knows a time and a number of bytes, at which it ends.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis import exceptions
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import CHUNK, STALL_SECONDS, LostLink, run_with_deadline

if TYPE_CHECKING:
    from cachec.remote.urls import Address

CONNECT_SECONDS = 1.0

#: The limit for answers to the commands at the start of a connection, in bytes.
_GREETING = 1 << 16

#: By the class of an error; the first that fits.
_FAULTS: tuple[tuple[type[Exception], Fault], ...] = (
    (exceptions.AuthenticationError, Fault.REMOTE_REFUSED),
    (exceptions.AuthenticationWrongNumberOfArgsError, Fault.REMOTE_REFUSED),
    (exceptions.NoPermissionError, Fault.REMOTE_REFUSED),
    (exceptions.ReadOnlyError, Fault.REMOTE_REFUSED),
    (exceptions.OutOfMemoryError, Fault.REMOTE_FULL),
    (exceptions.TimeoutError, Fault.REMOTE_TIMEOUT),
    (exceptions.ConnectionError, Fault.REMOTE_UNREACHABLE),
    (exceptions.ClusterDownError, Fault.REMOTE_UNREACHABLE),
    (exceptions.TryAgainError, Fault.REMOTE_UNREACHABLE),
    (exceptions.AskError, Fault.REMOTE_REFUSED),  # from a cluster; its nodes are not searched
)

#: By how a message begins, of errors that have no class: writes are stopped, the number of a database is too large.
_REFUSALS = ("MISCONF", "NOREPLICAS", "DENIED", "DB index", "ERR DB index", "invalid DB index")


class _Limits:
    """until: when a question is given up. bytes_left: bytes that may still come."""

    until = 0.0
    bytes_left = 0


class _LimitedSocket:
    """A socket that raises TimeoutError in time, and ValueError for more bytes than there may be."""

    def __init__(self, inner: socket.socket, limits: _Limits) -> None:
        self._inner = inner
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settimeout(self, seconds: float | None) -> None:
        """What the package sets does not count."""

    def _wait(self) -> None:
        stall_seconds = min(self._limits.until - monotonic(), STALL_SECONDS)
        if stall_seconds <= 0:
            raise TimeoutError
        self._inner.settimeout(stall_seconds)

    def _took(self, nbytes: int) -> None:
        self._limits.bytes_left -= nbytes
        if self._limits.bytes_left < 0:
            raise ValueError("more bytes than were asked for")

    def sendall(self, data: bytes) -> None:
        """See socket."""
        self._wait()
        self._inner.sendall(data)

    def recv(self, nbytes: int) -> bytes:
        """See socket."""
        self._wait()
        data = self._inner.recv(nbytes)
        self._took(len(data))
        return data

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """See socket: the parser of ``hiredis`` takes this one."""
        self._wait()
        count = self._inner.recv_into(buffer)
        self._took(count)
        return count


class _Limiting:
    """A connection of the package with such a socket."""

    limits: _Limits

    def _connect(self) -> Any:
        return _LimitedSocket(super()._connect(), self.limits)  # type: ignore[misc]


class _TcpLink(_Limiting, Connection):
    pass


class _TlsLink(_Limiting, SSLConnection):
    pass


class _UnixLink(_Limiting, UnixDomainSocketConnection):
    pass


class Link:
    """One connection, ready to be asked."""

    def __init__(self, address: Address, until: float) -> None:
        """Raises StoreFault."""
        name, _, password = address.user.partition(":")
        options: dict[str, Any] = {
            "db": address.database,
            "username": name or None,
            "password": password or address.token or None,
            "protocol": 2,
            "socket_read_size": CHUNK,
            "socket_timeout": STALL_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
        }
        self._shown = address.shown
        link_class: Any = {"redis+unix": _UnixLink, "rediss": _TlsLink}.get(address.scheme, _TcpLink)
        place: dict[str, Any] = (
            {"path": address.path} if link_class is _UnixLink else {"host": address.host, "port": address.port}
        )
        self._link = link_class(**place, **options)
        self._limits = self._link.limits = _Limits()
        self._limits.until, self._limits.bytes_left = until, _GREETING
        try:
            # In a thread: the resolver and the handshake of TLS wait as long as they like.
            run_with_deadline(self._link.connect, until, self._shown)
        except StoreFault:
            raise
        except Exception as error:
            raise self._fault_of(error) from error

    def asked(self, commands: Sequence[Sequence[str | bytes]], until: float, most: int) -> list[Any]:
        """A reply to each command, of ``most`` bytes together; an error that the server replied is a StoreFault.

        Raises LostLink, and StoreFault, after which the connection is closed; so do both halves of this.
        """
        self.send(commands, until)
        return self.replies(len(commands), until, most)

    def send(self, commands: Sequence[Sequence[str | bytes]], until: float) -> None:
        """Ask, where ``replies`` is called later."""
        self._limits.until = until
        with self._closing():
            self._link.send_packed_command(self._link.pack_commands(commands))

    def replies(self, count: int, until: float, most: int) -> list[Any]:
        """What came of ``send``."""
        self._limits.until, self._limits.bytes_left = until, most
        with self._closing():
            return [self._reply() for _ in range(count)]

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Whatever goes wrong is the end of the connection."""
        try:
            yield
        except exceptions.ConnectionError as error:
            self.close()
            if type(error) is not exceptions.ConnectionError:
                raise self._fault_of(error) from error
            raise LostLink(str(error)) from error
        except Exception as error:
            self.close()
            raise self._fault_of(error) from error
        except BaseException:
            self.close()
            raise

    def _reply(self) -> Any:
        try:
            return self._link.read_response()
        except exceptions.ResponseError as error:
            return self._fault_of(error)

    def close(self) -> None:
        """Close it."""
        self._link.disconnect()

    def _fault_of(self, error: Exception) -> StoreFault:
        """What an error of the package, or of its parser at what is no answer, means."""
        kinds = [fault for kind, fault in _FAULTS if isinstance(error, kind)]
        fault = kinds[0] if kinds else Fault.REMOTE_CORRUPT
        if str(error).startswith(_REFUSALS) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            fault = Fault.REMOTE_REFUSED
        return StoreFault(fault, f"{self._shown}: {type(error).__name__}: {str(error)[:200]}")
