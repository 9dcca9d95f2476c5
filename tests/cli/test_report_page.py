"""``cachec report``: where the page goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import Shell


def test_the_page_is_a_file(shell: Shell, tmp_path: Path) -> None:
    shell.publish("aaaaaa", ())
    result = shell.run("report")
    assert result.output == "0 calls, 1 entry: report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    assert "pkg.build" in page
    assert shell.run("report", "-o", "-").stdout.startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path).count("report.html") == 1
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_json_is_one_document_and_writes_a_page_only_where_one_is_named(shell: Shell, tmp_path: Path) -> None:
    shell.publish("aaaaaa", ())
    assert shell.json("report")["store"]["entries"] == 1
    assert not (tmp_path / "report.html").exists()
    assert shell.json("report", "-o", "page.html")["held"]["pkg.build"]["entries"] == 1
    assert (tmp_path / "page.html").exists()
    assert shell.run("report", "--json", "-o", "-").exit_code == 2


def test_a_store_that_is_not_there(shell: Shell) -> None:
    assert shell.run("report").output == "0 calls, 0 entries: report.html: there is no store yet\n"
    assert not shell.dir.exists()


@pytest.mark.parametrize("path", ["no/such/folder.html", "."])
def test_where_no_file_can_be(shell: Shell, path: str) -> None:
    result = shell.run("report", "-o", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("cachec: error: ")


def test_a_pipe_or_a_link_stays_what_it_is(shell: Shell, tmp_path: Path) -> None:
    shell.run("report", "-o", os.devnull)
    assert not Path(os.devnull).is_file()
    (tmp_path / "there.html").write_text("old")
    (tmp_path / "link.html").symlink_to("there.html")
    shell.run("report", "-o", "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "there.html").read_text().startswith("<!DOCTYPE html>")
