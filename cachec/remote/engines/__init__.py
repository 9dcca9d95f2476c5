"""The engines of remotes, each in a module that is imported when a setting has its URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cachec.remote.schemes import scheme_named

if TYPE_CHECKING:
    from cachec.remote.engines.base import RemoteEngine
    from cachec.remote.urls import Address


def engine_of(address: Address) -> RemoteEngine:
    """The engine that keeps a remote. Nothing is asked of it yet.

    Raises ConfigError where its package is missing, PluginError where another package's can't be imported.
    """
    from cachec.base.entry_points import load_object

    scheme = scheme_named(address.scheme)
    assert scheme is not None, "an address is made of a known scheme"
    make = load_object(f"the remote {address.scheme}://", scheme.engine, "engine", Callable)  # type: ignore[arg-type]
    engine: RemoteEngine = make(address)
    return engine
