"""The GitHub action: its script, run as the action runs it, with a folder in place of GitHub's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT

ACTION = ROOT / "plugins" / "github"

DEFAULTS = {
    "IN_NAME": "default",
    "IN_COMMAND": "all",
    "IN_READ_ONLY": "false",
    "IN_TARGETS": "",
    "IN_MAX_SIZE": "2GiB",
    "IN_JOBS": "",
    "IN_SHARD": "",
    "IN_CHANGED_SINCE": "",
    "IN_CHECK": "false",
    "IN_REMOTE": "",
}


class Runner:
    """Jobs, each on a machine of its own; ``kept`` is what GitHub keeps between them: key -> archive."""

    def __init__(self, project: Any, folder: Path) -> None:
        self.project = project
        self.folder = folder
        self.kept: dict[str, bytes] = {}
        self.jobs = 0
        self.summary = ""
        self.output = ""

    def job(self, event: str = "push", before_save: str = "", code: int = 0, **inputs: str) -> dict[str, str]:
        """Run the action; returns its outputs. before_save: a Python program that runs in the job before it."""
        self.jobs += 1
        temp, environ, plan = self.plan(event, **inputs)
        environ |= pairs(temp / "env")
        archive = Path(plan["archive"])
        if inputs.get("command") != "save":
            found = [key for key in self.kept if key.startswith(plan["prefix"])]
            if found:
                archive.write_bytes(self.kept[found[-1]])
        if before_save:
            subprocess.run(
                [sys.executable, "-c", before_save],
                cwd=self.project.folder,
                env=environ,
                check=True,
            )
        environ |= {"IN_ARCHIVE": plan["archive"], "IN_SAVES": plan["saves"]}
        self.step("run", environ, code)
        outputs = pairs(temp / "output")
        if outputs.get("save") == "true":
            self.kept[plan["key"]] = archive.read_bytes()
        summary = temp / "summary"
        self.summary = summary.read_text() if summary.exists() else ""
        shutil.rmtree(temp / "cachec")
        return outputs

    def plan(self, event: str, **inputs: str) -> tuple[Path, dict[str, str], dict[str, str]]:
        """The first step of a job: its folder, its variables, and the outputs of the step."""
        temp = self.folder / f"job-{self.jobs}"
        temp.mkdir(parents=True)
        environ = {name: value for name, value in os.environ.items() if name != "CACHEC_DIR"}
        environ |= {
            **DEFAULTS,
            **{"IN_" + name.upper(): value for name, value in inputs.items()},
            "RUNNER_TEMP": str(temp),
            "RUNNER_OS": "Linux",
            "RUNNER_ARCH": "X64",
            "GITHUB_EVENT_NAME": event,
            "GITHUB_RUN_ID": str(self.jobs),
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_OUTPUT": str(temp / "output"),
            "GITHUB_ENV": str(temp / "env"),
            "GITHUB_STEP_SUMMARY": str(temp / "summary"),
        }
        self.step("plan", environ)
        return temp, environ, pairs(temp / "output")

    def step(self, name: str, environ: dict[str, str], code: int = 0) -> None:
        done = subprocess.run(
            ["bash", str(ACTION / "cachec-ci.sh"), name],
            cwd=self.project.folder, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.output = done.stdout + done.stderr
        assert done.returncode == code, self.output


def pairs(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


@pytest.fixture
def runner(project: Any, on_path: Path, tmp_path: Path) -> Runner:
    project.targets(
        """
        [warm.targets.doubled]
        call = "stages:doubled"
        matrix = { n = [1, 2] }
        [warm.targets.word]
        call = "stages:word"
        arguments = { text = "x" }
        """
    )
    return Runner(project, tmp_path / "runner")


@pytest.mark.long
def test_the_second_job_compiles_nothing_and_saves_nothing_new(runner: Runner) -> None:
    first = runner.job()
    assert (first["save"], first["key"]) == ("true", "cachec-2-Linux-X64-default-1-1")
    assert "3 compiled in " in runner.summary
    assert len(runner.project.runs) == 3
    assert runner.job()["save"] == "false", "the same archive"
    assert "3 hit in " in runner.summary
    assert len(runner.project.runs) == 3
    assert len(runner.kept) == 1


@pytest.mark.long
def test_the_archive_holds_what_the_job_used_alone(runner: Runner) -> None:
    runner.job()
    (whole,) = runner.kept.values()
    text = (runner.project.folder / "stages.py").read_text()
    runner.project.write("stages.py", text.replace("return 2 * n", "return n + n"))
    runner.job()
    assert len(runner.project.runs) == 5, "word was restored"
    newest = [*runner.kept.values()][-1]
    assert len(newest) == len(whole), "the entries that nothing used any more are gone"


@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch", "release", "merge_group"])
def test_events_of_the_repository_itself_may_save(runner: Runner, event: str) -> None:
    assert runner.plan(event)[2]["saves"] == "true"
    runner.jobs += 1
    assert runner.plan(event, read_only="true")[2]["saves"] == "false"
    runner.jobs += 1
    assert runner.plan(event, command="restore")[2]["saves"] == "false"


#: Events that somebody without rights in the repository can cause.
FOREIGN = ["pull_request", "pull_request_target", "pull_request_review", "workflow_run", "issue_comment"]


@pytest.mark.parametrize("event", [*FOREIGN, "an event of the future"])
def test_no_other_event_may_save(runner: Runner, event: str) -> None:
    for command in ("all", "restore", "save"):
        runner.jobs += 1
        assert runner.plan(event, command=command)[2]["saves"] == "false"


def test_the_event_is_looked_at_by_the_plan_alone() -> None:
    script = (ACTION / "cachec-ci.sh").read_text()
    assert script.count("GITHUB_EVENT_NAME") == 1
    assert script.index("GITHUB_EVENT_NAME") < script.index("run() {")


@pytest.mark.long
@pytest.mark.parametrize("event", FOREIGN)
def test_a_pull_request_and_what_it_starts_read_and_never_save(runner: Runner, event: str) -> None:
    runner.job()
    runner.project.targets('[warm.targets.word]\ncall = "stages:word"\nmatrix = { text = ["x", "y"] }\n')
    assert runner.job(event)["save"] == "false"
    assert runner.project.runs[-1] == "word y"
    assert "word x" not in runner.project.runs[3:]
    assert len(runner.kept) == 1
    assert runner.job(read_only="true")["save"] == "false"
    assert runner.job()["save"] == "true"


@pytest.mark.long
def test_a_failure_fails_the_job_and_keeps_what_the_others_compiled(runner: Runner) -> None:
    with (runner.project.folder / "cachec.toml").open("a") as out:
        out.write('[warm.targets.fails]\ncall = "stages:fails"\n')
    assert runner.job(code=2)["save"] == "true"
    assert "| fails | failed |" in runner.summary
    runner.project.targets('[warm.targets.word]\ncall = "stages:word"\narguments = { text = "x" }\n')
    runner.job(check="true")


@pytest.mark.long
def test_check_targets_shards_and_names(runner: Runner) -> None:
    assert runner.job(check="true", code=1)["save"] == "true", "an empty archive"
    assert "3 would-miss" in runner.summary
    assert runner.project.runs == []
    runner.job(targets=" word\n doubled[n=2] ", jobs="1", name="some")
    assert sorted(runner.project.runs) == ["double 2", "word x"]
    runner.job(shard="1/3", name="some")
    assert sorted(runner.project.runs) == ["double 1", "double 2", "word x"]
    assert {key.split("-")[4] for key in runner.kept} == {"default", "some"}


def test_the_bound_holds(runner: Runner) -> None:
    runner.job(max_size="6KiB")
    (archive,) = runner.kept.values()
    assert len(archive) <= 6 * 1024
    assert "left out by the limit" in runner.output


@pytest.mark.long
def test_what_later_steps_used_is_saved(runner: Runner) -> None:
    runner.project.write("cachec.toml", "")
    use = "import stages; stages.double(7)"
    runner.job(command="restore", before_save=use)
    assert runner.kept == {}
    runner.job(command="save", before_save=use)
    assert len(runner.kept) == 1
    runner.project.targets('[warm.targets.d]\ncall = "stages:double"\narguments = { n = 7 }\n')
    runner.job(check="true")


@pytest.mark.long
def test_a_damaged_archive_costs_the_time_to_compile(runner: Runner) -> None:
    runner.job()
    (key,) = runner.kept
    runner.kept[key] = runner.kept[key][:-700]
    assert runner.job()["save"] == "true"
    assert "nothing is restored" in runner.output
    assert len(runner.project.runs) == 6


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"command": "al"}, "input command is 'al'; it is one of: all restore save"),
        ({"read_only": "yes"}, "input read-only is 'yes'"),
        ({"name": "a b"}, "input name is 'a b'"),
        ({"name": "$(touch pwned)"}, "input name is '$(touch pwned)'"),
        ({"remote": "file:///a b"}, "input remote is no URL"),
        ({"remote": "https://host/a?timeout=1&mode=read-write"}, "input remote says a mode"),
    ],
)
def test_wrong_inputs(runner: Runner, inputs: dict[str, str], words: str) -> None:
    with pytest.raises(AssertionError):
        runner.job(**inputs)
    assert f"::error::cachec: {words}" in runner.output
    assert not (runner.project.folder / "pwned").exists()


@pytest.mark.parametrize("targets", ["$(touch pwned)", "`touch pwned`", "; touch pwned", "--dir=x"])
@pytest.mark.sampled
def test_inputs_are_never_run(runner: Runner, targets: str) -> None:
    runner.job(targets=targets, code=2)
    assert "no target is named" in runner.output
    assert not (runner.project.folder / "pwned").exists()


def test_a_remote_gets_what_the_main_branch_compiled_and_others_only_read_it(runner: Runner, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir(mode=0o700)
    runner.job("pull_request", remote=f"file://{remote}")
    assert not list(remote.iterdir()), "it may hold anybody's code"
    runner.job("push", remote=f"file://{remote}", read_only="true")
    assert not list(remote.iterdir())
    ran = len(runner.project.runs)
    runner.kept.clear()
    runner.job("push", remote=f"file://{remote}?namespace=main")
    assert len(runner.project.runs) > ran
    ran = len(runner.project.runs)
    runner.kept.clear()
    runner.job("pull_request", remote=f"file://{remote}?namespace=main")
    assert len(runner.project.runs) == ran, "all of it was there"


def test_a_remote_that_is_gone_fails_no_job(runner: Runner) -> None:
    runner.job("push", remote="http://127.0.0.1:9")
    assert "not everything is at the remote" in runner.output


@pytest.mark.long
def test_without_github_every_variable_has_a_default(runner: Runner, tmp_path: Path) -> None:
    named = ("IN_", "GITHUB_", "RUNNER_", "CACHEC_", "XDG_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(named)}
    environ |= {"HOME": str(tmp_path / "home"), "CACHEC_DIR": str(tmp_path / "store")}
    runner.step("plan", environ)
    told = dict(line.split("=", 1) for line in runner.output.splitlines())
    assert told["saves"] == "false", "nobody has said that this code is trusted"
    assert Path(told["archive"]).is_relative_to(tmp_path / "home")
    runner.step("run", environ)
    assert "save=false" in runner.output.splitlines()
    assert not Path(told["archive"]).exists()
    for name, expected in (("first", "true"), ("second", "false")):
        store = {"CACHEC_DIR": str(tmp_path / name), "IN_SAVES": "true", "IN_ARCHIVE": str(tmp_path / "kept" / "a.tar")}
        ran = len(runner.project.runs)
        runner.step("run", environ | store)
        assert f"save={expected}" in runner.output.splitlines()
        assert (len(runner.project.runs) == ran) == (name == "second")


def test_the_action_gives_every_input_to_the_script_and_no_text_to_a_shell() -> None:
    text = (ACTION / "action.yml").read_text()
    inputs = re.findall(r"^  ([a-z-]+):\n    description:", text.split("\noutputs:")[0], re.MULTILINE)
    assert {"IN_" + name.upper().replace("-", "_") for name in inputs} - {"IN_WORKING_DIRECTORY"} == set(DEFAULTS)
    for name in inputs:
        assert f"${{{{ inputs.{name} }}}}" in text or f"inputs.{name} !=" in text
    used = set(re.findall(r"\bIN_[A-Z_]+", (ACTION / "cachec-ci.sh").read_text()))
    given = set(re.findall(r"^        (IN_[A-Z_]+):", text, re.MULTILINE))
    assert used == given
    assert re.findall(r"^      run: (.*)$", text, re.MULTILINE) == [
        'bash "$GITHUB_ACTION_PATH/cachec-ci.sh" plan',
        'bash "$GITHUB_ACTION_PATH/cachec-ci.sh" run',
    ]


def test_the_action_and_the_hooks_are_well_formed() -> None:
    yaml = pytest.importorskip("yaml")  # pre-commit brings it
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    steps = action["runs"]["steps"]
    assert [step.get("id") or step["uses"].split("@")[0] for step in steps] == [
        "plan",
        "actions/cache/restore",
        "run",
        "actions/cache/save",
    ]
    assert all(step["shell"] == "bash" for step in steps if "run" in step)
    used = set(re.findall(r"steps\.plan\.outputs\.(\w+)", (ACTION / "action.yml").read_text()))
    told = set(re.findall(r'echo "(\w+)=', (ACTION / "cachec-ci.sh").read_text()))
    assert used <= told
    assert steps[3]["if"] == "always() && steps.run.outputs.save == 'true'"
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [(hook["id"], hook["language"]) for hook in hooks] == [("cachec-check", "system"), ("cachec-warm", "system")]
