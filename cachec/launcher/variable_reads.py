"""What a command looked for by ``PATH`` and in the user's own folders: these variables count by what was found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

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
