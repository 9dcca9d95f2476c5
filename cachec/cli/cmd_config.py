"""``cachec config``: the settings in force, and where each one comes from."""

from __future__ import annotations

import enum
import os
from pathlib import Path

import click

import cachec
from cachec import config, report
from cachec.cli.session import Session, json_option, pass_session, print_as_json, print_table
from cachec.errors import CachecError, ConfigError
from cachec.launcher import adapters, exec_settings


@click.command("config")
@click.option("--cmake-dir", "cmake", is_flag=True, help="Print the folder of cachecConfig.cmake instead.")
@click.option("--make-include", "make", is_flag=True, help="Print the path of cachec.mk instead.")
@json_option
@pass_session
def command(session: Session, cmake: bool, make: bool) -> None:
    """Print each setting and where it comes from: default < file < environment < argument; also [exec] and [adapters].

    The file is the nearest cachec.toml, or pyproject.toml with a table [tool.cachec], upwards from here; a variable is
    CACHEC_ and the upper-cased key.

    \b
    Examples:
      cachec config
      CACHEC_MAX_SIZE=50GiB cachec config --json
      cmake -B build -Dcachec_DIR="$(cachec config --cmake-dir)"

    \b
    JSON: {"settings": {key: {"value", "origin"}}, "exec": {key: {"value", "origin"}}, "adapters": {name: file},
           "warnings": [text]}
    max_size is bytes, lock_timeout is seconds. origin is "default", "file: <path>:<line>",
    "environment: CACHEC_<KEY>" or "argument".
    """
    if cmake or make:
        place = find_shipped_file("cmake", "cachecConfig.cmake") if cmake else find_shipped_file("make", "cachec.mk")
        click.echo(os.path.dirname(place) if cmake else place)
        return
    settings = session.settings
    values = {key: _plain(getattr(settings, key)) for key in config.KEYS if key != "dir"}
    values = {"dir": _plain(settings.store_folder), **values}
    values["remote"] = [config.without_secret(url) for url in settings.remote]
    warnings = [*config.unknown_variables(), *((settings.no_store,) if settings.no_store else ())]
    of_exec: dict[str, tuple[object, str]] = {}
    of_adapters: dict[str, str] = {}
    try:
        of_exec = exec_settings.describe_settings(os.getcwd())
        of_adapters = adapters.configured_origins()
    except ConfigError as error:
        warnings.append(str(error))
    details = report.settings_details(values, settings.origins, warnings)
    tables = {"exec": {key: {"value": value, "origin": where} for key, (value, where) in of_exec.items()}}
    if print_as_json({**details, **tables, "adapters": of_adapters}):
        return
    rows = [(key, _display_setting(key, each["value"]), each["origin"]) for key, each in details["settings"].items()]
    rows += [(f"exec.{key}", str(value), f"file: {where}") for key, (value, where) in of_exec.items()]
    rows += [(f"adapters.{name}", "(read)", f"file: {where}") for name, where in of_adapters.items()]
    print_table(("setting", "value", "origin"), rows, tells="value", detail="origin")
    for warning in details["warnings"]:
        click.echo(f"cachec: warning: {warning}", err=True)


def find_shipped_file(kind: str, name: str) -> str:
    """The path of a file for a build system: in ``share/cmake/cachec`` or ``share/cachec`` of the environment that
    cachec is installed in, or in ``plugins`` of its checkout. Raises CachecError.
    """
    folder = {"cmake": "share/cmake/cachec", "make": "share/cachec"}[kind]
    package = Path(cachec.__file__).parent
    places = [package.parent / "plugins" / kind, *(above / folder for above in package.parents)]
    for place in places:
        if (place / name).is_file():
            return str(place / name)
    raise CachecError(f"{name} is not installed: looked for it in {folder} above {package}; install cachec again")


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _display_setting(key: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if key == "max_size" and isinstance(value, int):
        return report.size(value) if value else "no limit"
    if key == "lock_timeout":
        return f"{value:g} s"
    return str(value)
