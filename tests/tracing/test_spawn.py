"""The same where this process is large: the child and the keeper are interpreters of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cachec.tracing import spawn
from cachec.tracing.accesses import Kind
from tests.tracing import test_failures
from tests.tracing.conftest import kinds, output, run

for _name in (
    *("exit_status_and_signals", "what_can_not_be_started_raises", "streams_and_readers", "signals_are_as_they_were"),
    *("a_program_by_another_name", "the_search_for_the_program_is_recorded", "ctrl_c_is_for_the_command"),
    *("the_keeper_takes_over_when_the_supervisor_is_killed", "an_exception_in_the_supervisor_ends_the_command"),
    *("the_keeper_answers_the_call_that_the_supervisor_had_received", "the_command_has_no_descriptor_of_ours"),
    *("a_signal_to_the_supervisor_goes_to_the_command", "a_process_that_is_left_behind_goes_on_and_is_named"),
    *("no_descriptor_and_no_process_stays", "a_nested_run_is_recorded_by_the_outer_supervisor", "an_unknown_machine"),
    *("no_access_to_the_memory_of_a_child", "a_filter_like_that_of_docker", "a_sandbox_without_seccomp"),
    *("an_ordinary_user", "a_signal_before_the_command_starts", "threads"),
):
    globals()[f"test_{_name}"] = getattr(test_failures, f"test_{_name}")
open_work = test_failures.open_work


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_LARGE_BYTES", 0)


def test_the_command_gets_what_a_fork_would_give_it(work: Path) -> None:
    """Words and variables that are no text, descriptors in any order, inherited ones, and the mask of new files."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_inheritable(writer, True)
    script = f'printf %s "$1$V" > /dev/fd/{writer}; echo out; echo err >&2; umask'
    before = os.umask(0o027)
    try:
        streams = {"stdout": 2, "stderr": 1, "env": {"PATH": os.environ["PATH"], "V": "\udcfe"}}
        with (work / "one").open("w") as one, (work / "two").open("w") as two:
            saved = [os.dup(1), os.dup(2)]
            os.dup2(one.fileno(), 1)
            os.dup2(two.fileno(), 2)
            try:
                accesses = run("sh", "-c", script, "sh", "\udcff", **streams)
            finally:
                for number, fd in enumerate(saved, start=1):
                    os.dup2(fd, number)
                    os.close(fd)
    finally:
        os.umask(before)
    assert os.read(reader, 10) == b"\xff\xfe"
    assert ((work / "one").read_text(), (work / "two").read_text().split()[:2]) == ("err\n", ["out", "0027"])
    assert not accesses.problems
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("interpreter", ["", "/none", "/bin/true", "/bin/cat"])
def test_without_an_interpreter_it_forks(work: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str) -> None:
    (work / "in").write_text("text")
    monkeypatch.setattr(sys, "executable", interpreter)
    accesses, text = output("cat", "in")
    assert (text, accesses.problems) == ("text", ())
    assert kinds(accesses, "in") == Kind.CONTENT


def test_a_nested_run_does_not_look_up_an_interpreter(work: Path) -> None:
    text = (
        "import os; from cachec.tracing import spawn; from cachec.tracing.supervisor import trace\n"
        "spawn._LARGE_BYTES = 0; r, w = os.pipe(); a = trace(['cat', 'in'], stdout=w)\n"
        "print(os.read(r, 9), a.problems, [each.path for each in a.inputs if 'python' in each.path])"
    )
    (work / "in").write_text("text")
    assert output(sys.executable, "-B", "-c", text)[1] == "b'text' () []\n"
