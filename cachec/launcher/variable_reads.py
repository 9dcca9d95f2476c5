"""Variables that count by what a command did: ``PATH``, those of the user's own folders, others by its result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from cachec.key.tools.command_variables import (
    NEUTRAL,
    NEUTRAL_GROUPS,
    Rule,
    is_secret_variable,
    list_unmatched,
    matches,
)
from cachec.key.tools.environment import variable_digest
from cachec.key.trace_validation import searched_digest
from cachec.launcher.path_map import PathMap
from cachec.model import Read
from cachec.tracing.accesses import Kind, TracedInput

#: Variables that say where a user's own files are (XDG Base Directory Specification). One counts with all.
_FOLDERS = (
    *("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
    *("XDG_CONFIG_DIRS", "XDG_DATA_DIRS"),
)

#: Neutral variables whose values are no results of a command by themselves: folders, which count in other ways.
_COUNTED_OTHERWISE = ("PATH", "PWD", "OLDPWD", "HOME", "XDG_*", "_", "CACHEC_*")

#: Variables that differ between runs of one build.
_OF_RUNS = NEUTRAL_GROUPS["runs of CI"]
_OF_USERS = NEUTRAL_GROUPS["the user and the login"]

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")

#: Characters of a value that are in a result by no accident; those of a part of it, such as a short hash.
_LONG, _PART = 8, 7

#: Bytes of a file that may name variables.
_MAX_SOURCE = 1 << 20


def find_neutral_reads(
    argv: Sequence[str],
    rule: Rule,
    inputs: Sequence[TracedInput],
    places: PathMap,
    environ: Mapping[str, str],
    texts: Sequence[bytes],
) -> Iterator[Read]:
    """The neutral variables that the result shows, as reads. texts: what the run wrote.

    One counts if the result holds its value and that is long; or a part of it, and the command line or a file of the
    project names the variable. One of CI that is named and not set counts too: the result may hold what stands for it.
    """
    if not rule.others:
        return
    words = {
        word.decode() for text in (*map(os.fsencode, argv), *_sources(inputs, places)) for word in _NAME.findall(text)
    }
    names = {*environ, *words}
    neutral = names.difference(list_unmatched(names, NEUTRAL))
    for name in sorted(list_unmatched(neutral, (*_COUNTED_OTHERWISE, *rule.keyed, *rule.passed))):
        if is_secret_variable(name):
            continue
        value = os.fsencode(environ.get(name, ""))
        if not value:
            counts = name in words and matches(name, _OF_RUNS)
        elif name in words:
            counts = any(value[:_PART] in text for text in texts)
        else:
            is_long = len(value) >= _LONG and matches(name, (*_OF_RUNS, *_OF_USERS))
            counts = is_long and any(value in text for text in texts)
        if counts:
            yield Read("env", name, "", variable_digest(name, environ))


def _sources(inputs: Sequence[TracedInput], places: PathMap) -> Iterator[bytes]:
    """The texts of the project that a run opened. Bytecode stands for its source. Raises OSError."""
    below = tuple(f"{each}/" for each in (places.cwd, places.real_cwd, places.base) if each)
    for each in inputs:
        path = each.place
        folder, name = os.path.split(path)
        if os.path.basename(folder) == "__pycache__":
            path = os.path.join(os.path.dirname(folder), f"{name.partition('.')[0]}.py")
        is_opened = each.kinds & (Kind.CONTENT | Kind.EXECUTED) and each.state is not None and not each.effect
        if is_opened and path.startswith(below) and "/site-packages/" not in path and os.path.isfile(path):
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size <= _MAX_SOURCE:
                    yield file.read()


def find_variable_reads(
    inputs: Sequence[TracedInput], places: PathMap, environ: Mapping[str, str], texts: Sequence[bytes]
) -> Iterator[Read]:
    """What the look-ups of a run say of these variables, as reads. texts: what the run wrote."""
    path = environ.get("PATH", os.defpath)
    folders = {folder.rstrip("/") for folder in path.split(":")}
    # Python lists the folder of a script for modules. A program that has a distribution does nothing else with it.
    own = f"{places.tools[0]}/bin" if places.tools else ""
    names: set[str] = set()
    is_listed = any(not folder.startswith("/") for folder in folders) or any(
        os.fsencode(path) in text for text in texts
    )
    for each in inputs:
        folder, name = os.path.split(each.place)
        if folder in folders:
            names.add(name)
        is_listed |= bool(each.kinds & Kind.LISTING) and each.place in folders - {own}
    if is_listed:
        yield Read("env", "PATH", "", variable_digest("PATH", environ))
    for name in sorted(names):
        yield Read("search", name, "", searched_digest(name, environ, places.to_anchored))
    if _is_home_used(inputs, places, environ) or any(_holds_home(text, places, environ) for text in texts):
        for name in _FOLDERS:
            yield Read("env", name, "", variable_digest(name, environ))


def _is_home_used(inputs: Sequence[TracedInput], places: PathMap, environ: Mapping[str, str]) -> bool:
    """Whether something was looked up below one of the user's own folders, but for where the command works below it."""
    values = [value for name in _FOLDERS for value in environ.get(name, "").split(":")]
    own = {f"{value.rstrip('/')}/" for value in values if value.startswith("/")}
    cwd = os.path.realpath(places.cwd)
    worked = tuple(f"{each}/" for each in (places.cwd, cwd, places.base) if each)
    paths = [f"{each.place}/" for each in inputs]
    return any(
        path.startswith(folder) and not path.startswith(tuple(each for each in worked if each.startswith(folder)))
        for folder in own
        for path in paths
    )


def _holds_home(text: bytes, places: PathMap, environ: Mapping[str, str]) -> bool:
    """Whether the path of the home folder is in a text, and not only as a part of where the command runs."""
    home = os.fsencode(environ.get("HOME", "").rstrip("/"))
    inside = [each for each in map(os.fsencode, filter(None, (places.cwd, places.base))) if each.startswith(home)]
    shortest = min(inside, key=len, default=b"")
    return bool(home) and text.count(home) > (text.count(shortest) if shortest else 0)
