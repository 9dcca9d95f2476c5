"""A folder that is not there, or can't be written, and servers that take nothing: it is told at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from cachec.model import Reason
from tests.remote.conftest import Machine
from tests.remote.server import Site
from tests.remote.test_sharing import Make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "team"


def run(machine: Machine, *words: str) -> Result:
    return CliRunner().invoke(main, ["--dir", str(machine.store), *words])


def state(machine: Machine) -> tuple[str, str]:
    (found,) = json.loads(run(machine, "remote", "--json").stdout)["remotes"]
    return found["state"], found["detail"]


def found_by_doctor(machine: Machine) -> list[str]:
    found = json.loads(run(machine, "doctor", "--json").stdout)["findings"]
    return [each["words"] for each in found if each["check"].startswith("remote")]


@pytest.mark.parametrize("mode", ["read", "read-write"])
def test_no_build_makes_the_folder(machine: Make, root: Path, mode: str) -> None:
    one = machine(f"file://{root}?mode={mode}")
    root.rmdir()
    value, outcome = one.call()
    assert outcome.reason is Reason.FIRST_RUN
    assert one.faults[:1] == ["remote-unreachable"]
    assert state(one)[0] == "remote-unreachable"
    assert "the folder is not there: moved, or not mounted?" in state(one)[1]
    assert any("the folder is not there" in each for each in found_by_doctor(one))
    if mode == "read-write":
        assert run(one, "push").exit_code == 1
        assert any(each.startswith("1 result waits for file://") for each in found_by_doctor(one)), "at once"
    assert not root.exists()
    checked = run(one, "remote", "check", one.url)
    assert (checked.exit_code, root.exists()) == ((0, True) if mode == "read-write" else (1, False))
    if mode == "read-write":
        assert "make the folder, which is not there" in checked.stdout
        assert run(one, "push").exit_code == 0
        assert machine(one.url).call()[0] == value
        assert found_by_doctor(one) == []


def test_no_folder_is_made_where_the_one_above_is_not_there(machine: Make, tmp_path: Path) -> None:
    checked = run(machine(), "remote", "check", f"file://{tmp_path}/mount/team")
    assert (checked.exit_code, "not mounted?" in " ".join(checked.stdout.split())) == (1, True)
    assert not (tmp_path / "mount").exists()


def test_a_folder_that_is_moved_away_is_a_fault_of_reads_and_writes(machine: Make, root: Path, tmp_path: Path) -> None:
    one = machine(f"file://{root}?timeout=60")
    value, _ = one.call()
    one.push()
    one.call(4)
    root.rename(tmp_path / "away")
    assert [each.fault is not None and each.fault.fault.value for each in one.push()] == ["remote-unreachable"]
    assert not root.exists()
    (tmp_path / "away").rename(root)
    assert [each.put is not None for each in one.push()] == [True]
    assert machine(one.url).call()[0] == value


def test_a_folder_that_can_not_be_written_is_told(machine: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, reader = machine(f"file://{root}"), machine(f"file://{root}?mode=read")
    one.call()
    monkeypatch.setattr("os.access", lambda *_args, **_options: False)  # who runs as root may write all
    assert state(one) == ("remote-refused", f"{root}: this user can't write there")
    assert any("can't write there" in each for each in found_by_doctor(one))
    monkeypatch.setenv("CACHEC_REMOTE", reader.url)
    assert state(reader)[0] == "ok"


def test_what_a_server_did_not_take_is_told_at_once(machine: Make, site: Site) -> None:
    one = machine()
    one.call()
    assert found_by_doctor(one) == []
    site.answer = lambda method, _path: (507, {}, b"") if method == "PUT" else None
    one.push()
    (words,) = found_by_doctor(one)
    assert words.startswith(f"1 result waits for {site.url}; last refused: remote-full: ")
    assert "1 wait, last refused: remote-full" in " ".join(run(one, "remote").stdout.split())
    site.answer = lambda _method, _path: None
    one.push()
    assert found_by_doctor(one) == []


def test_a_check_tries_what_is_configured(
    machine: Make, site: Site, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine(f"file://{root}")
    monkeypatch.setenv("CACHEC_REMOTE", f"{one.url} {site.url}")
    found = json.loads(run(one, "remote", "check", "--json").stdout)["remotes"]
    assert [(each["url"], each["ok"], each["hint"]) for each in found] == [(one.url, True, ""), (site.url, True, "")]
    assert len(site.files) == 1, "a blob stays"
    assert run(one, "remote", "check").stdout.count(" can be used") == 2
    assert len(site.files) == 1, "and it is the same each time"
    monkeypatch.setenv("CACHEC_REMOTE", "")
    assert run(one, "remote", "check").exit_code == 2


@pytest.mark.parametrize(
    ("status", "method", "hint"),
    [
        (401, "", "CACHEC_REMOTE_TOKEN"),
        (405, "PUT", "takes no PUT"),
        (413, "PUT", "client_max_body_size"),
        (403, "PUT", "mode=read"),
        (500, "PUT", ""),
    ],
)
def test_a_check_ends_where_a_cause_repeats_and_says_what_may_help(
    machine: Make, site: Site, status: int, method: str, hint: str
) -> None:
    site.answer = lambda asked, _path: (status, {}, b"") if method in {"", asked} else None
    checked = run(machine(), "remote", "check", site.url, "--json")
    found = json.loads(checked.stdout)
    assert checked.exit_code == 1
    assert hint in found["hint"]
    assert bool(hint) is bool(found["hint"])
    failed = [each["result"] for each in found["steps"] if each["result"].startswith("remote-")]
    assert len(failed) <= 2, failed


def test_a_check_over_tls_of_what_speaks_none(machine: Make, site: Site) -> None:
    checked = run(machine(), "remote", "check", site.url.replace("http:", "https:"))
    assert (checked.exit_code, "speaks no TLS" in " ".join(checked.stdout.split())) == (1, True)


def test_a_check_of_a_bucket_without_credentials(machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    site.answer = lambda _method, _path: (403, {}, b"")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    endpoint = site.url.removesuffix("/team")
    checked = run(machine(), "remote", "check", f"s3://team/x?region=us-east-1&endpoint={endpoint}", "--json")
    assert "AWS_" in json.loads(checked.stdout)["hint"]


@pytest.mark.parametrize("mode", [0o2775, 0o700])
def test_what_is_written_has_the_permissions_of_the_folder(machine: Make, root: Path, mode: int) -> None:
    one = machine(f"file://{root}")
    root.chmod(mode)
    one.call(2_000_000, name="noise")  # a blob, too
    before = os.umask(0o037)
    try:
        assert [each.put is not None for each in one.push()] == [True]
    finally:
        os.umask(before)
    places = list(root.rglob("*"))
    assert {each.stat().st_mode & 0o7777 for each in places if each.is_dir()} == {mode}
    assert {each.stat().st_mode & 0o7777 for each in places if each.is_file()} == {mode & 0o666}
    assert {each.name for each in root.iterdir()} == {"r", "b", "tmp"}
