"""What the sources that a C compiler read say of its result: whether the time may be in it, or the path of a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cachec.base.hashing import digest_bytes
from cachec.launcher.command import CommandSpec

#: Macros with the time of the compilation, or of a file (C17, 6.10.8.1; GCC, "Common Predefined Macros").
TIMES = (b"__DATE__", b"__TIME__", b"_TIMESTAMP__")

#: Pieces that make the name of one of these, once they are pasted by ``##``.
_PIECE = re.compile(
    rb"\b(?:__(?:D|DA|DAT|DATE|DATE_|T|TI|TIM|TIME|TIME_|TIMES\w*)|_?(?:DATE|TIME|TIMESTAMP)__|(?:ATE|TE|IME|ME|STAMP)__)\b"
)

#: Texts in a source that suppress a compiler's warnings: pragmas, and the marks of a system's header.
_QUIETS = re.compile(rb"diagnostic\s|_Pragma|system_header|(?m:^\s*#\s*(?:line\s+)?\d+\s+\".*\s3)")

#: What the compilers say, whatever the format of their messages.
_TIME_WARNINGS = (b"-Wdate-time", b"might prevent reproducible builds", b"date or time macro is not reproducible")

#: With one of these on the command line, a flag of ours would come into the result, or might not be heeded.
_IN_THE_WAY = (
    *("-w", "--no-warnings", "-Wp,-w", "-Xclang", "-Xpreprocessor", "-cc1", "@", "-MJ", "-fverbose-asm", "-save-temps"),
    *("-frecord-", "-grecord-", "-gcodeview-command-line", "--gen-cdb-fragment-path", "-specs", "--specs", "-v"),
    *("-###", "-flto", "-Wno-everything", "-Wno-date-time", "--help", "-fmodule", "-emit-ast", "--precompile"),
)

#: Suffixes of headers: a compiler that is given one precompiles it, with its flags (GCC, "Overall Options").
_HEADERS = (".h", ".H", ".hh", ".hp", ".hxx", ".hpp", ".HPP", ".h++", ".tcc")

#: Macros with the name of a file, or a value that depends on it.
_FILE_WORDS = (
    *(b"__FILE__", b"__BASE_FILE__", b"__builtin_FILE", b"source_location", b"__PRETTY_FUNCTION__", b"omp target"),
    *(b"__FI", b"LE__"),
)

#: Flags that keep the path of a folder out of these.
_MAPS = ("-ffile-prefix-map", "-fmacro-prefix-map")

#: Flags by which a folder's path is in a result where it can't be seen: packed, or hashed.
_HIDING = ("-gz", "-gcodeview", "-flto", "--compress-debug-sections", "-Wa,--compress")

#: Files with more bytes are no sources.
_MAX_BYTES = 1 << 25

#: How a syntax tree of clang begins (clang/lib/Serialization/ASTWriter.cpp), and flags that put it into an object file.
_AST, _WRAPPING = b"CPCH", ("-gmodules", "-fmodule-format=obj")

#: How a precompiled header of GCC begins (gcc/c-family/c-pch.cc), and what may be the path of a header in it.
_GCH, _PATH = b"gpch", re.compile(rb"[!-~]*/[!-~]+")

_SYSTEM = ("/usr/", "/lib/", "/opt/")


#: The variable with the time for reproducible builds (reproducible-builds.org, "SOURCE_DATE_EPOCH specification").
EPOCH = "SOURCE_DATE_EPOCH"


def time_flags(command: CommandSpec) -> tuple[str, ...]:
    """The flags by which a compiler tells that the time came into its result; none where they can't be given."""
    args = command.argv[1:]
    if command.adapter is None or any(arg.startswith(_IN_THE_WAY) or "=date-time" in arg for arg in args):
        return ()
    if "-Q" in args or any(arg.endswith("-header") for arg in args):
        return ()
    if any(path.endswith(_HEADERS) for path in command.models.values()):
        return ()
    if not {"-Wdate-time", "-Weverything"}.isdisjoint(args) and any(arg.startswith("-Werror") for arg in args):
        return ()  # ours says that it is no error
    return command.adapter.time


