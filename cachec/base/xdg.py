"""Where the user's own files are (XDG Base Directory Specification). Imports nothing that takes a millisecond."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environ: Mapping[str, str]) -> str:
    """The store where no setting says another."""
    return os.path.join(_base(environ, "XDG_CACHE_HOME", ".cache"), "cachec")


def settings_file(environ: Mapping[str, str]) -> str:
    """Where the user's own settings are, if there are any. Nobody else puts a file there."""
    return os.path.join(_base(environ, "XDG_CONFIG_HOME", ".config"), "cachec", "cachec.toml")


def _base(environ: Mapping[str, str], variable: str, otherwise: str) -> str:
    """A base folder; an empty or relative path counts as not set."""
    base = environ.get(variable, "")
    return base if base.startswith("/") else os.path.join(environ.get("HOME") or os.path.expanduser("~"), otherwise)
