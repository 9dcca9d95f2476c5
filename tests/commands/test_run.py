"""A command inside a stage: what is recorded, what is not, and how it fails. Real processes throughout."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cachec import recording
from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.base.hashing import EMPTY, FileDigests, digest_bytes
from cachec.commands import run as command
from cachec.commands.environment import command_environment
from cachec.commands.process import end_session
from cachec.commands.run import run, scratch
from cachec.errors import CachecWarning, UsageError
from cachec.key.tools.environment import LOCALE_NAME
from cachec.key.tools.toolchain import ToolKeys
from cachec.key.trace_validation import ABSENT, PRESENT, Dependencies, lookup_digest
from cachec.model import Read, Reason
from cachec.recording import ReadRecorder


@pytest.fixture
def recorder() -> Iterator[ReadRecorder]:
    with recording.recording(ReadRecorder("stage")) as found:
        yield found
        found.drop_scratch()


@pytest.fixture
def weight(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"trained")
    return path


def reads(recorder: ReadRecorder, kind: str) -> dict[str, str]:
    return {read.where: read.digest for read in recorder.reads() if read.kind == kind}


def content(recorder: ReadRecorder, folder: Path) -> set[str]:
    """The files below a folder whose content counts, from there."""
    found = [read.where for read in recorder.reads() if read.kind in {"file", "content"}]
    return {os.path.relpath(path, folder) for path in found if path.startswith(f"{folder}/")}


def dependencies(environ: dict[str, str] | None = None) -> Dependencies:
    digests = FileDigests()
    return Dependencies(ToolKeys(digests, Distributions()), digests, environ)


def holds(recorder: ReadRecorder) -> bool:
    """Whether everything that was recorded is still as it was."""
    present = dependencies()
    return all(present.present(read) == read.digest for read in recorder.reads())


def sh(script: str, **options: object) -> command.CompletedCommand:
    return run(["sh", "-c", script], **options)  # type: ignore[arg-type]


# --- results and failures


def test_output_code_and_arguments(tmp_path: Path) -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3", tmp_path], check=False)
    assert result == (("sh", "-c", "echo out; echo err >&2; exit 3", str(tmp_path)), 3, b"out\n", b"err\n")


@pytest.mark.parametrize("weights", [False, True])
def test_a_failing_command_raises_what_subprocess_raises(recorder: ReadRecorder, weight: Path, weights: bool) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sh("echo out; echo err >&2; exit 7", weights={weight: "opened"} if weights else ())
    assert (caught.value.returncode, caught.value.output, caught.value.stderr) == (7, b"out\n", b"err\n")
    assert caught.value.cmd == ["sh", "-c", "echo out; echo err >&2; exit 7"]


def test_a_traceback_shows_the_end_of_what_a_failing_command_said(recorder: ReadRecorder) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sh(r"yes no | head -9999 >&2; printf 'a.mlir:3: \033[31merror: é\n  here\n' >&2; exit 1")
    *before, error, where = caught.value.__notes__
    assert (error, where) == ("a.mlir:3: \\x1b[31merror: é", "  here")
    assert 0 < len(before) < 3000


@pytest.mark.parametrize("weights", [False, True])
def test_a_command_that_dies_of_a_signal(recorder: ReadRecorder, weight: Path, weights: bool) -> None:
    result = sh("kill -SEGV $$", weights={weight: "opened"} if weights else (), check=False)
    assert result.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", ["PATH", "HOME", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "TERM", "LC_ALL"])
def test_what_every_command_gets(name: str) -> None:
    assert command_environment({name: "x", "OTHER": "y"}, ()) == {name: "x"}


def test_a_missing_program(recorder: ReadRecorder) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run(["no-such-program"])
    assert reads(recorder, "tool") == {"no-such-program": ABSENT}
    assert holds(recorder)


@pytest.mark.parametrize("weights", [False, True])
def test_a_program_that_cannot_be_executed(recorder: ReadRecorder, tmp_path: Path, weight: Path, weights: bool) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"not a program")
    bad.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        run([bad], weights={weight: "opened"} if weights else ())


def test_a_missing_output_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"sh ended well but did not write its output.*out\.bin"):
        sh("true", outputs=[tmp_path / "out.bin"])
    assert sh(f"echo x > {tmp_path}/out.bin", outputs=[tmp_path / "out.bin"]).returncode == 0


def test_an_input_that_is_no_file_is_refused(recorder: ReadRecorder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        sh("true", inputs=[tmp_path / "pipe"])


def test_a_missing_input_is_named_and_recorded(recorder: ReadRecorder, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.txt"):
        sh("true", inputs=[tmp_path / "absent.txt"])
    assert reads(recorder, "absent") == {str(tmp_path / "absent.txt"): EMPTY}


def _made(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


#: What is named and not there, and how it comes to be.
ABSENCES: dict[str, tuple[Callable[[Path], dict[str, Any]], Callable[[Path], object]]] = {
    "input": (lambda path: {"inputs": [path]}, _made),
    "standard input": (lambda path: {"stdin": path}, _made),
    "weights": (lambda path: {"weights": [path]}, _made),
    "weights that may be opened": (lambda path: {"weights": {path: "opened"}}, _made),
    "weights that are withheld": (lambda path: {"weights": {path: "withheld"}}, _made),
    "folder": (lambda path: {"cwd": path}, Path.mkdir),
    "tool": (lambda path: {"tools": [path]}, _made),
}


@pytest.mark.parametrize("name", ABSENCES)
def test_what_is_not_there_counts_and_is_the_same_error_outside_of_a_stage(name: str, tmp_path: Path) -> None:
    options, make = ABSENCES[name]
    path = tmp_path / "absent"
    with (
        recording.recording(ReadRecorder("stage")) as recorder,
        pytest.raises((FileNotFoundError, UsageError), match="absent") as caught,
    ):
        sh("true", **options(path))
    assert holds(recorder)
    if name != "tool":  # what it is matters to a record alone
        with pytest.raises(FileNotFoundError) as outside:
            sh("true", **options(path))
        assert str(outside.value) == str(caught.value)
    make(path)
    assert not holds(recorder)
    assert sh("true", **options(path)).returncode == 0


def test_a_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("")
    for timeout in (0.5, 5, 50):
        with pytest.raises(subprocess.TimeoutExpired):
            sh(f"sleep 600 & echo $! > {path}; wait", timeout=timeout)
        if path.read_text():
            break  # on a busy machine the shell may not have come so far
    gone(int(path.read_text()))


def gone(pid: int) -> None:
    for _ in range(500):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


def test_an_interrupt_ends_the_whole_group(tmp_path: Path) -> None:
    code = f"import cachec.commands.run as c; c.run(['sh', '-c', 'sleep 60 & echo $! > {tmp_path}/pid; echo; wait'])"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    child = written(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert b"KeyboardInterrupt" in stderr
    gone(child)


def test_a_termination_is_forwarded_and_then_obeyed(tmp_path: Path) -> None:
    script = f"trap 'echo seen > {tmp_path}/seen; exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.01; done"
    code = f"import cachec.commands.run as c; c.run(['sh', '-c', {script!r}]); print('went on')"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child = written(tmp_path / "pid")
    process.terminate()
    stdout, _ = process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert stdout == b""
    assert (tmp_path / "seen").read_text() == "seen\n"
    gone(child)


def written(path: Path) -> int:
    for _ in range(3000):
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def test_no_zombie_and_no_descriptor_is_left(recorder: ReadRecorder, weight: Path) -> None:
    sh("true", weights={weight: "opened"})
    before, others = len(os.listdir("/proc/self/fd")), children()
    for _ in range(3):
        sh("true", weights={weight: "opened"})
        sh("exit 1", check=False)
    assert len(os.listdir("/proc/self/fd")) == before
    assert children() <= others, "those of other tests may end meanwhile"


def children() -> set[str]:
    """Processes that this thread started, and that nobody has waited for yet."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_it_runs_in_a_thread() -> None:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(sh("echo there").stdout))
    thread.start()
    thread.join()
    assert found == [b"there\n"]


