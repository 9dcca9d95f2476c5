"""The table ``[exec]`` of a project's configuration file: it says for each command what options say for one.

[exec]
outputs = ["*.log", "generated"]     # from the folder of the file, which no pattern leaves
ignore_env = ["BUILD_USER", "MY_*"]
network = "trust"
cache_folders = [".parcel", "~/.deno", "var/cache"]
"""

from __future__ import annotations

import glob
import os
from typing import Any

import msgspec

from cachec import config
from cachec.base import xdg
from cachec.errors import ConfigError
from cachec.launcher.command import Options

#: The fields of ``Options`` that the table may hold; outputs: patterns.
ACCEPTED = {
    "outputs": "a list of patterns of paths",
    "ignore_env": "a list of names of variables, with * at the end for any rest",
    "network": '"trust"; without it, what uses the network is not stored',
    "cache_folders": "a list of names of folders, and of paths with a / in them",
}


def describe_settings(cwd: str) -> dict[str, tuple[object, str]]:
    """Return the table of the current file: key -> value as it is written, and its place. Raises ConfigError."""
    table = config.sub_table("exec", cwd=cwd)
    if table is None:
        return {}
    with_settings(Options(), cwd)  # validates the whole table
    return {key: (value, table.where(key)) for key, value in table.data.items()}


def with_settings(given: Options, cwd: str) -> Options:
    """Return the options of a command line, with those of the current file. Raises ConfigError."""
    table = config.sub_table("exec", cwd=cwd)
    if table is None:
        return given
    settings = Options(**{key: _value(table, key, value) for key, value in table.data.items()})
    return msgspec.structs.replace(
        given,
        patterns=(*given.patterns, *(_pattern(table, each) for each in settings.outputs)),
        ignore_env=(*given.ignore_env, *settings.ignore_env),
        network=given.network or settings.network,
        cache_folders=tuple(_folder(table, each) for each in settings.cache_folders),
    )


def _value(table: config.ConfigTable, key: str, value: object) -> Any:
    if key not in ACCEPTED:
        names = ", ".join(ACCEPTED)
        hint = config.suggestion(key, ACCEPTED)
        raise ConfigError(f"{table.where(key)}: {key!r} is not a setting of [exec]{hint}; these are {names}")
    try:
        found = getattr(msgspec.convert({key: value}, Options), key)
    except msgspec.ValidationError:
        found = ""
    texts = [found] if isinstance(found, str) else found
    if not all(text and "\0" not in text for text in texts):
        raise ConfigError(f"{table.where(key)}: {key} = {value!r} is not accepted; give {ACCEPTED[key]}")
    return found


def _pattern(table: config.ConfigTable, text: str) -> str:
    """An absolute pattern. One that leads out of the project is refused: a stored result is written where it says."""
    folder = glob.escape(os.path.realpath(table.folder))
    pattern = os.path.normpath(os.path.join(folder, text))
    if not pattern.startswith(f"{folder}/"):
        raise ConfigError(
            f"{table.where('outputs')}: outputs = {text!r} leads out of the project {table.folder}, which a file that "
            "is found there may not; say --outputs for the command"
        )
    return pattern


def _folder(table: config.ConfigTable, text: str) -> str:
    """A name, or an absolute path."""
    if "/" not in text and not text.startswith("~"):
        return text
    path = xdg.expand_user(text, os.environ)
    if not path:
        raise ConfigError(
            f"{table.where('cache_folders')}: {text!r} is not accepted: its home folder is not known; give an "
            "absolute path"
        )
    return os.path.normpath(os.path.join(table.folder, path))
