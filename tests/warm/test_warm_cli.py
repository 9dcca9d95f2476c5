"""``cachec warm`` on the command line: exit codes, text, Markdown, JSON."""

from __future__ import annotations

import io
import json
import os
import subprocess

import pytest
from rich.console import Console

from cachec.cli.warm_progress import Lines, ProgressTable, progress
from cachec.model import Outcome, Reason
from cachec.warm import Result, Row, Status, Summary

from .conftest import Project

TARGETS = """
    [warm.targets.doubled]
    call = "stages:doubled"
    matrix = { n = [1, 2] }
    [warm.targets.other]
    call = "stages:both"
    arguments = { n = 3 }
    files = ["models/**"]
"""


@pytest.mark.long
def test_from_cold_to_warm(project: Project) -> None:
    project.targets(TARGETS)
    checked = project.command("warm", "--check", "doubled")
    assert checked.returncode == 1
    assert "would-miss doubled[n=1]" in checked.stderr
    assert "stages.double: first-run: no entry of this stage yet" in checked.stderr
    assert checked.stdout.startswith("2 would-miss in ")
    done = project.command("warm", "--summary", "out.md", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "cachec: 3 to run, 0 hit; time: unknown" in done.stderr
    assert "cachec: [3/3] compiled " in done.stderr
    assert "3 compiled in " in done.stdout
    again = project.command("warm", "--summary", "out.md", "--json")
    assert json.loads(again.stdout)["hit"] == 3
    text = (project.folder / "out.md").read_text()
    assert text.count("### cachec warm") == 2, "appended"
    assert "| doubled\\[n=1\\] | compiled |" in text
    assert project.process("warm", "--check").returncode == 0, "in a process of its own"
    (project.folder / "stages.py").write_text((project.folder / "stages.py").read_text().replace("2 * n", "3 * n"))
    assert project.process("warm", "--check").returncode == 1


def test_lists_and_shards(project: Project) -> None:
    project.targets(TARGETS)
    assert project.command("warm", "--list").stdout.split() == ["doubled[n=1]", "doubled[n=2]", "other"]
    assert project.command("warm", "--list", "--shard", "2/3").stdout.split() == ["doubled[n=2]"]
    assert json.loads(project.command("warm", "--list", "--json", "o*").stdout) == {"targets": ["other"]}


def test_changed_files_choose(project: Project) -> None:
    project.targets(TARGETS)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=project.folder, check=True)
    assert project.command("warm", "--list", "--changed-since", "HEAD").stdout == ""
    done = project.command("warm", "--changed-since", "HEAD")
    assert (done.returncode, done.stdout.startswith("nothing to do")) == (0, True)
    project.write("models/x", "")
    told = project.command("warm", "--list", "--changed-since", "HEAD").stdout.split()
    assert told == ["doubled[n=1]", "doubled[n=2]", "other"], "doubled names no files, so anything touches it"
    assert project.command("warm", "--list", "--touched", "models/y").stdout.split() == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["warm", "nope"], "no target is named 'nope'"),
        (["warm", "--shard", "9/8"], "write K/N"),
        (["warm", "--changed-since", "HEAD"], "git rev-parse fails"),
        (["warm", "--jobs", "0"], "--jobs"),
    ],
)
def test_wrong_use(project: Project, words: list[str], message: str) -> None:
    project.targets(TARGETS)
    done = project.command(*words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert project.runs == []


def test_nothing_declared(project: Project) -> None:
    done = project.command("warm")
    assert done.returncode == 2
    assert "no targets are declared: write [tool.cachec.warm.targets.NAME]" in done.stderr


@pytest.mark.long
def test_another_store(project: Project) -> None:
    project.targets(TARGETS)
    done = project.command("--dir", "elsewhere", "warm", "doubled")
    assert done.returncode == 0, done.stderr
    assert (project.folder / "elsewhere" / "index").is_dir()
    assert not (project.store / "index").exists()
    assert project.command("--dir", "elsewhere", "warm", "doubled", "--check").returncode == 0
    assert project.command("warm", "doubled", "--check").returncode == 1


def results() -> list[Result]:
    miss = Outcome(reason=Reason.OPTION_CHANGED, stage="s.f", key="", detail="t: 'a|b' -> `c`\n", seconds=2.0)
    hit = Outcome(reason=Reason.HIT, stage="s.f", key="", seconds=0.5, saved=10.5)
    return [
        Result(id="warm", status=Status.HIT, outcomes=(hit,), seconds=0.5),
        Result(id="x[n=1]", status=Status.COMPILED, outcomes=(miss, hit), seconds=2.5),
        Result(id="bad", status=Status.FAILED, error="Error: \x1b[31m<b>", seconds=1.0),
    ]


def test_markdown_shows_failures_first_and_no_markup_of_others() -> None:
    text = Summary(results=tuple(results()), check=False, seconds=4.0).markdown()
    assert text.splitlines()[2] == "1 hit, 1 compiled, 1 failed in 4.00 s; compiling took 2.50 s; hits saved 20.00 s"
    rows = text.splitlines()[6:]
    assert [row.split(" | ")[0] for row in rows] == ["| bad", "| x\\[n=1\\]", "| warm"]
    assert "| Error: �\\[31m\\<b\\> |" in rows[0]
    assert "s.f: option-changed: t: 'a\\|b' -\\> \\`c\\`" in rows[1]
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_the_table_shows_what_runs_and_how_far_it_is() -> None:
    now = [0.0]
    out = io.StringIO()
    table = ProgressTable(io.StringIO(), clock=lambda: now[0])
    running = Row(id="r[n=2]", target="r", axes={})
    table.on_plan([running], 2, 60.0)
    table.on_start(running)
    for result in results():
        table.on_finish(running, result)
    table.on_start(running)
    now[0] = 12.0
    Console(file=out, width=100).print(table.picture())
    text = out.getvalue()
    assert "r[n=2]  running   12.00 s" in text
    assert "bad     failed" in text
    assert "\x1b[31m" not in text
    assert "3/3  1 hit, 1 compiled, 1 failed  about 48.00 s left" in text


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_table_cuts_the_reason_and_not_the_name(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = io.StringIO()
    table = ProgressTable(io.StringIO())
    name = "minilm[batch=8,target=llvm-cpu]"
    failed = Result(id=name, status=Status.FAILED, error="word " * 50, seconds=90.0)
    table.on_finish(Row(id=name, target="minilm", axes={}), failed)
    Console(file=out, width=columns).print(table.picture())
    header, row, *below = out.getvalue().splitlines()
    assert row.startswith(f"{name}  failed  1.5 min  word")
    assert "…" in "".join([row, *below])
    assert header.split() == ["target", "result", "took", "why"]


def test_a_terminal_gets_the_table_and_a_log_gets_lines() -> None:
    assert isinstance(progress(io.StringIO()), Lines)
    leader, follower = os.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as terminal:
        shown = progress(terminal)
        assert isinstance(shown, ProgressTable)
        with shown:
            shown.on_plan([], 0, None)
