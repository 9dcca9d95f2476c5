"""Reads again what a stored run read: is its trace still valid?"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

from cachec.base import fsio
from cachec.base.fsio import Identity
from cachec.base.hashing import EMPTY, FileDigests, Hasher, digest_bytes
from cachec.base.lookups import (
    attributes_of,
    describe_status,
    found_at,
    names_in,
    owner_words,
    real_folder,
    stdin_kind,
    umask,
)
from cachec.base.paths import absolute, access_letters, entries, links_on, relative_to
from cachec.errors import UsageError
from cachec.key.tools.environment import EVERY_NAME, OBEYED_NAME, counted_names, variable_digest
from cachec.key.tools.platform import accelerators_digest, processor_digest
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Read

#: In place of a file, for what only the process that looks can tell: as it is there; as it is there if the module was
#: imported already, as what an import makes is told by what else was read.
LIVE, IMPORTED = "live", "imported"
IN_PROCESS = frozenset({LIVE, IMPORTED})

#: Variables that choose which executable, or which library, is loaded.
SEARCH_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")


def _sentinel(word: str) -> str:
    hasher = Hasher("dependency")
    hasher.part("state", word.encode())
    return hasher.digest()


#: A file, folder or tool is not there. No content has this digest; an empty file has ``EMPTY``.
ABSENT = _sentinel("absent")
#: Something is there where nothing was; a folder is.
PRESENT = _sentinel("present")
FOLDER = _sentinel("folder")


#: By the names in code: what of a path's status they ask for, beside its size.
STATUS_NAMES = {
    **dict.fromkeys(("st_mode", "ST_MODE"), "st_mode"),
    **dict.fromkeys(("st_mtime", "st_mtime_ns", "ST_MTIME", "getmtime"), "st_mtime_ns"),
    **dict.fromkeys(("st_ctime", "st_ctime_ns", "ST_CTIME", "getctime"), "st_ctime_ns"),
    **dict.fromkeys(("st_ino", "ST_INO", "inode", "samefile", "samestat"), "st_ino"),
    **dict.fromkeys(("st_nlink", "ST_NLINK"), "st_nlink"),
    **dict.fromkeys(("st_uid", "ST_UID", "owner"), "st_uid"),
    **dict.fromkeys(("st_gid", "ST_GID", "group"), "st_gid"),
}


def listing_digest(names: Iterable[str]) -> str:
    """The digest of what is in a folder (``paths.entries``), in any order; but for ``__pycache__``."""
    hasher = Hasher("listing")
    for name in sorted(names):
        if name == "__pycache__/":
            continue  # Python's own, and made by the next import
        hasher.part("name", os.fsencode(name))
    return hasher.digest()


def there_digest(path: str) -> str:
    """Whether a path is there, and as what; ``ABSENT`` where it is not."""
    if os.path.isdir(path):
        return FOLDER
    return PRESENT if os.path.exists(path) else ABSENT


def links_digest(links: Iterable[tuple[str, str]]) -> str:
    """The digest of the links on the way to a path (``paths.links_on``)."""
    hasher = Hasher("links")
    for name, target in links:
        hasher.part("name", os.fsencode(name))
        hasher.part("target", os.fsencode(target))
    return hasher.digest()


def allowed_digest(letters: str) -> str:
    """The digest of what may be done with a path (``paths.access_letters``)."""
    hasher = Hasher("access")
    hasher.part("allowed", letters.encode())
    return hasher.digest()


def path_digest(path: str) -> str:
    """The digest of an absolute path that counts as a value."""
    hasher = Hasher("path")
    hasher.part("path", os.fsencode(path))
    return hasher.digest()


def status_digest(status: os.stat_result, fields: str) -> str:
    """The digest of some fields of a path's status, by their names between commas."""
    hasher = Hasher("status")
    for field in fields.split(","):
        hasher.part(field, str(getattr(status, field)).encode())
    return hasher.digest()


def content_digest(path: str, flags: str, digests: FileDigests) -> str:
    """The digest of a file that a command opened. flags: words of ``link`` (one at the end is not followed),
    ``status`` (whether the file has several names counts) and the owner that it had, where ``owner_words`` has one.
    Raises OSError."""
    return opened_digest(*stat_and_hash(path, flags, digests))


