"""The direct road of ``cachec exec``: a command line that was answered before, from a memo of what its key rests on.

A memo is no second cache. It says: this command line, in this folder and environment, has this key *as long as these
files are what they were*; and what that key's entry holds. So it answers where every file still has its identity (or,
where that proves nothing, its content), nothing that was looked for in vain is there, the row of the index is the same,
and the artifacts are whole. Anything else is left to ``full``, which makes the key itself.

Imports no module that takes a millisecond: not even ``typing``.

    direct/ab/<64 hex>    in the cache's default folder; the name is the BLAKE3 of arguments, folder, version, user

    bytes 0-15    ``cachec direct15`` and a newline
    bytes 16-47   BLAKE3-256 of the rest
    bytes 48-55   u64 little-endian: length of the fields; then the fields, then the blobs
    fields        separated by NUL, numbers in decimal, a list as its length and its items:
                  arguments, current folder, version of cachec, boot id;
                  variables (name, ``=`` and the digest of the value, or ``-``); the rule for the others (patterns of
                  those that count, those of them that do not, ``1`` where all others count), and those that count by
                  it (name, digest of the value); how many CACHEC_* beside ``UNKEYED``;
                  absent paths; folders (path, identity, trust, names that must be absent);
                  files (path, identity, trust, digest, ``lookups.found_at`` where that counts);
                  which file a path leads to (path, ``dev:ino``, ``-`` for none);
                  what a look-up finds (path, ``1`` where a link is followed, ``lookups.found_at``);
                  store; index file, identity, trust, row as the file has it, digest of the row;
                  artifacts (digest, size, identity, trust); ``1`` where equal outputs keep their time stamps
                  (``--restat``), else ``0``; what standard input has to be (``nothing``, ``closed``), and
                  whether that is a terminal (``1``, ``0``), each ``-`` where it does not count;
                  the mask of new files;
                  outputs (path, mode as of ``restore``, artifact number or ``-``, the file that is there while a
                  launcher compiles to the same place);
                  lengths of blobs; the record for the log, and the path of its copy where no variable says one
    blobs         stdout, stderr, then the outputs without an artifact, in order

trust is ``1`` where an equal identity (``dev:ino:size:mtime_ns:ctime_ns``) proves equal content (see hashing.py), else
``0``. The index file's may be ``2``: it will prove that once the last change is two seconds old; a memo is then written
again, as that saves every later hit the look into the index. A memo of another version, or a damaged one, is not there.
"""

import os
import time

from blake3 import blake3

from cachec.base import __version__
from cachec.base.append_file import Appender
from cachec.base.file_ownership import read_regular
from cachec.base.lookups import is_found, stdin_kind, umask
from cachec.base.xdg import cache_folder, expand_user
from cachec.launcher.restore import check_place, mode_of, restore_bytes, restore_file
from cachec.launcher.result import write_streams

MAGIC = b"cachec direct15\n"
_HEADER = len(MAGIC) + 32 + 8

#: A file that has to be read, as its identity proves nothing, is left to the whole road from this size: that
#: remembers digests.
MAX_HASHED = 1 << 24

#: Bytes of a memo: more than any has.
MAX_MEMO = 1 << 26

#: Where the copy of a record goes: another file for each build, and the same answer.
STATS_FILE = "CACHEC_STATS_FILE"

#: Settings that no answer rests on.
UNKEYED = (STATS_FILE, "CACHEC_SERVER", "CACHEC_DEPTH")

BOOT_ID = "/proc/sys/kernel/random/boot_id"

_SELECT = "SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1"
_MODE_RAW = 1

#: As ``store.index.USED_SECONDS``.
_USED_SECONDS = 86400.0

#: As ``fsio.SETTLE_SECONDS``.
_SETTLE_SECONDS = 2.0


class _Stale(Exception):
    """The memo does not hold."""


#: Why a memo does not answer: it is missing (the usual miss), damaged, or no longer valid.
_NOT_HERE = (_Stale, OSError, ValueError, IndexError, StopIteration)


def memo_path(args: list[str], environ: "os._Environ[str] | dict[str, str]", cwd: str) -> str:
    """Return the path of the memo of a command line; empty without a folder for it."""
    folder = default_folder(environ, cwd)
    name = blake3(os.fsencode("\0".join((*args, "", cwd, __version__, str(os.geteuid()))))).hexdigest()
    return folder and f"{folder}/direct/{name[:2]}/{name}"


