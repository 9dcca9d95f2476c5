"""Adapters: what the arguments of a known command mean. TOML files, shipped in ``cachec/adapters`` or a user's own.

A user's adapters are in the configuration file, and win over shipped ones:

    [adapters]
    files = ["tools/mycc.toml"]        # relative to the configuration file

    [adapters.mycc]                    # or in place
    match = ["mycc", "mycc-[0-9]*"]

An adapter is a table with the keys of ``Adapter``; each item of ``flags`` has the keys of ``Flag``. Where a file is
malformed the error names the file and the line.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from cachec import config
from cachec.base import file_ownership, xdg
from cachec.base.display_text import nearest
from cachec.base.hashing import Hasher
from cachec.errors import ConfigError

#: How names of what an adapter is for begin, where not as its file is called.
_BEGINNINGS = {"gcc.toml": ("gcc", "g++", "cc", "c++")}

#: The prefix of a compiler for another machine: ``x86_64-linux-gnu-gcc-12``.
_TRIPLE = re.compile(r"^(?:[a-z0-9_]+-){2,3}(?=(?:gcc|g\+\+|clang)(?:$|[-+]))")

#: What a flag means.
#:
#: value: nothing; the flag is named for the value that it takes. output: the result. extra-output: a file or a folder
#: that is written beside the result. depfile: an output in the syntax of Make. weights: a file of weights. plain: the
#: command may run programs or code that obey any variable.
Meaning = Literal["value", "output", "extra-output", "depfile", "weights", "plain"]

#: How a flag takes its value: the next argument, right behind its name, or behind ``=``. None: it takes none.
Takes = Literal["next", "joined", "equals"]

#: How a weight file is keyed; ``name``: the command can't read it, and gets at most its name.
WeightKey = Literal["content", "opened", "name"]

#: What may stand for keys that take one of some words.
_ALLOWED = {
    "is": get_args(Meaning),
    "takes": get_args(Takes),
    "key": get_args(WeightKey),
    "dashes": ("exact", "either"),
}

#: Meanings of flags that can't be without a value.
_VALUED = frozenset({"output", "extra-output", "depfile", "weights"})

#: Former fields of adapters, from before commands were traced -> what to do instead.
_GONE = {
    **dict.fromkeys(("side-effect", "unknown", "sees-line", "language"), "write 'plain'"),
    **dict.fromkeys(("search", "pipeline", "input", "path-only"), "write 'value'; the tracer sees what is read"),
    **dict.fromkeys(
        ("depfile-on", "depfile-short"), "leave the flag out, and let the one that names the file be 'depfile'"
    ),
    **dict.fromkeys(
        (
            *("single", "requires", "includes", "shadows", "configured_by", "unconfigured", "also", "helpers"),
            *("languages", "builtin_search", "volatile", "unless_set", "spelling", "positional", "stdin", "stdout"),
            *("response_files", "unless"),
        ),
        "leave it out",
    ),
    **{
        "plain": "leave it out; all arguments count",
        "sees-cwd": "leave the flag out; the current folder always counts",
        "output-folder": "write 'extra-output'",
    },
    **{"environment.search": "name these variables in 'keyed'", "environment.unknown": "call it 'plain'"},
}

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")

SHIPPED = Path(__file__).parent.parent / "adapters"


class Flag(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One flag."""

    #: As they are written; a ``*`` at the end stands for any rest, and its value is what follows ``=``.
    names: tuple[str, ...]
    means: Meaning = msgspec.field(name="is")
    takes: tuple[Takes, ...] = ()
    #: For ``weights``.
    key: WeightKey = "content"


class AdapterEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Variables of the environment, of which the command gets every one."""

    #: They are in the key.
    keyed: tuple[str, ...] = ()
    #: They are not.
    passed: tuple[str, ...] = ()
    #: With one of them set, and not empty, all count, as the command may run other programs or code. Each may be a
    #: pattern, with ``*`` at its end.
    plain: tuple[str, ...] = ()
    #: The command obeys no other variable. Without it every other variable is in the key too, but those that say where,
    #: for whom and under what a command runs (``key.tools.command_variables.NEUTRAL``).
    complete: bool = False


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What is known of one command. The tracer sees what it reads and writes; this says what counts."""

    name: str
    #: Names of its executable, with ``*``, ``?`` and ``[...]``.
    match: tuple[str, ...]
    #: The one that it has to belong to, and that counts with it.
    distribution: str = ""
    #: Of the inputs; the plugin of that name strips them, always (``strip``) or with ``--strip``.
    format: str = ""
    strip: bool = False
    #: What the command takes for a weight, in the plugin's words; it then reads the model from standard input where
    #: ``-`` is named.
    strip_as: str = ""
    #: Flag -> suffixes of files that are written to the current folder where no output is named; without one of them,
    #: or with an input of another suffix than ``suffixes``, it may run other programs. One with the suffix ``.o`` links
    #: too.
    default_output: dict[str, str] = {}
    suffixes: tuple[str, ...] = ()
    #: ``either`` where ``-x`` and ``--x`` are one flag.
    dashes: Literal["exact", "either"] = "exact"
    #: The name of an input comes into the result. With a base folder, what is below it is named from the current
    #: folder, so that it is the same in each checkout; no other result follows from that.
    relative: bool = False
    #: Flags by which the compiler warns where the time came into its result (``-Wdate-time``).
    time: tuple[str, ...] = ()
    #: Flag that keeps paths out of the result -> what leaks without it.
    normalises: dict[str, str] = {}
    environment: AdapterEnvironment = AdapterEnvironment()
    flags: tuple[Flag, ...] = ()
    #: The file that the adapter was read from.
    origin: str = ""

    def digest(self) -> str:
        """Over everything but where it was read."""
        hasher = Hasher("adapter")
        hasher.part("json", msgspec.json.encode(msgspec.structs.replace(self, origin="")))
        return hasher.digest()

    @property
    def is_shipped(self) -> bool:
        """Whether it came with cachec."""
        return Path(self.origin).parent == SHIPPED

    def matches(self, name: str) -> bool:
        """Whether the adapter is for an executable of this base name, with or without the machine before it."""
        names = {name, _TRIPLE.sub("", name)}
        return any(fnmatch.fnmatchcase(each, pattern) for pattern in self.match for each in names)


def find(program: str, asked: str) -> Adapter | None:
    """The adapter for a command: by the name that was asked for, else by that of the file that it leads to.

    program: path of the executable. Raises ConfigError where an adapter is malformed.
    """
    found = (os.path.basename(asked), os.path.basename(os.path.realpath(program)))
    names = dict.fromkeys(each for name in found for each in (name, _TRIPLE.sub("", name)))
    configured_origins = tuple(_read_configured())
    for name in names:
        for adapter in configured_origins:
            if adapter.matches(name):
                return adapter
        # What one that is shipped matches begins as its file is called: to parse all takes as long as Python's start.
        for file in sorted(os.listdir(SHIPPED)):
            if file.endswith(".toml") and name.startswith(_BEGINNINGS.get(file, (file.removesuffix(".toml"),))):
                adapter = read(SHIPPED / file)
                if adapter.matches(name):
                    return adapter
    return None


def every() -> Iterator[Adapter]:
    """All adapters, a user's first. Raises ConfigError where one is malformed."""
    yield from _read_configured()
    for path in sorted(SHIPPED.glob("*.toml")):
        yield read(path)


def configured_origins() -> dict[str, str]:
    """Return the adapters of the current configuration file: name -> file. Raises ConfigError."""
    return {adapter.name: adapter.origin for adapter in _read_configured()}


def sources() -> tuple[str, ...]:
    """Return the files outside of cachec with adapters, in addition to the configuration file."""
    table = config.sub_table("adapters")
    return () if table is None else tuple(str(path) for path in _files(table))


def read(path: str | os.PathLike[str]) -> Adapter:
    """The adapter in a file. Raises ConfigError naming file and line."""
    where = os.fspath(path)
    try:
        data = file_ownership.read_regular(path, config.MAX_FILE)
    except OSError as error:
        raise ConfigError(f"adapter {where}: can't be read: {error}") from error
    return _parse(where, data)


@lru_cache(maxsize=64)
def _parse(where: str, data: bytes) -> Adapter:
    text, table = config.parse_toml(where, data)
    table.setdefault("name", Path(where).stem)
    return _adapter(table, where, text)


def _read_configured() -> Iterator[Adapter]:
    table = config.sub_table("adapters")
    if table is None:
        return
    for name, data in table.data.items():
        if name == "files":
            continue
        if not isinstance(data, dict):
            raise ConfigError(f"{table.where(name)}: adapters.{name} is {data!r}; it has to be a table, or files=[...]")
        yield _adapter({"name": name, **data}, table.path, table.text)
    for path in _files(table):
        config.refuse_foreign(os.fspath(path), "adapter", config.trusted_folders())
        yield read(path)


def _files(table: config.ConfigTable) -> Iterator[Path]:
    listed = table.data.get("files", [])
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise ConfigError(f"{table.where('files')}: files = {listed!r} is not accepted; give a list of paths")
    for item in listed:
        path = xdg.expand_user(item, os.environ)
        if not path:
            raise ConfigError(
                f"{table.where('files')}: {item!r} is not accepted: its home folder is not known; give an absolute path"
            )
        yield Path(table.folder, path)


