"""What a stored run looked up, in plain words, and whether a look-up finds the same now."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

import msgspec

from cachec.base.anchors import Anchors, anchors_of, is_anchored
from cachec.base.distributions import Distributions
from cachec.base.hashing import EMPTY, digest_bytes
from cachec.errors import StoreFault
from cachec.key.tools.toolchain import ToolKeys
from cachec.key.trace_validation import ABSENT, Dependencies
from cachec.launcher.path_map import PathMap
from cachec.launcher.stage import PlacedDependencies
from cachec.model import BELOW_BASE, MALFORMED_JSON, Digest, Entry, Read
from cachec.reproduce.recipe import Recipe
from cachec.store.store import Store

#: Kind of a read -> what was looked up, where its digest does not say more.
_RESULTS = {
    "content": "read",
    "file": "read",
    "names": "listed",
    "listing": "listed",
    "attributes": "extended attributes",
    "stdin": "read",
    "access": "permissions",
    "status": "status",
    "links": "links on its way",
    "tool": "tool",
    "env": "variable",
    "processor": "processor",
    "weight": "bytes",
    "state": "state",
    "umask": "state",
    "search": "tool",
    "code": "code",
    "module": "not found",
    "distribution": "distribution",
    "cwd": "path",
    "folder": "path",
    "same": "same file or not",
    "source": "code",
    "modules": "modules of some names",
    "global": "global",
    "ambient": "settings",
    "current": "path",
    "process": "state",
    "effects": "code",
    "path": "place",
    "memo": "results",
    "library": "attribute",
    "unset": "not found",
    "imported": "modules",
    "generator": "state",
}

#: Kind of a read that is of no path -> what it is of.
_GROUPS = {
    "env": "environment variables",
    "stdin": "standard input",
    "processor": "this machine",
    "state": "state of the process",
    "umask": "state of the process",
    "search": "looked for by PATH",
    "code": "Python code that ran",
    "module": "Python modules",
    "distribution": "Python distributions",
    "cwd": "folders whose path counts",
    "folder": "folders whose path counts",
    "same": "paths that may be one file",
    "global": "globals of Python modules",
    "ambient": "settings of libraries",
    "current": "folders whose path counts",
    "process": "state of the process",
    "effects": "Python code that ran",
    "path": "sys.path",
    "memo": "functions that remember results",
    "library": "attributes of libraries",
    "unset": "globals of Python modules",
    "imported": "state of the process",
    "generator": "state of the process",
}

#: Kinds that only a call can look up again: of a command, of a stage.
_OF_A_COMMAND = frozenset({"weight", "stdin"})
_OF_A_STAGE = (
    _OF_A_COMMAND
    | {"state", "code", "module", "distribution", "cwd", "folder", "same"}
    | {"global", "ambient", "current", "process", "effects", "path", "memo", "library", "unset", "imported"}
    | {"generator"}
)

_FAILED_LOOKUPS = {digest_bytes(b"-%d" % number): name for number, name in errno.errorcode.items()}


def result_of(read: Read) -> str:
    """Return what a read found, in a word or two: ``read``, ``found``, ``not found``, ``listed``."""
    if read.kind in {"lookup", "there", "absent"}:
        error = _FAILED_LOOKUPS.get(read.digest, "")
        if read.digest in {ABSENT, EMPTY} or error in {"ENOENT", "ENOTDIR"}:
            return "not found"
        return f"failed ({error})" if error else "found"
    return "not found" if read.digest == ABSENT else _RESULTS[read.kind]


def place_of(read: Read) -> tuple[str, str]:
    """Return the folder of what was read and its name there; of what is no path, what it is of and its name."""
    if read.kind == "weight":
        return f"weights of {read.where}", read.name
    if read.kind in _GROUPS:
        name = read.name if read.kind in {"code", "same", "stdin"} else read.where
        if read.kind == "umask":
            name = "umask"
        elif read.kind in {"global", "library", "unset"}:
            name = f"{read.where}.{read.name.partition('=')[0]}".rstrip(".")
        elif read.kind == "memo":
            name = f"{read.where}.{read.name.partition(' ')[0]}"
        return _GROUPS[read.kind], name.replace("\0", ", ") or "."
    if read.kind in {"names", "listing", "modules"}:
        return read.where, "."
    anchor, rest = "", read.where
    if rest.startswith(BELOW_BASE) or is_anchored(rest):
        anchor, _, rest = rest.partition(":")
        anchor += ":"
    folder, name = os.path.split(rest)
    return anchor + folder or ".", name or "."


class ReadChecker:
    """Looks up again what the runs of one entry read, each once.

    folder: where relative paths of a command start: the folder of its newest run, or the current one where that is not
    known. Paths of a stage start in the current folder, and ``project:`` is the project of that.
    """

    def __init__(self, store: Store, entry: Entry, base_dir: str | None, environ: Mapping[str, str]) -> None:
        self._present: dict[tuple[str, str, str], Digest | None] = {}
        self.folder = os.getcwd()
        tools = ToolKeys(store.digests, Distributions())
        self._anchors: Anchors | None = None
        if entry.stage.startswith("exec:"):
            self.folder = _folder_of(store, entry, base_dir) or self.folder
            places = PathMap(base_dir, self.folder)
            self._dependencies: Dependencies = PlacedDependencies(places, tools, store.digests, environ)
        else:
            self._anchors = anchors_of(os.path.join(self.folder, "typed"), base_dir, environ.get("HOME"))
            self._dependencies = Dependencies(tools, store.digests, environ)

    def holds(self, read: Read) -> bool | None:
        """Return whether a look-up finds the same now; None where only a call can tell."""
        place = (read.kind, read.where, read.name)
        if place not in self._present:
            self._present[place] = self._digest_of(read)
        present = self._present[place]
        return None if present is None else present == read.digest

    def _digest_of(self, read: Read) -> Digest | None:
        if self._anchors is not None:
            where = self._anchors.resolve(read.where)
            if read.kind in _OF_A_STAGE or where is None or is_anchored(where):
                return None
            read = msgspec.structs.replace(read, where=where)
        elif read.kind in _OF_A_COMMAND:
            return None
        return self._dependencies.present(read)


def _folder_of(store: Store, entry: Entry, base_dir: str | None) -> str | None:
    """Return the folder that the newest run of a command was in; None where the entry doesn't tell it."""
    try:
        encoded = store.recipe(entry)
        recipe = None if encoded is None else msgspec.json.decode(encoded, type=Recipe)
    except (StoreFault, *MALFORMED_JSON):
        return None
    if recipe is None or recipe.line is None or ("\0" in recipe.line.cwd and base_dir is None):
        return None
    return recipe.line.cwd.replace("\0", base_dir or "")
