"""The table of selectors in docs/howto/disk-space.md is that of the commands."""

from __future__ import annotations

import re
from pathlib import Path

from cachec.cli import main
from cachec.maintain.selector import Selector

TEXT = (Path(__file__).parents[2] / "docs" / "howto" / "disk-space.md").read_text()


def test_every_selector_is_in_the_table() -> None:
    options = {
        option.removeprefix("--")
        for command in ("ls", "invalidate")
        for parameter in main.get_command(None, command).params  # type: ignore[arg-type,union-attr]
        for option in parameter.opts
    }
    fields = {name.removesuffix("s").replace("_", "-") for name in Selector.__struct_fields__} - {"key"}
    assert fields <= options
    rows = TEXT.split("| selector |")[1].split("\n\n")[0].splitlines()[2:]
    documented = {name for row in rows for name in re.findall(r"`--([a-z-]+)", row.split("|")[1])}
    assert documented == fields | {"stdin"}
