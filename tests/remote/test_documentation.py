"""The commands of docs/reference/remotes.md, and the screens of ``cachec remote`` and ``push``."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from cachec.store.store import Store
from tests import pages
from tests.remote.casd_server import running_casd
from tests.remote.conftest import Machine
from tests.remote.moto_server import running_moto
from tests.remote.redis_server import running_redis
from tests.remote.server import Site, refusing, serving
from tests.remote.test_sharing import Make
from tests.remote.test_weights import Place

PAGE = "reference/remotes.md"


def words_of(line: str) -> list[str]:
    """Of a command; without what installs the package, which the tests have."""
    words = shlex.split(line)
    if words[0] != "pip":
        return words
    (package,) = re.findall(r"cachec\[(\w+)\]", words[-1])
    assert f"\n{package} = [" in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    return []


def run(machine: Machine, *words: str) -> Result:
    return CliRunner().invoke(main, ["--dir", str(machine.store), *words])


def test_the_commands(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(f"file://{tmp_path}/team-cache")
    one.call()
    *lines, main_branch, pull_requests = pages.commands(PAGE)[:8]
    for line in lines:
        words = shlex.split(line.replace("/mnt", str(tmp_path)))
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            continue
        result = run(one, *words[1:])
        assert result.exit_code == 0, (line, result.output, result.exception)
        shown = re.sub(" {2,}", "  ", result.output.replace(str(tmp_path), "/mnt"))
        assert all(len(each) <= 80 for each in shown.splitlines()), shown
    for line, mode in ((main_branch, "read-write"), (pull_requests, "read")):
        (_, assignment) = shlex.split(line)
        assert [each.address.mode for each in machine(assignment.partition("=")[2]).remotes.all] == [mode]
    (keygen,) = pages.commands(PAGE, "## Trust")
    assert run(one, *keygen.split()[1:]).exit_code == 0


def test_the_commands_for_redis(machine: Make, tmp_path: Path) -> None:
    one = machine()
    installed, started, *others = [words_of(line) for line in pages.commands(PAGE, "## Redis")]
    assert (installed, started[0]) == ([], "redis-server")
    with running_redis(tmp_path / "redis", *started[1:]) as server:
        for words in others:
            if words[0] == "redis-cli":
                subprocess.run(["redis-cli", "-p", str(server.port), *words[1:]], check=True, capture_output=True)
                continue
            url = words[-1].replace("6379", str(server.port))
            result = run(one, *words[1:-1], url)
            assert result.exit_code == 0, result.output
            assert "secret" not in result.output
        writer, reader = (words[-1].replace("6379", str(server.port)) for words in others[-2:])
        value, _ = (two := machine(writer)).call()
        assert [sent.fault for sent in two.push()] == [None]
        assert machine(reader).call()[0] == value
        refused = run(one, "remote", "check", reader.replace("?mode=read", ""))
        assert (refused.exit_code, "remote-refused" in refused.output) == (1, True)


def test_the_commands_for_buckets(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    with running_moto() as endpoint:
        for words in map(words_of, pages.commands(PAGE, "## Object storage")):
            words = [word.replace("http://127.0.0.1:9000", endpoint) for word in words]
            if words[:1] == ["export"]:
                monkeypatch.setenv(*words[1].split("=", 1))
            elif words:
                result = run(one, *words[1:])
                assert result.exit_code == 0, result.output
                assert "secret" not in result.output
        url = os.environ["CACHEC_REMOTE"]
        value, _ = (two := machine(url)).call()
        assert [sent.fault for sent in two.push()] == [None]
        assert machine(url).call()[0] == value


def test_the_commands_for_the_remote_execution_api(machine: Make, tmp_path: Path) -> None:
    one = machine()
    installed, started, checked = [words_of(line) for line in pages.commands(PAGE, "## Remote Execution API")]
    assert (installed, started[:2]) == ([], ["buildbox-casd", "--bind"])
    with running_casd(tmp_path / "casd") as server:
        result = run(one, *checked[1:-1], checked[-1].replace("9092", str(server.port)), "--json")
        assert result.exit_code == 0, result.output
        steps = json.loads(result.stdout)["steps"]
        assert [each["step"] for each in steps if each["result"] == "no"] == ["keep the first of two"]
        value, _ = (two := machine(server.url)).call()
        assert [sent.fault for sent in two.push()] == [None]
        assert machine(server.url + "?mode=read").call()[0] == value


def test_a_bucket_that_replaces_what_is_there_is_told(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    one = machine()
    with serving() as site:
        site.is_bucket, site.is_conditional = True, False
        url = f"s3://team/cachec?region=us-east-1&endpoint={site.url.removesuffix('/team')}"
        checked = json.loads(run(one, "remote", "check", url, "--json").stdout)
    assert checked["ok"]
    assert [each["step"] for each in checked["steps"] if each["result"] == "no"] == ["keep the first of two"]


def test_push_says_what_came_of_it(machine: Make, site: Site) -> None:
    one = machine()
    one.call()
    site.answer = lambda method, _path: (507, {}, b"") if method == "PUT" else None
    result = run(one, "push", "--json")
    assert result.exit_code == 1
    expected = {
        "sent": 0,
        "known": 0,
        "gone": 0,
        "bytes": 0,
        "waiting": 1,
        "stranded": {},
        "faults": {"remote-full": 1},
        "left": {},
    }
    assert json.loads(result.stdout) == expected
    site.answer = lambda _method, _path: None
    result = run(one, "push")
    assert result.exit_code == 0
    assert re.match(r"1 sent \([\d.]+ KiB\), 0 were there, 0 gone, 0 wait\n", result.stdout)
    found = json.loads(run(machine(), "stats", "--json").stdout)["remote"]
    assert found == {"asked": 0, "hits": 0, "bytes": 0, "seconds": 0.0}
    two = machine()
    two.call()
    found = json.loads(run(two, "stats", "--json").stdout)["remote"]
    assert (found["asked"], found["hits"], found["bytes"] > 500) == (1, 1, True)
    assert "1 call asked remotes, 1 answered" in run(two, "stats").stdout


def test_a_remote_that_can_not_be_used_is_told(machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    for word in ("remote", "push"):
        monkeypatch.delenv("CACHEC_REMOTE", raising=False)
        result = run(one, word)
        assert (result.exit_code, "CACHEC_REMOTE" in result.output) == (0 if word == "remote" else 2, True)
    gone = refusing()
    result = run(one, "remote", "check", gone.replace("//", "//me:p4ss@"))
    assert result.exit_code == 1
    assert "p4ss" not in result.output
    assert result.stdout.count("remote-unreachable") == 1
    site.answer = lambda method, _path: (403, {}, b"") if method == "PUT" else None
    checked = json.loads(run(one, "remote", "check", site.url, "--json").stdout)
    assert not checked["ok"]
    assert json.loads(run(one, "remote", "check", site.url + "?mode=read", "--json").stdout)["ok"]
    site.answer = lambda _method, _path: None
    site.is_conditional = False
    checked = json.loads(run(one, "remote", "check", site.url, "--json").stdout)
    assert checked["ok"]
    assert [each["result"] for each in checked["steps"]].count("no") == 1
    monkeypatch.setenv("CACHEC_REMOTE", f"{gone} {site.url}")
    remotes = json.loads(run(one, "remote", "--json").stdout)["remotes"]
    assert [each["state"] for each in remotes] == ["remote-unreachable", "ok"]


def test_secrets_are_not_shown(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    for value in ("https://me:p4ss@host/x", "https://me:p4ss@host/x?mode=bad", "me:p4ss@host"):
        monkeypatch.setenv("CACHEC_REMOTE", value)
        monkeypatch.setenv("CACHEC_REMOTE_TOKEN", "t0ken")
        for words in (("config",), ("config", "--json"), ("remote", "--json")) if "?" in value else (("config",),):
            output = run(one, *words).output
            assert "p4ss" not in output
            assert "t0ken" not in output
            assert "not a setting" not in output


def test_a_project_can_not_name_a_remote(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    (one.project / "cachec.toml").write_text('remote = ["https://host/x"]\n')
    monkeypatch.chdir(one.project)
    result = run(one, "config")
    assert result.exit_code == 2
    assert "not for the file of a project" in result.stderr


def test_the_program_that_reads_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = pages.blocks("python", PAGE, "## Weights")
    (tmp_path / "remote").mkdir(mode=0o700)
    place = Place(tmp_path / "one", f"file://{tmp_path}/remote")
    place.add("tuned")
    place.push("tuned")
    monkeypatch.setenv("CACHEC_REMOTE", f"file://{tmp_path}/remote?namespace=main")
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "two"))
    exec(compile(program, PAGE, "exec"), {})
    assert sum(1 for _ in Store(tmp_path / "two").objects.iterate()) == 1
