"""The page: what it says, and that it is one whole document whatever the names in it are."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from cachec.events import read_log
from cachec.maintain.eviction_score import uses
from cachec.maintain.ranking import ranking
from cachec.model import Reason
from cachec.views.page import page
from cachec.views.report_data import MAX_SPANS, gather
from tests.maintain.conftest import Yard, key_of

from .conftest import HOSTILE, call


def gathered(yard: Yard, since: float | None = None) -> dict[str, Any]:
    return gather(yard.maintainer, since, lambda fault, detail: pytest.fail(f"{fault}: {detail}")).data


def drawn(yard: Yard) -> ElementTree.Element:
    """The body of the page, which is XML as it is HTML: no text of a store is a tag, an attribute or an end of one."""
    whole = page(gather(yard.maintainer, None, lambda *_: None))
    size = len(whole.encode())
    assert size < 3_000_000
    assert whole.startswith("<!DOCTYPE html>")
    return ElementTree.fromstring(whole[whole.index("<body>") : whole.rindex("<script>")] + "</body>")


def tables(body: ElementTree.Element) -> dict[str, list[list[str]]]:
    """Caption -> the texts of each row."""
    found = {}
    for table in body.iter("table"):
        rows = table.findall("tbody/tr")
        found["".join(table.find("caption").itertext()).partition(":")[0]] = [
            ["".join(cell.itertext()) for cell in row] for row in rows
        ]  # type: ignore[union-attr]
    return found


def test_the_figures(yard: Yard) -> None:
    data = gathered(yard)
    assert (data["calls"], data["hits"], data["misses"], data["errors"]) == (6, 2, 3, 1)
    assert data["seconds_saved"] == 19.0
    assert data["store"]["entries"] == 3
    assert data["costs"] == [
        {"reason": "miss:entry-gone", "calls": 1, "seconds": 30.0},
        {"reason": "miss:first-run", "calls": 1, "seconds": 10.0},
        {"reason": "miss:option-changed", "calls": 1, "seconds": 2.0},
        {"reason": "error:stage-raised", "calls": 1, "seconds": 1.0},
    ]
    assert data["held"]["pkg.build"] == {
        "entries": 2,
        "size": 65536 + 8192,
        "seconds": 101.0,
        "worth": pytest.approx(101.0 / (65536 + 8192) * 2**20),
    }
    assert data["held"]["pkg.lower"]["worth"] == pytest.approx(3 * 10.0 / 4096 * 2**20), "one run and two hits"
    assert [each["reason"] for each in data["others"]] == [
        *("error:stage-raised", "miss:entry-gone", "miss:option-changed", "miss:first-run")
    ]


def test_spans_of_time_hold_every_call(yard: Yard) -> None:
    over = gathered(yard)["over_time"]
    spans = over["spans"]
    assert 2 <= len(spans) <= MAX_SPANS
    assert [after["began"] - before["began"] for before, after in pairwise(spans)] == [over["seconds"]] * (
        len(spans) - 1
    )
    assert sum(each["calls"] for each in spans) == 6
    assert (spans[0]["calls"], spans[0]["misses"]) == (1, 1)


@pytest.mark.parametrize("ago", [0, 3000, 3 * 86400, 100 * 86400, 20 * 365 * 86400])
def test_however_long_the_log_is_the_spans_fit_a_plot(yard: Yard, ago: float) -> None:
    yard.log.emit(call(Reason.HIT, "old", 1, ago))
    spans = gathered(yard)["over_time"]["spans"]
    assert len(spans) <= MAX_SPANS
    assert sum(each["calls"] for each in spans) == 7


def test_since(yard: Yard) -> None:
    data = gathered(yard, yard.now - 60)
    assert data["calls"] == 5
    assert data["held"]["pkg.lower"]["worth"] == pytest.approx(3 * 10.0 / 4096 * 2**20), "uses are of the whole log"


def test_the_page_says_it(yard: Yard) -> None:
    body = drawn(yard)
    found = tables(body)
    assert found["Reasons"][0] == ["miss:entry-gone", "1", "30.00 s"]
    stages = {row[0]: row[1:] for row in found["Stages"]}
    assert stages["pkg.lower"][:6] == ["3", "2", "1", "66.7%", "19.00 s", "10.00 s"]
    assert stages["pkg.build"][6:8] == ["2", "72.0 KiB"]
    assert [row[:4] + row[7:] for row in found["Worth least first"]] == [
        [key_of(2)[:12], "pkg.build", "64.0 KiB", "1.00 s", ""],
        [key_of(1)[:12], "pkg.lower", "4.0 KiB", "10.00 s", ""],
        [key_of(3)[:12], "pkg.build", "8.0 KiB", "1.7 min", "pinned"],
    ]
    assert found["Newest first"][2][1:] == [
        "pkg.build",
        "miss:option-changed",
        "level: 1 -> 2",
        "2.00 s",
        key_of(2)[:12],
    ]
    assert len(found["Its longest calls"]) == 5, "of the last build"
    strokes = [title.text or "" for title in body.iter("title")]
    assert any(re.match(r"pkg\.build: miss:entry-gone, 30\.00 s, after 0\.00 s, pid 9", each) for each in strokes)


def test_each_plot_has_words_and_each_section_a_name(yard: Yard) -> None:
    body = drawn(yard)
    plots = [each for each in body.iter("svg") if each.get("class") == "plot"]
    assert len(plots) == 7
    assert all(each.get("role") == "img" and each.get("aria-label") for each in plots)
    names = {each.get("id") for each in body.iter()}
    sections = list(body.iter("section"))
    assert sections
    assert all(each.get("aria-labelledby") in names for each in sections)
    links = [each.get("href", "") for each in body.iter("a")]
    assert {link.removeprefix("#") for link in links} <= names
    for table in body.iter("table"):
        assert table.find("caption") is not None
        assert all(head.get("scope") for head in table.iter("th"))


def test_it_asks_for_nothing_beside_itself(yard: Yard) -> None:
    whole = page(gather(yard.maintainer, None, lambda *_: None))
    assert not re.search(r"""(src|href|url|action)\s*[=(]\s*["']?(?!#)\w""", whole), "a file or a host beside it"
    for tag in ("style", "script"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", whole, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in whole, "else a browser would not take it"


def test_names_are_text(yard: Yard, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        yard.publish(key_of(10 + number), stage=name, tags=(name,), ago=5)
        yard.log.emit(call(Reason.CODE_CHANGED, name, 10 + number, 2, seconds=1.0, detail=name, pid=3))
    yard.store.release()
    body = drawn(yard)
    assert {each.tag for each in body.iter()} <= {
        *(
            "body",
            "a",
            "header",
            "h1",
            "p",
            "code",
            "dl",
            "div",
            "dt",
            "dd",
            "nav",
            "ul",
            "li",
            "main",
            "section",
            "h2",
        ),
        *("h3", "figure", "figcaption", "svg", "g", "title", "text", "line", "polyline", "circle", "rect", "details"),
        *("summary", "table", "caption", "thead", "tbody", "tr", "th", "td", "footer"),
    }
    assert not {name for each in body.iter() for name, _ in each.items() if name.startswith("on")}
    texts = "".join(body.itertext())
    assert HOSTILE[0] in texts
    assert "\\u202egnol\\x07\\x1b[2J\\x00" in texts
    assert "a" * 1000 not in texts, "it is cut"


def test_many_long_names_stay_within_three_megabytes(yard: Yard) -> None:
    calls = []
    for number in range(1000):
        words = f"{number} " + "é<&\"'" * 600
        calls.append(call(Reason.CODE_CHANGED, words, number, 3, seconds=1.0, detail=words, pid=number))
    (yard.folder / "log" / "2099-01-01.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, calls)))
    assert len(tables(drawn(yard))["Stages"]) > 50


def test_times_and_seconds_that_can_not_be(yard: Yard) -> None:
    for moment in (1e300, -5.0, 253402300799.0):
        odd = call(Reason.FIRST_RUN, "odd", 5, 0, seconds=1e308, pid=2)
        yard.log.emit(msgspec.structs.replace(odd, time=moment))
        yard.log.emit(msgspec.structs.replace(odd, time=moment, seconds=1.0))
    assert gathered(yard)["undated"] == 5
    body = drawn(yard)
    assert "nan" not in "".join(body.itertext())


def test_an_empty_store_has_a_page_too(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "none")
    texts = "".join(drawn(yard).itertext())
    assert "No calls are recorded." in texts
    assert "There are no entries." in texts
    assert not (tmp_path / "none").exists()


def test_the_order_is_that_in_which_gc_evicts(yard: Yard) -> None:
    """As it is told, and with what gc leaves alone."""
    for number in range(20, 32):
        yard.publish(key_of(number), seconds=float(number * 7 % 12 + 1), size=4096 * (number % 3 + 1), ago=9000)
        yard.used(key_of(number), ago=100.0 * number, times=number % 4)
    yard.age(0)
    told = [each.key for each in ranking(yard.store, uses(read_log(yard.folder)), lambda *_: None) if not each.kept]
    gone: list[str] = []
    while len(gone) < len(told):
        before = {entry.key for entry in yard.store.entries()}
        yard.maintainer.collect(limit=max(1, yard.maintainer.measure_usage().nbytes - 4096))
        left = {entry.key for entry in yard.store.entries()}
        assert before - left == set(told[len(gone) : len(gone) + len(before - left)])
        gone += told[len(gone) : len(gone) + len(before - left)]
    assert [each.kept for each in ranking(yard.store, uses(read_log(yard.folder)), lambda *_: None)] == ["pinned"]