def reports_time(command: CommandSpec) -> bool:
    """Whether a compiler tells that the time came into its result."""
    return bool(time_flags(command))


def warns_of_time(stderr: bytes) -> bool:
    """Whether a compiler that was given ``time_flags`` says that it used the time."""
    return any(words in stderr for words in _TIME_WARNINGS)


def heeds_epoch(command: CommandSpec, environ: Mapping[str, str]) -> bool:
    """Whether a compiler takes the time from ``EPOCH`` (clang from version 16 on): it is asked, unless it is a script,
    which may do anything."""
    import subprocess

    with open(command.program, "rb") as file:
        if file.read(2) == b"#!" or command.adapter is None or not command.adapter.time:
            return False
    argv = [command.program, "-E", "-x", "c", "-"]
    env = {**environ, EPOCH: "86400"}
    result = subprocess.run(argv, input=b"__DATE__\n", env=env, cwd=command.cwd, capture_output=True, check=False)
    return b"Jan  2 1970" in result.stdout


def why_nondeterministic(command: CommandSpec, files: Mapping[str, str], words: Sequence[bytes] = TIMES) -> str:
    """Return why the time may be in the result of a compiler that did not warn of it; empty if it is not.

    files: those that it read. words: the macros that are looked for.
    """
    reports = reports_time(command) and words is TIMES
    found = dict(_texts(files))
    # Lines that suppress warnings in a source, or mark it as a system's header.
    reports &= not any(text.quiets for path, text in found.items() if not path.startswith(_SYSTEM))
    for path, text in found.items():
        if path.endswith(".pch") or text.compares_times:
            return f"{path} has the compiler compare the times of files"
        # No header of the system pastes such a name together; glibc's <math.h> has pieces that could.
        is_pasted = text.pastes_times and not path.startswith(_SYSTEM)
        if not is_pasted and text.times.isdisjoint(words):
            continue
        # GCC does not warn about the system's headers.
        is_system = any(each.startswith(_SYSTEM) or _is_system(command, each) for each in (path, *text.headers))
        if not reports or text.is_of_system or is_system:
            return f"{path} may put the time or the date into the result"
    if any("windows" in arg for arg in command.argv[1:]):
        return "an object file for Windows holds the time of its compile (PE format, TimeDateStamp)"
    if any(arg.endswith("-help") or arg.startswith("--help") for arg in command.argv[1:]):
        return "help is as wide as the terminal"
    if not reports and any(os.fsdecode(word) in arg for word in words for arg in command.argv):
        return "an argument may put the time or the date into the result"
    return ""


def _is_system(command: CommandSpec, path: str) -> bool:
    """Whether a file may be below a folder that is one of the system's by a flag."""
    arguments = command.argv[1:]
    for number, arg in enumerate(arguments):
        for flag in ("-isystem", "-idirafter", "-cxx-isystem", "-isysroot", "--sysroot", "-B"):
            if arg.startswith(flag):
                folder = arg[len(flag) :].lstrip("=") or (arguments[number + 1] if number + 1 < len(arguments) else "")
                real = os.path.realpath(os.path.join(command.cwd, folder))
                if os.path.realpath(path).startswith(f"{real}/"):
                    return True
    return False


def may_hold_folder(command: CommandSpec, files: Mapping[str, str], base: str) -> bool:
    """Whether the path of a base folder may be hidden in the result of a C compiler."""
    if any(arg.startswith(_HIDING) for arg in command.argv[1:]):
        return True
    if any(base in arg for arg in command.argv[1:] if arg.startswith("-D")):
        return True
    mapped = [arg.split("=")[1] for arg in command.argv[1:] if arg.startswith(_MAPS) and arg.count("=") >= 2]
    if any(f"{base}/".startswith(folder) for folder in mapped):
        return False
    own = {path: digest for path, digest in files.items() if path.startswith(f"{base}/")}
    return any(text.names_file for _, text in _texts(own))


