"""Programs and processes that work for a run outside of ``cachec.run``: nothing is stored of what they read unseen."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes.util
import multiprocessing
import os
import platform
import pty
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec import Reason
from cachec.stage.argument_warnings import undeclared_program


def forking() -> Any:
    """The context is no value that a key can hold."""
    return multiprocessing.get_context("fork")


def read(path: str) -> str:
    return Path(path).read_text()


def _forked(path: str) -> str:
    into, out = os.pipe()
    child = os.fork()
    if not child:
        os.write(out, read(path).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(out)
    with open(into, closefd=True) as file:
        return file.read()


def _in_a_terminal(path: str) -> str:
    child, terminal = pty.fork()
    if not child:
        os.execvp("cat", ["cat", path])
    found = os.read(terminal, 100).decode()
    os.waitpid(child, 0)
    os.close(terminal)
    return found


def _spawned(path: str) -> str:
    os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", f"cp {path} {path}.out"], os.environ), 0)
    return read(f"{path}.out")


def _by_spawnv(path: str) -> str:
    os.spawnlp(os.P_WAIT, "cp", "cp", path, f"{path}.out")
    return read(f"{path}.out")


def _by_a_popen(path: str) -> str:
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, text=True) as process:
        return process.communicate()[0]


def _by_popen(path: str) -> str:
    with os.popen(f"cat {path}") as file:
        return file.read()


def _by_asyncio(path: str) -> str:
    async def main() -> bytes:
        process = await asyncio.create_subprocess_exec("cat", path, stdout=subprocess.PIPE)
        return (await process.communicate())[0]

    return asyncio.run(main()).decode()


def _by_process(path: str) -> str:
    ours, theirs = forking().Pipe()
    process = forking().Process(target=lambda: theirs.send(read(path)))
    process.start()
    process.join()
    found: str = ours.recv()
    return found


def _by_pool(path: str) -> str:
    with forking().Pool(1) as pool:
        return pool.apply(read, (path,))


def _by_executor(path: str) -> str:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=forking()) as pool:
        return pool.submit(read, path).result()


def _by_a_thread(path: str) -> str:
    copied = threading.Thread(target=subprocess.check_call, args=(["cp", path, f"{path}.out"],))
    copied.start()
    copied.join()
    return read(f"{path}.out")


#: Ways to have a file read by another process that is started for that.
STARTS: dict[str, Callable[[str], str]] = {
    "run": lambda path: subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout,
    "check_output": lambda path: subprocess.check_output(f"cat {path}", shell=True, text=True),
    "Popen": _by_a_popen,
    "os.popen": _by_popen,
    "os.system": lambda path: str(os.system(f"cp {path} {path}.out")) + read(f"{path}.out"),
    "os.spawnlp": _by_spawnv,
    "os.posix_spawn": _spawned,
    "os.fork": _forked,
    "pty.fork": _in_a_terminal,
    "asyncio": _by_asyncio,
    "a process": _by_process,
    "a pool": _by_pool,
    "an executor": _by_executor,
    "a thread": _by_a_thread,
}


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[cachec.Cache]:
    with closing(cachec.Cache(tmp_path / "store", log="off", mode="on")) as cache:
        yield cache


def refused(cache: cachec.Cache, way: Callable[[str], str], path: Path) -> str:
    """What the outcome says of a stage that has a file read in this way; it is not stored."""

    @cache.stage(name=f"stage {path}")
    def stage(p: list[str]) -> str:
        return way(p[0])

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for text in ("one", "two"):
            path.write_text(text)
            value, outcome = stage.call([str(path)])
            assert text in value
            assert (outcome.reason, outcome.stored) == (Reason.UNDECLARED_PROGRAM, False), outcome
    assert sum("is not stored" in str(each.message) for each in warned) == 1, "said once a stage"
    assert "pass its result as an argument" in outcome.detail
    return outcome.detail


@pytest.mark.parametrize("way", STARTS)
def test_a_process_that_a_stage_starts_keeps_the_result_out(cache: cachec.Cache, tmp_path: Path, way: str) -> None:
    refused(cache, STARTS[way], tmp_path / "in")


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_python_is_started_in_keeps_the_result_out(
    cache: cachec.Cache, tmp_path: Path, method: str
) -> None:
    def way(path: str) -> str:
        with multiprocessing.get_context(method).Pool(1) as pool:
            return pool.apply(read, (path,))

    refused(cache, way, tmp_path / "in")


class _Workers:
    """Processes that are there before a stage runs, in the ways of Python's library."""

    def __init__(self) -> None:
        self.pool = forking().Pool(1)
        self.executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=forking())
        self.executor.submit(read, os.devnull).result()
        self.asked, self.told, self.simple = forking().Queue(), forking().Queue(), forking().SimpleQueue()
        self.ours, self.theirs = forking().Pipe()
        self.child = forking().Process(target=self._serve, daemon=True)
        self.child.start()

    def _serve(self) -> None:
        while True:
            path = self.theirs.recv()
            if path == "":
                self.told.put(read(self.asked.get()))
            else:
                self.theirs.send(read(path))

    def by_pool(self, path: str) -> str:
        return self.pool.apply(read, (path,))

    def by_map(self, path: str) -> str:
        return self.pool.map_async(read, [path]).get()[0]

    def by_executor(self, path: str) -> str:
        return self.executor.submit(read, path).result()

    def by_executors_map(self, path: str) -> str:
        return next(iter(self.executor.map(read, [path])))

    def by_a_loop(self, path: str) -> str:
        async def main() -> str:
            return await asyncio.get_running_loop().run_in_executor(self.executor, read, path)

        return asyncio.run(main())

    def by_connection(self, path: str) -> str:
        self.ours.send(path)
        found: str = self.ours.recv()
        return found

    def by_queue(self, path: str) -> str:
        self.asked.put(path)
        self.ours.send_bytes(b"\x80\x04\x8c\x00.")  # the pickle of an empty text
        found: str = self.told.get()
        return found

    def close(self) -> None:
        self.pool.terminate()
        self.executor.shutdown()
        self.child.kill()
        self.child.join()


