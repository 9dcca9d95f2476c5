"""Which compiler made a result: distributions by name, version and the state of their files; executables by content.

Absolute paths are in no digest, so two machines with the same wheel or the same libraries get the same parts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from cachec.base import fsio
from cachec.base.distributions import Distribution, Distributions, normalise
from cachec.base.fsio import Identity
from cachec.base.hashing import FileDigests, Hasher, digest_bytes
from cachec.base.lazy import later
from cachec.errors import UsageError
from cachec.model import Part, PartKind

if TYPE_CHECKING:  # for executables alone, and for who looks again
    from cachec.key.tools import record_files as listings
    from cachec.key.tools.distribution_watch import DistributionWatch
    from cachec.key.tools.executables import Executable, Finder
    from cachec.key.tools.own_checkout import Checkout
    from cachec.key.tools.requirements import Requirements
else:
    listings = later("cachec.key.tools.record_files")

#: In one process the files of a distribution are looked at again at most this often (1,246 ``stat`` calls for jax).
RECHECK_SECONDS = 1.0

#: A file is as RECORD says without being read, if its times are at most this much newer than RECORD's own, which the
#: installer writes last.
INSTALL_SLACK_NS = 2_000_000_000


#: What ``importlib.metadata`` reads of a distribution, whatever the installer left: also the name of one file.
_METADATA = ("METADATA", "PKG-INFO", "entry_points.txt", "requires.txt", "top_level.txt")


class _KnownDistribution(msgspec.Struct, frozen=True):
    """A distribution as it was last looked at. ``listing`` depends on RECORD alone."""

    distribution: Distribution
    identity: Identity
    listing: listings.Listing
    checked: float
    #: See ``DistributionWatch``.
    token: object | None
    part: Part


class _KnownExecutable(msgspec.Struct, frozen=True):
    """An executable as it was last looked at."""

    program: Executable
    watched: tuple[tuple[str, Identity], ...]
    #: A write since then would show in the identities.
    settled: bool
    distributions: tuple[tuple[str, str], ...]
    checked: float
    part: Part


class ToolKeys:
    """Parts for tools, remembered in the process and checked again cheaply.

    At each call the RECORD of a distribution and the loaded files of an executable are looked at with ``stat``; all
    files of a distribution, and the places where a library could newly appear, at most once a second
    (``RECHECK_SECONDS`` by ``clock``). ``fresh=True`` looks at everything now. The files of a distribution that was
    looked at often are followed instead: what happened to them is as good as a look.
    """

    def __init__(
        self,
        digests: FileDigests,
        distributions: Distributions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        finder: Finder | None = None,
        followed: DistributionWatch | None = None,
    ) -> None:
        self._digests = digests
        self._distributions = distributions if distributions is not None else Distributions()
        self._clock = clock
        self._given = finder
        self._given_followed = followed
        self._known: dict[str, _KnownDistribution] = {}
        self._known_executables: dict[tuple[str, ...], _KnownExecutable] = {}
        self._pending_executables: dict[tuple[str, ...], Executable] = {}
        self._sha256: dict[str, str] = {}

    @cached_property
    def _checkout(self) -> Checkout:
        from cachec.key.tools.own_checkout import Checkout

        return Checkout(self._digests, self._clock, RECHECK_SECONDS)

    @cached_property
    def _finder(self) -> Finder:
        if self._given is not None:
            return self._given
        from cachec.key.tools.executables import Finder

        return Finder(self._distributions)

    @cached_property
    def _distribution_watch(self) -> DistributionWatch:
        if self._given_followed is not None:
            return self._given_followed
        from cachec.key.tools.distribution_watch import DistributionWatch

        return DistributionWatch()

    @cached_property
    def _requirements(self) -> Requirements:
        from cachec.key.tools.requirements import Requirements

        return Requirements(self._distributions, self._clock, RECHECK_SECONDS)

    def requirement_parts(self, names: Collection[str], *, fresh: bool = False) -> tuple[Part, ...]:
        """The parts of what these distributions require in their turn; see ``Requirements``."""
        return self._requirements.parts(names, fresh=fresh)

    def metadata(self, name: str) -> str:
        """The digest of a distribution as ``distribution`` tells it, with what it requires; for ``*``, of all that are
        installed. For ``*``, and where no RECORD lists its files, it is of name, version and entry points, without a
        RECORD of all metadata that ``importlib.metadata`` reads. It is of nothing where there is no such distribution.
        """
        owners = self._distributions.all_installed()
        if name != "*":
            try:
                parts = [self.distribution(name), *self.requirement_parts((name,))]
            except UsageError:
                owners = (each for each in owners if each.name == normalise(name))
            else:
                return digest_bytes("".join(each.digest for each in parts).encode())
        hasher = Hasher("installed")
        for each in sorted(owners, key=lambda each: each.name):
            hasher.part("distribution", f"{each.name} {each.version}".encode())
            # Of an editable install RECORD stays as it is while its entries change.
            files = ("entry_points.txt",) if os.path.exists(each.record_path) else ("", *_METADATA)
            for file in files:
                path = os.path.join(each.folder, file) if file else each.folder
                if os.path.isfile(path):
                    hasher.part(file, self._digests.of_path(path).encode())
        return hasher.digest()

    def renew(self, names: Collection[str | os.PathLike[str]]) -> None:
        """Look now, and for all in one, whether anything happened to those of these distributions that are followed
        and are due for a look: a call of ``distribution`` then finds them looked at."""
        now = self._clock()
        known = {name: self._known.get(name) for name in names if isinstance(name, str)}
        due = {
            name: each
            for name, each in known.items()
            if each is not None and each.token is not None and now - each.checked >= RECHECK_SECONDS
        }
        if not due:
            return
        tokens = self._distribution_watch.tokens([each.distribution.folder for each in due.values()])
        found = self._distributions.find_each(due)
        for (name, each), token, there in zip(due.items(), tokens, found, strict=True):
            if token is each.token and there is each.distribution:
                self._known[name] = replace(each, checked=now)

    def is_distribution(self, name: str) -> bool:
        """Whether a distribution of that name is installed."""
        known = self._known.get(name)
        is_recent = known is not None and self._clock() - known.checked < RECHECK_SECONDS
        if known is not None and is_recent and self._is_as_installed(known):
            return True
        return self._distributions.find(name) is not None

    def distribution(self, name: str, *, fresh: bool = False) -> Part:
        """The part ``distribution/<name>``: name, version, RECORD's rows, and the content of files that are not as
        RECORD says.

        A file whose size or times give no reason for doubt is not read. Left out is what the installer generated:
        ``*.pyc``, console scripts, ``direct_url.json`` and its like. Raises UsageError where no such distribution is
        installed, or where it is editable, so that RECORD does not list what it runs; of cachec itself in a checkout
        all files of its packages count.
        """
        known = self._known.get(name)
        now = self._clock()
        if known is not None:
            is_recent = not fresh and now - known.checked < RECHECK_SECONDS
            if self._is_as_installed(known) and (is_recent or self._is_untouched(known, name)):
                if not is_recent:
                    self._known[name] = replace(known, checked=now)
                return known.part
        distribution = self._distributions.find(name)
        if distribution is None:
            raise UsageError(
                f"tool {name!r} is not an installed distribution; "
                "give the name that pip knows it by, or the path of an executable"
            )
        if distribution.packages:
            return self._checkout.part(distribution, fresh=fresh)
        record_text = distribution.record_text()
        if record_text is None or distribution.editable:
            how = "is an editable install" if record_text is not None else "was installed without a RECORD"
            raise UsageError(
                f"tool {name!r} ({distribution.version}) {how}, so its files are not listed; "
                "install a wheel of it, or leave it out of tools= and name its sources with depends="
            )
        record, text = record_text
        if known is None or known.distribution is not distribution or known.identity != record:
            listing = listings.listing_of(distribution, text, self._digests.memory)
        else:
            listing = known.listing
        token: object | None = None
        if known is not None:  # most processes look once
            self._distribution_watch.follow(distribution, listing)
            token = self._distribution_watch.token(distribution.folder)  # of before the look
        part = self._distribution_part(distribution, record, listing)
        self._known[name] = _KnownDistribution(distribution, record, listing, now, token, part)
        return part

    def _is_as_installed(self, known: _KnownDistribution) -> bool:
        try:
            return fsio.identity(known.distribution.record_path) == known.identity
        except FileNotFoundError:
            return False

    def _is_untouched(self, known: _KnownDistribution, name: str) -> bool:
        """Whether an import would still find this distribution, and nothing happened to its files."""
        if known.token is None or self._distribution_watch.token(known.distribution.folder) is not known.token:
            return False
        return self._distributions.find(name) is known.distribution

    def executable(
        self, command: str | os.PathLike[str], environ: Mapping[str, str] | None = None, *, fresh: bool = False
    ) -> Part:
        """The part ``executable/<basename>``: the content of everything that starting the command loads.

        command: a path, or a name that is looked up in PATH. environ: where PATH, LD_LIBRARY_PATH and LD_PRELOAD are
        taken from; ``os.environ`` by default. A script counts with its interpreter; a pip console script by the
        distribution that owns it, together with the executable of the same name inside that (``iree-compile``). An
        ELF file counts with every shared object that the loader brings in, and the distribution that owns it (for
        what it opens later by itself). Libraries of foreign formats are not resolved; the detail says so.

        Raises UsageError where there is no such executable.
        """
        environ = os.environ if environ is None else environ
        asked = os.fspath(command)
        place = _place(asked, environ)
        known = self._known_executables.get(place)
        now = self._clock()
        if known is not None and not fresh and self._is_unchanged(known, now):
            return known.part
        pending = self._pending_executables.pop(place, None)
        program = self._finder.program(asked, environ) if fresh or pending is None else pending
        if (
            known is None
            or known.program != program
            or not self._is_same_files(known)
            or not self._is_same_distributions(known, fresh=fresh)
        ):
            known = self._find_executable(program, fresh=fresh)
        self._known_executables[place] = replace(known, checked=now)
        return known.part

    def program(self, command: str, environ: Mapping[str, str]) -> Executable:
        """What starting a command loads, looked up now; the next call of ``executable`` goes by it, if that one is not
        ``fresh``. Raises UsageError where there is no such executable."""
        found = self._pending_executables[_place(command, environ)] = self._finder.program(command, environ)
        return found

    # --- distributions

    def _distribution_part(self, distribution: Distribution, record: Identity, listing: listings.Listing) -> Part:
        hasher = Hasher("tool-distribution")
        hasher.part("name", distribution.name.encode())
        hasher.part("version", distribution.version.encode())
        hasher.part("wheel", listing.wheel.encode())
        latest_mtime, latest_ctime = record.mtime_ns + INSTALL_SLACK_NS, record.ctime_ns + INSTALL_SLACK_NS
        # In a loop of its own: there are 14,600 files in torch.
        paths = listing.paths.split("\n") if listing.paths else []
        doubtful, stat, root = [], os.stat, os.path.join(distribution.root, "")
        for number, (path, size) in enumerate(zip(paths, listing.sizes, strict=True)):
            try:
                state = stat(root + path)
            except (FileNotFoundError, NotADirectoryError):
                doubtful.append(number)
                continue
            if state.st_size != size or state.st_mtime_ns > latest_mtime or state.st_ctime_ns > latest_ctime:
                doubtful.append(number)
        hashes = listing.hashes.split("\n") if doubtful else []
        others = [listings.RecordFile(paths[number], paths[number], hashes[number]) for number in doubtful]
        notes = []
        for one in sorted((*others, *listing.others), key=_by_name):
            path = os.path.normpath(os.path.join(distribution.root, one.path))
            if one.is_script and _starts_with_hashbang(path):
                # The installer rewrote its first line: RECORD's hash is this machine's, the rest is the wheel's.
                hasher.part(f"script:{one.name}", self._after_first_line(path))
                continue
            if one.is_script:
                hasher.part(f"listed:{one.name}", f"{one.hash} {one.size}".encode("utf-8", "surrogateescape"))
            try:
                state = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                hasher.part(f"missing:{one.name}", b"")
                notes.append(f"{one.name} is missing")
                continue
            is_installed = state.st_mtime_ns <= latest_mtime and state.st_ctime_ns <= latest_ctime
            if one.hash and state.st_size == one.size and is_installed:
                continue
            digest = self._digests.of_installed(path)
            if not self._is_as_recorded(path, digest, one.hash):
                hasher.part(f"modified:{one.name}", digest.encode())
                notes.append(f"{one.name} is {digest[:12]}")
        detail = f"{distribution.name} {distribution.version}"
        if notes:
            detail += "; not as installed: " + ", ".join(notes)
        return Part(PartKind.DISTRIBUTION, distribution.name, hasher.digest(), detail, version=distribution.version)

    def _is_as_recorded(self, path: str, digest: str, recorded: str) -> bool:
        """Whether the content, whose BLAKE3 is ``digest``, has the SHA-256 that its row has.

        The SHA-256 is remembered by content (the BLAKE3), never by file, so it needs no trust in the file system.
        """
        algorithm, _, wanted = recorded.partition("=")
        if algorithm != "sha256":
            return False
        known = self._sha256.get(digest)
        memory = self._digests.memory
        if known is None and memory is not None:
            row_bytes = memory.recall(f"sha256:{digest}")
            known = None if row_bytes is None else row_bytes.decode("ascii", "replace")
        if known is None:
            import base64
            import hashlib

            hasher = hashlib.sha256()
            check = blake3()
            with fsio.closing(fsio.open_read(path)) as fd:
                for chunk in fsio.pread_chunks(fd, 0, os.fstat(fd).st_size):
                    hasher.update(chunk)
                    check.update(chunk)
            known = base64.urlsafe_b64encode(hasher.digest()).rstrip(b"=").decode()
            if check.hexdigest() != digest:
                return False  # it is being written now: not what RECORD says, and nothing to remember
            if memory is not None:
                memory.remember(f"sha256:{digest}", known.encode())
        self._sha256[digest] = known
        return known == wanted

    def _after_first_line(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read().partition(b"\n")[2]
        except FileNotFoundError:
            return b"\0missing"

    # --- executables

    def _find_executable(self, program: Executable, *, fresh: bool) -> _KnownExecutable:
        started = time.time()
        hasher = Hasher("tool-executable")
        hasher.part("name", program.name.encode())
        notes = []
        version = ""
        watched: dict[str, Identity] = {}
        for label, path in program.files:
            watched[path] = fsio.identity(path)
            digest = self._digests.of_installed(path)
            hasher.part(f"file:{label}", digest.encode())
            notes.append(f"{label} {digest[:12]}")
            if label == program.name:
                version = digest[:12]
        distributions: list[tuple[str, str]] = []
        for script, name in program.distributions:
            part = self.distribution(name, fresh=fresh)
            hasher.part(f"distribution:{name}", part.digest.encode())
            notes.append(part.detail)
            distributions.append((name, part.digest))
            if script:
                version = version or part.version
                content = self._changed_script(script, name)
                watched[script] = fsio.identity(script)
                hasher.part("script", content.encode())
                notes += [f"script {content[:12]}"] if content else []
        if program.cache is not None:
            watched[program.cache[0]] = program.cache[1]
        detail = ", ".join((*notes, *program.notes))
        part = Part(PartKind.EXECUTABLE, program.name, hasher.digest(), detail, version=version)
        settled = all(fsio.is_settled(identity, started) for identity in watched.values())
        return _KnownExecutable(program, tuple(watched.items()), settled, tuple(distributions), self._clock(), part)

    def _changed_script(self, script: str, name: str) -> str:
        """The digest of a console script that is no longer as RECORD says, or nothing: its text is the installer's."""
        distribution = self._distributions.find(normalise(name))
        record = None if distribution is None else distribution.record()
        digest = self._digests.of_installed(script)
        if distribution is None or record is None:
            return digest
        for row in record.rows:
            if os.path.basename(row.path) == os.path.basename(script):
                place = os.path.join(distribution.root, row.path)
                if os.path.exists(place) and os.path.samefile(place, script):
                    return "" if self._is_as_recorded(script, digest, row.hash) else digest
        return digest

    def _is_unchanged(self, known: _KnownExecutable, now: float) -> bool:
        return (
            now - known.checked < RECHECK_SECONDS
            and self._is_same_files(known)
            and self._is_same_distributions(known, fresh=False)
        )

    def _is_same_files(self, known: _KnownExecutable) -> bool:
        if not known.settled:
            return False
        try:
            for path, identity in known.watched:
                state = os.stat(path)
                # Every write sets ctime; device and inode say that it is this file. Size and mtime can't add to that.
                if (
                    state.st_ctime_ns != identity.ctime_ns
                    or state.st_ino != identity.ino
                    or state.st_dev != identity.dev
                ):
                    return False
        except OSError:
            return False
        return True

    def _is_same_distributions(self, known: _KnownExecutable, *, fresh: bool) -> bool:
        return all(self.distribution(name, fresh=fresh).digest == digest for name, digest in known.distributions)


def _place(command: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What decides where a command is found, and what it loads."""
    place = (command, *(environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")))
    return place if os.path.isabs(command) else (*place, os.getcwd())


def _by_name(one: listings.RecordFile) -> str:
    return one.name


def _starts_with_hashbang(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except FileNotFoundError:
        return False
