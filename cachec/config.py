"""Settings: defaults < the user's file < the project's file < environment < argument, and where each came from.

The project's file is the nearest ``cachec.toml``, or ``pyproject.toml`` with a table ``[tool.cachec]``, upwards from
the current folder; in one folder ``cachec.toml`` wins. The user's is ``$XDG_CONFIG_HOME/cachec/cachec.toml``, for
settings alone. ``CACHEC_<KEY>`` is the upper-cased key, one to one; an empty variable counts as not set. Relative paths
of a file start at its folder, others at the current folder.

The project's file is *found*, so somebody else may have put it there: one that another user can write is refused,
unless it lies below a folder of ``trusted``; and it leads to no file outside of its project (``CONFINED``), nor
decides whom to trust (``PERSONAL``).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachec.base import display_text, file_ownership, xdg
from cachec.base.tracer_hiding import unseen
from cachec.errors import ConfigError, NoStoreFolder
from cachec.model import Mode

#: Sub-tables of the file that other parts of cachec read for themselves.
KNOWN_TABLES = frozenset({"warm", "adapters", "exec"})

#: Names of configuration files, the first wins in one folder, each with the table that holds the settings.
FILES: Mapping[str, tuple[str, ...]] = {"cachec.toml": (), "pyproject.toml": ("tool", "cachec")}

#: Places that are written, which a project's file may have in the project alone.
CONFINED = frozenset({"dir", "stats_file", "repro_dir"})

#: What only the user can decide: not set by a project's file.
PERSONAL = frozenset({"shared", "trusted", "remote", "key_parts"})

#: Bytes of a configuration file, at most.
MAX_FILE = 1 << 24

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)} | {"KB": 1000}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one cache. Immutable."""

    #: The setting ``dir``; None where nothing names a store, and ``no_store`` then says why.
    store_folder: Path | None
    #: What calls may do with it.
    mode: Mode
    #: Bytes that ``gc`` keeps; 0 for no limit.
    max_size: int
    #: Keys of two never meet.
    namespace: str
    #: The folder below which paths of commands count from there.
    base_dir: Path | None
    #: ``miss``, ``all`` or ``off``: what is printed.
    log: str
    #: Seconds to wait for another process that runs the same stage on the same key.
    lock_timeout: float
    #: Gets a copy of every log record.
    stats_file: Path | None
    #: Where a stage that fails leaves a reproducer; None for nowhere.
    repro_dir: Path | None
    #: Whether files are forced to disk before the row that names them.
    fsync: bool
    #: ``auto`` or ``off``: whether a run records the code, files and variables that it looks at.
    record: str
    #: Whether the misses of stages run in processes of their own.
    isolated: bool
    #: Whether the store may be one that other users own or can write: ``auto`` as it records, ``trusted`` or ``no``.
    shared: str
    #: ``auto`` or ``off``: whether a process is left behind, for the next misses of ``cachec exec`` and to send to
    #: remotes.
    server: str
    #: ``auto`` or ``off``: whether a person sees what runs.
    progress: str
    #: Folders below which a configuration file counts whoever can write it.
    trusted: tuple[Path, ...]
    #: URLs of stores that machines share.
    remote: tuple[str, ...]
    #: Functions, as ``module:function``, whose texts count in every key (``key.extra_parts``).
    key_parts: tuple[str, ...]
    #: ``otel`` or ``off``: whether calls are spans and counters of OpenTelemetry.
    telemetry: str
    #: Key -> ``default``, ``file: <path>:<line>``, ``environment: CACHEC_<KEY>`` or ``argument``.
    origins: Mapping[str, str]
    no_store: str = ""

    @property
    def dir(self) -> Path:
        """The store's folder. Raises NoStoreFolder if there is none."""
        if self.store_folder is None:
            raise NoStoreFolder(self.no_store)
        return self.store_folder


class _BadValueError(Exception):
    """A value of the wrong kind; the message says what is accepted."""


class _NoHomeError(_BadValueError):
    """A path starts with ``~``, and that home folder is not known."""


class _Place(msgspec.Struct, frozen=True):
    """What a setting is read with: the variables, and the folder where its relative paths start."""

    environ: Mapping[str, str]
    folder: str


