"""A server of HTTP on the loopback that keeps what is PUT, and does everything wrong that it is told to."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cachec.remote.engines.action import decode_row


@dataclass
class Site:
    """What the server keeps, how it behaves, and what it was asked.

    answer: of one that is given in place of the right one: status, headers and body, or None for that one. hang: waits
    for the end of the test with every answer. trickle: bytes of a body, after which nothing comes any more.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer: Callable[[str, str], tuple[int, dict[str, str], bytes] | None] = lambda _method, _path: None
    alter: Callable[[str, bytes], bytes] = lambda _path, data: data
    hang: bool = False
    trickle: int | None = None
    is_chunked: bool = False
    is_closed: bool = False
    is_conditional: bool = True
    is_webdav: bool = False  # no file without its folder
    is_bucket: bool = False  # as S3 answers
    is_bazel: bool = False  # no blob but under its own digest, no row but an ActionResult
    ports: set[int] = field(default_factory=set)  # those of clients
    open: list[socket.socket] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def asked(self, method: str) -> list[str]:
        """The paths that were asked for by a method."""
        return [path for each, path in self.requests if each == method]


class Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def _serve(self) -> None:
        site = self.site
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        site.requests.append((self.command, self.path))
        site.ports.add(self.client_address[1])
        site.open.append(self.connection)
        site.headers.append(dict(self.headers))
        if site.hang:
            site.ended.wait()
            self.close_connection = True
            return
        self.close_connection = site.is_closed
        other = site.answer(self.command, self.path)
        if other is not None:
            self._answer(*other)
            return
        getattr(self, f"_{self.command.lower()}")(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_MKCOL = do_POST = _serve

    def _get(self, _body: bytes) -> None:
        data = self.site.files.get(self.path)
        if data is None:
            self._answer(404, {}, b"no such file")
        else:
            self._answer(200, {}, self.site.alter(self.path, data))

    _head = _get

    def _put(self, body: bytes) -> None:
        site, path = self.site, self.path
        if site.is_bazel and "/cas/" in path:
            if sha256(body).hexdigest() != path.rpartition("/")[2]:
                return self._answer(400, {}, b"")
        elif site.is_bazel:
            decode_row(body)
        elif site.is_webdav and path.rpartition("/")[0] not in site.folders:
            return self._answer(409, {}, b"")
        if site.is_conditional and self.headers.get("If-None-Match") == "*" and path in site.files:
            return self._answer(412, {}, b"")
        site.files[path] = body
        return self._answer(201, {}, b"")

    def _delete(self, _body: bytes) -> None:
        self._answer(404 if self.site.files.pop(self.path, None) is None else 204, {}, b"")

    def _post(self, body: bytes) -> None:
        """S3's DeleteObjects."""
        (key,) = re.findall(r"<Key>(.*?)</Key>", body.decode())
        self.site.files.pop(f"{self.path.partition('?')[0]}/{key}", None)
        self._answer(200, {}, b"<DeleteResult><Deleted><Key>%s</Key></Deleted></DeleteResult>" % key.encode())

    def _mkcol(self, _body: bytes) -> None:
        path = self.path.rstrip("/")
        if path in self.site.folders:
            return self._answer(405, {}, b"")
        above = path.rpartition("/")[0]
        if above and above not in self.site.folders:
            return self._answer(409, {}, b"")
        self.site.folders.add(path)
        return self._answer(201, {}, b"")

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        site = self.site
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if site.is_bucket:
            self.send_header("ETag", '"etag"')
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 07:00:00 GMT")
        has_body = self.command != "HEAD" and status != 204
        if site.is_chunked and has_body and not headers:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 10_000):
                piece = body[at : at + 10_000]
                self.wfile.write(b"%x;a=b\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\nx: y\r\n\r\n")
            return
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not has_body:
            return
        if site.trickle is not None:
            self.wfile.write(body[: site.trickle])
            self.wfile.flush()
            site.ended.wait()
            self.close_connection = True
            return
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no news."""


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """The site of a server that runs meanwhile."""
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with _Server(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/team"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            site.ended.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """The URL of a port where connections are taken, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        yield f"http://127.0.0.1:{hole.getsockname()[1]}/team"


def refusing() -> str:
    """The URL of a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/team"
