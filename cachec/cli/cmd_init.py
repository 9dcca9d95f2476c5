"""``cachec init``: a commented ``cachec.toml`` for what is found in a project."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from cachec import config
from cachec.base import file_ownership, fsio, xdg
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_wrapped, wants_json
from cachec.errors import ConfigError

_NAME = "cachec.toml"

#: Bytes of a file that is looked into for a word.
_MAX_READ = 1 << 20

_HEAD = """\
# Settings of cachec for this project. What begins with # is as it is without this file.
# `cachec config` shows what is in force and where it comes from; docs/reference/settings.md describes each.

# mode = "on"               # off, read-only, refresh, require, verify
# max_size = "20GiB"        # of the store, 0 for no limit
# dir = ".cachec"           # the store; by default one of yours for all projects
# log = "miss"              # all, off
# base_dir = "."            # paths of commands count from here, so that other checkouts share hits
"""


class ConfigSuggestion(NamedTuple):
    """Something in a project that cachec works with."""

    name: str
    #: Patterns of files that show it is there.
    files: tuple[str, ...]
    #: Its description, as TOML comments.
    text: str
    #: A word in one of the files.
    word: str = ""


_PYTEST = """\
# pytest --cachec=require    a test that would compile fails
# pytest --cachec=off        every stage runs, nothing is stored
# The fixture `cachec` gives a store of its own for one test.
"""

_FINDINGS = (
    ConfigSuggestion(
        "CMake",
        ("CMakeLists.txt",),
        """\
# In CMakeLists.txt, before the commands that are to be cached:
#
#     find_package(cachec REQUIRED)
#     cachec_launch_custom_commands()
#
# and once: cmake -B build -Dcachec_DIR="$(cachec config --cmake-dir)"
# CMake writes absolute paths: base_dir, at the top, lets checkouts in different folders share hits.
""",
    ),
    ConfigSuggestion(
        "Ninja",
        ("build.ninja", "*.ninja"),
        """\
# Before the compiler in a rule: command = cachec exec -- iree-compile $in -o $out
# What a command looked up, and whether that still holds: cachec show KEY --reads --check
""",
    ),
    ConfigSuggestion(
        "pre-commit",
        (".pre-commit-config.yaml",),
        """\
# In .pre-commit-config.yaml, below repos, for the targets of [warm]:
#
#     - repo: https://github.com/OWNER/cachec
#       rev: v0.1.0
#       hooks:
#         - id: cachec-check
""",
    ),
    ConfigSuggestion(
        "GitHub",
        (".github/workflows/*.yml", ".github/workflows/*.yaml"),
        """\
# In a job, after the checkout and the installation; it restores, warms, and saves what the job used:
#
#     - uses: OWNER/cachec/plugins/github@v0.1.0
#       with:
#         max-size: 2GiB
""",
    ),
    ConfigSuggestion("pytest", ("pytest.ini", "conftest.py", "tests/conftest.py", "test/conftest.py"), _PYTEST),
    ConfigSuggestion("pytest", ("pyproject.toml", "setup.cfg", "tox.ini"), _PYTEST, word="pytest"),
)

#: What is compiled before anybody waits for it, which the hooks and the action go by.
_WARM = """\
# What `cachec warm` compiles before anybody waits for it; docs/reference/settings.md describes each key.
#
# [warm.targets.NAME]
# call = "module:function"    # a stage, or a function that calls stages
# matrix = { batch = [1, 8] }
# files = ["src/**"]          # what touches it
"""


@click.command("init")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def command(session: Session, yes: bool) -> None:
    """Write a commented cachec.toml for what is found here: CMake, Ninja, pre-commit, GitHub workflows, pytest.

    The difference is shown first, and you are asked; where nobody can be asked, and without --yes, nothing is written.
    All of it is comments, so nothing changes until you take out a #. What a cachec.toml says already stays.

    \b
    Examples:
      cachec init
      cachec init --yes

    \b
    JSON: {"path", "found": [name], "diff", "written"}
    """
    folder = Path.cwd()
    path = folder / _NAME
    _refuse_hiding(folder, session)
    found = [finding for finding in _FINDINGS if _is_there(folder, finding)]
    names = list(dict.fromkeys(finding.name for finding in found))
    old = _text(path)
    new = old + "".join(_missing(old, found))
    diff = "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), _NAME if old else os.devnull, _NAME
        )
    )
    if not wants_json():
        print_wrapped(f"found here: {', '.join(names) or 'nothing that cachec works with'}", indent=0)
        click.echo(clean_lines(diff) if diff else f"{_NAME} says all of it already")
    is_written = bool(diff) and (yes or _is_agreed())
    if is_written:
        _write(path, new)
    if print_as_json({"path": str(path), "found": names, "diff": diff, "written": is_written}):
        return
    if is_written:
        print_wrapped(f"wrote {path}", indent=0)
    elif diff:
        click.echo("cachec: nothing is written" + ("" if sys.stdin.isatty() else "; --yes writes it"), err=True)


def clean_lines(text: str) -> str:
    """A text of several lines without control characters."""
    return "\n".join(clean(line) for line in text.splitlines())


def _refuse_hiding(folder: Path, session: Session) -> None:
    """Raise ConfigError if the new file would hide current settings, because only the nearest file counts."""
    origins = session.settings.origins.values()
    files = {each.removeprefix("file: ").rpartition(":")[0] for each in origins if each.startswith("file: ")}
    files |= {table.path for name in config.KNOWN_TABLES if (table := config.sub_table(name)) is not None}
    for file in sorted(files - {str(folder / _NAME), xdg.settings_file(os.environ)}):
        if folder.is_relative_to(os.path.dirname(file)):
            raise ConfigError(f"a {_NAME} here would hide what {file} says; write into that file")


def _is_there(folder: Path, finding: ConfigSuggestion) -> bool:
    places = (place for pattern in finding.files for place in sorted(folder.glob(pattern)))
    return any(place.is_file() and (not finding.word or _holds(place, finding.word)) for place in places)


def _holds(place: Path, word: str) -> bool:
    with place.open("rb") as file:
        return word.encode() in file.read(_MAX_READ)


def _text(path: Path) -> str:
    """Return the text of the file; empty for a missing file. Raises ConfigError."""
    try:
        return file_ownership.read_regular(path, _MAX_READ).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error


def _missing(old: str, found: list[ConfigSuggestion]) -> Iterator[str]:
    """What is to come behind a text, which may hold some of it."""
    if not old:
        yield _HEAD
    elif not old.endswith("\n"):
        yield "\n"
    texts = {finding.name: finding.text for finding in found}
    for name, text in (*texts.items(), ("warm", _WARM)):
        if f"# --- {name}\n" not in old:
            yield f"\n# --- {name}\n{text}"


def _is_agreed() -> bool:
    if wants_json() or not sys.stdin.isatty():
        return False
    return click.confirm(f"write {_NAME}?", err=True)


def _write(path: Path, text: str) -> None:
    """Replace the file at once; what a link leads to is replaced, not the link."""
    target = os.path.realpath(path)
    with fsio.Staging(os.path.dirname(target), ".cachec-init-") as staged:
        staged.write(text.encode())
        staged.replace(target, fsync=False)
