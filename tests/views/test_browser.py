"""The page in a real browser: no error, nothing asked for, tables by keyboard, light and dark, read aloud, printed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachec.model import Reason
from cachec.views.page import page
from cachec.views.report_data import gather
from tests.maintain.conftest import Yard, key_of

from .browser import Browser, found
from .conftest import HOSTILE, call

pytestmark = pytest.mark.long


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found()
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


ROWS = "[...document.querySelector('#misses tbody').rows].filter(row => !row.hidden)"


def test_in_a_browser(yard: Yard, browser: Browser, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        yard.publish(key_of(10 + number), stage=name, ago=5)
    for number in range(90):
        words = f"zq{number}: {HOSTILE[number % 3]}"
        yard.log.emit(call(Reason.CODE_CHANGED, HOSTILE[number % 4], number, 2, seconds=number / 9, detail=words))
    yard.store.release()
    file = tmp_path / "report.html"
    file.write_text(page(gather(yard.maintainer, None, lambda *_: None)))

    browser.open(file)
    assert browser.errors == [], "no error, and nothing was asked for"
    assert browser.run("document.title").startswith("cachec report")
    assert browser.run("document.images.length + document.querySelectorAll('script').length") == 1

    browser.press("Tab", 9)
    assert browser.run("document.activeElement.textContent") == "Skip to the figures"

    # Pieces, a filter, and an order, by keyboard alone.
    assert browser.run(f"{ROWS}.length") == 50
    browser.run("document.querySelector('#misses input').focus()")
    for letter in "ZQ8":
        browser.press(letter, ord(letter), letter)
    assert browser.run("document.activeElement.value") == "ZQ8"
    assert browser.run(f"{ROWS}.length") == 11, "8 and 80 to 89"
    assert browser.run("document.querySelector('#misses [role=status]').textContent") == "11 of 11 rows that fit"
    head = "[...document.querySelectorAll('#misses th')].find(each => each.textContent === 'took')"
    browser.run(f"{head}.querySelector('button').focus()")
    browser.press("Enter", 13, "\r")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "descending"
    assert browser.run(f"{ROWS}[0].cells[3].textContent").startswith("zq89: ")
    browser.press("Enter", 13, "\r")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    assert browser.run(f"{ROWS}[0].cells[3].textContent").startswith("zq8: ")
    browser.run("document.querySelector('#misses input').value = ''")
    browser.run("document.querySelector('#misses input').dispatchEvent(new Event('input'))")
    browser.run("[...document.querySelectorAll('#misses .tools button')].at(-1).click()")
    assert browser.run(f"{ROWS}.length") == 94

    # What a screen reader is told.
    told = browser.call("Accessibility.getFullAXTree")["nodes"]
    nodes = [(each["role"]["value"], each["name"]["value"]) for each in told if not each["ignored"] and "name" in each]
    landmarks = {"main", "navigation", "banner", "contentinfo"}
    assert landmarks | {"table", "columnheader", "rowheader", "heading", "region"} <= {role for role, _ in nodes}
    plots = [name for role, name in nodes if role in {"img", "image"}]
    assert len(plots) == 7
    assert all(plots)

    # The pointer: what a mark says.
    browser.run("window.mark = document.querySelector('.plot [data-tip]'); mark.scrollIntoView({block: 'center'})")
    x, y, wide, high = browser.run("(box => [box.x, box.y, box.width, box.height])(mark.getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + wide / 2, y=y + high / 2)
    assert browser.run("document.getElementById('tip').hidden") is False
    assert "misses: 1" in browser.run("document.getElementById('tip').textContent")

    # Light, dark, narrow and on paper.
    colors = {}
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.picture(tmp_path / f"{scheme}.png")
        colors[scheme] = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colors == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 24)"}
    printed = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF-")
    (tmp_path / "report.pdf").write_bytes(printed)
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360, "it is only its tables and plots that scroll"
    assert browser.errors == []