def default_folder(environ: "os._Environ[str] | dict[str, str]", cwd: str) -> str:
    """Return the store of the environment, without settings files; empty without a folder for it."""
    given = environ.get("CACHEC_DIR", "")
    if not given:
        return cache_folder(environ)
    path = expand_user(given, environ)
    return path and os.path.normpath(os.path.join(cwd, path))


def count_keyed(environ: "os._Environ[str] | dict[str, str]") -> int:
    """How many settings there are in the environment that an answer may rest on."""
    return sum(name.startswith("CACHEC_") for name in environ) - sum(name in environ for name in UNKEYED)


def value_digest(value: bytes) -> bytes:
    """What a memo holds of the value of a variable, which may be a secret."""
    return blake3(value).hexdigest().encode()


def identity(path: str | bytes) -> bytes:
    """The identity of what a path leads to. Raises OSError."""
    return identity_of(os.stat(path))


def identity_of(s: os.stat_result) -> bytes:
    """The same of a status."""
    return b"%d:%d:%d:%d:%d" % (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)


def answer(args: list[str]) -> bool:
    """Hand out the result of a command line (what follows ``cachec exec``), if a memo has it; whether it has."""
    started = time.perf_counter()
    try:
        path, memo = _load_valid_memo(args)
        memo.hand_out()
    except _NOT_HERE:
        return False  # the whole path meets the same error again, and reports it
    memo.log(started)
    try:
        memo.replay()
    except OSError:
        return False  # a full disk behind stdout, say: the other road runs the command, which says it as it always does
    try:
        memo.renew(path)
    except OSError:
        return True  # it stays as it is: slower, not wrong
    return True


def would_answer(args: list[str]) -> bool:
    """Whether ``answer`` has the result of a command line. Nothing is handed out, logged or written."""
    try:
        _load_valid_memo(args)[1].check_locks()
    except _NOT_HERE:
        return False
    return True


def _load_valid_memo(args: list[str]) -> "tuple[str, _Memo]":
    """Where the memo of a command line is, and the memo, which holds. Raises one of ``_NOT_HERE`` where none does."""
    cwd = os.getcwd()
    path = memo_path(args, os.environ, cwd)
    if not path:
        raise _Stale
    memo = _Memo(read_regular(path, MAX_MEMO, own=True))
    memo.check_request(args, cwd)
    memo.check_files()
    memo.check_row()
    memo.read_rest()
    memo.check_artifacts()
    return path, memo