@pytest.fixture(scope="module")
def workers() -> Iterator[_Workers]:
    """An attribute of the main thread: no key can hold a pool, and a search of ``sys.modules`` takes seconds here."""
    with closing(_Workers()) as workers:
        main = vars(threading.main_thread())
        main["_undeclared_workers"] = workers
        yield workers
        del main["_undeclared_workers"]


@pytest.mark.parametrize(
    "way",
    [
        *("by_pool", "by_executor", "by_connection", "by_queue"),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("by_map", "by_executors_map", "by_a_loop")),
    ],
)
def test_a_process_that_was_there_before_keeps_the_result_out(
    cache: cachec.Cache, tmp_path: Path, workers: _Workers, way: str
) -> None:
    refused(
        cache, lambda path: getattr(vars(threading.main_thread())["_undeclared_workers"], way)(path), tmp_path / "in"
    )


def test_a_program_under_a_name_in_path_and_what_it_reads(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin/tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ncat "$1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    said = refused(cache, lambda path: subprocess.check_output(["tool", path], text=True), tmp_path / "in")
    assert f"{__name__} ({__file__}:" in said
    assert "used 'tool': start it by cachec.run(" in said


@pytest.mark.parametrize("program", ["a process (os.fork)", "a pool of processes", "a ProcessPoolExecutor"])
def test_the_message_of_a_process_names_a_way_out_that_is_possible(program: str) -> None:
    said = undeclared_program(program, "main", "main.py:3")
    assert f"main (main.py:3) used {program}: do the work in this process, or in a ThreadPoolExecutor" in said
    assert "cachec.run" not in said


# --- what does not


def _by_run(path: str) -> str:
    return cachec.run(["cat", path], inputs=[path]).stdout.decode()


def _by_threads(path: str) -> str:
    with ThreadPool(1) as pool, concurrent.futures.ThreadPoolExecutor(1) as other:
        return pool.apply(read, (path,)) + other.submit(read, path).result()


def _of_platform(path: str) -> str:
    platform._uname_cache = None  # type: ignore[attr-defined]
    return platform.platform() + platform.processor() + read(path)


@pytest.mark.parametrize("way", [_by_run, _by_threads, _of_platform])
def test_what_is_declared_or_no_process_is_stored(
    cache: cachec.Cache, tmp_path: Path, way: Callable[[str], str]
) -> None:
    @cache.stage
    def stage(p: list[str]) -> str:
        return way(p[0])

    path = tmp_path / "in"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in ("one", "two"):
            path.write_text(text)
            value, outcome = stage.call([str(path)])
            assert text in value
            assert outcome.stored, outcome
            assert stage.call([str(path)])[1].hit


@pytest.mark.parametrize("by_library", [True, False])
def test_a_library_may_look_at_the_machine(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, by_library: bool
) -> None:
    """``find_library`` runs ``ldconfig``; many libraries call it when they are imported."""
    found = ctypes.util.find_library("c")
    library: dict[str, Any] = {"__name__": "numpy.made"}
    text = "import ctypes.util\ndef find(): return ctypes.util.find_library('c')\n"
    exec(compile(text, pytest.__file__ if by_library else __file__, "exec"), library)
    monkeypatch.setitem(vars(threading.main_thread()), "_undeclared_library", library["find"])

    @cache.stage
    def stage() -> object:
        return vars(threading.main_thread())["_undeclared_library"]()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, outcome = stage.call()
    assert value == found
    assert (outcome.reason is Reason.UNDECLARED_PROGRAM) is not by_library, outcome
