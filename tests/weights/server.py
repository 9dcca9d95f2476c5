"""A server on the loopback that offers one file, and does everything wrong that it is told to."""

from __future__ import annotations

import contextlib
import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cachec.base.hashing import digest_bytes


@dataclass
class Site:
    """What the server has, how it behaves, and what it was asked."""

    data: bytes
    etag: str | None = '"v1"'
    modified: str | None = None
    ranges: bool = True
    if_range: bool = True
    drops: list[int] = field(default_factory=list)  # bytes after which each of the next answers breaks off
    statuses: list[int] = field(default_factory=list)  # of the next answers, instead of the file
    length: int | None = None  # what is announced instead of the truth
    extra: bytes = b""  # sent after the body
    shift: int = 0  # added to the beginning of each range that is answered
    location: str | None = None  # redirects
    after: Callable[[Site], None] | None = None  # called once the next answer ended
    requests: list[dict[str, str]] = field(default_factory=list)
    base: str = ""

    @property
    def url(self) -> str:
        return f"{self.base}/m.safetensors"

    @property
    def identifier(self) -> str:
        return f"{self.url}#blake3={digest_bytes(self.data)}&size={len(self.data)}"

    @property
    def asked(self) -> list[str | None]:
        return [request.get("Range") for request in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.requests.append(dict(self.headers))
        after, site.after = site.after, None
        if self.path == "/elsewhere/m.safetensors" or site.location is None:
            self._answer(site)
        else:
            self.send_response(302)
            self.send_header("Location", site.location)
            self.send_header("Content-Length", "9999999999999")  # nobody has to wait for that
            self.end_headers()
        if after is not None:
            after(site)

    def _answer(self, site: Site) -> None:
        if site.statuses:
            self.send_response(site.statuses.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, begin, status = site.data, 0, 200
        wanted = self.headers.get("Range")
        fresh = not site.if_range or self.headers.get("If-Range") in {site.etag, site.modified}
        if wanted and site.ranges and fresh:
            begin, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
            if begin >= len(data):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin += site.shift
        body = data[begin:]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if site.etag:
            self.send_header("ETag", site.etag)
        if site.modified:
            self.send_header("Last-Modified", site.modified)
        length = len(body) if site.length is None else site.length
        if length >= 0:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        cut = site.drops.pop(0) if site.drops else len(body)
        self.wfile.write(body[:cut] + (site.extra if cut >= len(body) else b""))

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Says nothing of clients that went away, which some tests kill."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(data: bytes = b"") -> Iterator[Site]:
    """The server, as long as the body runs."""
    found = Site(data)
    server = Server(("127.0.0.1", 0), type("H", (Handler,), {"site": found}))
    found.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
