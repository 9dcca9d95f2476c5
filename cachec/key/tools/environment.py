"""Environment variables that a result depends on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from cachec.base.display_text import is_secret
from cachec.base.hashing import EMPTY, Hasher
from cachec.errors import UsageError
from cachec.model import Part, PartKind, Read

#: What is sorted, printed and read (``1,5``) depends on them.
LOCALE = ("LANG", "LANGUAGE", *(f"LC_{name}" for name in (
    "ALL", "COLLATE", "CTYPE", "MESSAGES", "MONETARY", "NUMERIC", "TIME", "ADDRESS", "IDENTIFICATION", "MEASUREMENT",
    "NAME", "PAPER", "TELEPHONE",
)))  # fmt: skip

#: Stands for all of LOCALE together where a variable is named.
LOCALE_NAME = "LC_*"

#: Stands for the names of all variables but ``NEUTRAL`` where one is named.
EVERY_NAME = "*"

#: The same, less names of secrets: what a program may obey.
OBEYED_NAME = "* that a program may obey"

#: Characters of a value that any text may hold by chance.
_SHORT = 2

#: Characters of a value that are shown.
_SHOWN = 120


def counted_names(which: str, environ: Mapping[str, str], words: str = "") -> list[str]:
    """The names of the variables that are set and count where the whole environment was taken (``which``). words:
    separated by spaces; a variable of ``NEUTRAL`` with one of them in its name counts, too."""
    from cachec.key.tools.command_variables import NEUTRAL, Rule, list_unmatched  # few runs take all variables

    if which == OBEYED_NAME:
        return Rule((), (), others=True).matching(environ)
    counted = {*list_unmatched(environ, NEUTRAL)}
    return sorted(name for name in environ if name in counted or any(word in name for word in words.split()))


def environment_reads(which: str, environ: Mapping[str, str], words: str = "") -> Iterator[Read]:
    """The reads of a run that took the whole environment: of all names that count, and of each of their values."""
    yield Read("env", which, words, variable_digest(which, environ, words))
    for name in counted_names(which, environ, words):
        yield Read("env", name, "", variable_digest(name, environ))


def neutral_words(texts: Iterable[str]) -> str:
    """Those of the texts of code by which it may choose a variable of ``NEUTRAL``, as ``counted_names`` has them."""
    from cachec.key.tools.command_variables import NEUTRAL  # few runs take all variables

    found = set()
    for text in filter(str.isidentifier, {*texts}):
        if len(text) > 1 and any(
            text in name or (name.endswith("*") and text.startswith(name[:-1])) for name in NEUTRAL
        ):
            found.add(text)
    return " ".join(sorted(found))


def result_variables(texts: Iterable[str], environ: Mapping[str, str]) -> Iterator[Read]:
    """Reads of the variables of ``NEUTRAL`` that the texts of a result name or hold. environ: what the run took."""
    left = environ.keys() - counted_names(EVERY_NAME, environ)
    for text in texts if left else ():
        for name in sorted(left):
            if text == name or (len(environ[name]) > _SHORT and environ[name] in text):
                left.discard(name)
                yield Read("env", name, "", variable_digest(name, environ))


def variable_digest(name: str, environ: Mapping[str, str], words: str = "") -> str:
    """The digest of one variable; ``EMPTY`` where it is not set, which is not the digest of an empty value.

    Of ``LOCALE_NAME``: of all of these that are set; of ``EVERY_NAME``, ``OBEYED_NAME``: of the names that count.
    """
    value = environ.get(name)
    if name in {OBEYED_NAME, EVERY_NAME}:
        value = "\0".join(counted_names(name, environ, words))
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
