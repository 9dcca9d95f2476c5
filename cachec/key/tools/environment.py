"""Environment variables that a result depends on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from cachec.base.display_text import is_secret
from cachec.base.hashing import EMPTY, Hasher
from cachec.errors import UsageError
from cachec.model import Part, PartKind

#: What is sorted, printed and read (``1,5``) depends on them.
LOCALE = ("LANG", "LANGUAGE", *(f"LC_{name}" for name in (
    "ALL", "COLLATE", "CTYPE", "MESSAGES", "MONETARY", "NUMERIC", "TIME", "ADDRESS", "IDENTIFICATION", "MEASUREMENT",
    "NAME", "PAPER", "TELEPHONE",
)))  # fmt: skip

#: Stands for all of LOCALE together where a variable is named.
LOCALE_NAME = "LC_*"

#: Stands for every variable where one is named.
EVERY_NAME = "*"

#: Stands for every variable but those that say where, for whom and under what a program runs (``variables.NEUTRAL``).
OBEYED_NAME = "* that a program may obey"

#: Characters of a value that are shown.
_SHOWN = 120


def variable_digest(name: str, environ: Mapping[str, str]) -> str:
    """The digest of one variable; ``EMPTY`` where it is not set, which is not the digest of an empty value.

    Of ``LOCALE_NAME``: of all of these that are set; of ``EVERY_NAME``, ``OBEYED_NAME``: of all that they stand for.
    """
    value = environ.get(name)
    if name == OBEYED_NAME:
        from cachec.key.tools.command_variables import Rule  # of programs

        value = "\0".join(f"{each}={environ[each]}" for each in Rule((), (), others=True).matching(environ))
    if name == EVERY_NAME:
        value = "\0".join(f"{each}={environ[each]}" for each in sorted(environ))
    if name == LOCALE_NAME:
        value = "\0".join(f"{each}={environ[each]}" for each in LOCALE if each in environ) or None
    if value is None:
        return EMPTY
    hasher = Hasher("environment")
    hasher.part("value", value.encode("utf-8", "surrogateescape"))
    return hasher.digest()


def environment_parts(
    names: Iterable[str], environ: Mapping[str, str], *, sealed: Container[str] = ()
) -> tuple[Part, ...]:
    """One part ``env/<name>`` a variable, sorted, each once. An unset variable differs from an empty one.

    The value is shown in the detail, except where the name looks like a secret's. Of a name in ``sealed`` the digest
    is shown. Raises UsageError for a name that no variable can have.
    """
    if isinstance(names, str):
        raise UsageError(f"env={names!r} is one str; give a list of names: env=[{names!r}]")
    parts = []
    for name in sorted(set(names)):
        if not name or "=" in name or "\0" in name:
            raise UsageError(f"env={name!r} is not the name of a variable: it must not be empty nor hold '=' or NUL")
        digest = variable_digest(name, environ)
        is_sealed = name in sealed and name in environ
        shown = f"a value with digest {digest[:12]}" if is_sealed else _display_value(name, environ.get(name))
        parts.append(Part(PartKind.ENVIRONMENT, name, digest, shown))
    return tuple(parts)


def _display_value(name: str, value: str | None) -> str:
    if value is None:
        return "not set"
    if is_secret(name):
        return f"a secret of {len(value)} characters"
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
