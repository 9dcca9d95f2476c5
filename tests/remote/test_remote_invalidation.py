"""``cachec invalidate --remote``: no machine gets an invalidated entry from a remote."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from tests.remote.conftest import Machine
from tests.remote.server import Site, refusing
from tests.remote.test_sharing import Make


def invalidated(machine: Machine, *words: str) -> Result:
    line = ["--dir", str(machine.store), "invalidate", "--stage", "build", *words, "--yes", "--json"]
    return CliRunner().invoke(main, line)


def test_a_machine_that_comes_later_runs(machine: Make, site: Site) -> None:
    one = machine()
    value, _ = one.call()
    one.push()
    rows = len(site.files)
    done = invalidated(one, "--remote", "--dry-run")
    assert (done.exit_code, len(site.files)) == (0, rows)
    done = invalidated(one, "--remote")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["remote"] == {"removed": 1, "left": 0, "left_at": {}, "faults": {}}
    two = machine()
    other, outcome = two.call()
    assert (outcome.hit, other == value) == (False, False)
    two.push()
    assert machine().call()[0] == other, "what is made anew is shared"


def test_what_others_found_with_other_content_stays(machine: Make) -> None:
    one, other = machine(), machine()
    (other.project / "table.txt").write_text("two")
    one.call()
    value, _ = other.call()
    one.push()
    other.push()
    assert json.loads(invalidated(one, "--remote").stdout)["remote"]["removed"] == 1
    third = machine()
    (third.project / "table.txt").write_text("two")
    assert third.call()[0] == value


def test_a_fetched_entry_is_forgotten_where_it_came_from(machine: Make) -> None:
    one = machine()
    one.call()
    one.push()
    two = machine()
    assert two.call()[1].hit
    assert json.loads(invalidated(two, "--remote").stdout)["remote"]["removed"] == 1
    assert not machine().call()[1].hit


def test_a_remote_that_is_only_read_is_named(machine: Make, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    one.call()
    one.push()
    shown = url.partition("?")[0]
    said = CliRunner().invoke(
        main, ["--dir", str(one.store), "invalidate", "--stage", "build", "--remote", "--dry-run"]
    )
    assert f"would be removed from {shown}, too" in " ".join(said.stdout.split())
    monkeypatch.setenv("CACHEC_REMOTE", f"{url}&mode=read")
    line = ["--dir", str(one.store), "invalidate", "--stage", "build", "--remote"]
    said = CliRunner().invoke(main, [*line, "--dry-run"])
    assert (said.exit_code, f"what {shown} has would stay there" in " ".join(said.stdout.split())) == (0, True)
    said = CliRunner().invoke(main, [*line, "--yes"])
    assert (said.exit_code, f"1 may still be at {shown}, which is only read" in said.stdout) == (1, True)
    one.call()
    there = json.loads(invalidated(one, "--remote").stdout)["remote"]
    assert (there["removed"], there["left_at"]) == (0, {shown: 1})


def test_without_the_option_a_remote_keeps_it(machine: Make) -> None:
    one = machine()
    one.call()
    one.push()
    assert "remote" not in json.loads(invalidated(one).stdout)
    assert machine().call()[1].hit


def test_a_remote_that_can_not_be_asked_is_told(
    machine: Make, url: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine()
    one.call()
    one.push()
    monkeypatch.setenv("CACHEC_REMOTE", f"{refusing()} {url} {url}&mode=read")
    done = invalidated(one, "--remote")
    assert done.exit_code == 1
    there = json.loads(done.stdout)["remote"]
    assert (there["removed"], there["left"], list(there["faults"])) == (1, 1, ["remote-unreachable"])
    monkeypatch.delenv("CACHEC_REMOTE")
    done = invalidated(one, "--remote")
    assert (done.exit_code, "CACHEC_REMOTE" in done.stderr) == (2, True)


@pytest.mark.parametrize("ahead", [0.0, 250.0, 7200.0, 1e5])
def test_what_a_clock_that_is_ahead_dated_is_forgotten(
    machine: Make, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    one = machine()
    now = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: now() + ahead)
        value, _ = one.call()
        one.push()
    two = machine()
    assert two.call()[0] == value
    assert invalidated(two).exit_code == 0
    again, outcome = two.call()
    assert (outcome.hit, again == value) == (False, False)