def is_compiler(program: str) -> bool:
    """Whether a started program is one that compiles C, or another that takes the same macros for the time."""
    name = os.path.basename(program)
    return re.match(r"(?:cc1|cc1plus|clang|gcc|g\+\+|[\w-]+-(?:gcc|g\+\+|clang))(?![a-z])", name) is not None


def holds_times(path: str, argv: Sequence[str]) -> bool:
    """Whether a file is a precompiled header or a module of clang, with the times of what it was made of."""
    if any("-fno-pch-timestamp" in arg for arg in argv):
        return False
    with open(path, "rb") as file:
        head = file.read(4)
        return head == _AST or (
            head == b"\x7fELF" and any(flag in arg for arg in argv for flag in _WRAPPING) and _AST in file.read()
        )


def compares_times(group: Sequence[str]) -> bool:
    """Whether GCC distinguishes these equal headers by their times. Names of one file count as one."""
    if len({(status.st_dev, status.st_ino) for status in map(os.stat, group)}) == 1:
        return False
    with open(group[0], "rb") as file:
        return b"pragma once" in file.read(_MAX_BYTES)


def alike(files: Mapping[str, str]) -> Iterator[list[str]]:
    """Paths of files with one content each: a compiler may tell whether they are one file."""
    found: dict[str, list[str]] = {}
    for path, digest in files.items():
        found.setdefault(digest, []).append(path)
    yield from (group for group in found.values() if len(group) > 1)


class _Text(NamedTuple):
    """What is asked of a source."""

    quiets: bool
    compares_times: bool
    pastes_times: bool
    #: Of ``TIMES``, those that are in it.
    times: frozenset[bytes]
    is_of_system: bool
    names_file: bool
    #: Of a precompiled header, those that it was made of and that name one of ``TIMES``.
    headers: tuple[str, ...] = ()


class _NoText(Exception):
    """A file is no source."""


def _texts(files: Mapping[str, str]) -> Iterator[tuple[str, _Text]]:
    """files: path -> digest of its content. Raises OSError, where a file has changed too."""
    for path, digest in files.items():
        try:
            yield path, _text(path, digest)
        except _NoText:
            continue


@lru_cache(maxsize=1 << 14)  # a build reads the same headers again and again
def _text(path: str, digest: str) -> _Text:
    with open(path, "rb", 0) as file:
        status = os.fstat(file.fileno())
        data = file.read(1 << 16)
        is_precompiled = data.startswith(_GCH)
        if (status.st_size > _MAX_BYTES and not is_precompiled) or data.startswith((b"\x7fELF", b"!<ar")):
            raise _NoText
        data += file.read()
    if digest_bytes(data) != digest:
        raise OSError(errno.ESTALE, "changed while the command ran, or right after it", path)
    if is_precompiled:
        return _precompiled(data)
    return _Text(
        quiets=_QUIETS.search(data) is not None,
        compares_times=b"GCC dependency" in data or b"clang dependency" in data,
        pastes_times=b"##" in data and _PIECE.search(data) is not None,
        times=frozenset(word for word in TIMES if word in data),
        is_of_system=b"system_header" in data,
        names_file=any(word in data for word in _FILE_WORDS),
    )


def _precompiled(data: bytes) -> _Text:
    """What is said of a precompiled header of GCC. It holds the names of all macros, and GCC reports the time where it
    expands one later; but in a header of the system, which may take it from another of these."""
    texts = {os.fsdecode(path): _header(path) for path in {*_PATH.findall(data)}}
    headers = {path: text for path, text in texts.items() if any(word in text for word in TIMES)}
    return _Text(
        quiets=False,
        compares_times=False,
        pastes_times=False,
        times=frozenset(TIMES),
        is_of_system=any(b"system_header" in text for text in headers.values()),
        names_file=True,
        headers=tuple(headers),
    )


def _header(path: bytes) -> bytes:
    """The text of a header; empty where it can't be read."""
    if os.path.isfile(path):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    return b""
