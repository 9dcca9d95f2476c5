"""What goes wrong: dead workers, endless targets, entry points that are not there, interrupts, two warmings at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from cachec import config, warm
from cachec.warm.pool import WorkerPool

from .conftest import CLI, Project, statuses

SLOW = """
    [warm.targets.slow]
    call = "stages:doubled"
    matrix = { n = [1, 2, 3, 4] }
    arguments = { seconds = 0.4 }
"""


def until(what: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


#: What is declared, and what is told of it; ``{t}`` is the name of the target.
IMPOSSIBLE = [
    ('call = "absent:f"', "no module 'absent' for absent:f; the folders of `path` are: none"),
    ('call = "stages.deeper:f"', "no module 'stages.deeper' for stages.deeper:f"),
    ('call = "stages:absent"', "stages.py) has no 'absent'"),
    ('call = "stages:LOG"', "stages:LOG is a str, which can't be called"),
    ('call = "syntax:f"', "SyntaxError: "),
    ('call = "raises:f"', "RuntimeError: at import"),
    ('call = "needs:f"', "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ('call = "stages:nothing"', "stages:nothing called no stage; a target is a stage, or calls stages"),
    ('call = "stages:double"', "does not take the arguments of {t}: missing a required argument: 'n'"),
    ('call = "stages:double"\nmatrix = { m = [1] }', "the row gives m"),
    ('call = "leaves:f"', "its worker ended with status 3"),
    ('call = "dies:f"', "its worker was ended by SIGKILL"),
    ('call = "exits:f"', "SystemExit: 4"),
    ('call = "words:no_text"', "ValueError: a\\udcff"),
    ('call = "words:no_words"', "Mute: (its text can't be had: ZeroDivisionError)"),
    ('call = "words:many"', "ValueError: xxx"),
    ('call = "loops:f"\ntimeout = 4', "it did not end in 4 s and was killed; raise `timeout`"),
]


@pytest.mark.long
def test_targets_that_can_not_be_run(project: Project) -> None:
    """All in one warming, each between targets that can be run."""
    project.write("syntax.py", "def f(:\n")
    project.write("raises.py", "raise RuntimeError('at import')\n")
    project.write("needs.py", "import nowhere_to_be_found\n")
    project.write("leaves.py", "import os\ndef f():\n    print('bye', flush=True)\n    os._exit(3)\n")
    project.write("dies.py", "import os, signal\ndef f():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    project.write("exits.py", "import sys\ndef f():\n    sys.exit(4)\n")
    project.write(
        "words.py",
        """
        class Mute(Exception):
            def __str__(self): return 1 / 0
        def no_text(): raise ValueError("a\\udcff")
        def no_words(): raise Mute
        def many(): raise ValueError("x" * 10_000_000)
        """,
    )
    project.write("loops.py", "def f():\n    print('going')\n    while True:\n        pass\n")
    named = {
        f"bad{at}": (fields.replace("{{", "{").replace("}}", "}"), words)
        for at, (fields, words) in enumerate(IMPOSSIBLE)
    }
    project.targets(
        "".join(
            f"[warm.targets.{t}]\n{fields}\n"
            f'[warm.targets.fine-{t}]\ncall = "stages:doubled"\narguments = {{ n = {at} }}\n'
            for at, (t, (fields, _)) in enumerate(named.items())
        )
    )
    summary = project.warm(jobs=1)
    results = {result.id.partition("[")[0]: result for result in summary.results}
    assert len(results) == 2 * len(IMPOSSIBLE)
    for t, (fields, words) in named.items():
        result = results[t]
        assert result.status.value == "failed", fields
        assert results[f"fine-{t}"].status.value == "compiled", "the others went on"
        assert words.format(t=t) in result.error + result.output
        assert len(result.error) < 3000
        if "leaves" in fields:
            assert "bye" in result.output
        if "loops" in fields:
            assert "going" in result.output
    assert sorted(project.runs) == sorted(f"double {n}" for n in range(len(IMPOSSIBLE)))
    checked = project.warm(check=True, jobs=1)
    assert checked.exit_code == 2
    assert [result.id.partition("[")[0] for result in checked.results if result.status.value == "failed"] == list(named)


def test_the_folder_of_a_row_is_gone(project: Project) -> None:
    row = warm.Row(id="t", target="t", axes={}, call="stages:nothing", folder=str(project.folder / "gone"))
    summary = warm.warm([row])
    assert "gone, can't be entered: No such file or directory" in summary.results[0].error


@pytest.mark.long
def test_a_worker_that_is_killed_costs_its_row_alone(project: Project) -> None:
    project.targets(SLOW)
    killed = []

    class Killer(warm.Listener):
        def on_start(self, row: warm.Row) -> None:
            if not killed:
                threading.Thread(target=self.kill, daemon=True).start()

        def kill(self) -> None:
            until(lambda: project.runs)
            until(lambda: pool.pids)
            killed.append(pool.pids[0])
            os.kill(killed[0], signal.SIGKILL)

    with WorkerPool(1) as pool:
        summary = project.warm(executor=pool, jobs=1, listener=Killer())
    assert Counter(statuses(summary).values()) == {"failed": 1, "compiled": 3}
    assert "its worker was ended by SIGKILL" in next(r.error for r in summary.results if r.error)
    assert set(statuses(project.warm()).values()) == {"hit", "compiled"}
    assert project.warm(check=True).exit_code == 0


@pytest.mark.long
def test_compilers_that_a_killed_row_had_started_end_too(project: Project) -> None:
    project.write(
        "child.py",
        "import subprocess, os\n"
        "def f():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    open('new', 'w').write(str(child.pid))\n"
        "    os.rename('new', 'pid')\n"
        "    child.wait()\n",
    )
    for timeout in (1, 10, 100):
        project.targets(f'[warm.targets.t]\ncall = "child:f"\ntimeout = {timeout}\n')
        assert project.warm().exit_code == 2
        if (project.folder / "pid").exists():
            break  # on a busy machine the row may not have come so far
    pid = int((project.folder / "pid").read_text())
    until(lambda: not alive(pid))


@pytest.mark.long
def test_ctrl_c_stops_cleanly_and_keeps_what_is_done(project: Project) -> None:
    project.targets(SLOW.replace("0.4", "0.5"))
    process = subprocess.Popen(
        [*CLI, "warm", "--jobs", "1", "--json"],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: len(project.runs) == 2)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    told = json.loads(stdout)
    assert (told["compiled"], told["cancelled"]) == (1, 3)
    assert b"Traceback" not in stderr
    again = project.warm(jobs=2)
    assert Counter(statuses(again).values()) == {"hit": 1, "compiled": 3}


@pytest.mark.long
@pytest.mark.parametrize("wait_for", [0, 1, 3])
def test_a_warming_that_is_killed_leaves_no_worker_and_the_next_ends_where_it_would(
    project: Project, wait_for: int
) -> None:
    project.targets(SLOW)
    process = subprocess.Popen([*CLI, "warm", "--jobs", "2"], cwd=project.folder, stderr=subprocess.DEVNULL)
    until(lambda: len(project.runs) >= wait_for)
    time.sleep(0.2)
    children = [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    children += [int(each) for task in threads for each in (task / "children").read_text().split()]
    process.kill()
    process.wait()
    for child in children:
        until(lambda child=child: not alive(child))
    assert project.warm(jobs=2).exit_code == 0
    assert project.warm(check=True).exit_code == 0
    assert not [name for name in os.listdir(project.store / "locks") if os.listdir(project.store / "locks" / name)]


@pytest.mark.long
def test_two_warmings_at_once_compile_each_thing_once(project: Project) -> None:
    project.targets(SLOW)
    both = [
        subprocess.Popen([*CLI, "warm", "--jobs", "2", "--json"], cwd=project.folder, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert Counter(project.runs) == {f"double {n}": 1 for n in (1, 2, 3, 4)}
    assert sum(each["compiled"] for each in told) == 4


def test_cancelling_from_another_thread(project: Project) -> None:
    project.targets(SLOW.replace("0.4", "3000"))
    declared = warm.load()
    warmer = warm.Warmer(declared.rows, jobs=2, settings=config.load())
    thread = threading.Thread(target=warmer.run)
    thread.start()
    until(lambda: len(project.runs) == 2)
    warmer.cancel()
    thread.join()
    assert set(statuses(warmer.summary()).values()) == {"cancelled"}


def test_a_store_that_can_not_be_written_is_told(project: Project) -> None:
    project.targets(SLOW.replace("0.4", "0.0"))
    project.store.parent.mkdir(exist_ok=True)
    project.store.write_text("no folder")
    summary = project.warm()
    assert summary.exit_code == 2
    assert re.search(r"ran, but its result is not stored \((store-missing|io-error)\)", summary.results[0].error)


def test_what_a_target_prints_is_bounded_and_its_own(project: Project) -> None:
    project.write("chatty.py", "def f(n):\n    print(f'<{n}>' * 20000)\n    raise ValueError('x')\n")
    project.targets('[warm.targets.t]\ncall = "chatty:f"\nmatrix = { n = [1, 2] }\n')
    for result, own in zip(project.warm(jobs=1).results, ("<1>", "<2>"), strict=True):
        assert len(result.output) < 20000
        assert own in result.output
        assert ("<2>" if own == "<1>" else "<1>") not in result.output


def test_the_pool_runs_nothing_but_rows() -> None:
    with WorkerPool(1) as pool, pytest.raises(TypeError, match="run_task"):
        pool.submit(print, "x")
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(warm.schedule.run_task, None)  # type: ignore[attr-defined]


def test_a_worker_that_can_not_be_started_ahead_is_started_with_the_row(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.targets('[warm.targets.fine]\ncall = "stages:doubled"\nmatrix = { n = [1] }\n')
    start = subprocess.Popen.__init__
    tries = []

    def refuse(self: object, *args: object, **named: object) -> None:
        tries.append(args)
        if len(tries) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(self, *args, **named)  # type: ignore[misc]

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    with WorkerPool(1) as pool:
        pool.prestart()
        until(lambda: tries)
        assert set(statuses(project.warm(executor=pool, jobs=1)).values()) == {"compiled"}
    assert len(tries) == 2
