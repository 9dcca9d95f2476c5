"""Writes the memos that ``direct`` reads; see the format there. A memo that can't be written is left out.

A memo is begun before the key is made, with the identity and the digest of every file that the key may rest on, and
ended when the result is there, where all of them still are as they were: so they were that when the key was made. What
the trace read is compared in a state whose identity is known, or once more after that was taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from cachec import config
from cachec.base import __version__, fsio, xdg
from cachec.base.hashing import digest_bytes, is_foreign
from cachec.base.lookups import describe_status, found_at, stdin_kind, umask
from cachec.base.mounts import TRACKED_FILESYSTEMS, WATCHED_FILESYSTEMS
from cachec.errors import ConfigError, StoreFault, UsageError
from cachec.events import inert
from cachec.key.tools.command_variables import Rule, overlap
from cachec.key.tools.environment import LOCALE
from cachec.key.tools.executables import which
from cachec.key.trace_validation import opened_digest
from cachec.launcher import adapters, direct
from cachec.launcher.command import CommandSpec
from cachec.launcher.command_key import environment, files_in_key, variable_rule, variables_of_run
from cachec.launcher.outputs import lock_of, outputs_of
from cachec.launcher.stage import CommandContext
from cachec.launcher.weight_stripping import wants_strip
from cachec.model import Entry, Mode, Outcome, Read, Reason, Trace
from cachec.stage.engine import CallResult
from cachec.stage.lookup import EntryFinder
from cachec.store.row_codec import unpack
from cachec.store.store import Store

#: Modes in which a hit may be handed out by a memo, and one written.
_MODES = frozenset({Mode.ON, Mode.REQUIRE})

#: Variables that choose settings, folders or programs, in addition to the keyed ones and CACHEC_*.
_VARIABLES = ("PATH", "PWD", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "PYTHONPATH")

#: Bytes of streams in a memo; what writes more is answered by the other road.
_MAX_BLOBS = 1 << 20


class _Unfit(Exception):
    """There is no memo for this one."""


def begin(opened: CommandContext, command: CommandSpec) -> Draft | None:
    """To be called before the key is made; None where there can be no memo of the command."""
    if (
        opened.overridden  # a memo is found by the environment and files alone
        or opened.settings.mode not in _MODES
        or opened.settings.log == "all"
        or opened.settings.key_parts  # a memo calls no function
        or command.stdin
        or wants_strip(command)
        or command.options.hardlink
    ):
        return None
    try:
        return Draft(opened, command)
    except (_Unfit, OSError, UsageError):  # whoever makes the key tells of the last
        return None  # the whole road answers as well, only slower


class Draft:
    """A memo in the making: what its command rests on, as it was when this was made. Raises _Unfit, OSError."""

    def __init__(self, opened: CommandContext, command: CommandSpec) -> None:
        self._opened = opened
        self._command = command
        self._digests = opened.store.digests
        self._mounts = opened.store.mounts
        self._absent: dict[str, None] = {}
        self._folders: dict[str, dict[str, None]] = {}
        self._files: dict[str, str] = {}
        self._states: dict[str, bytes] = {}  # identities with which files of the trace had their digests
        self._texts: dict[str, bytes] = {}  # what a look-up finds at these
        self._remembered: set[str] = set()  # of these, where a later write would show
        self._numbers: dict[str, bytes] = {}
        self._lookups: dict[tuple[str, bytes], bytes] = {}
        self._variables: list[str] = []
        self._installed: set[str] = set()
        self._stdin = self._is_terminal = b"-"
        self._out: list[bytes] = []
        self._collect()
        self._before = {path: direct.identity(path) for path in (*self._files, *self._folders)}

    def write(self, args: list[str], finder: EntryFinder, answer: CallResult) -> bool:
        """Write the memo of a command line with a result in the store; return whether there is one now."""
        try:
            data = self._data(args, finder, answer)
            path = direct.memo_path(args, self._opened.variables, os.getcwd())
            if not path:
                raise _Unfit
            fsio.make_inner_dir(os.path.dirname(path))
            with fsio.Staging(os.path.dirname(path)) as staged:
                staged.write(data)
                staged.commit(path, mode=0o600, fsync=False)
        except (_Unfit, OSError, StoreFault):
            return False  # the whole road answers as well, only slower
        return True

    def _data(self, args: list[str], finder: EntryFinder, answer: CallResult) -> bytes:
        trace, key = answer.trace, answer.outcome.key
        if trace is None:
            raise _Unfit
        for path, digest in self._files.items():
            if digest and self._digests.of_installed(path) != digest:
                raise _Unfit
        others = [read for read in trace.reads if not self._is_compared(read)]
        states = self._states
        files = [(path, states.get(path) or direct.identity(path), digest) for path, digest in self._files.items()]
        folders = [(path, direct.identity(path), names) for path, names in self._folders.items()]
        is_same = all(self._before.get(path, state) == state for path, state, _ in (*files, *folders))
        if not is_same or any(finder.present(read, {}) != read.digest for read in others):
            raise _Unfit
        self._request(args)
        self._list([[os.fsencode(path)] for path in self._absent])
        self._list(
            [
                [
                    os.fsencode(path),
                    state,
                    _flag(self._trusts_folder(path, state)),
                    *_counted_fields(map(os.fsencode, names)),
                ]
                for path, state, names in folders
            ]
        )
        self._list(
            [
                [
                    *(os.fsencode(path), state, _flag(self._is_certain(path, state, digest)), digest.encode()),
                    self._texts.get(path, b""),
                ]
                for path, state, digest in files
            ]
        )
        self._list([[os.fsencode(path), number] for path, number in self._numbers.items()])
        self._list([[os.fsencode(path), flag, found] for (path, flag), found in self._lookups.items()])
        self._row(self._opened.store, key, trace)
        blobs = self._results(answer.value)
        outcome = Outcome(reason=Reason.HIT, stage=self._command.stage, key=key, saved=trace.seconds)
        copy = self._stats_file()
        self._put(inert(msgspec.json.encode(outcome))[:-1], b"" if copy is None else os.fsencode(copy))
        fields = b"\0".join(self._out)
        if fields.count(b"\0") != len(self._out) - 1:
            raise _Unfit
        rest = b"".join((len(fields).to_bytes(8, "little"), fields, *blobs))
        return b"".join((direct.MAGIC, blake3(rest).digest(), rest))

    # --- what the result rests on

    def _collect(self) -> None:
        command = self._command
        for path in (*command.models.values(), *command.inputs):
            if os.path.isdir(path):
                raise _Unfit  # all of a folder: the whole road looks into it
            self._files[path] = self._digests.of_path(path)
        for path, key in command.weights.items():
            if key == "content":
                self._files[path] = self._digests.of_path(path)
        self._settings()
        self._program()

    def _is_compared(self, read: Read) -> bool:
        """Collect what the memo is to hold of a read. Whether that shows that what it saw is still there: else it has
        to be looked up once more."""
        path = self._opened.places.to_absolute(read.where)
        if read.kind == "content":
            self._collect_content(path, read)
            return True
        if read.kind == "lookup":
            follow = "link" not in read.name
            if "mode" in read.name or "folder" in read.name:
                raise _Unfit
            found = found_at(path, follow=follow)
            is_there = "exists" in read.name and not found.startswith(b"-")
            self._lookups[path, _flag(follow)] = b"+" if is_there else found
            return digest_bytes(found) == read.digest
        if read.kind == "file":
            self._files[path] = read.digest
        elif read.kind in {"listing", "names"}:
            self._folders.setdefault(path, {})
        elif read.kind == "absent" and os.path.islink(path):
            self._absent[path] = None  # what it leads to may come, and its own folder stay as it is
        elif read.kind == "absent":
            self._folders.setdefault(os.path.dirname(path), {})[os.path.basename(path)] = None
        elif read.kind == "same":
            for each in map(self._opened.places.to_absolute, read.name.split("\0")):
                self._numbers[each] = direct.file_number(each)
        elif read.kind == "stdin" and read.name:
            self._is_terminal = _flag(os.isatty(0))
        elif read.kind == "stdin" and stdin_kind() != "file":
            self._stdin = stdin_kind().encode()
        elif read.kind == "env":
            self._variables.append(read.where)
        elif read.kind == "search":
            self._collect_search(read.where)
        elif read.kind not in {"umask", "folder"}:  # the mask is in each memo
            raise _Unfit
        return False

    def _collect_search(self, name: str) -> None:
        """Record what is at each place before the program. The run may have had another PATH, and other places."""
        for folder in os.environ.get("PATH", os.defpath).split(":"):
            path = os.path.abspath(os.path.join(folder, name))
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return
            self._lookups[path, b"1"] = found_at(path, follow=True)

    def _collect_content(self, path: str, read: Read) -> None:
        """Note the digest of a file, and the identity with which it has that. Raises _Unfit where it is not what the
        run read."""
        follow = "link" not in read.name
        status = os.stat(path, follow_symlinks=follow)
        state = direct.identity_of(status)
        digest = self._digests.remembered(status)
        if digest is not None:
            self._remembered.add(path)
        else:
            digest = self._digests.of_installed(path)
            if direct.identity(path) != state:
                raise _Unfit
        if opened_digest(status, read.name, digest) != read.digest:
            raise _Unfit
        self._files[path] = digest
        self._states[path] = state
        if follow:
            self._texts[path] = describe_status(status, "")
        else:
            self._lookups[path, b"0"] = describe_status(status, "")
        if status.st_uid == 0:  # who writes into a file of his own, another user does not see
            self._installed.add(path)

    def _settings(self) -> None:
        """Record the configuration files that are, or could be, used, and the adapters."""
        folder = self._opened.places.cwd
        while True:
            for name in ("cachec.toml", "pyproject.toml"):
                self._file_or_absent(os.path.join(folder, name))
            parent = os.path.dirname(folder)
            if parent == folder:
                break
            folder = parent
        own = xdg.settings_file(self._opened.variables)
        if own:
            self._file_or_absent(own)
        adapter = self._command.adapter
        for path in (*adapters.sources(), *(() if adapter is None else (adapter.origin,))):
            self._file_or_absent(path)

    def _program(self) -> None:
        """The places where the program is looked for. What starting it loads is in the trace."""
        if self._command.options.tools:
            raise _Unfit
        asked, cwd = self._command.argv[0], self._command.cwd
        environ = environment(self._opened.variables)
        executable = which(asked, environ, cwd)
        for folder in environ.get("PATH", os.defpath).split(os.pathsep) if "/" not in asked else ():
            path = os.path.join(cwd, folder, asked)
            if path == executable:
                break
            if os.path.exists(path):
                raise _Unfit  # there, and not to be executed: that may change
            self._absent[path] = None
        if executable is not None:
            self._files[executable] = self._digests.of_installed(executable)
            self._installed.add(executable)
        for path in files_in_key(self._command):
            if path.endswith(".pyc"):
                continue
            if os.path.isfile(path):
                self._files.setdefault(path, "")
            else:
                self._absent[path] = None

    def _file_or_absent(self, path: str) -> None:
        if os.path.isfile(path):
            self._files.setdefault(path, self._digests.of_path(path))
        else:
            self._absent[path] = None

    # --- trust

    def _trusts_folder(self, path: str, state: bytes) -> bool:
        """Whether a name that comes or goes would show in the identity. No folder is written through a map."""
        now = fsio.identity(path)
        return (
            direct.identity(path) == state and fsio.is_settled(now) and self._mounts.kind(path) in WATCHED_FILESYSTEMS
        )

    def _trusts(self, path: str, state: bytes) -> bool:
        """Whether a later change would show in the identity, and this one is still the file's."""
        with fsio.closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as fd:
            return direct.identity(path) == state and self._digests.trusts(fd, fsio.identity(fd))

    def _is_certain(self, path: str, state: bytes, digest: str) -> bool:
        if path in self._remembered:
            return True
        if not digest:  # a file of a distribution, trusted as RECORD is (see key/tools/toolchain)
            if not fsio.is_settled(fsio.identity(path)):
                raise _Unfit
            return True
        status = os.stat(path)
        if direct.identity_of(status) == state and self._digests.remembered(status) == digest:
            return True  # which is remembered where a later write would show
        with fsio.closing(fsio.open_read(path)) as fd:
            is_calm = fsio.no_writer(fd) or (path in self._installed and is_foreign(fd, path))
            is_certain = is_calm and self._trusts(path, state)
            if not is_certain and os.fstat(fd).st_size > direct.MAX_HASHED:
                raise _Unfit
            return is_certain

    # --- the rest of the fields

    def _request(self, args: list[str]) -> None:
        self._list([[os.fsencode(arg)] for arg in args])
        with open(direct.BOOT_ID, "rb") as file:
            self._put(os.fsencode(os.getcwd()), __version__.encode(), file.read().strip())
        environ = self._opened.variables
        cachec = [name for name in environ if name.startswith("CACHEC_") and name not in direct.UNKEYED]
        adapter = self._command.adapter
        rule = variable_rule(self._command)
        names = dict.fromkeys(
            [*_VARIABLES, *LOCALE, *rule.names, *variables_of_run(self._command), *self._variables, *cachec]
        )
        unknown = adapter.environment.plain if adapter is not None else ()
        names.update(dict.fromkeys(name for name in unknown if not name.endswith("*")))
        self._list(
            [
                [os.fsencode(name), b"=" + direct.value_digest(os.fsencode(environ[name])) if name in environ else b"-"]
                for name in names
            ]
        )
        # One that is unknown is not set, or empty; where it comes to be set it is another of those that match.
        patterns = [name for name in (*rule.keyed, *unknown) if name.endswith("*")]
        passed = [name for name in rule.passed if rule.others or any(overlap(name, each) for each in patterns)]
        rule = Rule(patterns, passed, others=rule.others)
        self._list([[os.fsencode(name)] for name in patterns])
        self._list([[os.fsencode(name)] for name in passed])
        self._put(_flag(rule.others))
        matching = rule.matching(environ)
        self._list([[os.fsencode(name), direct.value_digest(os.fsencode(environ[name]))] for name in matching])
        self._put(b"%d" % direct.count_keyed(environ))

    def _stats_file(self) -> Path | None:
        """The one that files say, which count; the variable is asked for at each hit. Raises _Unfit."""
        given = self._opened.variables.get(direct.STATS_FILE)
        if not given:
            return self._opened.settings.stats_file
        environ = {name: value for name, value in self._opened.variables.items() if name != direct.STATS_FILE}
        try:
            return config.load(environ=environ).stats_file
        except ConfigError as error:  # the variable precedes an invalid setting
            raise _Unfit from error

    def _row(self, store: Store, key: str, trace: Trace) -> None:
        place = store.entry_row(key)
        file = os.path.join(store.folder, "index", "cache.db")
        identity = direct.identity(file)
        row = store.index.read(place)
        if row is None or trace not in unpack(row, Entry, key).traces:
            raise _Unfit
        is_tracked = self._mounts.kind(file) in TRACKED_FILESYSTEMS
        # Never 1: the next hit sees to that, when it finds the file settled and the row in it.
        self._put(os.fsencode(store.folder), os.fsencode(file), identity, b"2" if is_tracked else b"0")
        self._put(store.row_in_file(place).encode(), blake3(row).hexdigest().encode())

    def _results(self, value: Any) -> list[bytes]:
        places = self._opened.places
        blobs = [places.fill_base(value["stdout"]), places.fill_base(value["stderr"])]
        artifacts: list[list[bytes]] = []
        outputs: list[list[bytes]] = []
        found = outputs_of(self._command, self._opened.variables, places, value)
        for where, stored, word in zip(found, value["outputs"], value["modes"], strict=True):
            if stored is None or isinstance(stored, str):
                raise _Unfit
            if isinstance(stored, bytes):
                blobs.append(places.fill_base(stored))
                number = b"-"
            else:
                number = b"%d" % len(artifacts)
                path, digest = os.fspath(stored.path), stored.path.name
                identity = direct.identity(path)
                size = b"%d" % os.stat(path).st_size
                artifacts.append([digest.encode(), size, identity, _flag(self._is_certain(path, identity, digest))])
            lock = lock_of(self._opened.store, where).path
            outputs.append([os.fsencode(where), word.encode(), number, os.fsencode(lock)])
        if sum(map(len, blobs)) > _MAX_BLOBS:
            raise _Unfit
        self._list(artifacts)
        self._put(_flag(self._command.options.restat), self._stdin, self._is_terminal, b"%o" % umask())
        self._list(outputs)
        self._put(*_counted_fields(b"%d" % len(blob) for blob in blobs))
        return blobs

    def _put(self, *fields: bytes) -> None:
        self._out += fields

    def _list(self, items: list[list[bytes]]) -> None:
        self._put(b"%d" % len(items))
        for item in items:
            self._out += item


def _counted_fields(items: Iterable[bytes]) -> Iterator[bytes]:
    fields = list(items)
    yield b"%d" % len(fields)
    yield from fields


def _flag(is_set: bool) -> bytes:
    return b"1" if is_set else b"0"
