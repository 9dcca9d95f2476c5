"""Warming by many machines: a scheduler and workers of Dask, each worker with a checkout and a store of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cachec.events import read_log
from cachec.warm.model import Row
from tests.warm.conftest import Project

pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")

STAGES = """
    import time
    import cachec

    cache = cachec.Cache()

    @cache.stage(ignore=["seconds"])
    def double(n: int, seconds: float = 0.0) -> int:
        time.sleep(seconds)
        return 2 * n

    def doubled(n, seconds=0.0):
        double(n, seconds)
"""
TARGETS = """
    [warm.targets.double]
    call = "stages:doubled"
    matrix = { n = [1, 2, 3, 4, 5, 6] }
"""
#: Seconds in which a scheduler and its workers begin.
_BEGIN = 60.0


class Machines:
    """A scheduler, and workers that are told apart by number."""

    def __init__(self, folder: Path, project: Project) -> None:
        self.folder, self._project = folder, project
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self._file = folder / "scheduler.json"
        self.remote = f"file://{folder / 'remote'}"
        self._start("scheduler", {}, "--port", "0")
        self.until(self._file.exists)

    def _start(self, kind: str, environ: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self._file)]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--no-dashboard", *words],
            env={**os.environ, **environ},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    def place(self, number: int) -> Path:
        """Where a worker has its checkout."""
        return self.folder / f"machine{number}" / "src"

    def add(self, number: int, *, checkout: bool = True, **environ: str) -> None:
        """Start a worker."""
        if checkout:
            shutil.copytree(self._project.folder, self.place(number))
        self.place(number).parent.mkdir(exist_ok=True)
        own = {"CACHEC_DIR": str(self.folder / f"machine{number}/store"), "CACHEC_WARM_FOLDER": str(self.place(number))}
        words = ("--nthreads", "1", "--no-nanny", "--name", str(number))
        self.workers[number] = self._start("worker", {**own, **environ}, *words, "--local-directory", str(self.folder))

    def compiled(self, *numbers: int) -> int:
        """How many results machines stored."""
        stores = [self.place(number).with_name("store") for number in numbers]
        return sum(each.stored for store in stores if store.exists() for each in read_log(store))

    @property
    def url(self) -> str:
        address: str = msgspec.json.decode(self._file.read_bytes())["address"]
        return address.replace("tcp://", "dask://")

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + _BEGIN
        while not is_so():
            assert time.monotonic() < end
            assert all(each.poll() is None for each in self._processes[:1])
            time.sleep(0.02)

    def until_there(self, count: int) -> None:
        from distributed import Client

        with Client(self.url.replace("dask", "tcp"), set_as_default=False) as client:
            client.wait_for_workers(count, timeout=_BEGIN)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@pytest.fixture
def machines(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    project.write("stages.py", STAGES)
    project.targets(TARGETS)
    monkeypatch.delenv("CACHEC_DIR")
    made = Machines(tmp_path, project)
    monkeypatch.setenv("CACHEC_REMOTE", made.remote)
    (tmp_path / "remote").mkdir(mode=0o700)
    monkeypatch.setenv("CACHEC_DIR", str(project.store))
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.long
def test_machines_compile_each_row_once_and_all_of_it_comes_here(machines: Machines, project: Project) -> None:
    for number in range(3):
        machines.add(number)
    machines.until_there(3)
    done = project.command("warm", "--executor", machines.url, "--materialize", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = msgspec.json.decode(done.stdout)
    assert (told["hit"], told["compiled"]) == (6, 0), "nothing is compiled here"
    assert machines.compiled(0, 1, 2) == 6
    again = project.command("warm", "--executor", machines.url)
    assert again.stdout.startswith("6 hit")
    assert machines.compiled(0, 1, 2) == 6, "what one compiled is a hit for the others"


@pytest.mark.long
def test_rows_of_a_machine_that_dies_run_elsewhere_and_one_that_comes_late_helps(
    machines: Machines, project: Project
) -> None:
    project.targets(TARGETS + "arguments = { seconds = 1.0 }\n")
    machines.add(0)
    machines.until_there(1)
    ended: list[subprocess.CompletedProcess[str]] = []
    words = ("warm", "--executor", machines.url)
    warming = threading.Thread(target=lambda: ended.append(project.process(*words)))
    warming.start()
    machines.until(lambda: machines.compiled(0) > 0)
    machines.add(1)
    machines.until_there(2)
    machines.until(lambda: machines.compiled(1) > 0)
    machines.workers[0].send_signal(signal.SIGKILL)
    warming.join(_BEGIN)
    assert ended[0].returncode == 0, ended[0].stderr
    assert machines.compiled(0, 1) >= 6
    project.targets(TARGETS)
    assert project.command("warm").stdout.startswith("6 hit"), "all of it is at the remote"


@pytest.mark.long
def test_what_a_machine_lacks_is_told(machines: Machines, project: Project) -> None:
    machines.add(0, checkout=False)
    machines.until_there(1)
    done = project.command("warm", "double[n=1]", "--executor", machines.url)
    assert done.returncode == 2
    assert "set CACHEC_WARM_FOLDER to where it has the project" in done.stderr + done.stdout
    shutil.copytree(project.folder, machines.place(0))
    (machines.folder / "remote").rmdir()
    (machines.folder / "remote").write_text("")
    done = project.command("warm", "double[n=1]", "--executor", machines.url)
    assert done.returncode == 2
    assert "compiled, but no remote has it" in done.stderr + done.stdout


@pytest.mark.long
def test_the_example() -> None:
    example = Path(__file__).parents[2] / "examples/cluster/run.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=True, timeout=300)
    told = done.stdout.splitlines()
    assert told[-3].startswith("6 hit"), done.stdout
    assert told[-1].startswith("6 hit"), done.stdout


REFUSED = {
    "no remote": ("dask://127.0.0.1:1", "", "set CACHEC_REMOTE"),
    "no scheduler": ("dask://127.0.0.1:1", "file:///nowhere", "no Dask scheduler answers at tcp://127.0.0.1:1"),
    "another kind": ("ssh://127.0.0.1:1", "file:///nowhere", "expected dask://host:port"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_cluster_that_can_not_be_used_is_refused(
    case: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, remote, said = REFUSED[case]
    project.targets(TARGETS)
    monkeypatch.setenv("CACHEC_REMOTE", remote)
    monkeypatch.setattr("cachec.warm.cluster._CONNECT", 0.2)
    done = project.command("warm", "--executor", url)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_rows_are_where_the_machine_has_the_project() -> None:
    from cachec.warm.machine import relocate_row

    row = Row(id="a", target="a", axes={}, folder="/one/p", path=("/one/p/src", "/one/p", "/opt/lib"))
    there = relocate_row(row, "/one/p", "/two/q")
    assert (there.folder, there.path) == ("/two/q", ("/two/q/src", "/two/q", "/opt/lib"))
    assert relocate_row(row, "/one/p", "/one/p") == row


def test_no_secret_and_no_place_goes_to_other_machines(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachec import config
    from cachec.warm.cluster import _portable_settings

    monkeypatch.setenv("CACHEC_REMOTE", "file:///shared")
    monkeypatch.setenv("CACHEC_REMOTE_KEY", "k:abc")
    monkeypatch.setenv("CACHEC_REMOTE_SECRET", "abc")
    monkeypatch.setenv("CACHEC_REMOTE_TOKEN", "abc")
    monkeypatch.setenv("CACHEC_MODE", "refresh")
    carried = _portable_settings(config.load())
    assert carried["CACHEC_REMOTE"] == "file:///shared"
    assert carried["CACHEC_MODE"] == "refresh"
    assert not carried.keys() & {"CACHEC_DIR", "CACHEC_REMOTE_KEY", "CACHEC_REMOTE_SECRET", "CACHEC_REMOTE_TOKEN"}