def test_a_status_is_told_where_the_process_ignores_its_children() -> None:
    found: list[object] = []

    def refused() -> None:
        with pytest.raises(ChildProcessError, match="SIGCHLD is ignored"):
            sh("exit 3")
        found.append("refused")

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        thread = threading.Thread(target=refused)
        thread.start()
        thread.join()
        with pytest.raises(subprocess.CalledProcessError) as failed:
            sh("exit 3")
        found.append(failed.value.returncode)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == ["refused", 3]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"command": "ls -l"}, "must be a list"),
        ({"command": []}, "must be a list"),
        ({"inputs": "a.txt"}, "inputs='a.txt' is one path"),
        ({"weights": "a.txt"}, "is one path"),
        ({"weights": {"a.txt": "name"}}, '"content", "opened" or "withheld"'),
        ({"env": "PATH"}, "one str"),
        ({"env": ["A=B"]}, "not the name of a variable"),
    ],
)
def test_wrong_use_is_refused(given: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        run(**{"command": ["true"], **given})  # type: ignore[arg-type]


# --- environment, standard input, descriptors


def test_the_environment_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAY", "1")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("KEYED", "k")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    lines = run(["/usr/bin/env"], env=["KEYED", "UNSET"]).stdout.decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {"PATH", "LC_ALL", "KEYED"} <= names
    assert not {"STRAY", "UNSET", "LD_LIBRARY_PATH"} & names


@pytest.mark.parametrize("weights", [False, True])
def test_a_mapping_gives_exactly_these_values(
    recorder: ReadRecorder, weight: Path, weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TODAY", "t")
    monkeypatch.setenv("LC_ALL", "C")
    options = {"weights": {weight: "opened"}} if weights else {}
    done = run(["/usr/bin/env"], env={"FIXED": "f=1", "TODAY": None, "EMPTY": ""}, **options)  # type: ignore[arg-type]
    lines = done.stdout.decode().splitlines()
    assert {"FIXED=f=1", "TODAY=t", "EMPTY="} <= set(lines)
    assert not [line for line in lines if line.startswith(("PYTHON", "LC_CTYPE"))]
    assert set(reads(recorder, "env")) == {"TODAY", "LD_LIBRARY_PATH", LOCALE_NAME}


def test_the_locale_is_recorded_and_others_of_the_kind_are_hidden(
    recorder: ReadRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_NUMERIC", "de_DE")
    monkeypatch.setenv("LC_TERMINAL", "one")
    lines = run(["/usr/bin/env"]).stdout.decode().splitlines()
    assert "LC_NUMERIC=de_DE" in lines
    assert not [line for line in lines if line.startswith("LC_TERMINAL")]
    assert holds(recorder)
    monkeypatch.setenv("LC_TERMINAL", "other")
    assert holds(recorder)
    monkeypatch.setenv("LC_NUMERIC", "C")
    assert not holds(recorder)
    monkeypatch.delenv("LC_NUMERIC")
    assert not holds(recorder)


def test_a_keyed_variable_is_recorded_and_checked(recorder: ReadRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYED", "1")
    sh("true", env=["KEYED"])
    assert holds(recorder)
    monkeypatch.setenv("STRAY", "2")
    assert holds(recorder)
    monkeypatch.setenv("KEYED", "2")
    assert not holds(recorder)


def test_the_library_path_is_keyed(recorder: ReadRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    sh("true")
    assert holds(recorder)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert not holds(recorder)


def test_standard_input_is_empty_bytes_or_a_recorded_file(recorder: ReadRecorder, tmp_path: Path) -> None:
    assert run(["cat"]).stdout == b""
    assert run(["cat"], stdin=b"some bytes").stdout == b"some bytes"
    assert reads(recorder, "file") == {}
    (tmp_path / "in.txt").write_bytes(b"from a file")
    assert run(["cat"], stdin=tmp_path / "in.txt").stdout == b"from a file"
    assert reads(recorder, "file") == {str(tmp_path / "in.txt"): digest_bytes(b"from a file")}


def test_no_descriptor_is_inherited_unless_given(recorder: ReadRecorder, weight: Path) -> None:
    fd = os.open(weight, os.O_RDONLY)
    os.set_inheritable(fd, True)
    reader = [sys.executable, "-c", f"import os; os.write(1, os.read({fd}, 99))"]
    try:
        refused = run(reader, check=False)
        assert refused.returncode == 1
        assert b"Bad file descriptor" in refused.stderr
        assert reads(recorder, "file") == {}
        assert run(reader, pass_fds=[fd]).stdout == b"trained"
        assert reads(recorder, "file") == {str(weight): digest_bytes(b"trained")}
    finally:
        os.close(fd)


def test_a_pipe_is_refused_in_a_stage(recorder: ReadRecorder) -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(UsageError, match="no regular file"):
            run(["true"], pass_fds=[read])
    finally:
        os.close(read)
        os.close(write)


# --- inputs, candidates, search, tools


def test_inputs_are_recorded_by_content(recorder: ReadRecorder, tmp_path: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_bytes(b"1")
    sh("true", inputs=["one.txt"], cwd=tmp_path)
    assert reads(recorder, "file") == {str(one): digest_bytes(b"1")}
    assert holds(recorder)
    (tmp_path / "other.txt").write_bytes(b"2")
    assert holds(recorder)
    one.write_bytes(b"2")
    assert not holds(recorder)
    one.unlink()
    assert not holds(recorder)


def test_an_empty_input_that_goes_away_is_a_change(recorder: ReadRecorder, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    sh("true", inputs=[tmp_path / "empty"])
    assert holds(recorder)
    (tmp_path / "empty").unlink()
    assert not holds(recorder)


def test_a_folder_is_an_input_with_all_below(recorder: ReadRecorder, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep/a.h").write_bytes(b"a")
    (tree / "loop").symlink_to(tree)
    sh("true", inputs=[tree])
    assert holds(recorder)
    (tree / "deep/a.h").write_bytes(b"b")
    assert not holds(recorder)
    (tree / "deep/a.h").write_bytes(b"a")
    assert holds(recorder)
    (tree / "deep/b.h").write_bytes(b"")
    assert not holds(recorder)


@pytest.mark.parametrize("script", ["echo 2 > one", "rm one", "echo 2 > one; echo 1 > one", "touch one"])
def test_an_input_that_the_command_changes_keeps_the_result_out(
    recorder: ReadRecorder, tmp_path: Path, script: str
) -> None:
    (tmp_path / "one").write_bytes(b"1")
    sh("cat one", inputs=["one"], cwd=tmp_path)
    assert recorder.storage_refusal() is None
    sh(script, inputs=["one"], cwd=tmp_path)
    assert kept_out(recorder) == ("bypass:input-changed-during-run", str(tmp_path / "one"))


def kept_out(recorder: ReadRecorder) -> tuple[str, str]:
    found = recorder.storage_refusal()
    assert found is not None
    return found[0].value, next(word for word in found[1].split() if word.startswith("/"))


def test_what_keeps_a_nested_run_out_keeps_the_outer_one_out(recorder: ReadRecorder, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    with recording.recording(ReadRecorder("inner", parent=recorder)):
        sh("echo 2 > one", inputs=["one"], cwd=tmp_path)
    assert recorder.storage_refusal() is not None


def test_an_output_that_was_there_and_is_not_written_keeps_the_result_out(
    recorder: ReadRecorder, tmp_path: Path
) -> None:
    (tmp_path / "out").write_bytes(b"of before")
    sh("echo 2 > out", outputs=["out"], cwd=tmp_path)
    assert recorder.storage_refusal() is None
    sh("true", outputs=["out"], cwd=tmp_path)
    assert kept_out(recorder) == ("bypass:undescribed-effect", str(tmp_path / "out"))


@pytest.mark.parametrize("script", ["sed -i s/v/w/ out", "echo tail >> out", "chmod 600 out", "touch out"])
def test_an_output_that_was_used_before_it_was_written(recorder: ReadRecorder, tmp_path: Path, script: str) -> None:
    (tmp_path / "out").write_text("v2\n")
    time.sleep(0.05)
    sh(script, outputs=["out"], cwd=tmp_path)
    found = recorder.storage_refusal()
    assert found is not None
    assert f"{tmp_path}/out" in found[1]


def test_an_output_that_was_not_there_to_be_used(recorder: ReadRecorder, tmp_path: Path) -> None:
    sh("echo tail >> out", outputs=["out"], cwd=tmp_path)
    assert recorder.storage_refusal() is None
    (tmp_path / "out").unlink()
    assert holds(recorder)
    (tmp_path / "out").write_text("v3\n")
    assert not holds(recorder)


def test_an_output_of_the_stage_itself_may_be_there_before(recorder: ReadRecorder) -> None:
    with scratch() as folder:
        (folder / "out").write_bytes(b"made by the stage")
        sh("true", inputs=[folder / "out"], outputs=[folder / "out"])
    assert recorder.storage_refusal() is None
    recorder.drop_scratch()


@pytest.mark.parametrize("weights", [False, True])
def test_a_process_that_goes_on_keeps_the_result_out(recorder: ReadRecorder, weight: Path, weights: bool) -> None:
    pid = int(sh("sleep 60 >/dev/null 2>&1 & echo $!", weights={weight: "opened"} if weights else ()).stdout)
    os.kill(pid, signal.SIGKILL)  # it still goes on: nobody waited for it
    found = recorder.storage_refusal()
    assert found is not None
    assert "left a process behind" in found[1]


def test_candidates_are_there_or_absent(recorder: ReadRecorder, tmp_path: Path) -> None:
    (tmp_path / "there.h").write_bytes(b"1")
    sh("true", candidates=["there.h", "not.h"], cwd=tmp_path)
    assert reads(recorder, "absent") == {str(tmp_path / "not.h"): EMPTY}
    assert reads(recorder, "file") == {str(tmp_path / "there.h"): digest_bytes(b"1")}
    assert holds(recorder)
    (tmp_path / "not.h").write_bytes(b"")
    assert not holds(recorder)


def test_names_in_a_searched_folder(recorder: ReadRecorder, tmp_path: Path) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "a.h").write_bytes(b"1")
    sh("true", search=[include, tmp_path / "none"])
    assert reads(recorder, "listing")[str(tmp_path / "none")] == ABSENT
    assert holds(recorder)
    (include / "a.h").write_bytes(b"2")
    assert holds(recorder)  # its name counts; its content does where it is an input
    (include / "b.h").write_bytes(b"")
    assert not holds(recorder)
    (include / "b.h").unlink()
    assert holds(recorder)
    (tmp_path / "none").mkdir()
    assert not holds(recorder)


def test_writing_an_output_into_a_searched_folder_is_no_contradiction(recorder: ReadRecorder, tmp_path: Path) -> None:
    sh("echo > out", search=[tmp_path], outputs=["out"], cwd=tmp_path)
    assert recorder.contradictions() == ()
    assert holds(recorder)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_program_and_its_helpers_are_recorded(recorder: ReadRecorder, tmp_path: Path) -> None:
    main, helper = program(tmp_path / "main", "exec ./helper"), program(tmp_path / "helper", "echo 1")
    assert run(["./main"], tools=["./helper"], cwd=tmp_path).stdout == b"1\n"
    assert {os.path.normpath(where) for where in reads(recorder, "tool")} == {str(main), str(helper)}
    assert holds(recorder)
    program(helper, "echo 2")
    assert not holds(recorder)
    program(helper, "echo 1")
    assert holds(recorder)
    main.unlink()
    assert not holds(recorder)


def test_a_name_in_path_is_looked_up_again(
    recorder: ReadRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "b/mycc", "echo 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b:{os.environ['PATH']}")
    run(["mycc"])
    assert holds(recorder)
    program(tmp_path / "a/mycc", "echo 2")
    assert not holds(recorder)
    program(tmp_path / "a/mycc", "echo 1")
    assert holds(recorder)  # the same program in another place


def test_a_fixed_path_is_looked_up_in_the_same_way_later(recorder: ReadRecorder, tmp_path: Path) -> None:
    program(tmp_path / "b/mycc", "echo 1")
    run(["mycc"], env={"PATH": f"{tmp_path}/b:/bin", "LD_LIBRARY_PATH": str(tmp_path)})
    assert holds(recorder)
    program(tmp_path / "b/mycc", "echo 2")
    assert not holds(recorder)


def test_a_program_that_changes_while_it_runs(recorder: ReadRecorder, tmp_path: Path) -> None:
    tool = program(tmp_path / "tool", "echo '# more' >> \"$0\"")
    run([tool])
    assert reads(recorder, "tool").keys() == {str(tool)}
    assert not holds(recorder)


# --- weights


@pytest.mark.parametrize("weights", ["list", "mapping"])
def test_content_is_the_default(recorder: ReadRecorder, weight: Path, weights: str) -> None:
    sh("true", weights=[weight] if weights == "list" else {weight: "content"})
    assert reads(recorder, "file") == {str(weight): digest_bytes(b"trained")}


def test_an_opened_weight_that_nobody_opened_is_not_recorded(recorder: ReadRecorder, weight: Path) -> None:
    sh(f"test -f {weight}; ls {weight.parent}", weights={weight: "opened"})
    assert reads(recorder, "file") == {}
    assert recorder.contradictions() == ()


@pytest.mark.parametrize(
    "script",
    [
        "cat weights.bin",
        "cat symbolic",
        "cat hard",
        "cat folder/weights.bin",
        "exec 3<weights.bin; exec 3<&-",
        "sh -c 'sh -c \"cat hard\"'",
        "(cat symbolic &) ; sleep 0.2",
        "cp weights.bin copy",
    ],
)
def test_an_opened_weight_is_recorded_however_it_was_opened(recorder: ReadRecorder, weight: Path, script: str) -> None:
    (weight.parent / "symbolic").symlink_to(weight)
    (weight.parent / "hard").hardlink_to(weight)
    (weight.parent / "folder").symlink_to(weight.parent)
    time.sleep(0.05)  # a file that was changed just now, by its time, may have been changed while the command ran
    sh(script, weights={weight: "opened"}, cwd=weight.parent)
    assert recorder.storage_refusal() is None
    assert holds(recorder)
    weight.write_bytes(b"another")
    assert not holds(recorder)


def test_only_the_weight_that_was_opened(recorder: ReadRecorder, weight: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"other")
    subprocess.run(["cat", weight], capture_output=True, check=True)  # by another process
    sh("cat other.bin", weights={weight: "opened", other: "opened"}, cwd=tmp_path)
    assert content(recorder, tmp_path) == {"other.bin"}


def daemon(action: str) -> str:
    """A classic daemon: two forks, a session of its own, every descriptor closed."""
    return (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 256)\n"
        f"        {action}\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["sh", "-c", "sleep 5 >/dev/null 2>&1 &"],
        ["sh", "-c", "sleep 0.2 &"],
        [sys.executable, "-c", daemon("time.sleep(5)")],
    ],
    ids=["background", "holds-stdout", "daemon"],
)
def test_a_surviving_child_keeps_the_result_out(recorder: ReadRecorder, arguments: list[str]) -> None:
    run(arguments)
    found = recorder.storage_refusal()
    assert found is not None
    assert found[0] is Reason.UNDESCRIBED


def test_a_daemon_that_ended_in_time_does_not_count(recorder: ReadRecorder, weight: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "pid")
    write = f"open('{path}.new', 'w').write(str(os.getpid())); os.rename('{path}.new', '{path}')"
    until_gone = f"""
while not os.path.exists({path!r}): time.sleep(0.01)
def lives():
    try:
        return ") Z" not in open("/proc/" + open({path!r}).read() + "/stat").read()
    except (FileNotFoundError, ProcessLookupError):
        return False
while lives(): time.sleep(0.01)
"""
    run([sys.executable, "-c", daemon(write) + until_gone], weights={weight: "opened"})
    assert content(recorder, tmp_path) == set()
    assert recorder.storage_refusal() is None


def test_what_is_given_otherwise_opens_no_weight(weight: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    fd = os.open(tmp_path / "other", os.O_RDONLY)
    try:
        for options in ({"stdin": b"x"}, {"stdin": tmp_path / "other"}, {"pass_fds": [fd]}):
            with recording.recording(ReadRecorder("stage")) as recorder:
                sh("true", weights={weight: "opened"}, **options)
            assert str(weight) not in reads(recorder, "file"), options
    finally:
        os.close(fd)


@pytest.mark.parametrize("script", ["echo new > n; mv n weights.bin", "echo more >> weights.bin", "rm weights.bin"])
def test_a_weight_that_is_replaced_meanwhile_keeps_the_result_out(
    recorder: ReadRecorder, weight: Path, script: str
) -> None:
    sh(script, weights={weight: "opened"}, cwd=weight.parent)
    assert kept_out(recorder) == ("bypass:input-changed-during-run", str(weight))


def test_a_command_that_was_ended_keeps_the_result_out(recorder: ReadRecorder, weight: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        sh("sleep 60", weights={weight: "opened"}, timeout=0.3)
    assert caught.value.cmd == ["sh", "-c", "sleep 60"]
    found = recorder.storage_refusal()
    assert found is not None
    assert found[0] is Reason.UNTRACED


def test_a_withheld_weight_is_not_recorded(recorder: ReadRecorder, weight: Path) -> None:
    sh("true", weights={weight: "withheld"})
    assert content(recorder, weight.parent) == set()


def test_a_withheld_weight_that_is_named_is_refused(weight: Path) -> None:
    link = weight.parent / "link"
    link.symlink_to(weight)
    options = {"weights": {weight: "withheld"}}
    for arguments in ([weight], [f"--params=m={weight}"], ["--params", "x/weights.bin"]):
        with pytest.raises(UsageError, match="withheld"):
            run(["true", *arguments], **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="withheld"):
        run(["true"], env={"PARAMS": str(weight)}, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="withheld"):
        run(["true", weight], weights={link: "withheld"})
    assert run(["true", "weights.binary"], **options).returncode == 0  # type: ignore[arg-type]


def test_a_withheld_weight_that_is_opened_counts_with_a_warning(recorder: ReadRecorder, weight: Path) -> None:
    (weight.parent / "alias").hardlink_to(weight)
    with pytest.warns(CachecWarning, match="was to be withheld"):
        sh("cat alias", weights={weight: "withheld"}, cwd=weight.parent)
    assert content(recorder, weight.parent) == {"alias"}


def test_a_missing_weight_is_named(recorder: ReadRecorder, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        sh("true", weights={tmp_path / "absent": "opened"})


IREE = shutil.which("iree-compile", path=os.path.abspath(Path(sys.executable).parent))


@pytest.mark.skipif(IREE is None, reason="iree-base-compiler is not installed")
@pytest.mark.parametrize("phase", ["--compile-to=flow", "--iree-hal-target-backends=llvm-cpu"])
def test_the_real_iree_compile_opens_no_weight_file(recorder: ReadRecorder, tmp_path: Path, phase: str) -> None:
    weights, source = tmp_path / "model.irpa", tmp_path / "in.mlir"
    weights.write_bytes(b"bytes that no compiler needs")
    source.write_text("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n")
    arguments = [str(IREE), "in.mlir", phase, "-o", "out"]
    run(arguments, inputs=["in.mlir"], outputs=["out"], weights={weights: "opened"}, cwd=tmp_path)
    assert content(recorder, tmp_path) == {"in.mlir"}
    assert str(IREE) in reads(recorder, "tool")
    assert recorder.contradictions() == ()
    assert holds(recorder)
    source.write_text("module {}\n")
    assert not holds(recorder)


# --- the trace

UNDECLARED = {
    "content": ("cat in.txt", "in.txt", b"2"),
    "there": ("test -f in.txt", "in.txt", None),
    "absent": ("test -f absent || true", "absent", b""),
    "names": ("ls sub", "sub/more", b""),
    "below a folder": ("cat sub/*", "sub/one", b"2"),
    "of a helper": ("./helper", "data", b"2"),
    "the helper itself": ("./helper", "helper", b"#!/bin/sh\ntrue\n"),
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_what_a_command_looked_up_counts_though_nobody_declared_it(
    recorder: ReadRecorder, tmp_path: Path, name: str
) -> None:
    script, path, text = UNDECLARED[name]
    for each, data in {"in.txt": b"1", "other": b"1", "data": b"1", "sub/one": b"1"}.items():
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(data)
    program(tmp_path / "helper", "cat data")
    time.sleep(0.05)
    sh(script, cwd=tmp_path)
    assert recorder.storage_refusal() is None
    (tmp_path / "other").write_bytes(b"2")
    assert holds(recorder)
    if text is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).write_bytes(text)
    assert not holds(recorder)


def test_a_folder_that_was_moved_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a/sub/deep").mkdir(parents=True)
    (tmp_path / "a/link").symlink_to("sub/deep")
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    for path in ("sub", "link", "sub/../sub"):
        assert lookup_digest(str(tmp_path / "a" / path), "") == lookup_digest(str(tmp_path / "b" / path), "")
    (tmp_path / "b/link").unlink()
    (tmp_path / "b/link").symlink_to("sub")
    assert lookup_digest(str(tmp_path / "b/link"), "") != lookup_digest(str(tmp_path / "a/link"), "")


def test_a_product_of_one_command_is_no_input_of_the_next(recorder: ReadRecorder, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    time.sleep(0.05)
    sh("ls sub; cat in > sub/made", cwd=tmp_path, outputs=["sub/made"])
    sh("ls sub; cat sub/made > out", cwd=tmp_path, outputs=["out"])
    assert recorder.storage_refusal() is None
    assert recorder.contradictions() == ()
    assert content(recorder, tmp_path) == {"in"}
    (tmp_path / "sub/made").unlink()
    assert holds(recorder)


EFFECTS = {
    "a file": ("echo > {0}/side", "side, which is none of its outputs"),
    "a removed file": ("rm {0}/there", "it removed"),
    "a changed file": ("echo more >> {0}/there", "there, which is none of its outputs"),
    "the network": (f"{sys.executable} -c 'import socket; socket.socket().connect_ex((\"127.0.0.1\", 9))'", "network"),
    "a device": ("cat /dev/fuse || true", "device"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_side_effect_keeps_the_result_out(
    recorder: ReadRecorder, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cachec.commands import stage_command

    script, words = EFFECTS[name]
    (tmp_path / "there").write_bytes(b"1")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(stage_command, "_TEMPORARY", ())  # the folder of the test is below /tmp
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    time.sleep(0.05)
    sh(f"echo > {tmp_path}/out; echo > $TMPDIR/x", outputs=[tmp_path / "out"])
    with scratch() as folder:
        sh("echo > in; cat in > out; rm in", cwd=folder)
    assert recorder.storage_refusal() is None
    sh(script.format(tmp_path), check=False)
    found = recorder.storage_refusal()
    assert found is not None
    assert words in found[1]


def test_a_run_without_a_tracer_keeps_the_result_out(recorder: ReadRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert run(["cat"], stdin=b"text").stdout == b"text"
    found = recorder.storage_refusal()
    assert found is not None
    assert found[0] is Reason.UNTRACED


def test_commands_in_many_threads_beside_other_children(tmp_path: Path) -> None:
    """Each has its own trace, and nobody reaps what is another's."""
    for number in range(6):
        (tmp_path / f"in{number}").write_bytes(b"%d" % number)
    time.sleep(0.05)
    others = [subprocess.Popen(["sh", "-c", f"sleep 0.{number}; exit {number}"]) for number in range(6)]

    def work(number: int) -> tuple[bytes, set[str]]:
        with recording.recording(ReadRecorder("stage")) as recorder:
            done = sh(f"(cat in{number} &) ; sleep 0.2; sh -c 'cat in{number}'", cwd=tmp_path)
            assert recorder.storage_refusal() is None
            return done.stdout, content(recorder, tmp_path)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(6)))
    assert results == [(b"%d" % number * 2, {f"in{number}"}) for number in range(6)]
    assert [each.wait() for each in others] == list(range(6))


# --- scratch folders, and no stage


def test_products_of_the_stage_are_not_recorded(recorder: ReadRecorder, weight: Path) -> None:
    with scratch() as folder:
        (folder / "in.mlir").write_bytes(b"ir")
        program(folder / "tool", "true")
        (folder / "link").symlink_to(weight)
        run([folder / "tool"], inputs=[folder / "in.mlir"], search=[folder], candidates=[folder / "no"])
        assert reads(recorder, "file") == reads(recorder, "listing") == {}
        assert reads(recorder, "tool").keys() == {"/bin/sh"}
        assert not [read for read in recorder.reads() if str(folder) in read.where]
        sh("true", inputs=[folder / "link"])
        assert reads(recorder, "file") == {str(weight): digest_bytes(b"trained")}
    assert (folder / "in.mlir").exists(), "the result may be a file in there: the run owns the folder"
    recorder.drop_scratch()
    assert not folder.exists()
    assert holds(recorder)


def test_a_scratch_folder_outside_a_stage_ends_with_its_body() -> None:
    assert recording.current() is None
    with scratch() as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_scratch_folders_nest_and_end(recorder: ReadRecorder, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with scratch() as outer, scratch() as inner:
        for folder in (outer, inner):
            (folder / "x").write_bytes(b"")
            sh("true", inputs=[folder / "x"])
    sh("true", inputs=[tmp_path / "x"])
    assert set(reads(recorder, "file")) == {str(tmp_path / "x")}


def test_outside_a_stage_it_just_runs(weight: Path) -> None:
    assert recording.current() is None
    assert sh("cat weights.bin", weights={weight: "opened"}, cwd=weight.parent).stdout == b"trained"


def test_a_nested_recorder_passes_on(weight: Path) -> None:
    outer = ReadRecorder("outer")
    with recording.recording(ReadRecorder("inner", outer)):
        sh("true", inputs=[weight])
    assert str(weight) in reads(outer, "file")


# --- dependencies


def test_something_where_nothing_was(tmp_path: Path) -> None:
    read = Read("absent", str(tmp_path / "x"), "", EMPTY)
    assert dependencies().present(read) == EMPTY
    (tmp_path / "x").symlink_to("target")
    assert dependencies().present(read) == EMPTY  # it can't be opened any more than before
    (tmp_path / "target").write_bytes(b"")
    assert dependencies().present(read) == PRESENT


def test_a_weight_is_not_for_dependencies() -> None:
    with pytest.raises(ValueError, match="weight"):
        dependencies().present(Read("weight", "w", "scale", EMPTY))


def test_an_unchanged_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = dependencies()
    monkeypatch.setattr(FileDigests, "trusts", lambda *_: True)
    before = present.listing(str(tmp_path))
    monkeypatch.setattr(os, "listdir", lambda _: ["other"])
    assert present.listing(str(tmp_path)) == before
    (tmp_path / "new").write_bytes(b"")
    assert present.listing(str(tmp_path)) != before


def test_importing_run_starts_nothing_heavy() -> None:
    heavy = ("subprocess", "ctypes", "numpy", "tempfile")
    code = f"import sys, cachec.commands.run; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_left_of_a_session_is_ended_and_no_other_of_its_number() -> None:
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as another:
        end_session(another.pid)
        assert another.poll() is None
        another.kill()
    with subprocess.Popen(
        ["sh", "-c", "sleep 100 & echo $!"], start_new_session=True, stdout=subprocess.PIPE
    ) as leader:
        assert leader.stdout is not None
        left = int(leader.stdout.readline())
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        with fsio.closing(os.pidfd_open(left)) as held:
            end_session(leader.pid)
            assert select.select([held], [], [], 60)[0]
