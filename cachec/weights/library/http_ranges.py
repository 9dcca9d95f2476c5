"""Fetches files over HTTP(S) with ranges (RFC 9110, section 14), and continues what broke off.

A range is asked for with ``If-Range`` (section 13.1.5): the server sends the rest if its version is still the one of
which the beginning is here, and all of it otherwise. So ``state.json`` keeps the validator: a strong ``ETag``, or
``Last-Modified``; without either, every attempt starts anew. What comes is believed in nothing else: a status, length
or range that does not fit what was asked starts over or ends the fetch, and the content is checked afterwards.

``http.client`` and ``urllib.request`` are imported when something is fetched.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachec.base import file_ownership, fsio
from cachec.errors import WeightError
from cachec.model import MALFORMED_JSON
from cachec.weights.io.copying import Progress
from cachec.weights.library.identifier import Identifier

_CHUNK = 1 << 20
_MAX_STATE = 1 << 16
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
#: Attempts in a row that bring no byte before the fetch gives up, and the longest pause between two, in seconds.
_ATTEMPTS = 5
_LONGEST_PAUSE = 30.0
#: Statuses that may be another one next time.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class _PartialDownload(msgspec.Struct, frozen=True):
    """What the bytes that are here are the beginning of."""

    url: str
    validator: str


class _BrokenAttempt(Exception):
    """An attempt ended early."""


class HttpResolver:
    """A resolver of ``http`` and ``https``."""

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """headers: sent with each request, but not to where it is redirected (``Authorization``, say).

        timeout: seconds without a byte before an attempt is given up.
        """
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._sleep = sleep

    def fetch(self, identifier: Identifier, fd: int, state: Path, progress: Progress | None) -> None:
        """See ``identifier.Resolver``. Raises WeightError where the server refuses, or nothing comes any more."""
        barren, pause, last, reached = 0, 0.5, "", os.fstat(fd).st_size
        while barren < _ATTEMPTS:
            try:
                self._attempt(identifier, fd, state, progress)
            except _BrokenAttempt as broken:
                last = str(broken)
            else:
                return
            # Not "more than before": with a server that states wrong lengths, the fetch would start over for ever.
            if os.fstat(fd).st_size > reached:
                barren, pause, reached = 0, 0.5, os.fstat(fd).st_size
            else:
                barren += 1
                self._sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise WeightError(
            f"{identifier.url}: gave up after {_ATTEMPTS} attempts without a new byte, with {os.fstat(fd).st_size} "
            f"bytes here: {last}. Try again later; it goes on from there"
        )

    def _attempt(self, identifier: Identifier, fd: int, state: Path, progress: Progress | None) -> None:
        """One request. Raises _Broken where another may bring more."""
        import http.client
        import ssl

        have, validator = _beginning(identifier, fd, state)
        try:
            with self._open(identifier, have, validator) as response:
                start, total = self._start(identifier, response, have, validator, fd, state)
                self._receive(identifier, response, fd, start, total, progress)
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, OverflowError) as error:
            raise _BrokenAttempt(f"{type(error).__name__}: {error}") from error

    def _open(self, identifier: Identifier, have: int, validator: str) -> Any:
        import urllib.error
        import urllib.request

        request = urllib.request.Request(identifier.url, headers={"Accept-Encoding": "identity"})
        for key, value in self._headers.items():
            request.add_unredirected_header(key, value)
        if have:
            request.add_header("Range", f"bytes={have}-")
            request.add_header("If-Range", validator)
        opener = urllib.request.OpenerDirector()  # no file:, ftp: or data:, wherever a redirect leads
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            _redirects(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            opener.add_handler(handler)
        try:
            return opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416:
                    return _Unsatisfiable()
                if error.code in _PASSING:
                    raise _BrokenAttempt(f"HTTP {error.code} {error.reason}") from error
                raise WeightError(
                    f"{identifier.url}: expected the file, found HTTP {error.code} {error.reason}"
                ) from error
        except urllib.error.URLError as error:
            raise _BrokenAttempt(str(error.reason)) from error
        except ValueError as error:
            raise WeightError(f"{identifier.url}: the server leads to no URL that can be opened: {error}") from error

    def _start(
        self, identifier: Identifier, response: Any, have: int, validator: str, fd: int, state: Path
    ) -> tuple[int, int | None]:
        """Where the body goes, and the size of all. The file is cut to that place, and ``state`` tells its version."""
        version = _validator(response.headers)
        if response.status == 416:  # there is nothing after what is here: it is all, or of another version
            _restart(fd, state)
            raise _BrokenAttempt("the server has no such range; starting over")
        if response.status == 206:
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not have or match is None or int(match[1]) != have or (version and version != validator):
                _restart(fd, state)
                raise _BrokenAttempt("the server sent another range, or another version; starting over")
            total = int(match[3]) if match[3] != "*" else None
            return have, self._checked_size(identifier, total)
        if response.status != 200:
            raise WeightError(f"{identifier.url}: expected HTTP 200 or 206, found {response.status}")
        length = response.headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
        self._checked_size(identifier, total)
        _restart(fd, state)
        if version:
            with fsio.Staging(state.parent) as staged:
                staged.write(msgspec.json.encode(_PartialDownload(identifier.url, version)))
                staged.commit(state, mode=fsio.modes_below(state.parent)[1], fsync=False)
        return 0, total

    def _checked_size(self, identifier: Identifier, total: int | None) -> int | None:
        if total is not None and identifier.size is not None and total != identifier.size:
            raise WeightError(f"{identifier.url}: expected {identifier.size} bytes, found {total} announced")
        return total

    def _receive(
        self, identifier: Identifier, response: Any, fd: int, at: int, total: int | None, progress: Progress | None
    ) -> None:
        limit = identifier.size if identifier.size is not None else total
        buffer = memoryview(bytearray(_CHUNK))
        while count := response.readinto(buffer):
            if limit is not None and at + count > limit:
                raise WeightError(f"{identifier.url}: expected {limit} bytes, found more")
            view = buffer[:count]
            while view:
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
            if progress is not None:
                progress(at, limit or 0)
        if limit is not None and at < limit:
            raise _BrokenAttempt(f"the connection ended at byte {at} of {limit}")


def _redirects() -> Any:
    """Return a handler that follows redirects without reading their bodies, which may be endless."""
    from urllib.request import HTTPRedirectHandler

    class Redirects(HTTPRedirectHandler):
        def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
            fp.read = bytes
            return super().http_error_302(req, fp, code, msg, headers)

        http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    return Redirects()


class _Unsatisfiable:
    """The answer 416."""

    status = 416
    headers: Mapping[str, str] = {}

    def __enter__(self) -> _Unsatisfiable:
        return self

    def __exit__(self, *unused: object) -> None:
        """There is nothing to close."""


def _beginning(identifier: Identifier, fd: int, state: Path) -> tuple[int, str]:
    """How many bytes are here that can be continued, and what the server called their version."""
    have = os.fstat(fd).st_size
    try:
        stored = msgspec.json.decode(file_ownership.read_regular(state, _MAX_STATE), type=_PartialDownload)
    except (OSError, *MALFORMED_JSON):
        stored = _PartialDownload("", "")
    fits = have and stored.url == identifier.url and (identifier.size is None or have < identifier.size)
    return (have, stored.validator) if fits and stored.validator else (0, "")


def _restart(fd: int, state: Path) -> None:
    os.ftruncate(fd, 0)
    with contextlib.suppress(FileNotFoundError):
        state.unlink()


def _validator(headers: Mapping[str, str]) -> str:
    etag = headers.get("ETag", "")
    if etag.startswith('"'):  # a weak one, W/"...", says nothing about bytes
        return etag
    return "" if etag else headers.get("Last-Modified", "")