def _path(value: object, place: _Place) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in os.fspath(value):
        raise _BadValueError("a path")
    given = os.fspath(value)
    text = xdg.expand_user(given, place.environ)
    if not text:
        user = given[1:].partition("/")[0]
        why = f"no user {user!r} has a home folder" if user else xdg.why_no_home(place.environ)
        raise _NoHomeError(f"{given!r}, and {why}")
    return Path(os.path.normpath(os.path.join(place.folder, text)))


def parse_size(text: str) -> int:
    """Bytes of ``500``, ``500MB``, ``20GiB`` or ``1.5TiB``. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    (whole, _, part), factor = match[1].partition("."), _UNITS[match[2]]
    if part and factor == 1:
        raise ValueError(text)
    scale: int = 10 ** len(part)
    return int(whole + part) * factor // scale


def _size(value: object, _place: _Place) -> int:
    accepted = "a number of bytes, 0 for no limit, or a size such as 500MB, 20GiB or 1.5TiB"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str):
        raise _BadValueError(accepted)
    try:
        return parse_size(value)
    except ValueError:
        raise _BadValueError(accepted) from None


def _namespace(value: object, _place: _Place) -> str:
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", value) is None:
        raise _BadValueError("1 to 64 letters, digits, '.', '_' or '-', starting with a letter, a digit or '_'")
    return value


def _one_of(*words: str) -> Callable[[object, _Place], str]:
    def parse(value: object, _place: _Place) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise _BadValueError("one of " + ", ".join(words) + suggestion(value, words))

    return parse


def _mode(value: object, place: _Place) -> Mode:
    return value if isinstance(value, Mode) else Mode(_one_of(*(mode.value for mode in Mode))(value, place))


def _seconds(value: object, _place: _Place) -> float:
    accepted = "a number of seconds, 0 or more"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _BadValueError(accepted)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _BadValueError(accepted) from None
    if not math.isfinite(number) or number < 0:
        raise _BadValueError(accepted)
    return number


def _flag(value: object, _place: _Place) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise _BadValueError("true or false")


def _auto_or_off(value: object, place: _Place) -> str:
    try:
        return "auto" if _flag(value, place) else "off"
    except _BadValueError:
        return _one_of("auto", "off")(value, place)


def _paths(value: object, place: _Place) -> tuple[Path, ...]:
    listed = [item for item in value.split(os.pathsep) if item] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        raise _BadValueError(f"a list of paths, or paths with {os.pathsep!r} between")
    return tuple(_path(item, place) for item in listed)


def _urls(value: object, _place: _Place) -> tuple[str, ...]:
    listed = value.split() if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(url, str) and "://" in url for url in listed):
        raise _BadValueError("a list of URLs, or URLs with spaces between: file:///folder, https://host/path")
    return tuple(listed)


def _functions(value: object, _place: _Place) -> tuple[str, ...]:
    listed = value.split() if isinstance(value, str) else value
    form = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
    if isinstance(listed, list | tuple) and all(isinstance(each, str) and form.fullmatch(each) for each in listed):
        return tuple(dict.fromkeys(listed))
    raise _BadValueError("a list of functions, or functions with spaces between: package.module:function")


def without_secret(url: str) -> str:
    """A URL as it is shown: without the user and the password in it."""
    return re.sub(r"//.*@", "//", url)


class _SettingSpec(msgspec.Struct, frozen=True):
    """A key: the function that validates its value, and its default."""

    parse: Callable[[object, _Place], Any]
    default: object


#: Every key, in the order that they are shown in. dir: its default follows from the environment.
# lock_timeout: a lock is released by the kernel when its holder dies, so the time-out only guards against a holder
# that hangs. It has to be longer than the longest compile, else every waiter compiles the same thing again: an hour.
# fsync off: after a power cut a short artifact is found by its digest and rebuilt, so syncing buys only that rebuild.
_SETTINGS: Mapping[str, _SettingSpec] = {
    "dir": _SettingSpec(_path, None),
    "mode": _SettingSpec(_mode, Mode.ON),
    "max_size": _SettingSpec(_size, 20 * 1024**3),
    "namespace": _SettingSpec(_namespace, "default"),
    "base_dir": _SettingSpec(_path, None),
    "log": _SettingSpec(_one_of("miss", "all", "off"), "miss"),
    "lock_timeout": _SettingSpec(_seconds, 3600.0),
    "stats_file": _SettingSpec(_path, None),
    "repro_dir": _SettingSpec(_path, None),
    "fsync": _SettingSpec(_flag, False),
    "record": _SettingSpec(_auto_or_off, "auto"),
    "isolated": _SettingSpec(_flag, False),
    "shared": _SettingSpec(_one_of("auto", "no", "trusted"), "auto"),
    "server": _SettingSpec(_auto_or_off, "auto"),
    "progress": _SettingSpec(_auto_or_off, "auto"),
    "trusted": _SettingSpec(_paths, ()),
    "remote": _SettingSpec(_urls, ()),
    "key_parts": _SettingSpec(_functions, ()),
    "telemetry": _SettingSpec(_one_of("off", "otel"), "off"),
}

KEYS = tuple(_SETTINGS)

#: For remotes: a token that servers are given, a key to sign with, a shared secret. No settings, as those are shown.
TOKEN, KEY, SECRET = "CACHEC_REMOTE_TOKEN", "CACHEC_REMOTE_KEY", "CACHEC_REMOTE_SECRET"

#: How many launchers are around a process (``launcher.depth``). No setting: a launcher sets it for its command.
DEPTH = "CACHEC_DEPTH"

#: Set in the process of a plugin's self-test (``programs.self_tests``), which runs no other one. No setting.
SELF_TEST = "CACHEC_SELF_TEST"

#: What a user does about a store without a folder.
_STORE_REMEDY = "set CACHEC_DIR, XDG_CACHE_HOME or HOME to an absolute path"

_VARIABLES: Mapping[str, str] = {key: "CACHEC_" + key.upper() for key in KEYS}


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Settings:
    """Return the current settings. An override of None counts as not given.

    Raises ConfigError for an unknown key or a bad value, naming where it was written and what is accepted.
    """
    with unseen():  # the current settings are not an input of a stage that gets a cache
        return _load(overrides, os.environ if environ is None else environ, cwd)


def _load(
    overrides: Mapping[str, object] | None, environ: Mapping[str, str], cwd: str | os.PathLike[str] | None
) -> Settings:
    folder = _working_folder() if cwd is None else os.path.abspath(cwd)
    overrides = overrides or {}
    for key in overrides:
        if key not in _SETTINGS:
            raise ConfigError(_unknown(key, "argument"))
    sources = _Sources(overrides, environ, folder, _user_settings(environ))
    file = _nearest_file(folder, sources.value("trusted", None)[0])
    values: dict[str, Any] = {}
    origins: dict[str, str | ConfigTable] = {}
    for key in _SETTINGS:
        values[key], origins[key] = sources.value(key, file)
    folder_or_why = values.pop("dir")
    if isinstance(folder_or_why, str):
        return Settings(**values, store_folder=None, no_store=folder_or_why, origins=_Origins(origins))
    return Settings(**values, store_folder=folder_or_why, origins=_Origins(origins))


class _Sources(msgspec.Struct, frozen=True):
    """The sources of values, in addition to the project's file."""

    overrides: Mapping[str, object]
    environ: Mapping[str, str]
    #: Where relative paths start that are in no file.
    folder: str
    user: ConfigTable | None

    def value(self, key: str, file: ConfigTable | None) -> tuple[Any, str | ConfigTable]:
        """The value of a key, and its origin; of ``dir`` the reason, a str, where there is no such folder.

        Raises ConfigError.
        """
        raw: object
        start = self.folder
        origin: str | ConfigTable
        if file is not None and key in PERSONAL and key in file.data:
            raise ConfigError(
                f"{file.where(key)}: {key} is not for the file of a project, which others may have written; "
                f"{self._own_place(key)}"
            )
        if self.overrides.get(key) is not None:
            raw, origin = self.overrides[key], "argument"
        elif self.environ.get(_VARIABLES[key]):
            raw, origin = self.environ[_VARIABLES[key]], f"environment: {_VARIABLES[key]}"
        else:
            table = next((each for each in (file, self.user) if each is not None and key in each.data), None)
            if table is None:
                return (self._default_store() if key == "dir" else _SETTINGS[key].default), "default"
            raw, origin, start = table.data[key], table, table.folder
        try:
            value = _SETTINGS[key].parse(raw, _Place(self.environ, start))
        except _BadValueError as error:
            if key == "dir" and isinstance(error, _NoHomeError):
                return f"there is no folder for the store: dir is {error}; {_STORE_REMEDY}", origin
            if isinstance(error, _NoHomeError):
                raise ConfigError(f"{_Origins({key: origin})[key]}: {key} is {error}; give an absolute path") from None
            shown = raw.value if isinstance(raw, Mode) else "..." if key == "remote" else raw
            where = _Origins({key: origin})[key]
            raise ConfigError(f"{where}: {key} = {shown!r} is not accepted; {key} is {error}") from None
        if file is not None and origin is file and key in CONFINED and not file_ownership.is_within(value, file.folder):
            raise ConfigError(
                f"{file.where(key)}: {key} = {raw!r} leads out of the project {file.folder}, which a file "
                f"that is found there may not; {self._own_place(key)}"
            )
        return value, origin

    def _default_store(self) -> Path | str:
        """Return the store's folder if no setting names one; the reason if there is none."""
        folder = xdg.cache_folder(self.environ)
        if folder:
            return Path(folder)
        return f"there is no folder for the store: {xdg.why_no_home(self.environ)}; {_STORE_REMEDY}"

    def _own_place(self, key: str) -> str:
        """Say where a user sets what a project's file may not."""
        file = xdg.settings_file(self.environ)
        return f"set {_VARIABLES[key]}" + (f", or {key} in {file}" if file else "")


