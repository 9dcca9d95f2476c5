"""A server of HTTP or HTTPS that keeps what is PUT: nginx, WebDAV, any object store behind a URL; or one of Bazel's.

layout ``plain``: ``<prefix>/r/ab/<node>`` and ``<prefix>/b/ab/<blake3>``. layout ``bazel``: ``<prefix>/cas/<sha256>``
for blobs, and ``<prefix>/ac/<sha256 of the name>`` for rows: each an ActionResult of the Remote Execution API with the
row as its ``stdout_raw`` and the blobs as its ``output_files``, so that the server keeps both together.

HTTP/1.1 (RFC 9112) by hand: ``http.client`` takes 40 ms to import in each process of a build, and ends no answer whose
bytes come one by one. Redirects are not followed, as what is sent along is meant for this server alone.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any

from cachec.errors import StoreFault
from cachec.model import Digest, Fault
from cachec.remote.engines import action
from cachec.remote.engines.base import CHUNK, MAX_ROW, STALL_SECONDS, RemoteBlob, run_with_deadline

if TYPE_CHECKING:
    from cachec.remote.urls import Address

CONNECT_SECONDS = 1.0

#: The limit for a status line with headers, and for a body that is not used, in bytes.
_MAX_HEAD = _MAX_REST = 1 << 16

_FAULTS = {
    **dict.fromkeys((401, 403, 405, 407), Fault.REMOTE_REFUSED),
    **dict.fromkeys((413, 507), Fault.REMOTE_FULL),
    **dict.fromkeys((408, 429, 502, 503, 504), Fault.REMOTE_UNREACHABLE),
}
_GONE = frozenset({404, 410})
_WRITTEN = frozenset({200, 201, 204})


class HttpServer:
    """The engine on a server of HTTP."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._prefix = address.path.rstrip("/")
        self._is_bazel = address.layout == "bazel"
        self._idle: list[_Connection] = []
        self._pid = os.getpid()
        self._headers = f"Host: {address.host_header}\r\nUser-Agent: cachec\r\nAccept-Encoding: identity\r\n"
        if address.user:
            self._headers += f"Authorization: Basic {base64.b64encode(address.user.encode()).decode()}\r\n"
        elif address.token:
            self._headers += f"Authorization: Bearer {address.token}\r\n"

    # --- rows and blobs

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """See RemoteEngine."""
        answer = self._request("GET", self._row(name), until, _GONE)
        if answer.status in _GONE:
            answer.forget()
            return None
        row = answer.whole(MAX_ROW)
        return action.decode_row(row) if self._is_bazel else row

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """See RemoteEngine."""
        data = action.encode_result(row, blobs) if self._is_bazel else row
        condition = "" if replace or self._is_bazel else "If-None-Match: *\r\n"
        return self._put(self._row(name), len(data), lambda: iter((data,)), until, condition)

    def delete_row(self, name: Digest, until: float) -> bool:
        """See RemoteEngine."""
        answer = self._request("DELETE", self._row(name), until, _GONE)
        answer.forget()
        return answer.status not in _GONE

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """See RemoteEngine."""
        answer = self._request("HEAD", self._blob(blob), until, _GONE)
        answer.forget()
        is_cut = answer.stated.isdecimal() and 0 < int(answer.stated) < blob.size  # an upload that broke off
        return answer.status not in _GONE and not is_cut

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """See RemoteEngine."""
        answer = self._request("GET", self._blob(blob), until, _GONE)
        if answer.status in _GONE:
            answer.forget()
            return None
        if answer.length not in {None, blob.size}:
            answer.connection.close()
            raise self._fault(Fault.REMOTE_CORRUPT, f"says {answer.length} bytes of a blob of {blob.size}")
        return answer.chunks()

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """See RemoteEngine."""

        def content() -> Iterator[bytes]:
            with open(path, "rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk

        self._put(self._blob(blob), blob.size, content, until, "")

    def close(self) -> None:
        """See RemoteEngine."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _row(self, name: Digest) -> str:
        if self._is_bazel:
            return f"{self._prefix}/ac/{sha256(b'cachec row' + name.encode()).hexdigest()}"
        return f"{self._prefix}/r/{name[:2]}/{name}"

    def _blob(self, blob: RemoteBlob) -> str:
        if self._is_bazel:
            return f"{self._prefix}/cas/{blob.sha256}"
        return f"{self._prefix}/b/{blob.digest[:2]}/{blob.digest}"

    # --- requests

    def _put(self, path: str, size: int, body: Callable[[], Iterator[bytes]], until: float, condition: str) -> bool:
        for is_first in (True, False):
            answer = self._request("PUT", path, until, {409, 412}, f"Content-Length: {size}\r\n{condition}", body)
            answer.forget()
            if answer.status != 409 or not is_first:
                break
            self._make_folders(path, until)  # of WebDAV (RFC 4918, 9.7.1)
        if answer.status == 409:
            raise self._fault(Fault.REMOTE_REFUSED, "answers PUT with status 409")
        return answer.status != 412

    def _make_folders(self, path: str, until: float) -> None:
        at = 0
        while (at := path.find("/", at + 1)) > 0:
            self._request("MKCOL", path[: at + 1], until, {405, 409, 301}).forget()

    def _request(
        self,
        method: str,
        path: str,
        until: float,
        also: frozenset[int] | set[int],
        headers: str = "",
        body: Callable[[], Iterator[bytes]] | None = None,
    ) -> _Answer:
        """The answer, of a status of success or of ``also``. Raises StoreFault."""
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}{headers}\r\n".encode("latin-1")
        try:
            answer = self._send_request(method, head, body, until)
        except TimeoutError as error:
            raise self._fault(Fault.REMOTE_TIMEOUT, f"did not answer {method} in time") from error
        except OSError as error:
            kind = Fault.REMOTE_REFUSED if "CertVerification" in type(error).__name__ else Fault.REMOTE_UNREACHABLE
            raise self._fault(kind, error.strerror or str(error)) from error
        if answer.status not in also | _WRITTEN:
            answer.connection.close()
            raise self._fault(
                _FAULTS.get(answer.status, Fault.REMOTE_CORRUPT), f"answers {method} with {answer.status}"
            )
        return answer

    def _send_request(
        self, method: str, head: bytes, body: Callable[[], Iterator[bytes]] | None, until: float
    ) -> _Answer:
        if self._pid != os.getpid():  # the connections are the parent's
            self.close()
            self._pid = os.getpid()
        while True:
            connection = self._idle.pop() if self._idle else None
            is_reused = connection is not None
            if connection is None:
                connection = _Connection(self._address, until)
            try:
                connection.send(head, until)
                try:
                    for piece in body() if body is not None else ():
                        connection.send(piece, until)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it has answered before it has all
                status, fields = connection.head(until)
            except ConnectionError:
                connection.close()
                if is_reused:
                    continue  # the server closed the reused connection
                raise
            except BaseException:
                connection.close()
                raise
            return _Answer(status, fields, method == "HEAD", connection, self._idle.append, until)

    def _fault(self, fault: Fault, words: str) -> StoreFault:
        return StoreFault(fault, f"{self._address.shown} {words}")


class _Connection:
    """A connection. Every method raises OSError, TimeoutError once it is ``until``, StoreFault."""

    def __init__(self, address: Address, until: float) -> None:
        self._shown = address.shown
        until = min(until, monotonic() + CONNECT_SECONDS)
        found = _resolve_address(address, until)
        error: OSError | None = None
        for family, kind, protocol, _, place in found[:4]:
            self._socket = socket.socket(family, kind, protocol)
            try:
                self._wait(until)
                self._socket.connect(place)
                break
            except OSError as failed:
                self._socket.close()
                error = failed
        else:
            raise error or OSError(f"{address.host} has no address")
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.scheme == "https":
                import ssl

                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=address.host)
        except BaseException:
            self._socket.close()
            raise
        self._buffer = b""

    def _wait(self, until: float) -> None:
        remaining = min(until - monotonic(), STALL_SECONDS)
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)

    def send(self, data: bytes, until: float) -> None:
        """Send all of it."""
        self._wait(until)
        self._socket.sendall(data)

    def receive(self, most: int, until: float) -> bytes:
        """Some bytes; none at the end."""
        if self._buffer:
            data, self._buffer = self._buffer[:most], self._buffer[most:]
            return data
        self._wait(until)
        return self._socket.recv(min(most, CHUNK))

    def line(self, end: bytes, until: float) -> bytes:
        """The bytes up to ``end``, which goes."""
        while end not in self._buffer:
            self._wait(until)
            more = self._socket.recv(_MAX_HEAD)
            if not more and not self._buffer:
                raise ConnectionError("the connection was closed")
            if not more or len(self._buffer) > _MAX_HEAD:
                raise self.malformed_reply()
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(end)
        return line

    def is_quiet(self) -> bool:
        """Whether nothing came that was not asked for."""
        return not self._buffer

    def head(self, until: float) -> tuple[int, dict[str, str]]:
        """Status and headers of the next final answer."""
        status = 100
        while status < 200:
            first, *lines = self.line(b"\r\n\r\n", until).decode("latin-1").split("\r\n")
            match = re.fullmatch(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?", first)
            if match is None:
                raise self.malformed_reply()
            status = int(match[1])
        fields: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or (name in fields and name in {"content-length", "transfer-encoding"}):
                raise self.malformed_reply()
            fields[name] = value.strip()
        if first.startswith("HTTP/1.0"):
            fields.setdefault("connection", "close")
        return status, fields

    def malformed_reply(self) -> StoreFault:
        """Return the error for a malformed answer."""
        return StoreFault(Fault.REMOTE_CORRUPT, f"{self._shown} gives no answer of HTTP")

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _resolve_address(address: Address, until: float) -> list[Any]:
    """What ``getaddrinfo`` says. It waits for name servers as long as it likes, so it is asked in another thread."""
    try:
        flags = socket.AI_NUMERICHOST
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        where = address.host, address.port
        return run_with_deadline(lambda: socket.getaddrinfo(*where, type=socket.SOCK_STREAM), until, address.shown)


class _Answer:
    """An answer, of which the body is still to come. length: of the body, None where its end will show; stated: what a
    header says of it, also where there is no body."""

    def __init__(
        self,
        status: int,
        fields: dict[str, str],
        is_empty: bool,
        connection: _Connection,
        keep: Callable[[_Connection], object],
        until: float,
    ) -> None:
        self.status = status
        self.connection = connection
        self._keep = keep
        self._until = until
        coding = fields.get("transfer-encoding", "").lower()
        self.stated = stated = fields.get("content-length", "")[:18]
        self._is_chunked = coding == "chunked"
        self._is_reusable = fields.get("connection", "").lower() != "close"
        if coding not in {"", "chunked"} or fields.get("content-encoding", "identity") != "identity":
            connection.close()
            raise connection.malformed_reply()
        if is_empty or status in {204, 304}:
            self.length: int | None = 0
            self._is_chunked = False
        elif self._is_chunked:
            self.length = None
        elif re.fullmatch("[0-9]{1,18}", stated):
            self.length = int(stated)
        elif stated:
            connection.close()
            raise connection.malformed_reply()
        else:
            self.length, self._is_reusable = None, False

    def chunks(self) -> Iterator[bytes]:
        """The body. Raises StoreFault."""
        connection, until = self.connection, self._until
        is_done = False
        try:
            if self._is_chunked:
                while size := self._chunk_size():
                    yield from self._exactly(size)
                    if connection.line(b"\r\n", until):
                        raise connection.malformed_reply()
                while connection.line(b"\r\n", until):
                    pass  # trailers
            elif self.length is not None:
                yield from self._exactly(self.length)
            else:
                while data := connection.receive(CHUNK, until):
                    yield data
            is_done = connection.is_quiet()
        except TimeoutError as error:
            raise StoreFault(Fault.REMOTE_TIMEOUT, "an answer did not come in time") from error
        except OSError as error:
            raise StoreFault(Fault.REMOTE_UNREACHABLE, f"an answer was cut: {error.strerror or error}") from error
        finally:
            if is_done and self._is_reusable:
                self._keep(connection)
            else:
                connection.close()

    def _chunk_size(self) -> int:
        match = re.fullmatch(rb"([0-9a-fA-F]{1,12})(?:[ \t]*;.*)?", self.connection.line(b"\r\n", self._until))
        if match is None:
            raise self.connection.malformed_reply()
        return int(match[1], 16)

    def _exactly(self, remaining: int) -> Iterator[bytes]:
        while remaining:
            data = self.connection.receive(min(remaining, CHUNK), self._until)
            if not data:
                raise StoreFault(Fault.REMOTE_CORRUPT, "an answer was cut")
            remaining -= len(data)
            yield data

    def whole(self, limit: int) -> bytes:
        """All of the body. Raises StoreFault, also for more bytes than ``limit``."""
        pieces, remaining = [], limit
        for piece in self.chunks():
            pieces.append(piece)
            remaining -= len(piece)
            if remaining < 0:
                raise StoreFault(Fault.REMOTE_CORRUPT, f"an answer of more than {limit} bytes")
        return b"".join(pieces)

    def forget(self) -> None:
        """Read and discard a short body, so that the connection can be reused."""
        if self.length is not None and self.length <= _MAX_REST:
            for _ in self.chunks():
                pass
        else:
            self.connection.close()