class _Memo:
    """A memo as it is read, field by field."""

    def __init__(self, data: bytes) -> None:
        if data[: len(MAGIC)] != MAGIC or blake3(data[48:]).digest() != data[16:48]:
            raise _Stale
        end = _HEADER + int.from_bytes(data[48:56], "little")
        self._fields = data[_HEADER:end].split(b"\0")
        self._at = 0
        self._blobs = memoryview(data)[end:]
        self._outputs: list[tuple[str, int, int]] = []
        self._locks: list[bytes] = []
        self._artifacts: list[tuple[str, bytes, bytes, bytes]] = []
        self._streams: list[memoryview] = []
        self._store = self._version = ""
        self._record = self._copy = b""
        self._renewed = False
        self._restat = False

    def _next(self) -> bytes:
        self._at += 1
        return self._fields[self._at - 1]

    def _take(self, count: int) -> list[bytes]:
        self._at += count
        return self._fields[self._at - count : self._at]

    def check_request(self, args: list[str], cwd: str) -> None:
        """The command line, the folder, the boot and the variables are those that it was made for."""
        if self._take(int(self._next())) != [os.fsencode(arg) for arg in args] or self._next() != os.fsencode(cwd):
            raise _Stale
        if self._next() != __version__.encode():
            raise _Stale
        with open(BOOT_ID, "rb", 0) as file:
            if file.read(64).strip() != self._next():
                raise _Stale
        environ = os.environb
        for _ in range(int(self._next())):
            name, wanted = self._take(2)
            value = environ.get(name)
            if wanted != (b"-" if value is None else b"=" + value_digest(value)):
                raise _Stale
        keyed, passed = (self._take(int(self._next())) for _ in range(2))
        if _matching(keyed, passed, others=self._next() == b"1") != self._take(2 * int(self._next())):
            raise _Stale
        if int(self._next()) != count_keyed(os.environ):
            raise _Stale

    def check_files(self) -> None:
        """What was read is as it was, and what was looked for in vain is not there."""
        access = os.access
        for path in self._take(int(self._next())):
            if access(path, os.F_OK):
                raise _Stale
        for _ in range(int(self._next())):
            path, wanted, trust = self._take(3)
            names = self._take(int(self._next()))
            if identity(path) == wanted and trust == b"1":
                continue
            if not names or any(access(path + b"/" + name, os.F_OK) for name in names):
                raise _Stale
        for _ in range(int(self._next())):
            path, wanted, trust, digest, found = self._take(5)
            if identity(path) == wanted and trust == b"1":
                continue
            _check_content(path, digest)
            if found and not is_found(path, found, follow=True):
                raise _Stale
        for _ in range(int(self._next())):
            path, number = self._take(2)
            if file_number(path) != number:
                raise _Stale
        for _ in range(int(self._next())):
            path, follow, found = self._take(3)
            if not is_found(path, found, follow=follow == b"1"):
                raise _Stale

    def check_row(self) -> None:
        """The index still has the row, as it was."""
        self._store = os.fsdecode(self._next())
        file, wanted, trust, row, digest = self._take(5)
        self._version = row.partition(b":")[0].decode()
        now = identity(file)
        is_quiet = not _has_log(file)
        if trust == b"1" and now == wanted and is_quiet:
            return  # the database did not change since the row was read from it
        current = _read_row(os.fsdecode(file), row.decode(), is_quiet)
        if current is None or blake3(current).hexdigest().encode() != digest:
            raise _Stale
        if is_quiet and trust != b"0" and identity(file) == now and not _has_log(file):
            is_settled = time.time() - os.stat(file).st_ctime > _SETTLE_SECONDS
            self._fields[self._at - 4 : self._at - 2] = [now, b"1" if is_settled else b"2"]
            self._renewed = is_settled

    def renew(self, path: str) -> None:
        """Write the memo again, where the index file is known better now. Raises OSError."""
        if not self._renewed:
            return
        fields = b"\0".join(self._fields)
        rest = b"".join((len(fields).to_bytes(8, "little"), fields, self._blobs))
        restore_bytes(b"".join((MAGIC, blake3(rest).digest(), rest)), path, 0o600)

    def read_rest(self) -> None:
        """Artifacts, outputs and blobs."""
        for _ in range(int(self._next())):
            digest, size, state, trust = self._take(4)
            name = digest.decode("ascii")
            if len(name) != 64 or not name.isalnum():
                raise _Stale
            self._artifacts.append((f"{self._store}/objects/{name[:2]}/{name}", state, trust, digest))
            if int(size) < 0:
                raise _Stale
        self._restat = self._next() == b"1"
        wanted, is_terminal, mask = self._take(3)
        if wanted not in {b"-", stdin_kind().encode()} or mask != b"%o" % umask():
            raise _Stale
        if is_terminal not in {b"-", b"%d" % os.isatty(0)}:
            raise _Stale
        for _ in range(int(self._next())):
            path, mode, number, lock = self._take(4)
            self._locks.append(lock)
            self._outputs.append((os.fsdecode(path), mode_of(mode.decode()), -1 if number == b"-" else int(number)))
        at = 0
        for length in map(int, self._take(int(self._next()))):
            self._streams.append(self._blobs[at : at + length])
            at += length
        self._record, self._copy = self._take(2)
        given = os.environ.get(STATS_FILE)
        if given:  # as config.py has it
            copy = expand_user(given, os.environ)
            if not copy:
                raise _Stale  # config.py raises its error
            self._copy = os.fsencode(os.path.normpath(os.path.join(os.getcwd(), copy)))
        if at != len(self._blobs) or self._at != len(self._fields):
            raise _Stale

    def check_artifacts(self) -> None:
        """Each is there, and whole."""
        for path, state, trust, digest in self._artifacts:
            if trust != b"1" or identity(path) != state:
                _check_content(os.fsencode(path), digest)

    def check_locks(self) -> None:
        """No launcher compiles to the places of the outputs."""
        if any(os.access(lock, os.F_OK) for lock in self._locks):
            raise _Stale

    def hand_out(self) -> None:
        """Put the outputs in their places. Raises OSError; the other road then does it again, and tells."""
        self.check_locks()
        for path, mode, _ in self._outputs:
            check_place(path, mode)
        blobs = iter(self._streams[2:])
        for path, mode, number in self._outputs:
            if number < 0:
                restore_bytes(bytes(next(blobs)), path, mode, restat=self._restat)
            else:
                restore_file(self._artifacts[number][0], path, mode, restat=self._restat)

    def log(self, started: float) -> None:
        """Append the outcome to the log of the day, and to its copy. What can't be written is left out."""
        now = time.time()
        own = (time.perf_counter() - started, now, os.getpid())
        line = self._record + b',"seconds":%.9f,"time":%.6f,"pid":%d}\n' % own
        day = time.strftime("%Y-%m-%d", time.gmtime(now))
        for path in (f"{self._store}/log/{day}.jsonl", os.fsdecode(self._copy)):
            if path:
                try:
                    Appender(path).append(line)
                except OSError:
                    continue  # as events.EventLog does: no record is no reason to fail a hit
        used = f"{self._store}/index/used-{self._version}"  # as store/index.py has it
        try:
            if now - os.stat(used).st_mtime > _USED_SECONDS:
                os.utime(used)
        except OSError:
            return  # a store that is only read

    def replay(self) -> None:
        """Write the command's stdout and stderr. If the reader is gone, end as the command would have ended."""
        try:
            write_streams(*self._streams[:2])
        except BrokenPipeError:
            import signal

            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)