def _user_settings(environ: Mapping[str, str]) -> ConfigTable | None:
    path = xdg.settings_file(environ)
    if not path or not os.path.isfile(path):
        return None
    settings = _read_file(path, os.path.dirname(path), ())
    for table in () if settings is None else KNOWN_TABLES & settings.data.keys():
        raise ConfigError(f"{path}: [{table}] belongs into the file of a project; here are settings alone")
    return settings


class ConfigTable(msgspec.Struct, frozen=True):
    """A table of a configuration file: its settings, or one that another part of cachec reads for itself."""

    #: The file.
    path: str
    #: Where it lies; relative paths in it start here.
    folder: str
    #: The table as TOML gives it.
    data: dict[str, Any]
    text: str
    table_path: tuple[str, ...]

    def where(self, *keys: str) -> str:
        """``<path>:<line>`` of the statement that sets the key at the end of ``keys``, tables by tables from here."""
        *tables, key = keys
        return f"{self.path}:{_line_of(self.text, (*self.table_path, *tables), key)}"


def sub_table(name: str, *, cwd: str | os.PathLike[str] | None = None) -> ConfigTable | None:
    """Return the table ``name`` of the current configuration file; None without a file, or without the table.

    Raises ConfigError as ``load`` does, and where it is no table.
    """
    file = _nearest_file(_working_folder() if cwd is None else os.path.abspath(cwd), trusted_folders())
    if file is None or name not in file.data:
        return None
    data = file.data[name]
    if not isinstance(data, dict):
        raise ConfigError(f"{file.where(name)}: {name} is {data!r}; it has to be a table: [{name}]")
    return ConfigTable(file.path, file.folder, data, file.text, (*file.table_path, name))


