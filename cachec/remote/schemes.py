"""The one table of remotes' schemes: how the URL of each is read, and which engine keeps what is there.

A package adds a scheme by an entry point::

    [project.entry-points."cachec.remotes"]
    toy = "toy_remote:ToyRemote"

The object is called with the ``urls.Address`` of a URL ``toy://...`` and returns a ``RemoteEngine``. It is imported
when a setting has such a URL. Options of the URL that cachec does not know are in ``Address.options``.
``cachec.testing.remotes`` has the tests that every engine inherits.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from typing import NamedTuple

#: The entry-point group under which a package offers an engine.
GROUP = "cachec.remotes"

_ENGINES = "cachec.remote.engines"


class Scheme(NamedTuple):
    """How one scheme is read and opened."""

    #: ``module:object``, called with an ``Address``.
    engine: str
    #: What follows ``://``: ``folder``, ``server``, ``socket``, ``redis``, ``reapi``, ``bucket`` or ``any``.
    place: str
    #: The port where the URL has none.
    port: int = 0
    #: Options that only this scheme has.
    options: tuple[str, ...] = ()
    #: Modules that the engine imports when it is first asked.
    imports: tuple[str, ...] = ()


_HTTP = Scheme(f"{_ENGINES}.http:HttpServer", "server", 80, ("layout",), (f"{_ENGINES}.http",))
_REDIS = Scheme(f"{_ENGINES}.redis:RedisServer", "redis", 6379, (), (f"{_ENGINES}.redis", f"{_ENGINES}.redis_link"))
_REAPI = Scheme(f"{_ENGINES}.reapi:ReapiServer", "reapi", 9092, (), (f"{_ENGINES}.reapi", f"{_ENGINES}.reapi_link"))
_BUCKET = Scheme(f"{_ENGINES}.bucket:Bucket", "bucket", 0, (), (f"{_ENGINES}.bucket", f"{_ENGINES}.bucket_client"))

#: The schemes that cachec has itself.
SCHEMES = {
    "file": Scheme(f"{_ENGINES}.folder:at_address", "folder", imports=(f"{_ENGINES}.folder",)),
    "http": _HTTP,
    "https": _HTTP._replace(port=443),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS._replace(place="socket", port=0, options=("db",)),
    "reapi": _REAPI,
    "reapis": _REAPI._replace(port=443),
    "s3": _BUCKET._replace(options=("endpoint", "region")),
    "gs": _BUCKET,
    "az": _BUCKET._replace(options=("endpoint",)),
}


def scheme_named(name: str) -> Scheme | None:
    """Return the scheme of that name, of cachec or of an installed package, or None."""
    if name in SCHEMES:
        return SCHEMES[name]
    from cachec.base.distributions import Distributions  # a scheme of cachec's own needs none

    target = Distributions().plugin_entry_points(GROUP).get(name)
    return None if target is None else Scheme(target, "any")


def import_clients(schemes: Iterable[str]) -> None:
    """Import the clients of these schemes: before the time of a question runs (Redis's client takes 0.3 s), and in a
    server before it forks.
    """
    for name in schemes:
        for module in SCHEMES[name].imports if name in SCHEMES else ():
            with contextlib.suppress(ImportError):  # opening the remote names the missing package
                importlib.import_module(module)
