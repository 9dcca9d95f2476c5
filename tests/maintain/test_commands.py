"""cachec gc, pin, and the selectors of ls and invalidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from tests.parts import option, tool

from .conftest import Yard, key_of

ONE, TWO, THREE = map(key_of, range(3))


class Shell:
    """Runs ``cachec --dir STORE ...``."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard

    def run(self, *args: str, stdin: str = "") -> Result:
        result = CliRunner().invoke(main, ["--dir", str(self.yard.folder), *args], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *args: str, stdin: str = "", code: int = 0) -> Any:
        result = self.run(*args, "--json", stdin=stdin)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    yard = Yard(tmp_path / "store")
    yard.publish(
        ONE,
        stage="pkg.lower",
        parts=(tool("jax", "0.10.0"),),
        seconds=2.0,
        ago=10 * 86400.0,
    )
    yard.publish(TWO, tags=("keep",), parts=(option("target", "'cuda'"),), seconds=60.0)
    yard.publish(THREE, seconds=5.0)
    yard.store.release()
    return Shell(yard)


def test_ls_by_a_selector(shell: Shell) -> None:
    def listed(*args: str) -> set[str]:
        return {each["key"] for each in shell.json("ls", *args)["entries"]}

    assert listed() == {ONE, TWO, THREE}
    assert listed("--tool", "jax==0.10*") == {ONE}
    assert listed("--option", "target=cuda", "--tag", "keep") == {TWO}
    assert listed("--stage", "lower", "--stage", "build", "--tool", "jax") == {ONE}
    assert listed(ONE[:8], THREE) == {ONE, THREE}
    assert "no entries that this selector means" in shell.run("ls", "--tag", "none").output
    assert shell.run("ls", "--older-than", "soon").exit_code == 2
    assert "7d" in shell.run("ls", "--older-than", "soon").stderr
    assert shell.run("ls", "xyz").exit_code == 2


def test_invalidate_shows_its_plan_and_asks(shell: Shell) -> None:
    result = shell.run("invalidate", "--stage", "build", "--dry-run")
    assert result.exit_code == 0
    assert "2 entries; 16.0 KiB that no other entry needs; 1.1 min to compile again" in result.output
    assert result.output.index(TWO[:12]) < result.output.index(THREE[:12])  # what costs most comes first
    assert shell.yard.keys() == {ONE, TWO, THREE}
    refused = shell.run("invalidate", "--stage", "build")
    assert refused.exit_code == 2
    assert "give --yes" in refused.stderr
    assert shell.yard.keys() == {ONE, TWO, THREE}
    done = shell.run("invalidate", "--stage", "build", "--yes")
    assert "removed 2 entries" in done.output
    assert shell.yard.keys() == {ONE}


def test_invalidate_json(shell: Shell) -> None:
    said = shell.json("invalidate", "--option", "target", "--dry-run")
    done = shell.json("invalidate", "--option", "target", "--yes")
    assert said == {**done, "dry_run": True}
    assert done == {
        "dry_run": False,
        "removed": [{"key": TWO, "stage": "pkg.build"}],
        "not_found": [],
        "pinned": [],
        "changed": [],
        "entries": 1,
        "size": 8192,
        "seconds": 60.0,
        "unmatched": [],
    }


def test_invalidate_reads_keys_from_ls(shell: Shell) -> None:
    listed = shell.run("ls", "--tag", "keep", "--json").stdout
    assert shell.json("invalidate", "--stdin", "--yes", stdin=listed)["entries"] == 1
    assert shell.yard.keys() == {ONE, THREE}
    found = shell.json("invalidate", "--stdin", "--yes", stdin=f"{ONE} a word\n\n{THREE[:10]}\n{'0' * 64}\n", code=1)
    assert found["entries"] == 2
    assert found["not_found"] == ["0" * 64]
    for text in ("", "[1]", "{", '{"entries": 3}', '{"a": []}'):
        result = shell.run("invalidate", "--stdin", "--yes", stdin=text)
        assert result.exit_code == 2, text
        assert "--stdin" in result.stderr
    none = shell.run("ls", "--tag", "nothing", "--json").stdout
    for text in (none, "[]"):
        result = shell.run("invalidate", "--stdin", "--yes", stdin=text)
        assert (result.exit_code, result.stderr) == (1, "cachec: --stdin: there are no keys, so no entry is meant\n")


def test_invalidate_combines_keys_with_selectors(shell: Shell) -> None:
    found = shell.json("invalidate", ONE, TWO, "--tag", "keep", "--yes")
    assert [each["key"] for each in found["removed"]] == [TWO]
    assert found["not_found"] == []


def test_invalidate_needs_to_be_told_something(shell: Shell) -> None:
    result = shell.run("invalidate")
    assert result.exit_code == 2
    assert "give a KEY, or an option" in result.stderr


