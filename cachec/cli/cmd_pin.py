"""``cachec pin``: entries that neither gc nor invalidate takes."""

from __future__ import annotations

import click

from cachec.base.display_text import SHOWN_KEY
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json
from cachec.errors import UsageError


@click.command("pin")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Every entry with this tag, those to come too.")
@click.option("--remove", is_flag=True, help="Take the pins away instead.")
@json_option
@pass_session
def command(session: Session, keys: tuple[str, ...], tags: tuple[str, ...], remove: bool) -> None:
    """Keep entries: neither gc nor invalidate takes them. Without KEY or --tag, list the pins.

    A pin outlives its entry: made again, the entry is pinned.

    \b
    Examples:
      cachec pin 3fa9c2
      cachec pin --tag release
      cachec pin --remove --tag release
      cachec pin --json

    \b
    JSON: {"keys": [key], "tags": [tag], "not_found": [key or tag as given]}
    keys and tags are all pins of the namespace afterwards. Exit code 1: a key has no entry, or there was no such pin.
    """
    pins = session.maintainer.pins
    missing: list[str] = []
    if remove:
        if not keys and not tags:
            raise UsageError("--remove: nothing says which pins; give a KEY or --tag TAG")
        pinned = pins.read().of(session.store.quoted, "key")
        for prefix in keys:
            begun = [key for key in pinned if key.startswith(prefix.lower())]
            if len(begun) > 1:
                raise UsageError(f"{prefix} is the beginning of {len(begun)} pinned keys; give more characters")
            if not begun or not pins.remove("key", begun[0]):
                missing.append(prefix)
        missing += [tag for tag in tags if not pins.remove("tag", tag)]
    else:
        entries = [(key, session.matches(key)) for key in keys]
        missing += [key for key, matches in entries if not matches]
        for _, matches in entries:
            for entry in matches:
                pins.add("key", entry.key)
        for tag in tags:
            pins.add("tag", tag)
    pin_list = pins.read()
    document = {kind + "s": pin_list.of(session.store.quoted, kind) for kind in ("key", "tag")}
    if not print_as_json({**document, "not_found": missing}):
        for key in document["keys"]:
            click.echo(f"key {key[:SHOWN_KEY]}")
        for tag in document["tags"]:
            click.echo(f"tag {clean(tag)}")
        if not any(document.values()):
            click.echo(f"no pins{session.if_none}")
    if missing:
        what = "pin" if remove else "entry"
        session.fail(f"there is no {what} for {', '.join(missing)}")
