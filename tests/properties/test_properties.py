"""Every property of the tables, with every compiler that it is for.

Of two compilers CI runs one, the first and the second in turn. `make test-costly` runs the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import need
from tests.properties import diagnostics, headers, outputs, places, tools
from tests.properties.scenario import Property, compare, find_compiler

PROPERTIES: tuple[Property, ...] = (
    *headers.PROPERTIES,
    *places.PROPERTIES,
    *outputs.PROPERTIES,
    *diagnostics.PROPERTIES,
    *tools.PROPERTIES,
)


def _cases() -> Iterator[object]:
    for number, each in enumerate(PROPERTIES):
        for compiler in each.compilers:
            marks = []
            if not each.quick or compiler != each.compilers[0]:
                marks.append(pytest.mark.long)
            turn = each.compilers[0 if each.quick else number % len(each.compilers)]
            if compiler != turn:
                marks.append(pytest.mark.costly)
            yield pytest.param(each, compiler, id=f"{each.name}-{compiler}", marks=marks)


@pytest.mark.parametrize(("property", "compiler"), list(_cases()))
def test_property(property: Property, compiler: str, tmp_path: Path) -> None:
    need(find_compiler(compiler), *property.needs)
    differences = list(compare(property, compiler, tmp_path))
    assert not differences, "\n".join(differences)


def test_the_table_is_consistent() -> None:
    names = [each.name for each in PROPERTIES]
    assert len(names) == len(set(names))
    assert len(names) >= 80
    words = {word for each in PROPERTIES for word, _ in each.lines()}
    assert words == {"sh", "new", "hit", "may", "any", "fail"}
