"""Targets that are commands, through ``cachec exec``."""

from __future__ import annotations

import json
import shutil

import pytest

from .conftest import Project, statuses

COPY = """
    [warm.targets.copy]
    command = ["cp", "{name}.txt", "{name}.out"]
    options = ["--output", "{name}.out"]
    matrix = { name = ["a", "b"] }
"""


@pytest.mark.long
def test_a_command_is_run_on_a_miss_alone(project: Project) -> None:
    project.targets(COPY)
    for name in "ab":
        project.write(f"{name}.txt", name)
    checked = project.warm(check=True)
    assert set(statuses(checked).values()) == {"would-miss"}, checked.results[0].error
    assert not (project.folder / "a.out").exists()
    summary = project.warm()
    assert set(statuses(summary).values()) == {"compiled"}, summary.results[0].error
    assert (project.folder / "a.out").read_text() == "a"
    (project.folder / "a.out").unlink()
    assert set(statuses(project.warm()).values()) == {"hit"}
    assert project.warm(check=True).exit_code == 0
    project.write("b.txt", "other")
    assert statuses(project.warm(check=True)) == {"copy[name=a]": "hit", "copy[name=b]": "would-miss"}


def test_outcomes_of_commands_reach_the_stats_file(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.targets(COPY)
    for name in "ab":
        project.write(f"{name}.txt", name)
    record = project.folder / "stats.jsonl"
    monkeypatch.setenv("CACHEC_STATS_FILE", str(record))
    project.warm()
    assert len([json.loads(line) for line in record.read_text().splitlines()]) == 2


def test_commands_that_fail_are_absent_or_not_stored(project: Project) -> None:
    project.write("old.txt", "old")
    project.targets(
        """
        [warm.targets.fails]
        command = ["cp", "absent.txt", "x.out"]
        [warm.targets.absent]
        command = ["no-such-compiler", "stages.py"]
        [warm.targets.bypassed]
        command = ["rm", "old.txt"]
        [warm.targets.wrong]
        command = ["cp", "stages.py", "y.out"]
        options = ["--inptu", "stages.py"]
        """
    )
    results = {result.id: result for result in project.warm().results}
    assert {result.status.value for result in results.values()} == {"failed"}
    assert "ended with status 1" in results["fails"].error
    assert "absent.txt" in results["fails"].output, "the command's own words"
    assert results["absent"].error.startswith("'no-such-compiler' is not an executable in PATH")
    assert "goes round the cache (bypass:undescribed-effect: it removed " in results["bypassed"].error
    assert results["wrong"].error.startswith("'--inptu' is no option")
    for name, result in results.items():
        assert result.output.count("\n") == (name in {"fails", "bypassed"}), "two lines tell all"


def test_a_fresh_checkout(project: Project) -> None:
    project.write("a.txt", "a")
    project.targets(COPY.replace("{name}.out", "out/deep/{name}.out").replace('["a", "b"]', '["a"]'))
    output = project.folder / "out" / "deep" / "a.out"
    assert statuses(project.warm()) == {"copy[name=a]": "compiled"}, "the folder was made"
    for materialize in (False, True):
        shutil.rmtree(project.folder / "out", ignore_errors=True)
        assert statuses(project.warm(materialize=materialize)) == {"copy[name=a]": "hit"}
        assert output.exists() or not materialize
    assert output.read_text() == "a"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("clang-19") is None, reason="clang-19 is not installed")
def test_a_compiler_with_an_adapter(project: Project) -> None:
    project.write("a.c", '#include "a.h"\nint f(void) { return N; }\n')
    project.write("a.h", "#define N 1\n")
    project.targets('[warm.targets.c]\ncommand = ["clang-19", "-c", "a.c", "-o", "a.o"]\n')
    assert statuses(project.warm()) == {"c": "compiled"}
    assert project.warm(check=True).exit_code == 0
    project.write("a.h", "#define N 2\n")
    assert statuses(project.warm(check=True)) == {"c": "would-miss"}


@pytest.mark.long
def test_a_command_that_hits_puts_in_place_what_the_next_one_reads(project: Project) -> None:
    """A fresh checkout with a store that has everything."""
    project.write("a.txt", "a")
    project.targets(
        """
        [warm.targets.first]
        command = ["cp", "a.txt", "a.mid"]
        options = ["--output", "a.mid"]
        [warm.targets.second]
        command = ["cp", "a.mid", "a.out"]
        options = ["--output", "a.out"]
        after = ["first"]
        """
    )
    assert statuses(project.warm()) == {"first": "compiled", "second": "compiled"}
    (project.folder / "a.mid").unlink()
    (project.folder / "a.out").unlink()
    checked = project.warm(check=True)
    assert statuses(checked)["second"] == "would-miss"  # its input is not there
    assert not (project.folder / "a.mid").exists(), "a check writes nothing"
    before = len(project.log())
    assert statuses(project.warm()) == {"first": "hit", "second": "hit"}
    assert (project.folder / "a.mid").read_text() == "a"
    assert [(each.hit, each.stage) for each in project.log()[before:]] == [(True, "exec:cp")] * 2, "both are in use"
    assert project.warm(check=True).exit_code == 0


@pytest.mark.parametrize("mode", ["off", "refresh", "verify"])
@pytest.mark.long
def test_a_check_says_the_same_in_every_mode(project: Project, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    project.targets(COPY.replace('["a", "b"]', '["a"]'))
    project.write("a.txt", "a")
    monkeypatch.setenv("CACHEC_MODE", mode)
    assert project.warm(check=True).exit_code == 1
    monkeypatch.delenv("CACHEC_MODE")
    project.warm()
    monkeypatch.setenv("CACHEC_MODE", mode)
    assert project.warm(check=True).exit_code == 0


@pytest.mark.long
def test_a_hit_counts_as_use_and_a_check_does_not(project: Project) -> None:
    project.targets(COPY)
    for name in "ab":
        project.write(f"{name}.txt", name)
    project.warm()
    assert [outcome.hit for outcome in project.log()] == [False] * 2
    project.warm(check=True)
    assert len(project.log()) == 2
    project.warm()
    assert [outcome.hit for outcome in project.log()] == [False] * 2 + [True] * 2