def _matching(keyed: list[bytes], passed: list[bytes], *, others: bool) -> list[bytes]:
    """Return the names, and digests of the values, of the variables that count by patterns. keyed: patterns alone."""
    environ = os.environb
    if others or passed:
        from cachec.key.tools.command_variables import Rule

        rule = Rule(list(map(os.fsdecode, keyed)), list(map(os.fsdecode, passed)), others=others)
        names = list(map(os.fsencode, rule.matching(os.environ)))
    else:
        beginnings = tuple(pattern[:-1] for pattern in keyed)
        names = sorted(name for name in environ if name.startswith(beginnings))
    return [each for name in names for each in (name, value_digest(environ[name]))]


def _check_content(path: bytes, digest: bytes) -> None:
    if not digest:
        raise _Stale
    if blake3(read_regular(path, MAX_HASHED)).hexdigest().encode() != digest:
        raise _Stale


def file_number(path: str | bytes) -> bytes:
    """Which file or folder is at a path: another path with the same number leads to it too. ``-`` where none is."""
    try:
        status = os.stat(path)
    except OSError:
        return b"-"
    return b"%d:%d" % (status.st_dev, status.st_ino)


def _has_log(file: bytes) -> bool:
    try:
        return os.stat(file + b"-wal").st_size > 0
    except FileNotFoundError:
        return False


def _read_row(file: str, key: str, is_quiet: bool) -> bytes | None:
    """The value of a row as index.py writes it, None for any other row. Raises OSError or ValueError.

    Where there is no log the file is read without locks (``immutable=1``), and looked at again after that. The C module
    is imported by itself: what ``sqlite3`` adds to it takes longer than the look-up.
    """
    import _sqlite3

    before = identity(file)
    if not is_quiet and os.path.lexists(f"{file}-journal"):  # SQLite would open it, a FIFO too
        raise ValueError("the index has a rollback journal")
    quoted = file.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        connection = _sqlite3.connect(f"file:{quoted}?{'immutable=1' if is_quiet else 'mode=rw'}", uri=True)
        connection.text_factory = bytearray
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA trusted_schema = 0")
        connection.execute("PRAGMA cell_size_check = 1")
        rows = connection.execute(_SELECT, (key,)).fetchall()
        connection.close()
    except _sqlite3.Error as error:
        raise ValueError(f"the index can't be read: {error}") from error
    if is_quiet and (identity(file) != before or _has_log(os.fsencode(file))):
        return None
    for mode, filename, value in rows:
        if mode == _MODE_RAW and filename is None and type(value) is bytes:
            return value
    return None