def trusted_folders() -> tuple[Path, ...]:
    """The setting of that name, as the environment or the user's file has it: no other file can."""
    folders, _ = _Sources({}, os.environ, _working_folder(), _user_settings(os.environ)).value("trusted", None)
    return tuple(folders)


def unknown_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A warning for each variable ``CACHEC_*`` that is no setting. Not an error: it may be meant for a newer cachec."""
    names = os.environ if environ is None else environ
    known = {*_VARIABLES.values(), TOKEN, KEY, SECRET, DEPTH, SELF_TEST}
    strange = sorted(name for name in names if name.startswith("CACHEC_") and name not in known)
    return tuple(f"{name} is not a setting{suggestion(name, sorted(known))}" for name in strange)


class _Origins(Mapping[str, str]):
    """Key -> origin. A line number costs several runs of the TOML parser, so it is found on first use."""

    def __init__(self, kinds: Mapping[str, str | ConfigTable]) -> None:
        self._kinds = kinds

    def __getitem__(self, key: str) -> str:
        kind = self._kinds[key]
        return kind if isinstance(kind, str) else f"file: {kind.where(key)}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return repr(dict(self))


def _working_folder() -> str:
    """The current folder; empty where it was removed, and relative paths then lead nowhere. Raises ConfigError."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
    except OSError as error:  # whether there is a project's file can't be told
        raise ConfigError(f"the current folder can't be told: {error.strerror}") from error


