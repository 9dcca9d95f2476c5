"""The table of keywords in docs/tutorial/cmake.md is that of the CMake package."""

from __future__ import annotations

import re

from .conftest import ROOT


def test_the_table_has_every_keyword_and_no_other() -> None:
    text = (ROOT / "docs" / "tutorial" / "cmake.md").read_text()
    table = text.split("| keyword of `cachec_add_program`")[1].split("\n\n")[0]
    first_cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    source = (ROOT / "plugins" / "cmake" / "cachecConfig.cmake").read_text()
    function = source.partition("function(cachec_add_program")[2].partition("endfunction")[0]
    known = re.findall(r"set\((?:switches|single|several) ([^)]*)\)", function)
    assert sorted(re.findall(r"`([A-Z_]+)`", first_cells)) == sorted(" ".join(known).split())
