"""What a run does itself is no input of it, and nothing else is taken for that: what strangers found, both ways."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

import cachec


def _weights(value: float) -> bytes:
    return save({"x": np.array([value], "f4")})


# --- ways in which a stage looks at ``in``, or makes something beside it


def named_temporary_file(p: str) -> Any:
    with tempfile.NamedTemporaryFile(dir=p):
        return Path(p, "in").read_text(), os.path.exists(f"{p}/flag")


def temporary_file(p: str) -> Any:
    with tempfile.TemporaryFile(dir=p):
        return Path(p, "in").read_text()


def a_rename_that_fails(p: str) -> Any:
    with contextlib.suppress(FileNotFoundError):
        os.replace(f"{p}/nothing", f"{p}/in")
    return Path(p, "in").read_text()


def a_folder_opened_to_write(p: str) -> Any:
    with contextlib.suppress(IsADirectoryError):
        open(p, "w").close()
    return Path(p, "in").read_text()


def a_pool_of_its_own(p: str) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: Path(p, name).read_text(), ["in", "in"]))


def a_removed_output(p: str) -> Any:
    if os.path.exists(f"{p}/out"):
        os.remove(f"{p}/out")
    Path(p, "out").write_text("x")
    return Path(p, "in").read_text()


def an_output_folder_anew(p: str) -> Any:
    shutil.rmtree(f"{p}/out", ignore_errors=True)
    os.makedirs(f"{p}/out/deep")
    Path(p, "out/deep/x").write_text("x")
    return Path(p, "in").read_text(), Path(p, "out/deep/x").read_text()


def a_folder_that_is_not_empty(p: str) -> Any:
    with contextlib.suppress(OSError):
        os.rmdir(p)
    return Path(p, "in").read_text()


def scratch_that_is_listed(p: str) -> Any:
    with tempfile.TemporaryDirectory(dir=p):
        return len(os.listdir(p)), Path(p, "in").read_text()


def native_scratch(p: str) -> Any:
    save_file({"x": np.zeros(1, "f4")}, "scratch.safetensors")
    found = load_file("scratch.safetensors")["x"].tolist()
    os.remove("scratch.safetensors")
    return found, Path(p, "in").read_text()


def a_lock_beside(p: str) -> Any:
    with open(f"{p}/in", "ab"):
        return Path(p, "in").read_text()


DOINGS = [
    *(named_temporary_file, temporary_file, a_rename_that_fails, a_folder_opened_to_write, a_pool_of_its_own),
    *(a_removed_output, an_output_folder_anew, a_folder_that_is_not_empty, scratch_that_is_listed, native_scratch),
    a_lock_beside,
]


@pytest.mark.parametrize("do", DOINGS, ids=lambda each: each.__name__)
def test_an_input_counts_whatever_the_run_does_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Callable[[str], Any]
) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "in").write_text("one")
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:
        stage = cache.stage(do)
        for _ in range(3):
            value, outcome = cache.call(stage, str(folder))
            time.sleep(0.02)
        assert outcome.hit, outcome
        (folder / "in").write_text("another")
        value, outcome = cache.call(stage, str(folder))
        assert not outcome.hit
        assert "another" in json.dumps(value)


# --- what tells by its success whether something is there


def removed(p: str) -> None:
    os.remove(f"{p}/there")


def tree_removed(p: str) -> None:
    shutil.rmtree(f"{p}/folder")


def gone_to(p: str) -> None:
    with contextlib.chdir(f"{p}/folder"):
        pass


def made_in(p: str) -> None:
    Path(p, "folder/new").write_text("x")


def unset(p: str) -> None:
    del os.environ["OWN_DOINGS"]


def database(p: str) -> None:
    with closing(sqlite3.connect(f"{p}/there")) as connection:
        connection.execute("select * from t")


@pytest.mark.parametrize(
    "do", [removed, tree_removed, gone_to, made_in, unset, database], ids=lambda each: each.__name__
)
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
    return subprocess.Popen(["sh", "-c", f"sleep 0.1; {command}"], cwd=folder).wait


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
            time.sleep(0.3)
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
    over = threading.Event()
    (tmp_path / "beats").mkdir()

    def beat() -> None:
        while not over.is_set():
            Path(tmp_path, "beats", "one").write_text(str(time.time()))
            Path(tmp_path, "beats", "one").read_text()
            time.sleep(0.005)

    thread = threading.Thread(target=beat)
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(n: int) -> int:
            time.sleep(0.05)
            return n

        thread.start()
        try:
            # A run that begins between its write and its read sees that alone.
            assert any(cache.call(stage, 1)[1].hit for _ in range(8))
        finally:
            over.set()
            thread.join()


def test_a_name_that_is_no_text_is_no_error(tmp_path: Path) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(p: str) -> bool:
            return os.path.exists(os.path.join(p, os.fsdecode(b"mod\xe8le.bin")))

        value, outcome = cache.call(stage, str(tmp_path))
        assert (value, outcome.reason.value) == (False, "bypass:volatile-input")
