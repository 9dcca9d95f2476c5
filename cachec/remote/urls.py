"""The setting ``remote``: which stores are shared, and how each is used.

    file:///mnt/cache                          a shared folder
    http[s]://[user:password@]host[:port]/x    a server; ``?layout=bazel`` for one of Bazel's
    redis[s]://[user:password@]host[:port]/0   a server of Redis and the number of its database
    redis+unix:///run/redis.sock?db=0          the same by a socket
    reapi[s]://host[:port]/instance            a cache for Bazel by gRPC, and the name of an instance, if it has any
    s3://bucket/prefix?endpoint=&region=       an object store; ``gs://bucket`` and ``az://container`` as well
    toy://...                                  what a package offers (``schemes``)

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
from cachec.remote.schemes import SCHEMES, scheme_named
from cachec.remote.trust import Trust

_MODES = ("read-write", "read", "write")
_NAMESPACE = r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}"

#: Of ``reapi``: what a host looks like, and an instance behind it.
_HOST, _INSTANCE = r"[A-Za-z0-9_.:-]+", r"(/[A-Za-z0-9_.@:~+-]+)*/?"

#: Which no part of an instance's name may be, as the API names other things so.
_KEYWORDS = frozenset(
    ("blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs")
)

#: The note for a URL that was cut at a password, which is not shown.
_ESCAPED = "a password has '%2F' for '/', '%3F' for '?', '%23' for '#' and '%40' for '@'"

#: Options that every scheme has.
_EVERY = ("mode", "namespace", "timeout", "trust")

#: What the value of an option looks like, and in words.
_VALUES = {
    "mode": ("|".join(_MODES), "one of read-write, read, write"),
    "layout": ("plain|bazel", "one of plain, bazel"),
    "namespace": (_NAMESPACE, "1 to 128 letters, digits, '.', '_', '/' or '-'"),
    "timeout": (r"[0-9]{1,3}(\.[0-9]{1,3})?", "a number of seconds from 0.1 to 600"),
    "db": ("[0-9]{1,5}", "a number"),
    "region": ("[A-Za-z0-9-]{1,64}", "a name such as eu-central-1"),
    "endpoint": (r"https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?", "a URL such as https://s3.example:9000"),
}


class Address(NamedTuple):
    """One remote."""

    #: The URL without secrets.
    shown: str
    scheme: str
    #: Of buckets their name.
    host: str
    port: int
    path: str
    #: ``name:password``, or empty.
    user: str
    token: str
    layout: str
    mode: str
    #: The namespace of keys there.
    namespace: str
    timeout: float
    trust: Trust
    #: With ``region``: of buckets, or empty.
    endpoint: str = ""
    region: str = ""
    #: The number of the database, of Redis.
    database: int = 0
    #: Of the scheme of another package, sorted by name.
    options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """16 hexadecimal characters that stand for the place, whoever uses it and how."""
        place = f"{self.scheme}://{self.host}:{self.port}{self.path}?{self.namespace}"
        if self.endpoint or self.database:
            place += f"&{self.endpoint}&{self.database}"
        if self.options:
            place += f"&{self.options}"
        return digest_bytes(place.encode())[:16]

    @property
    def host_header(self) -> str:
        """What the request header ``Host`` says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme].port else f"{host}:{self.port}"

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

    def bad_url(why: str) -> ConfigError:
        return ConfigError(f"remote = {shown!r} is not accepted: {why}")

    if re.search(r"[,;]\s*[a-z][a-z0-9+]*://", url):
        raise bad_url("several URLs have spaces between, no commas and semicolons")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # what it says of the port may be part of a password
        raise bad_url(f"behind the host is the number of a port; {_ESCAPED}") from None
    if not url.isascii() or not url.isprintable() or " " in url or parts.fragment:
        raise bad_url("a URL has printable characters of ASCII, no space and no '#'")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise bad_url("an option is given twice")
    scheme = scheme_named(parts.scheme)
    if scheme is None:
        instead = "; grpc is reapi here, and grpcs reapis" if parts.scheme in {"grpc", "grpcs"} else ""
        raise bad_url(f"it begins with {', '.join(SCHEMES)} or the scheme of an installed package, and ://{instead}")
    known = (*_EVERY, *scheme.options)
    own = {key: value for key, value in pairs if key not in known} if scheme.place == "any" else {}
    for key, value in pairs:
        if key in own:
            continue
        if key not in known:
            what = repr(key) if re.fullmatch("[a-z]{1,16}", key) and "@" not in parts.query else "what follows '?'"
            raise bad_url(f"{what} is no option of it; there are {', '.join(known)}; {_ESCAPED}")
        pattern, words = _VALUES.get(key, (".*", ""))
        if re.fullmatch(pattern, value) is None or (key == "timeout" and not 0.1 <= float(value) <= 600):
            raise bad_url(f"{key} is {words}")
    path, database = parts.path, options.get("db", "0")
    if scheme.place in {"folder", "socket"}:
        path = unquote(parts.path)
        if parts.hostname or (parts.netloc and scheme.place == "folder") or not path.startswith("/"):
            raise bad_url(f"it is given as {parts.scheme}:///absolute/path")
    elif scheme.place in {"server", "redis", "reapi"}:
        if not parts.hostname:
            raise bad_url("the host is missing")
        if scheme.place == "redis":
            path, database = "", parts.path.strip("/") or "0"
            if re.fullmatch("[0-9]{1,5}", database) is None:
                raise bad_url("behind the host is the number of a database")
        elif scheme.place == "reapi":
            path = unquote(parts.path)
            if re.fullmatch(_HOST, parts.hostname) is None:
                raise bad_url("the host is a name, or an address of IP")
            if re.fullmatch(_INSTANCE, path) is None or _KEYWORDS & set(path.split("/")):
                raise bad_url("behind the host is the name of an instance, such as main or a/b")
    elif scheme.place == "bucket" and (not parts.hostname or port is not None or parts.username is not None):
        raise bad_url("a bucket is given as s3://bucket/prefix; the environment says who asks")
    user = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    mode = options.get("mode", "read-write")
    return Address(
        shown=shown,
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=port if port is not None else scheme.port,
        path=path.rstrip("/"),
        user=user,
        token=environ.get(TOKEN, ""),
        layout=options.get("layout", "plain"),
        mode=mode,
        namespace=options.get("namespace", namespace),
        timeout=float(options.get("timeout", "2")),
        trust=Trust(options.get("trust"), environ, is_written=mode != "read"),
        endpoint=options.get("endpoint", ""),
        region=options.get("region", ""),
        database=int(database),
        options=tuple(sorted(own.items())),
    )