def _nearest_file(folder: str, trusted_folders: Iterable[Path]) -> ConfigTable | None:
    """The project's file. Raises ConfigError where it is malformed, or others can write it and it is not trusted."""
    while True:
        for name, table_path in FILES.items():
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                table = _read_file(path, folder, table_path, trusted_folders)
                if table is not None:
                    return table
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def refuse_foreign(path: str, kind: str, trusted_folders: Iterable[Path]) -> None:
    """Raise ConfigError for a file that others than this user and root can write, unless a trusted folder has it."""
    try:
        why = file_ownership.why_distrusted(path)
    except OSError as error:
        raise ConfigError(f"{kind} {path}: can't be read: {error.strerror}") from error
    if why and not any(file_ownership.is_within(path, os.fspath(folder)) for folder in trusted_folders):
        raise ConfigError(
            f"{kind} {path} is refused: {why}, so others decide what it says; make it yours (chown, chmod go-w), or "
            f"trust its folder: CACHEC_TRUSTED={os.path.dirname(path)}"
        )


def _read_file(
    path: str, folder: str, table_path: tuple[str, ...], trusted_folders: Iterable[Path] | None = None
) -> ConfigTable | None:
    """The settings in a file, or None where it has no such table. Raises ConfigError where it is malformed.

    trusted: as for ``refuse_foreign``; None for a file that was not found but named.
    """
    try:
        data = file_ownership.read_regular(path, MAX_FILE)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    if table_path and b"cachec" not in data:
        return None  # another project's file: not worth the import of a parser
    text, document = parse_toml(path, data)
    table = _table(document, table_path)
    if table is None:
        return None
    if trusted_folders is not None:
        refuse_foreign(path, "configuration file", trusted_folders)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.cachec is {table!r}; it has to be a table: [tool.cachec]")
    settings = ConfigTable(path, folder, table, text, table_path)
    for key, value in table.items():
        if key not in _SETTINGS and not (key in KNOWN_TABLES and isinstance(value, dict | list)):
            raise ConfigError(_unknown(key, settings.where(key)))
    return settings


def parse_toml(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and what it says. Raises ConfigError naming file and line."""
    import tomllib

    try:
        text = data.decode().replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8, so not TOML") from error
    except ValueError as error:  # tomllib's own, and of numbers and dates that Python has not
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        raise ConfigError(f"{path}:{line}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: tables nested too deep") from error


def _table(document: dict[str, Any], table_path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in table_path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _line_of(text: str, table_path: tuple[str, ...], key: str) -> int:
    """The line (from 1) where the statement that sets ``key`` begins.

    tomllib keeps no positions. A statement begins where all before it parses, and ends where all up to it parses
    again; so the key's is the one that starts at a line with the key's name, and after which the key is there.
    """
    import tomllib

    def has_key(end: int) -> bool | None:
        """Whether the first ``end`` lines set the key; None where they end inside of a statement."""
        try:
            table = _table(tomllib.loads("\n".join(lines[:end])), table_path)
        except (ValueError, RecursionError):
            return None
        return isinstance(table, dict) and key in table

    lines = text.split("\n")
    for begin, line in enumerate(lines):
        if key not in line or has_key(begin) is not False:
            continue
        there = None
        end = begin
        while there is None and end < len(lines):
            end += 1
            there = has_key(end)
        if there:
            return begin + 1
    return 1  # written with escapes, "\\u006d..."; the file's name has to do


def _unknown(key: str, where: str) -> str:
    return f"{where}: {key!r} is not a setting{suggestion(key, KEYS)}; the settings are {', '.join(KEYS)}"


def suggestion(word: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one that is nearest, empty where none is near."""
    close = display_text.nearest(str(word), known)
    return f" (did you mean {close}?)" if close else ""