def stat_and_hash(path: str, flags: str, digests: FileDigests) -> tuple[os.stat_result, str, str]:
    """What ``opened_digest`` takes of a file: status, flags, digest of its content. Raises OSError."""
    if "link" in flags and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    status = os.stat(path)
    digest = digests.remembered(status) or (digests.of_installed(path) if status.st_uid == 0 else digests.of_path(path))
    return status, flags, digest


def opened_digest(status: os.stat_result, flags: str, content: str) -> str:
    """The same of a file with that status and digest of its content."""
    is_linked = "status" in flags and status.st_nlink > 1
    return _opened_digest(status.st_mode, owner_words(status.st_uid, status.st_gid), is_linked, content)


def _opened_digest(mode: int, owner: bytes, is_linked: bool, content: str) -> str:
    return digest_bytes(b"%o%b%b %b" % (mode, owner, b" linked" if is_linked else b"", content.encode()))


def content_change(path: str, flags: str, digest: str, digests: FileDigests) -> str:
    """How a file differs from what ``content_digest`` was taken of, in words."""
    try:
        now = os.stat(path)
        content = digests.of_path(path)
    except OSError as error:
        return "is gone" if isinstance(error, FileNotFoundError) else f"can't be read ({error.strerror})"
    owner, is_linked = owner_words(now.st_uid, now.st_gid), "status" in flags and now.st_nlink > 1
    for mode in range(0o10000):
        if _opened_digest(stat.S_IFREG | mode, owner, is_linked, content) == digest:
            return f"has the mode {stat.S_IMODE(now.st_mode):o}, and had {mode:o}"
    if _opened_digest(now.st_mode, owner, not is_linked, content) == digest:
        return f"has {'a second name (a hard link)' if is_linked else 'no second name (a hard link) any more'}"
    before = "".join(f" {word}" for word in flags.split() if "/" in word).encode()
    if before != owner and _opened_digest(now.st_mode, before, is_linked, content) == digest:
        return "belongs to another user or group"
    return "has other content"


def lookup_digest(path: str, flags: str, keyed: Callable[[str], str] | None = None) -> str:
    """The digest of what a look-up of a path finds. flags: words of ``link`` (one at the end is not followed),
    ``exists``, ``folder`` (whether it is one) and ``mode`` (no more counts). keyed: the text of the real path of a
    folder as it counts; None: how it lies from the path, so that a folder that was moved with all on the way to it is
    the same."""
    follow = "link" not in flags
    if "exists" in flags:
        return exists_digest(there=not found_at(path, follow=follow).startswith(b"-"))
    try:
        status = os.stat(path, follow_symlinks=follow)
        if "mode" in flags:
            return mode_digest(status.st_mode, is_empty=not status.st_size)
        if "folder" in flags:
            return FOLDER if stat.S_ISDIR(status.st_mode) else PRESENT
        if stat.S_ISDIR(status.st_mode):
            owner = owner_words(status.st_uid, status.st_gid)
            return folder_digest(path, status.st_mode, owner, os.fsdecode(real_folder(path)), keyed)
        return digest_bytes(describe_status(status, os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""))
    except OSError as error:
        return digest_bytes(b"-%d" % (error.errno or 0))


def folder_digest(path: str, mode: int, owner: bytes, real: str, keyed: Callable[[str], str] | None = None) -> str:
    """The same of a folder with that real path. owner: ``owner_words``."""
    text = _real_from(path, real) if keyed is None else keyed(real)
    return digest_bytes(b"%o%b %b" % (mode, owner, os.fsencode(text)))


def _real_from(path: str, real: str) -> str:
    """The real path of a folder, from the folder that ``path`` is in; itself where they have but the root in common."""
    place = absolute(path)
    if place == real:
        return ""
    folder = os.path.dirname(place)
    return real if os.path.commonpath((folder, real)) == "/" else relative_to(real, folder)


def exists_digest(*, there: bool) -> str:
    """The digest of a look-up that asks for no more than whether something is there."""
    return PRESENT if there else ABSENT


