"""``cachec push``: what waits, what was made before the remote was set, and what waits for nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from cachec.remote.keys import keypair
from tests import pages
from tests.remote.conftest import Machine
from tests.remote.server import Site
from tests.remote.test_sharing import Make


def push(machine: Machine, *words: str) -> Result:
    return CliRunner().invoke(main, ["--dir", str(machine.store), "push", *words])


def told(machine: Machine, *words: str) -> dict[str, Any]:
    result = push(machine, *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def shared_folder(tmp_path: Path, name: str) -> str:
    (tmp_path / name).mkdir()
    return f"file://{tmp_path}/{name}?timeout=60"


def test_what_was_made_before_the_remote_was_set(
    machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    value, _ = one.call()
    other, _ = one.call(4)
    one.push()
    later = shared_folder(tmp_path, "later")
    monkeypatch.setenv("CACHEC_REMOTE", later)
    assert (told(one)["sent"], push(one).stdout.startswith("nothing waits; --all")) == (0, True)
    found = told(one, "--option", "size=3")
    assert (found["sent"], found["known"], found["waiting"], found["left"]) == (1, 0, 0, {})
    found = told(one, "--all")
    assert (found["sent"], found["known"], found["left"]) == (1, 1, {})
    assert [machine(later).call(size)[0] for size in (3, 4)] == [value, other]
    assert push(one, "--stage", "nothing").exit_code == 1
    assert push(one, "--stage", "build", "--all").exit_code == 2
    monkeypatch.setenv("CACHEC_REMOTE", f"{later}&mode=read")
    refused = push(one, "--all")
    assert (refused.exit_code, "mode=read" in refused.output) == (2, True)


def test_all_of_an_empty_store(machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_REMOTE", site.url)
    assert told(machine(), "--all")["sent"] == 0


def test_what_can_not_be_sent_is_counted_with_why(
    machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    alone = tmp_path / "alone.txt"
    alone.write_text("of this machine")
    one.cache.stage(name="alone")(lambda: alone.read_text())()
    one.cache.foreign("jax.xla").put("key", b"program")
    one.call()
    one.push()
    monkeypatch.setenv("CACHEC_REMOTE", shared_folder(tmp_path, "later"))
    result = push(one, "--all")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("1 sent")
    assert f" alone: {alone})" in result.stdout.replace("\n", " ")
    assert told(one, "--all")["left"] == {"foreign": 1, "local-path": 1}


def test_a_dict_that_looks_like_bytes_of_another_is_sent(
    machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    one.cache.stage(name="alike")(lambda: {"data": b"x", "seal": "of wax"})()
    one.push()
    monkeypatch.setenv("CACHEC_REMOTE", shared_folder(tmp_path, "later"))
    assert (told(one, "--all")["sent"], told(one, "--all")["left"]) == (1, {})


def test_nobody_vouches_for_all_of_a_store_unasked(
    machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has may have come from a remote that anybody writes."""
    one, two = machine(), machine()
    one.call()
    one.push()
    value, outcome = two.call()
    assert outcome.remote is not None
    pair = keypair("ci")
    signed = f"{shared_folder(tmp_path, 'signed')}&trust={pair.public}"
    monkeypatch.setenv("CACHEC_REMOTE_KEY", pair.secret)
    monkeypatch.setenv("CACHEC_REMOTE", signed)
    found = told(two, "--all")
    assert (found["sent"], found["left"]) == (0, {"unvouched": 1})
    assert "--vouch" in push(two, "--all").stdout
    assert told(two, "--all", "--vouch")["sent"] == 1
    assert machine(signed).call()[0] == value


def test_what_did_not_come_off_waits(machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    one.call()
    one.push()
    site.files.clear()
    site.answer = lambda method, _path: (507, {}, b"") if method == "PUT" else None
    result = push(one, "--all", "--json")
    assert (result.exit_code, json.loads(result.stdout)["waiting"]) == (1, 1)
    site.answer = lambda _method, _path: None
    monkeypatch.setenv("CACHEC_REMOTE", site.url)
    assert told(one)["sent"] == 1


def test_what_waits_for_nobody_is_told_and_fails_no_job(
    machine: Make, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    one.call()
    with_password = site.url.replace("//", "//me:p4ss@")
    monkeypatch.setenv("CACHEC_REMOTE", f"{with_password}?mode=read")
    result = push(one)
    assert (result.exit_code, f"1 waits for {site.url}, which is only read" in result.stdout) == (0, True)
    monkeypatch.setenv("CACHEC_REMOTE", shared_folder(tmp_path, "other"))
    result = push(one)
    assert (result.exit_code, f"1 waits for {site.url}, which is not configured" in result.stdout) == (0, True)
    listed = CliRunner().invoke(main, ["--dir", str(one.store), "remote"])
    assert f"1 waits for {site.url}, which" in listed.stdout
    found = told(one)
    assert (found["waiting"], found["stranded"]) == (0, {site.url: 1})
    assert push(one, "--drop", site.url, "--all").exit_code == 2
    assert json.loads(push(one, "--drop", with_password, "--json").stdout) == {"dropped": 1}
    assert told(one)["stranded"] == {}
    assert "p4ss" not in push(one, "--drop", with_password).output


def test_what_makes_two_machines_miss_can_be_seen(machine: Make, tmp_path: Path) -> None:
    """By the commands of docs/reference/remotes.md."""
    a, b = machine(), machine()
    a.call(3)
    b.call(4)
    listed = CliRunner().invoke(main, ["--dir", str(a.store), "ls", "--json"])
    (key,) = (each["key"] for each in json.loads(listed.stdout)["entries"])
    at, copy = str(tmp_path / "a.cachec"), str(tmp_path / "copy")
    shutil.copytree(b.store, copy)
    for line in pages.commands("reference/remotes.md", "## What is shared"):
        words = [{"KEY": key, "a.cachec": at, "copy": copy}.get(word, word) for word in line.split()[1:]]
        said = CliRunner().invoke(main, words if "--dir" in words else ["--dir", str(a.store), *words])
        assert said.exit_code == 0, said.output
    assert "size: 4 -> 3" in said.stdout
