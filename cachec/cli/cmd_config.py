"""``cachec config``: the settings in force, and where each one comes from."""

from __future__ import annotations

import enum
from pathlib import Path

import click

from cachec import config, report
from cachec.cli.session import Session, json_option, pass_session, print_json, print_table


@click.command("config")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> None:
    """Print each setting and where it comes from: default < file < environment < argument.

    The file is the nearest cachec.toml, or pyproject.toml with a table [tool.cachec], upwards from here; a variable is
    CACHEC_ and the upper-cased key.

    \b
    Examples:
      cachec config
      CACHEC_MAX_SIZE=50GiB cachec config --json

    \b
    JSON: {"settings": {key: {"value", "origin"}}, "warnings": [text]}
    max_size is bytes, lock_timeout is seconds. origin is "default", "file: <path>:<line>",
    "environment: CACHEC_<KEY>" or "argument".
    """
    settings = session.settings
    values = {key: _plain(getattr(settings, key)) for key in config.KEYS}
    details = report.settings_details(values, settings.origins, config.unknown_variables())
    if as_json:
        print_json(details)
        return
    rows = [(key, _shown(key, each["value"]), each["origin"]) for key, each in details["settings"].items()]
    print_table(("setting", "value", "origin"), rows)
    for warning in details["warnings"]:
        click.echo(f"cachec: warning: {warning}", err=True)


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _shown(key: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if key == "max_size" and isinstance(value, int):
        return report.size(value) if value else "no limit"
    if key == "lock_timeout":
        return f"{value:g} s"
    return str(value)
