"""Changes that a run itself makes are not its inputs, and changes by others are."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

import cachec
from cachec.commands.run import host_processor


def _weights(value: float) -> bytes:
    return save({"x": np.array([value], "f4")})


def test_an_input_counts_beside_native_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(p: str) -> Any:
            time.sleep(0.02)  # of what came to be in the tick in which the run began nobody knows whose it is
            save_file({"x": np.zeros(1, "f4")}, "scratch.safetensors")
            found = load_file("scratch.safetensors")["x"].tolist()
            os.remove("scratch.safetensors")
            return found, Path(p).read_text()

        for text in ("one", "another"):
            (tmp_path / "in").write_text(text)
            answers = []
            for _ in range(3):
                answers.append(cache.call(stage, "in"))
                time.sleep(0.02)
            assert [json.dumps(value) for value, _ in answers] == [json.dumps(([0.0], text))] * 3
            assert [outcome.hit for _, outcome in (answers[0], answers[2])] == [False, True]


# --- what tells by its success whether something is there


def made_in(p: str) -> None:
    Path(p, "folder/new").write_text("x")


def unset(p: str) -> None:
    del os.environ["OWN_DOINGS"]


def database(p: str) -> None:
    with closing(sqlite3.connect(f"{p}/there")) as connection:
        connection.execute("select * from t")


@pytest.mark.parametrize("do", [made_in, unset, database], ids=lambda each: each.__name__)
def test_what_fails_where_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Callable[[str], None]
) -> None:
    monkeypatch.delenv("OWN_DOINGS", raising=False)
    folder = tmp_path / "p"
    folder.mkdir()

    def stage(p: str) -> str:
        try:
            do(p)
        except Exception as error:
            return type(error).__name__
        return "done"

    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:
        cached = cache.stage(stage)
        assert cached(str(folder)) != "done"
        with contextlib.suppress(FileNotFoundError):
            (folder / "there").unlink()
        with closing(sqlite3.connect(folder / "there")) as connection:
            connection.execute("create table t (a)")
            connection.commit()
        (folder / "folder").mkdir()
        monkeypatch.setenv("OWN_DOINGS", "1")
        assert cached(str(folder)) == "done"


# --- native reads, and what happens to the file then


def _while_it_waits(folder: Path, command: str) -> Callable[[], object]:
    return subprocess.Popen(["sh", "-c", f"sleep 0.6; {command}"], cwd=folder).wait


@pytest.mark.parametrize(
    "command", ["mv new w.safetensors", "rm w.safetensors", "mv sub other", "cat new > w.safetensors"]
)
def test_what_native_code_read_and_is_another_by_the_end_keeps_the_result_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    place = "sub/w.safetensors" if "sub" in command else "w.safetensors"
    (tmp_path / "p/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "p")
    Path(place).write_bytes(_weights(1))
    Path("new").write_bytes(_weights(2))
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(name: str) -> list[float]:
            found = load_file(name)["x"].tolist()
            time.sleep(1.2)
            return found

        wait = _while_it_waits(tmp_path / "p", command)
        value, outcome = cache.call(stage, place)
        wait()
        assert (value, outcome.reason.value) == ([1.0], "bypass:input-changed-during-run")


@pytest.mark.parametrize("anew", ["replace", "write"])
def test_a_file_that_native_code_reads_and_the_run_writes_anew_is_no_input_to_be_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(name: str) -> list[float]:
            found = load_file(name)["x"]
            data = save({"x": found * 2})
            if anew == "replace":
                Path("part").write_bytes(data)
                os.replace("part", name)
            else:
                Path(name).write_bytes(data)
            return list(found.tolist())

        for value in (1.0, 50.0):
            Path("w.safetensors").write_bytes(_weights(value))
            assert stage("w.safetensors") == [value]


# --- threads

_POOLS: dict[str, ThreadPoolExecutor] = {}


def test_a_stage_in_a_thread_of_another_one_hands_on_what_it_read(tmp_path: Path) -> None:
    place = tmp_path / "in"
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def inner(p: str, _n: int) -> str:
            return Path(p).read_text()

        @cache.stage
        def outer(p: str) -> list[str]:
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(lambda n: inner(p, n), range(2)))

        for text in ("one", "two"):
            place.write_text(text)
            assert outer(str(place)) == [text, text]
            assert cache.call(outer, str(place))[1].hit


def test_stages_at_once_each_with_its_threads_keep_none_out(tmp_path: Path) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(n: int) -> list[bool]:
            with tempfile.TemporaryDirectory() as folder:

                def one(number: int) -> bool:
                    Path(folder, str(number)).write_text(str(n))
                    time.sleep(0.002)
                    return os.path.exists(f"{folder}/{number}")

                with ThreadPoolExecutor(3) as pool:
                    return list(pool.map(one, range(4)))

        for is_hit in (False, True):
            with ThreadPoolExecutor(3) as pool:
                outcomes = list(pool.map(lambda n: cache.call(stage, n)[1], range(3)))
            assert [outcome.hit for outcome in outcomes] == [is_hit] * 3, outcomes


def test_a_pool_that_one_run_makes_and_another_uses_meanwhile_looks_for_both(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one")
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage(version="1")
        def maker(p: str) -> str:
            with ThreadPoolExecutor(1) as pool:
                _POOLS["shared"] = pool
                found = pool.submit(Path(p).read_text).result()
                time.sleep(0.4)
            return found

        @cache.stage(version="1")
        def user(p: str) -> str:
            time.sleep(0.1)
            return _POOLS["shared"].submit(lambda: Path(p, "in").read_text()).result()

        with ThreadPoolExecutor(2) as both:
            first = both.submit(maker, str(tmp_path / "in"))
            time.sleep(0.05)
            assert both.submit(user, str(tmp_path)).result() == "one"
            assert first.result() == "one"
        (tmp_path / "in").write_text("two")
        with ThreadPoolExecutor(1) as pool:
            _POOLS["shared"] = pool
            assert user(str(tmp_path)) == "two"


def test_jobs_of_one_function_look_each_for_itself(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    begun, over = threading.Event(), threading.Event()
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage(version="1")
        def stage(text: str) -> str:
            begun.set()
            over.wait()
            return text

        def job(name: str) -> bool:
            if name == "second":
                begun.wait()
            text = (tmp_path / name).read_text()
            if name == "second":
                over.set()
            return cache.call(stage, text)[1].hit

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(job, ["first", "second"])) == [False, False]
        (tmp_path / "second").write_text("other")
        assert cache.call(stage, "first")[1].hit


@pytest.mark.parametrize("command", [True, False])
def test_what_a_thread_that_may_work_for_others_asks_of_the_machine_keeps_the_result_out(
    tmp_path: Path, command: bool
) -> None:
    asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
    done = threading.Semaphore(0)

    def serve() -> None:
        while (one := asked.get()) is not None:
            one()
            done.release()

    thread = threading.Thread(target=serve)
    thread.start()
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage(version="1", portable=True)
        def stage() -> None:
            asked.put(lambda: cachec.run(["true"]) if command else host_processor())
            done.acquire()

        reasons = [cache.call(stage)[1].reason.value for _ in range(2)]
    asked.put(None)
    thread.join()
    assert reasons == ["bypass:volatile-input"] * 2


def test_what_a_stage_takes_away_counts(tmp_path: Path) -> None:
    """However short the time is since somebody put it there."""
    place = tmp_path / "in"
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(p: str) -> str:
            found = Path(p).read_text()
            os.remove(p)
            return found

        for text in ("one", "another"):
            place.write_text(text)
            assert stage(str(place)) == text
        with pytest.raises(FileNotFoundError):
            stage(str(place))


@pytest.mark.parametrize("what", ["file", "variable"])
def test_what_two_runs_make_under_one_name_is_neithers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("OWN_DOINGS", "")
    both = threading.Barrier(2)
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:
        place = str(tmp_path / "fixed")

        def body(n: int) -> str:
            time.sleep(0.2)  # until both run
            if what == "file":
                Path(place).write_text(str(n))
            else:
                os.environ["OWN_DOINGS"] = str(n)
            time.sleep(0.1)
            return Path(place).read_text() if what == "file" else os.environ["OWN_DOINGS"]

        stage = cache.stage(body)

        def call(n: int) -> None:
            both.wait()
            cache.call(stage, n)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(call, (1, 2)))
        for n in (1, 2):
            assert stage(n) == str(n)


def test_what_a_thread_of_the_program_makes_and_reads_itself_is_no_input(tmp_path: Path) -> None:
    begun, over = threading.Event(), threading.Event()
    (tmp_path / "beats").mkdir()

    def beat() -> None:
        begun.wait()
        for number in range(3):
            Path(tmp_path, "beats", "one").write_text(str(number))
            Path(tmp_path, "beats", "one").read_text()
        over.set()

    thread = threading.Thread(target=beat)
    thread.start()
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage(version="1")
        def stage(n: int) -> int:
            begun.set()
            over.wait()
            return n

        assert [cache.call(stage, 1)[1].hit for _ in range(2)] == [False, True]
    thread.join()


def test_a_name_that_is_no_text_is_no_error(tmp_path: Path) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(p: str) -> bool:
            return os.path.exists(os.path.join(p, os.fsdecode(b"mod\xe8le.bin")))

        value, outcome = cache.call(stage, str(tmp_path))
        assert (value, outcome.reason.value) == (False, "bypass:volatile-input")


class _Failing:
    """A callable that fails to say what it has not."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.held = {"call": call}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["held"][name]  # KeyError

    def __call__(self) -> object:
        return self.held["call"]()


def test_a_job_of_whatever_kind_is_left_alone(tmp_path: Path) -> None:
    begun, over = threading.Event(), threading.Event()
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache, ThreadPoolExecutor(2) as pool:

        @cache.stage(version="1")
        def stage(n: int) -> int:
            begun.set()
            assert over.wait(30)
            return n

        going_on = pool.submit(stage, 1)
        assert begun.wait(30)
        try:
            assert pool.submit(_Failing((tmp_path / "none").exists)).result(30) is False
        finally:
            over.set()
        assert going_on.result(30) == 1


def _in_it(take: Callable[[Any], Any]) -> Any:
    return take(os.environ)


def test_one_variable_counts_after_the_whole_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a frame that may be where that was which took it whole."""
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage(version="1")
        def whole(n: int) -> int:
            return len(_in_it(dict)) * 0 + n

        @cache.stage(version="1")
        def one(n: int) -> str:
            return str(_in_it(itemgetter("OWN_DOINGS")))

        for n in range(20):
            monkeypatch.setenv("OWN_DOINGS", "one")
            whole(n)
            assert one(n) == "one"
            monkeypatch.setenv("OWN_DOINGS", "another")
            assert one(n) == "another"
