"""Where the user's own files are (XDG Base Directory Specification). Imports nothing that takes a millisecond.

A base folder is an absolute path, or there is none: a relative one would be another folder in each checkout, and
whoever wrote the checkout would choose the settings and the store.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


#: Names of folders in which programs keep what they can make again.
CACHE_NAMES = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")

#: The same, below the home folder.
_HOME_CACHES = (".cache", ".triton", ".nv", ".ccache")


def home_caches(environ: "Mapping[str, str]") -> list[str]:
    """Return the folders in the user's home in which programs keep what they can make again."""
    home = environ.get("HOME", "")
    own = cache_folder(environ)
    found = [f"{home}/{name}" for name in _HOME_CACHES] if home.startswith("/") else []
    return [*found, *([os.path.dirname(own)] if own else [])]


def cache_folder(environ: "Mapping[str, str]") -> str:
    """Return the store's folder if no setting names one; empty without a base folder."""
    base = _base(environ, "XDG_CACHE_HOME", ".cache")
    return base and os.path.join(base, "cachec")


def settings_file(environ: "Mapping[str, str]") -> str:
    """Return the path of the user's own settings; empty without a base folder.

    No other user puts a file there.
    """
    base = _base(environ, "XDG_CONFIG_HOME", ".config")
    return base and os.path.join(base, "cachec", "cachec.toml")


def home_folder(environ: "Mapping[str, str]") -> str:
    """Return ``HOME``, else the home folder of this user's account; empty where neither is an absolute path."""
    home = environ.get("HOME", "")
    return home if home.startswith("/") else _home_of(os.getuid())


def expand_user(path: str, environ: "Mapping[str, str]") -> str:
    """Return ``path`` with ``~`` or ``~name`` at its start replaced; empty where that home folder is not known."""
    if not path.startswith("~"):
        return path
    name, slash, rest = path[1:].partition("/")
    home = _home_of(name) if name else home_folder(environ)
    return home and (home.rstrip("/") + slash + rest or "/")


def why_no_home(environ: "Mapping[str, str]") -> str:
    """Say why ``home_folder`` returns nothing: ``HOME is not set, and user 1000 has no account``."""
    home = environ.get("HOME")
    found = "is not set" if home is None else f"is {home!r}, which is no absolute path"
    return f"HOME {found}, and user {os.getuid()} has no account with a home folder"


def _base(environ: "Mapping[str, str]", variable: str, otherwise: str) -> str:
    """Return a base folder; an empty or relative path counts as not set."""
    base = environ.get(variable, "")
    if base.startswith("/"):
        return base
    home = home_folder(environ)
    return home and os.path.join(home, otherwise)


def _home_of(user: int | str) -> str:
    """Return the home folder of an account; empty for an unknown account, or if the folder is not absolute."""
    import pwd  # only where HOME does not say it

    try:
        account = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        return ""
    return account.pw_dir if account.pw_dir.startswith("/") else ""