def mode_digest(mode: int, *, is_empty: bool) -> str:
    """The digest of a look-up that asks for no more than type and mode, and whether a file is empty: gcc -c writes into
    one that is, and replaces another."""
    return digest_bytes(b"mode %o%s" % (mode, b" empty" if is_empty else b""))


def names_digest(names: Iterable[str]) -> str:
    """The digest of the names in a folder (``lookups.names_in``), in any order; but for ``__pycache__``, which is
    Python's own."""
    return digest_bytes(b"\0".join(os.fsencode(name) for name in sorted(names) if name != "__pycache__/"))


def attributes_digest(path: str, flags: str) -> str:
    """The digest of the extended attributes of a path. flags: as of ``lookup_digest``."""
    return digest_bytes(attributes_of(path, follow="link" not in flags))


def stdin_digest(digests: FileDigests) -> str:
    """The digest of what is left to read of a file on standard input, or of that there is nothing; else ``ABSENT``."""
    kind = stdin_kind()
    if kind in {"nothing", "closed"}:
        return digest_bytes(kind.encode())
    if kind != "file":
        return ABSENT
    begin, size = os.lseek(0, 0, os.SEEK_CUR), os.fstat(0).st_size
    try:
        return digests.of_extent(0, begin, max(size - begin, 0))
    except (OSError, EOFError):
        return ABSENT


def terminal_digest() -> str:
    """The digest of whether standard input is a terminal."""
    return PRESENT if os.isatty(0) else ABSENT


def searched_digest(name: str, environ: Mapping[str, str], portable: Callable[[str], str] = str) -> str:
    """The digest of where an executable is that is looked for by ``PATH``. portable: the text of its path as it
    counts."""
    from cachec.key.tools.executables import which  # of commands alone

    found = which(name, environ)
    return ABSENT if found is None else digest_bytes(os.fsencode(portable(found)))


def umask_digest() -> str:
    """The digest of the mask of new files."""
    return digest_bytes(b"%o" % umask())


def search_text(fixed: Mapping[str, str]) -> str:
    """What a tool read keeps of the variables that the stage itself fixed, to be looked up in the same way later."""
    return "\n".join(f"{name}={fixed[name]}" for name in SEARCH_VARIABLES if name in fixed)


