"""The rows that a change affects: the files that git reports as changed, compared with the files of each row."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from cachec.errors import UsageError
from cachec.warm.model import Row
from cachec.warm.rows import with_dependents, with_needed


def changed_files(folder: str, since: str) -> list[str]:
    """Absolute real paths of files that differ between the working tree and revision ``since``, untracked ones too.

    Raises UsageError where git does not know the revision, is not there, or ``folder`` is in no repository.
    """
    if since.startswith("-"):
        raise UsageError(f"{since!r} is no revision; give one that `git rev-parse` knows, such as HEAD~1")
    root = _git(folder, "rev-parse", "--show-toplevel").removesuffix("\n")
    commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}", unknown=since).strip()
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    names = {*changed.split("\0"), *untracked.split("\0")} - {""}
    return sorted(os.path.join(os.path.realpath(root), name) for name in names)


def _git(folder: str, *words: str, unknown: str = "") -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise UsageError(f"git can't be run: {error.strerror}; install it, or leave out --changed-since") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        if unknown:
            raise UsageError(f"git knows no commit {unknown!r} in {folder}{f': {message}' if message else ''}")
        raise UsageError(f"git {words[0]} fails in {folder}: {message}")
    return os.fsdecode(done.stdout)


def rows_touched(rows: Sequence[Row], changed: Iterable[str], config: str) -> list[Row]:
    """The rows that the changed files (absolute) touch, those that come after them, and what all these wait for.

    A row is touched by a file that one of its globs fits; one without globs by every file, and every row by the
    configuration file.
    """
    files = [os.path.realpath(each) for each in changed]
    if config and os.path.realpath(config) in files:
        return list(rows)
    ids = {row.id for row in rows if _touches(row, files)}
    return with_needed(rows, (row.id for row in with_dependents(rows, ids)))


def _touches(row: Row, files: Collection[str]) -> bool:
    if not row.files:
        return bool(files)
    folder = os.path.realpath(row.folder)
    names = [os.path.relpath(each, folder) for each in files]
    return any(glob(pattern).fullmatch(name) for pattern in row.files for name in names)


@lru_cache(maxsize=1024)
def glob(pattern: str) -> re.Pattern[str]:
    """A glob over relative paths: ``*`` and ``?`` stay within a name, ``**`` crosses folders, ``[...]`` is a set."""
    out = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out += "(?:[^/]+/)*"
            at += 3
        elif pattern.startswith("**", at):
            out += ".*"
            at += 2
        elif pattern[at] == "*":
            out += "[^/]*"
            at += 1
        elif pattern[at] == "?":
            out += "[^/]"
            at += 1
        elif pattern[at] == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2)
            inside = pattern[at + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside[0] in "!^" else inside
            out += f"[{inside}]"
            at = end + 1
        else:
            out += re.escape(pattern[at])
            at += 1
    return re.compile(out)
