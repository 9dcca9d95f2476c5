"""The setting ``remote``: which stores are shared, and how each is used.

    file:///mnt/cache                          a shared folder
    http[s]://[user:password@]host[:port]/x    a server; ``?layout=bazel`` for one of Bazel's

with ``?mode=read``, ``write`` or ``read-write`` (the default), ``namespace=main`` for what others call theirs, and
``timeout=10`` for seconds to wait for one row (2 by default), and ``trust=`` for whose results count (trust.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from cachec.base.hashing import digest_bytes
from cachec.config import TOKEN, without_secret
from cachec.errors import ConfigError
from cachec.remote.trust import Trust

_PORTS = {"http": 80, "https": 443}
_MODES = ("read-write", "read", "write")
_OPTIONS = {"mode": _MODES, "layout": ("plain", "bazel")}
_NAMESPACE = r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}"


class Address(NamedTuple):
    """One remote. shown: the URL without secrets. user: ``name:password``, or empty. namespace: of keys there."""

    shown: str
    scheme: str
    host: str
    port: int
    path: str
    user: str
    token: str
    layout: str
    mode: str
    namespace: str
    timeout: float
    trust: Trust

    @property
    def name(self) -> str:
        """16 hexadecimal characters that stand for the place, whoever uses it and how."""
        return digest_bytes(f"{self.scheme}://{self.host}:{self.port}{self.path}?{self.namespace}".encode())[:16]

    @property
    def host_header(self) -> str:
        """What the request header ``Host`` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def is_read(self) -> bool:
        """Whether results are looked for there."""
        return self.mode != "write"

    @property
    def is_written(self) -> bool:
        """Whether results go there."""
        return self.mode != "read"


def parse(url: str, namespace: str, environ: Mapping[str, str]) -> Address:
    """The remote that a URL means. namespace: where it says none. Raises ConfigError."""
    shown = without_secret(url).partition("?")[0]

    def refused(why: str) -> ConfigError:
        return ConfigError(f"remote = {shown!r} is not accepted: {why}")

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refused(str(error)) from None
    if not url.isascii() or not url.isprintable() or " " in url or parts.fragment:
        raise refused("a URL has printable characters of ASCII, no space and no '#'")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise refused("an option is given twice")
    for key, value in pairs:
        if key == "namespace":
            if re.fullmatch(_NAMESPACE, value) is None:
                raise refused("a namespace has 1 to 128 letters, digits, '.', '_', '/' or '-'")
        elif key == "timeout":
            if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", value) is None or not 0.1 <= float(value) <= 600:
                raise refused("timeout is a number of seconds from 0.1 to 600")
        elif key == "trust":
            pass  # read below
        elif key not in _OPTIONS or (key == "layout" and parts.scheme == "file"):
            raise refused(
                f"{key!r} is no option of it; there are mode, namespace, timeout, trust and, for http, layout"
            )
        elif value not in _OPTIONS[key]:
            raise refused(f"{key} is one of {', '.join(_OPTIONS[key])}")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise refused("a folder is given as file:///absolute/path")
    elif parts.scheme in _PORTS:
        path = parts.path
        if not parts.hostname:
            raise refused("the host is missing")
    else:
        raise refused("a remote is file:///folder, http://host/path or https://host/path")
    user = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    mode = options.get("mode", "read-write")
    return Address(
        shown=shown,
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=port if port is not None else _PORTS.get(parts.scheme, 0),
        path=path.rstrip("/"),
        user=user,
        token=environ.get(TOKEN, ""),
        layout=options.get("layout", "plain"),
        mode=mode,
        namespace=options.get("namespace", namespace),
        timeout=float(options.get("timeout", "2")),
        trust=Trust(options.get("trust", ""), environ, is_written=mode != "read"),
    )