def test_pins(shell: Shell) -> None:
    assert shell.run("pin").output == "no pins\n"
    assert shell.json("pin", ONE[:8], "--tag", "keep") == {"keys": [ONE], "tags": ["keep"], "not_found": []}
    assert shell.run("pin").output == f"key {ONE[:12]}\ntag keep\n"
    pinned = {each["key"]: each["pinned"] for each in shell.json("ls")["entries"]}
    assert pinned == {ONE: True, TWO: True, THREE: False}
    assert "pinned" in shell.run("ls").output
    found = shell.json("invalidate", ONE, THREE)
    assert (found["pinned"], found["not_found"]) == ([ONE], [])
    assert shell.yard.keys() == {ONE, TWO}
    assert f"left {ONE[:12]}: it is pinned" in shell.run("invalidate", ONE).output
    assert shell.json("invalidate", ONE, "--pinned")["removed"] == [{"key": ONE, "stage": "pkg.lower"}]
    assert shell.json("pin", "0" * 64, code=1)["not_found"] == ["0" * 64]
    assert shell.json("pin", "--remove", ONE[:8], "--tag", "other", code=1)["not_found"] == ["other"]
    assert shell.json("pin")["keys"] == []
    assert shell.run("pin", "--remove").exit_code == 2


def test_show_and_stats_say_pins_and_size(shell: Shell) -> None:
    shell.run("pin", ONE)
    assert shell.json("show", ONE)["pinned"] is True
    assert shell.json("show", TWO)["pinned"] is False
    assert "pinned" in shell.run("show", ONE).output
    found = shell.json("stats")["store"]
    assert found["size"] == 6 * 4096
    assert found["limit"] <= 20 << 30
    assert (found["pinned_keys"], found["pinned_tags"]) == (1, 0)
    assert "24.0 KiB" in shell.run("stats").output


def test_gc(shell: Shell) -> None:
    shell.run("pin", "--tag", "keep")
    said = shell.json("gc", "--max-size", "16KiB", "--dry-run")
    assert (said["dry_run"], said["entries"], said["freed"]) == (True, 1, 8192)
    done = shell.json("gc", "--max-size", "16KiB")
    assert {**done, "dry_run": True, "swept": {}} == {**said, "swept": {}}
    assert done["limit"] == done["after"] == 16384
    assert shell.yard.keys() == {TWO, THREE}
    result = shell.run("gc", "--max-size", "1")
    assert result.exit_code == 1
    assert "1 entry pinned" in result.stderr
    assert "the rest is what such a process was handed, or stored within the last hour" in result.stderr
    assert "1 entry evicted" in result.output
    assert shell.run("gc", "--max-size", "much").exit_code == 2
    assert shell.run("gc", "--older-than", "yesterday").exit_code == 2
    assert shell.json("gc")["limit"] <= 20 << 30
    assert "no limit" in shell.run("gc", "--max-size", "0").output


def test_gc_beside_another(shell: Shell) -> None:
    lock = shell.yard.store.locks.of("gc")
    assert lock.try_acquire()
    result = shell.run("gc", "--max-size", "1")
    lock.release()
    assert result.exit_code == 0
    assert "is cleaning this store already" in result.output


def test_control_characters_do_not_reach_the_terminal(shell: Shell) -> None:
    shell.yard.publish(key_of(7), stage="pkg.\x1b[31m", tags=("\x1b[2J",))
    for args in (("ls",), ("invalidate", "--newer-than", "4w", "--dry-run"), ("pin", "--tag", "\x1b[2J")):
        assert "\x1b" not in shell.run(*args).output


@pytest.mark.parametrize(
    ("given", "near"),
    [
        (("--tool", "jax==0.9"), ["jax==0.10.0"]),
        (("--tool", "jaxx"), ["jax==0.10.0"]),
        (("--stage", "lowr"), ["pkg.lower"]),
        (("--stage", "pkg.bild"), ["pkg.build"]),
        (("--tag", "kep"), ["keep"]),
        (("--option", "target=rocm"), ["target='cuda'"]),
        (("--option", "targt"), ["target='cuda'"]),
        (("--weight", "nothing.like.it"), []),
        (("--source", "/no/such/file"), []),
    ],
)
def test_what_no_entry_has_is_told_with_what_is_near(shell: Shell, given: tuple[str, ...], near: list[str]) -> None:
    option, name = given
    document = shell.json("invalidate", *given, "--yes", code=1)
    assert document["unmatched"][0]["near"][: len(near)] == near
    assert (document["unmatched"][0]["option"], document["unmatched"][0]["given"]) == (option, name)
    assert bool(document["unmatched"][0]["near"]) == bool(near)
    told = shell.run("invalidate", *given, "--yes")
    assert told.exit_code == 1
    assert f"no entry has {option} {name}" in told.stderr
    assert all(each in told.stderr for each in near)
    listed = shell.run("ls", *given)
    assert listed.exit_code == 0
    assert (f"no entry has {option} {name}" in listed.output) == bool(near)
    assert shell.yard.keys() == {ONE, TWO, THREE}


def test_what_some_entries_have_and_none_has_together(shell: Shell) -> None:
    document = shell.json("invalidate", "--tool", "jax", "--tag", "keep", "--yes")
    assert (document["entries"], document["unmatched"]) == (0, [])
    assert "0 entries" in shell.run("invalidate", "--tool", "jax", "--tag", "keep", "--yes").output
    assert shell.json("invalidate", "--older-than", "4000d", "--yes")["unmatched"] == []


def test_gc_of_no_store(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--dir", str(tmp_path / "none"), "gc"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, f"there is no store in {tmp_path / 'none'}")
    result = CliRunner().invoke(main, ["--dir", str(tmp_path / "none"), "invalidate", "--tag", "x", "--yes"])
    assert result.exit_code == 1
    assert "no entry has --tag x: there is no store yet" in result.stderr
