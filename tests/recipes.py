"""The packages that the recipes of CONTRIBUTING.md write, taken from its blocks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "CONTRIBUTING.md"


def block(name: str) -> str:
    """The block of code that begins with a comment with this name."""
    text = DOCUMENT.read_text()
    found = re.findall(rf"^```\w+\n# {re.escape(name)}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{DOCUMENT.name}: expected one block that begins with '# {name}', found {len(found)}"
    return found[0]


def entry_points(package: str) -> Mapping[str, Mapping[str, str]]:
    """Group -> name -> target, as the recipe of a package says."""
    return tomllib.loads(block(f"{package}: pyproject.toml"))["project"]["entry-points"]


def install(site: Path, package: str, module: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """A distribution of one module in the folder ``site``, as an installer leaves it. points: as ``entry_points``."""
    (site / f"{package}.py").write_text(module)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n")
    lines = [line for group, names in points.items() for line in (f"[{group}]", *map(" = ".join, names.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