def _adapter(table: dict[str, Any], where: str, text: str) -> Adapter:
    flags = table.get("flags", [])
    table = {**table, "origin": where}
    if isinstance(flags, list):
        table["flags"] = [_flag(item, number, where, text) for number, item in enumerate(flags)]
    try:
        adapter = msgspec.convert({**table, "flags": [] if isinstance(flags, list) else flags}, Adapter)
    except msgspec.ValidationError as error:
        problem = f"adapter {table.get('name')!r}: {error}"
        raise _syntax_error(where, text, problem, _line_of(text, str(error))) from None
    if _NAME.fullmatch(adapter.name) is None:
        raise ConfigError(
            f"{where}:{_line(text, 'name')}: name = {adapter.name!r} is not accepted; it stands in the log, and "
            "has up to 64 letters, digits and any of '._+-'"
        )
    if not adapter.match:
        raise ConfigError(f"{where}:{_line(text, 'match')}: match is empty; name the executables, as in ['mycc*']")
    for pattern in adapter.match:
        if not pattern or "/" in pattern or _is_unclosed(pattern):
            raise ConfigError(
                f"{where}:{_line(text, 'match')}: bad pattern {pattern!r}; match takes base names such as "
                "'clang' or 'clang-[0-9]*'"
            )
    return msgspec.structs.replace(adapter, flags=tuple(table["flags"]))


def _flag(item: object, number: int, where: str, text: str) -> Flag:
    line = _line_of_flag(text, number)
    try:
        flag = msgspec.convert(item, Flag)
    except msgspec.ValidationError as error:
        raise _syntax_error(where, text, str(error), line) from None
    for name in flag.names:
        if not name.startswith(("-", "@")) or "*" in name[:-1] or name == "-":
            raise ConfigError(
                f"{where}:{line}: bad flag {name!r}; a name begins with '-', and '*' may only be its last character"
            )
    needs_value = flag.means in _VALUED
    if not flag.names or (needs_value and not flag.takes):
        raise ConfigError(
            f"{where}:{line}: a flag that is {flag.means!r} needs names and takes, such as takes = ['next', 'equals']"
        )
    if needs_value and "joined" in flag.takes and any(name.endswith("*") for name in flag.names):
        raise ConfigError(
            f"{where}:{line}: a flag that is {flag.means!r} and 'joined' needs its whole name, as its value begins "
            "where '*' stands; leave out '*'"
        )
    return flag


def _syntax_error(where: str, text: str, problem: str, line: int) -> ConfigError:
    hint = ""
    value = r"Expected `array`, got `str` - at `\$\.(?:environment\.)?(\w+)`"
    if listed := re.search(value, problem):
        hint = f"; give a list, as in {listed[1]} = ['...']"
    elif "enum value" in problem:
        key = problem.rpartition("$.")[2].partition("`")[0].partition("[")[0]
        hint = f"; {key} is one of {', '.join(map(repr, _ALLOWED[key]))}" if key in _ALLOWED else ""
    unknown = re.search(r"unknown field `([^`]*)`", problem)
    if unknown:
        kind = Flag if "names" in problem or _is_flag_line(text, line) else Adapter
        known = [field.encode_name for field in msgspec.structs.fields(kind) if field.name != "origin"]
        close = nearest(unknown[1], known)
        hint = f"; did you mean {close!r}?" if close else f"; the keys are {', '.join(known)}"
    gone = unknown or re.search(r"enum value '([^']*)'", problem)
    key = f"environment.{gone[1]}" if gone and "$.environment" in problem else gone[1] if gone else ""
    if key in _GONE:
        hint = f"; commands are traced now, so {_GONE[key]}"
    return ConfigError(f"{where}:{line}: {problem}{hint}")


def _is_unclosed(pattern: str) -> bool:
    start = pattern.find("[")
    return start >= 0 and "]" not in pattern[start + 2 :]


def _is_flag_line(text: str, line: int) -> bool:
    lines = text.split("\n")
    return line <= len(lines) and lines[line - 1].lstrip().startswith("{")


def _line_of(text: str, problem: str) -> int:
    named = re.search(r"field `([^`]*)`", problem) or re.search(r"`\$\.(?:environment\.)?(\w+)", problem)
    return _line(text, named[1]) if named else 1


def _line(text: str, key: str) -> int:
    match = re.search(rf"(?m)^[^\S\n]*{re.escape(key)}\s*=", text)
    return text.count("\n", 0, match.start()) + 1 if match else 1


def _line_of_flag(text: str, number: int) -> int:
    """The line of the flag of that number, where each is a line of its own that begins with ``{``."""
    begin = re.search(r"(?m)^\s*flags\s*=\s*\[", text)
    if begin is None:
        return 1
    for match in re.finditer(r"(?m)^[^\S\n]*(?:flags\s*=\s*\[\s*)?\{", text[begin.start() :]):
        if not number:
            at = begin.start() + match.end()
            return text.count("\n", 0, at) + 1
        number -= 1
    return text.count("\n", 0, begin.start()) + 1
