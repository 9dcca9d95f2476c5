"""Reads that no trace can check keep a result out of the store; reads by other ways than paths count as paths do."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from os.path import getmtime as modified
from pathlib import Path
from sys import stdin as taken_before

import pytest

import cachec
from cachec import Reason

pytestmark = pytest.mark.filterwarnings("ignore::cachec.CachecWarning")


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "data.txt"
    made.write_text("1")
    return made


@pytest.fixture
def descriptor(file: Path) -> Iterator[int]:
    opened = os.open(file, os.O_RDONLY)
    yield opened
    os.close(opened)


def _by_descriptor(path: str) -> int:
    with open(path) as opened:
        return os.fstat(opened.fileno()).st_mtime_ns


@pytest.mark.parametrize("look", [lambda path: modified(path), _by_descriptor], ids=["another name", "descriptor"])
def test_times_count_by_whatever_they_are_asked(cache: cachec.Cache, file: Path, look: Callable[[str], object]) -> None:
    stage = cache.stage(lambda path: look(path), name="stage")
    os.utime(file, (5, 5))
    before = stage(str(file))
    assert stage.call(str(file))[1].reason is Reason.HIT
    os.utime(file, (9, 9))
    assert stage(str(file)) == look(str(file)) != before


READS: dict[str, Callable[[int], object]] = {
    "read": lambda descriptor: os.read(descriptor, 9),
    "pread": lambda descriptor: os.pread(descriptor, 9, 0),
    "readv": lambda descriptor: os.readv(descriptor, [bytearray(9)]),
}


@pytest.mark.parametrize("how", READS)
def test_a_descriptor_from_before_the_run(cache: cachec.Cache, descriptor: int, how: str) -> None:
    read = READS[how]
    stage = cache.stage(lambda number: read(number), name="stage")
    assert stage.call(descriptor)[1].reason is Reason.VOLATILE_INPUT


def test_a_descriptor_of_the_run_is_read(cache: cachec.Cache, file: Path) -> None:
    def read(path: str) -> bytes:
        opened = os.open(path, os.O_RDONLY)
        back, front = os.pipe()
        os.write(front, os.read(opened, 9))
        try:
            return os.read(back, 9)
        finally:
            for each in (opened, back, front):
                os.close(each)

    stage = cache.stage(read, name="stage")
    assert stage(str(file)) == b"1"
    assert stage.call(str(file))[1].reason is Reason.HIT
    file.write_text("2")
    assert stage(str(file)) == b"2"


INPUTS: dict[str, Callable[[], object]] = {
    "stream": lambda: sys.stdin.read(),
    "stream as taken": lambda: taken_before.closed,
    "input": lambda: input(),
}


@pytest.mark.parametrize("how", INPUTS)
def test_the_standard_input(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how != "stream as taken":
        monkeypatch.setattr(sys, "stdin", io.StringIO("said"))
    read = INPUTS[how]
    stage = cache.stage(lambda: str(read()), name="stage")
    assert stage.call()[1].reason is Reason.VOLATILE_INPUT


def test_the_standard_input_of_another_process_is_its_own(cache: cachec.Cache) -> None:
    def run() -> str:
        started = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert started.stdin is not None
        return f"{started.communicate('said')[0]} {sys.byteorder} {started.stdin.closed}"

    stage = cache.stage(run, name="stage")
    value, outcome = stage.call()
    assert value.startswith("said")
    assert outcome.reason is Reason.UNDECLARED_PROGRAM


def test_extended_attributes(cache: cachec.Cache, file: Path) -> None:
    stage = cache.stage(lambda path: os.listxattr(path), name="stage")
    assert stage.call(str(file))[1].reason is Reason.VOLATILE_INPUT


def test_a_copy_takes_them_along_and_is_stored(cache: cachec.Cache, file: Path, tmp_path: Path) -> None:
    stage = cache.stage(lambda path, to: Path(shutil.copy2(path, to)).read_text(), name="stage")
    for number in range(2):
        answer, report = stage.call(str(file), str(tmp_path / "copy"))
        (tmp_path / "copy").unlink(missing_ok=True)
        assert answer == "1"
    assert (number, report.reason) == (1, Reason.HIT)


def test_a_file_in_the_way_of_a_folder_is_another_error(cache: cachec.Cache, file: Path) -> None:
    def tried(path: str) -> str:
        try:
            return Path(path, "inside").read_text()
        except OSError as error:
            return type(error).__name__

    stage = cache.stage(tried, name="stage")
    assert stage(str(file)) == "NotADirectoryError"
    assert stage.call(str(file))[1].reason is Reason.HIT
    file.unlink()
    assert stage(str(file)) == "FileNotFoundError"


def test_the_limit_of_digits_counts_unnamed(cache: cachec.Cache) -> None:
    def tried() -> str:
        try:
            return f"{10**5000}"[:3]
        except ValueError as error:
            return type(error).__name__

    stage, limit = cache.stage(tried, name="stage"), sys.get_int_max_str_digits()
    assert stage() == "ValueError"
    try:
        sys.set_int_max_str_digits(0)
        assert stage() == "100"
    finally:
        sys.set_int_max_str_digits(limit)
    assert stage.call()[1].reason is Reason.HIT