def search_environ(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to look a tool up with: those that were fixed, and PATH and LD_LIBRARY_PATH as they are now.

    LD_PRELOAD of this process is never passed on to a command, so it counts only where it was fixed.
    """
    variables = {name: environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environ}
    variables.update(line.split("=", 1) for line in text.split("\n") if "=" in line)  # type: ignore[misc]
    return variables


class Dependencies:
    """Answers what a read would see now. Unchanged files cost a ``stat``."""

    def __init__(self, tools: ToolKeys, digests: FileDigests, environ: Mapping[str, str] | None = None) -> None:
        self._tools = tools
        self._digests = digests
        self._environ = os.environ if environ is None else environ
        self._listings: dict[str, tuple[Identity, str]] = {}

    def present(self, read: Read) -> str:
        """The digest that this read would have now: equal to ``read.digest`` where nothing changed.

        Raises ValueError for a weight, which only the stage that holds the handles can answer for.
        """
        if read.kind == "file":
            return self.file(read.where)
        if read.kind == "env":
            return variable_digest(read.where, self._environ, read.name)
        if read.kind == "absent":
            return PRESENT if os.path.exists(read.where) else EMPTY  # a dangling link can't be opened
        if read.kind == "listing":
            return self.others(read.where, read.name) if read.name else self.listing(read.where)
        if read.kind == "there":
            return there_digest(read.where)
        if read.kind == "links":
            return links_digest(links_on(read.where))
        if read.kind == "access":
            return allowed_digest(access_letters(read.where))
        if read.kind == "status":
            return self.status(read.where, read.name)
        if read.kind == "stdin":
            return terminal_digest() if read.name else stdin_digest(self._digests)
        if read.kind == "content":
            return self.content(read.where, read.name)
        if read.kind == "search":
            return searched_digest(read.where, self._environ)
        if read.kind == "umask":
            return umask_digest()
        if read.kind == "lookup":
            return lookup_digest(read.where, read.name)
        if read.kind == "names":
            return self.names(read.where, read.name)
        if read.kind == "attributes":
            return attributes_digest(read.where, read.name)
        if read.kind in {"source", "modules"}:
            from cachec.key import source_parts  # of isolated stages

            return (
                source_parts.present(read, self._digests)
                if read.kind == "source"
                else source_parts.present_modules(read)
            )
        if read.kind == "processor":
            return accelerators_digest() if read.where == "accelerators" else processor_digest()
        if read.kind == "tool":
            return self.tool(read.where, search_environ(read.name, self._environ))
        raise ValueError(f"a read of kind {read.kind!r} is not a file, listing, tool or variable")

    def file(self, path: str) -> str:
        """The content of a file; ``ABSENT`` where it is not there or not to be read."""
        try:
            return self._digests.of_path(path)
        except OSError:
            return ABSENT

    def change(self, read: Read, others: Sequence[Read]) -> str:
        """How what a read saw differs from what is there now, in words; empty where the kind of read says all. others:
        those of the same run."""
        if read.kind == "env" and read.where in {EVERY_NAME, OBEYED_NAME}:
            then = {each.where for each in others if each.kind == "env" and each.digest != EMPTY}
            new = [name for name in counted_names(read.where, self._environ, read.name) if name not in then]
            gone = sorted(name for name in then - {read.where} if name not in self._environ)
            changes = (("now set", new), ("no longer set", gone))
            return "; ".join(f"{what}: {', '.join(names)}" for what, names in changes if names)
        return content_change(read.where, read.name, read.digest, self._digests) if read.kind == "content" else ""

    def content(self, path: str, flags: str) -> str:
        """Mode and content of a file; ``ABSENT`` where it is not there or not to be read."""
        try:
            return content_digest(path, flags, self._digests)
        except OSError:
            return ABSENT

    @staticmethod
    def names(path: str, own: str) -> str:
        """The names in a folder and their types; ``ABSENT`` where they can't be read. own: names that do not count,
        each after a slash, as the run writes them; then a folder that is not there is an empty one."""
        try:
            return names_digest(each for each in names_in(path) if each.partition("/")[0] not in own.split("/"))
        except FileNotFoundError:
            return names_digest(()) if own else ABSENT
        except OSError:
            return ABSENT

    def status(self, path: str, fields: str) -> str:
        """Some fields of the status of what is at a path; ``ABSENT`` where nothing is."""
        try:
            return status_digest(os.stat(path), fields)
        except (OSError, ValueError, AttributeError):
            return ABSENT

    @staticmethod
    def others(path: str, own: str) -> str:
        """What else is in a folder that the run makes or takes as it is: where it is not there, nothing is. own: the
        names that it made there by then, each after a slash; a slash alone for none."""
        try:
            return listing_digest(each for each in entries(path) if each.partition("/")[0] not in own.split("/"))
        except FileNotFoundError:
            return listing_digest(())
        except OSError:
            return ABSENT

    def listing(self, path: str) -> str:
        """What is in a folder; ``ABSENT`` where it is not there. Remembered while the folder is surely the same."""
        try:
            identity = fsio.identity(path)
            known = self._listings.get(path)
            if known is not None and known[0] == identity:
                return known[1]
            with fsio.closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                before = fsio.identity(fd)
                names = entries(fd)
                digest = listing_digest(names)
                has_links = any("@" in name.partition("/")[2] for name in names)  # which may lead to another thing
                if not has_links and self._digests.trusts(fd, before) and fsio.identity(fd) == before:
                    self._listings[path] = (before, digest)
        except OSError:
            return ABSENT
        return digest

    def tool(self, command: str, environ: Mapping[str, str], *, fresh: bool = False) -> str:
        """The identity of an executable; ``ABSENT`` where it is gone or its files can't be told."""
        try:
            return self._tools.executable(command, environ, fresh=fresh).digest
        except (OSError, UsageError):
            return ABSENT
