"""The pages: each link leads somewhere, for who reads them as a site and for who reads them on a forge.

The site has all pages, and takes nothing from other sites.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


def prose(page: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> list[str]:
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", line) for line in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE))
    return [each.strip() for each in plain]


def anchors_of_the_site(page: Path) -> set[str]:
    """As the extension ``toc`` of Python-Markdown makes them; a second heading of that name has a number there."""
    made = []
    for heading in headings(page):
        ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        made.append(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()))
    return {each for each in made if made.count(each) == 1}


def anchors_of_a_forge(page: Path) -> set[str]:
    made = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(page)]
    return {each for each in made if made.count(each) == 1}


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def site() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return read


def in_nav(nodes: list[Any]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        else:
            for below in node.values():
                yield from [below] if isinstance(below, str) else in_nav(below)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: {link}: there is no {path}"
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{name}: {link} leads out of the site"
        if anchor:
            for anchors in (anchors_of_the_site(target), anchors_of_a_forge(target)):
                assert anchor in anchors, f"{name}: {link}: no such heading; there are {sorted(anchors)}"


def test_the_site_has_every_page_once() -> None:
    listed = [*in_nav(site()["nav"])]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/")])
def test_every_page_has_one_title_and_it_comes_first(name: str) -> None:
    first, *others = prose(ROOT / name).splitlines()
    assert first.startswith("# ")
    assert not [line for line in others if line.startswith("# ")]


@pytest.mark.parametrize("name", PAGES)
def test_lists_and_tables_are_some_for_the_site_too(name: str) -> None:
    """Python-Markdown takes one for text where no empty line is before it, and wants four spaces below an item."""
    above = ""
    for line in prose(ROOT / name).splitlines():
        is_item = re.match(r" {0,3}([-*]|\d+\.) ", line)
        if is_item and above.strip():
            assert re.match(r" *([-*]|\d+\.) | {2,}\S", above), f"{name}: no empty line before {line!r}"
        assert not re.match(r" {1,3}([-*]|\d+\.) ", line), f"{name}: {line!r}"
        assert not line.startswith("|") or not above.strip() or above.startswith("|"), f"{name}: {line!r}"
        above = line


def words(path: Path) -> int:
    """Bars of tables and marks of lists are none."""
    return len([word for word in path.read_text().split() if re.search(r"\w", word)])


def test_a_page_is_short_enough_to_be_read() -> None:
    pages = {path.relative_to(DOCS).as_posix(): words(path) for path in DOCS.rglob("*.md")}
    for made in ("explanation/modules.md", "compatibility.md"):  # by scripts
        pages.pop(made, None)
    assert len(pages) <= 22
    assert not {name: count for name, count in pages.items() if count > 1600}
    assert sum(pages.values()) <= 22_000
    assert words(ROOT / "README.md") <= 700


def test_nothing_is_fetched_from_other_sites() -> None:
    options = site()
    assert options["theme"]["font"] is False
    assert options["plugins"] == ["search"]
    assert not {"extra_css", "extra_javascript", "extra"} & set(options)
    assert options["strict"] is True


@pytest.mark.long
@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("material") is None, reason="needs the extra 'docs'")
def test_the_site_is_built(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "mkdocs", "build", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', page.read_text())
        assert not loaded, (page, loaded)
