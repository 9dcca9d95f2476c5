"""What a run is observed to do, by the observers alone."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from cachec.recording import current
from cachec.recording.audit_hook import audit_hook
from cachec.recording.calling_frames import asker
from cachec.recording.observations import Observations
from cachec.recording.thread_owner import thread_mark
from tests.recording.runs import observed_run

HERE = __file__


def spread() -> AbstractContextManager[Observations]:
    """Observe the body as a stage's run is."""
    return observed_run(lambda name: name == HERE or name.startswith("<string"))


def observe(body: Callable[[], Any]) -> Observations:
    with spread() as observed:
        body()
    return observed


def names(observed: Observations) -> set[str]:
    return {ran.code.co_name for ran in observed.executed_code.values()}


def helper() -> int:
    return 1


def inner() -> int:
    return 2


def test_code_that_runs_is_told_once_and_only_while_a_run_is_active() -> None:
    helper()
    observed = observe(lambda: [helper() for _ in range(3)])
    assert "helper" in names(observed)
    assert "inner" not in names(observed)
    inner()
    assert "inner" not in names(observed)
    assert "helper" in names(observe(helper))  # again, by the next run


def test_threads_of_a_run_are_its_own() -> None:
    def body() -> None:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    assert "inner" in names(observe(body))


def test_an_inner_run_is_told_to_the_outer_one_too_and_not_the_other_way_round() -> None:
    with spread() as outer:
        with spread() as within:
            inner()
        helper()
    assert {"inner", "helper"} <= names(outer)
    assert names(within) == {"inner"}


def test_runs_at_once_are_told_apart_by_their_contexts() -> None:
    async def run(body: Callable[[], int]) -> Observations:
        with spread() as observed:
            await asyncio.sleep(0)
            body()
            await asyncio.sleep(0)
            body()
        return observed

    async def both() -> list[Observations]:
        return await asyncio.gather(run(helper), run(inner), run(helper))

    first, second, third = asyncio.run(both())
    assert "inner" not in names(first) | names(third)
    assert "helper" not in names(second)
    assert all("helper" in names(each) for each in (first, third))


def test_a_task_that_outlives_its_run_is_anybodys() -> None:
    async def main() -> Observations:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            inner()

        with spread():
            task = asyncio.create_task(later())
            await asyncio.sleep(0)
        with spread() as observed:
            go.set()
            await task
        return observed

    assert "inner" in names(asyncio.run(main()))


def test_a_thread_that_an_inner_run_leaves_behind_works_for_the_outer_one() -> None:
    go, whose = threading.Event(), []

    def later() -> None:
        go.wait()
        whose.append(current())

    with spread():
        outer = current()
        with spread():
            thread = threading.Thread(target=later)
            thread.start()
        go.set()
        thread.join()
    assert outer is not None
    assert whose == [outer]


def test_a_thread_with_the_number_of_another_has_another_mark() -> None:
    marks: list[object] = []
    for _ in range(50):
        thread = threading.Thread(target=lambda: marks.append(thread_mark()))
        thread.start()
        thread.join()
    assert len({id(each) for each in marks}) == 50


def test_a_generator_begun_before_is_told_when_it_goes_on() -> None:
    def generator() -> Any:
        yield 1
        yield 2

    begun = generator()
    next(begun)
    assert "generator" in names(observe(lambda: next(begun)))


@pytest.mark.parametrize("flag", ["r", "r+"])
def test_files_opened_for_reading(tmp_path: Path, flag: str) -> None:
    (tmp_path / "t").write_text("x")
    observed = observe(lambda: open(tmp_path / "t", flag).close())
    assert str(tmp_path / "t") in observed.opened
    assert not observed.made


def test_files_that_the_run_makes_are_its_own_but_not_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before")

    def body() -> None:
        os.mkdir(tmp_path / "d")
        (tmp_path / "d" / "x").write_text("x")
        (tmp_path / "d" / "x").read_text()
        os.listdir(tmp_path / "d")
        with open(tmp_path / "log", "a") as log:
            log.write("more")
        (tmp_path / "log").read_text()

    observed = observe(body)
    assert set(observed.opened) & {str(tmp_path / "d" / "x"), str(tmp_path / "log")} == {str(tmp_path / "log")}
    assert set(observed.listed) == set(observed.filled) == {str(tmp_path / "d")}
    assert str(tmp_path / "d") in observed.made


IS_THERE: tuple[Callable[[str], object], ...] = (
    *(os.path.exists, os.path.isfile, os.path.isdir, os.path.lexists, os.path.islink, os.path.ismount),
    *(lambda p: Path(p).exists(), lambda p: Path(p).is_file(), lambda p: Path(p).is_dir()),
    lambda p: Path(p).is_symlink(),
    lambda p: os.access(p, os.R_OK),
)
IS_SUCH: tuple[Callable[[str], object], ...] = (
    *(os.path.getsize, os.path.getmtime, os.path.getctime, os.path.getatime),
    *(lambda p: Path(p).stat(), lambda p: Path(p).lstat(), lambda p: os.stat(p), lambda p: os.lstat(p)),
    *(lambda p: os.listxattr(p), lambda p: os.getxattr(p, "user.none"), lambda p: os.readlink(p)),
)
ASKS_CWD: dict[str, tuple[Callable[[], object], bool]] = {
    "getcwd": (lambda: os.getcwd(), True),
    "getcwdb": (lambda: os.getcwdb(), True),
    "Path.cwd": (Path.cwd, True),
    "abspath": (lambda: os.path.abspath("t"), True),
    "realpath": (lambda: os.path.realpath(b"t"), True),
    "absolute": (lambda: Path("t").absolute(), True),
    "abspath of an absolute path": (lambda: os.path.abspath("/t"), False),
    "a relative path": (lambda: os.path.exists("t"), False),
}


@pytest.mark.parametrize("ask", IS_THERE)
def test_a_path_of_which_it_is_asked_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], object]
) -> None:
    (tmp_path / "t").write_text("x")
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path)
    observed = observe(lambda: (ask("t"), ask("gone"), ask("d")))
    assert observed.there == {str(tmp_path / "t"): False, str(tmp_path / "d"): True}
    assert list(observed.absent) == [str(tmp_path / "gone")]
    assert not observed.opened
    assert observed.relative.items() >= {str(tmp_path / name): name for name in ("t", "gone", "d")}.items()
    assert next(iter(observe(lambda: ask(f"{tmp_path}/t")).absolute)) == str(tmp_path / "t")


@pytest.mark.parametrize("ask", IS_SUCH)
def test_a_path_of_which_more_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], object]
) -> None:
    (tmp_path / "t").write_text("x")
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path)

    def body() -> None:
        for name in ("t", "gone", "d"):
            with suppress(OSError):
                ask(name)

    observed = observe(body)
    assert list(observed.opened) == [str(tmp_path / "t")]
    assert list(observed.absent) == [str(tmp_path / "gone")]
    assert observed.there[str(tmp_path / "d")]


@pytest.mark.parametrize("name", ASKS_CWD)
def test_who_takes_the_current_folder_for_a_value(name: str) -> None:
    ask, counts = ASKS_CWD[name]
    assert observe(ask).asked_cwd == counts


def test_variables_are_told_with_the_value_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NET_A", "1")
    monkeypatch.delenv("NET_B", raising=False)
    kind = type(os.environ)

    def body() -> None:
        os.environ.get("NET_A")
        os.environ["NET_A"] = "2"
        os.getenv("NET_B")
        os.environ["NET_C"] = "3"
        assert os.environ["NET_C"] == "3"
        assert "NET_A" in os.environ

    observed = observe(body)
    assert observed.variables == {"NET_A": "1", "NET_B": None}
    assert not observed.copied
    assert type(os.environ) is kind
    del os.environ["NET_C"]
    assert observe(lambda: len(os.environ)).copied is not None
    copied = observe(lambda: {**os.environ})
    assert copied.copied
    assert not copied.variables


def test_modules_by_computed_names_and_in_vain() -> None:
    import importlib

    def body() -> None:
        importlib.import_module("json" + ".decoder")
        try:
            importlib.import_module("no_such_module_at_all")
        except ImportError:
            helper()
        try:
            import no_such_module_either  # type: ignore[import-not-found]  # noqa: F401
        except ImportError:
            helper()

    observed = observe(body)
    assert {"json.decoder", "no_such_module_at_all"} <= set(observed.named)
    assert "no_such_module_either" in observed.imported


def test_what_pytest_compiles_of_a_module_that_it_rewrites_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_rewritten.py").write_text("def test() -> None:\n    assert True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for _ in range(2):  # it is written, and then read
        observed = observe(lambda: importlib.import_module("test_rewritten"))
        kept = [*(tmp_path / "__pycache__").glob("*pytest*.pyc")]
        assert len(kept) == 1
        assert str(kept[0]) not in observed.absent.keys() | observed.opened.keys()
        monkeypatch.delitem(sys.modules, "test_rewritten")


@pytest.mark.parametrize("path", ["/proc/self/stat", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/zero"])
def test_what_cannot_be_read_again_alike_is_named(path: str) -> None:
    def body() -> None:
        with suppress(OSError):
            open(path).close()

    observed = observe(body)
    assert list(observed.unrepeatable) == [path]
    assert not observed.opened
    assert not observe(lambda: open(os.devnull).close()).unrepeatable


def test_a_connection_can_not_be_made_again_alike(tmp_path: Path) -> None:
    def body() -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "none"))
        with suppress(OSError):
            socket.getaddrinfo("127.0.0.1", 1)
        with suppress(OSError):
            urllib.request.urlopen((tmp_path / "none").as_uri())

    names = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
    assert list(observe(body).unrepeatable) == [f"a connection ({name})" for name in names]


MAKING: tuple[Callable[[Path], object], ...] = (
    lambda folder: os.mkdir(folder / "made"),
    lambda folder: os.rename(folder / "there", folder / "made"),
    lambda folder: os.link(folder / "there", folder / "made"),
    lambda folder: os.symlink("there", folder / "made"),
    lambda folder: tempfile.mkdtemp(dir=folder),
    lambda folder: tempfile.mkstemp(dir=folder),
)


@pytest.mark.parametrize("make", MAKING)
def test_what_the_run_puts_somewhere_is_its_own(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "there").write_text("x")
    observed = observe(lambda: make(tmp_path))
    assert {*observed.made} == {str(each) for each in tmp_path.iterdir() if each.name != "there"}


def _in_turn(*steps: Callable[[], object]) -> Callable[[], None]:
    """Does every other step in a thread of its own that is begun here, the rest where it is called."""
    turns = [threading.Event() for _ in range(len(steps) + 1)]

    def take(first: int) -> None:
        for number in range(first, len(steps), 2):
            turns[number].wait()
            steps[number]()
            turns[number + 1].set()

    other = threading.Thread(target=take, args=(1,), daemon=True)
    other.start()

    def body() -> None:
        turns[0].set()
        take(0)
        turns[-1].wait()
        other.join()

    return body


@pytest.mark.parametrize("make", [*MAKING, lambda folder: (folder / "made").write_text("x")])
def test_what_threads_make_that_were_there_before_is_not_the_runs_own(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    (tmp_path / "there").write_text("x")
    body = _in_turn(lambda: os.path.exists(tmp_path / "made"), lambda: make(tmp_path))
    observed = observe(body)
    assert not observed.made
    assert not observed.removed
    assert str(tmp_path / "made") in observed.absent


@pytest.mark.parametrize("depth", [1, 2])
def test_what_threads_make_that_the_run_starts_is_its_own(tmp_path: Path, depth: int) -> None:
    def make(left: int) -> None:
        if left:
            thread = threading.Thread(target=make, args=(left - 1,))
            thread.start()
            thread.join()
        else:
            (tmp_path / "made").write_text("x")

    before = threading.Event()
    thread = threading.Thread(target=lambda: (before.wait(), make(1)), daemon=True)
    thread.start()
    assert set(observe(lambda: make(depth)).made) == {str(tmp_path / "made")}
    (tmp_path / "made").unlink()
    assert not observe(lambda: (before.set(), thread.join())).made  # a thread of one that was there before


def test_a_variable_that_another_thread_sets_is_not_fixed_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECORDED", raising=False)

    def look() -> object:
        return os.environ.get("RECORDED")

    def put() -> None:
        os.environ["RECORDED"] = "x"

    observed = observe(_in_turn(lambda: None, put, look))
    assert observed.variables["RECORDED"] == "x"
    assert not observed.inconsistent
    monkeypatch.delenv("RECORDED")
    observed = observe(_in_turn(look, put, look))
    assert observed.inconsistent == "variable RECORDED was looked up twice, and had changed in between"


LOOKS_AND_CHANGES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "a folder listed": (os.listdir, lambda p: (p / "new").touch()),
    "less of one": (os.listdir, lambda p: (p / "t").unlink()),
    "a file, then a folder": (lambda p: os.path.isfile(p / "t"), lambda p: ((p / "t").unlink(), (p / "t").mkdir())),
    "links": (lambda p: os.path.realpath(p / "l"), lambda p: ((p / "l").unlink(), (p / "l").symlink_to("x"))),
    "rights": (lambda p: os.access(p / "t", os.X_OK), lambda p: (p / "t").chmod(0o755)),
}


@pytest.mark.parametrize("name", LOOKS_AND_CHANGES)
def test_what_has_changed_when_the_run_looks_again_is_told(tmp_path: Path, name: str) -> None:
    look, change = LOOKS_AND_CHANGES[name]
    folders = [tmp_path / each for each in "abc"]
    for folder in folders:
        folder.mkdir()
        (folder / "t").write_text("x")
        (folder / "l").symlink_to("t")
    assert not observe(lambda: [look(folders[0]) for _ in range(3)]).inconsistent
    others = observe(_in_turn(lambda: look(folders[1]), lambda: change(folders[1]), lambda: look(folders[1])))
    assert others.inconsistent.endswith("was looked at twice, and had changed in between")
    own = observe(lambda: (look(folders[2]), change(folders[2]), look(folders[2])))
    assert not own.inconsistent or name == "rights"  # no event tells who changes these


def test_what_the_run_removed_and_somebody_made_again_is_told(tmp_path: Path) -> None:
    made = tmp_path / "made"
    own = observe(lambda: (made.touch(), made.unlink(), made.exists(), made.touch(), made.unlink()))
    assert (own.inconsistent, own.absent) == ("", {})
    others = observe(_in_turn(lambda: (made.touch(), made.unlink()), made.touch, made.exists))
    assert others.inconsistent == f"{made}, which the run made, was changed by another thread meanwhile"


@pytest.mark.parametrize("ask", [os.listdir, os.scandir])
def test_a_folder_that_is_listed(tmp_path: Path, ask: Callable[[Path], object]) -> None:
    (tmp_path / "t").write_text("x")
    assert observe(lambda: ask(tmp_path)).listed == {str(tmp_path): ("t",)}


STARTING: dict[str, Callable[[], object]] = {
    "true": lambda: os.waitpid(os.posix_spawnp("true", ["true"], {}), 0),
    ":": lambda: os.system(":"),
    "a process (os.fork)": lambda: os.waitpid(os.fork() or os._exit(0), 0),
    "a process (os.forkpty)": lambda: os.waitpid(os.forkpty()[0] or os._exit(0), 0),
}


@pytest.mark.parametrize("name", STARTING)
def test_what_is_started_is_named(name: str) -> None:
    assert list(observe(STARTING[name]).started) == [name]


def test_programs_and_processes_are_named() -> None:
    import subprocess

    assert "true" in observe(lambda: subprocess.run(["true"], check=True)).started


def test_a_profiler_beside_goes_on_or_is_told() -> None:
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    try:
        observed = observe(helper)
    finally:
        profile.disable()
    assert ("helper" in names(observed)) != bool(observed.incomplete)
    assert any(entry.code == helper.__code__ for entry in profile.getstats())


def test_a_namespace_that_says_it_is_an_installed_modules() -> None:
    import textwrap

    namespace = dict(vars(textwrap))
    exec(compile("def mine(): return 1", HERE, "exec"), namespace)
    theirs = FunctionType(textwrap.dedent.__code__, namespace)
    assert "mine" in names(observe(lambda: (theirs("x"), namespace["mine"]())))


def test_a_tracer_beside_goes_on() -> None:
    seen = []

    def trace(frame: Any, event: str, _argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        observed = observe(helper)
    finally:
        sys.settrace(earlier)
    assert "helper" in names(observed)
    assert "helper" in seen


def test_the_profile_function_of_another_gets_its_place_back() -> None:
    seen = []

    def profile(frame: Any, event: str, _argument: Any) -> None:
        seen.append((frame.f_code.co_name, event))

    earlier = sys.getprofile()
    sys.setprofile(profile)
    try:
        observed = observe(helper)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(earlier)
    assert "helper" in names(observed)
    assert ("helper", "call") in seen


def test_a_generator_begun_before_is_told_when_it_is_thrown_into() -> None:
    def generator() -> Any:
        try:
            yield 1
        except ValueError:
            yield inner()

    begun = generator()
    next(begun)
    assert {"generator", "inner"} <= names(observe(lambda: begun.throw(ValueError())))


def test_what_was_told_to_one_run_alone_is_told_to_the_next_that_it_runs_in() -> None:
    async def main() -> Observations:
        go, done = asyncio.Event(), asyncio.Event()

        async def beside() -> None:  # in the context of the outer run
            await go.wait()
            helper()
            done.set()

        with spread():
            task = asyncio.create_task(beside())
            with spread() as within:
                go.set()
                await done.wait()
                helper()
            await task
        return within

    assert "helper" in names(asyncio.run(main()))


def test_code_that_native_code_calls_is_told() -> None:
    import functools

    import numpy as np

    calls: list[Callable[[], Any]] = [
        lambda: sorted([2, 1], key=lambda x: inner()),
        lambda: np.vectorize(lambda x: inner())(np.ones(2)),
        lambda: np.frompyfunc(lambda x: inner(), 1, 1)(np.ones(2)),
        lambda: functools.reduce(lambda x, y: inner(), [1, 2, 3]),
        lambda: [*filter(lambda x: inner(), [1])],
    ]
    for call in calls:
        assert {"<lambda>", "inner"} <= names(observe(call))


def test_code_in_a_namespace_that_only_seems_to_be_an_installed_modules_is_told() -> None:
    import json

    json.dumps(1)
    code = compile("def f(): return 1\nf()", "<string of a test>", "exec")
    namespaces: list[dict[str, Any]] = [{"__name__": "json", "__file__": json.__file__}, {"__name__": []}, {}]
    for namespace in namespaces:

        def body(namespace: dict[str, Any] = namespace) -> None:
            json.dumps(1)
            exec(code, namespace)

        assert "f" in names(observe(body))


def test_threads_that_were_there_before_are_seen_or_it_is_told() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        executor.submit(helper).result()
        for call in (lambda: executor.submit(inner).result(), lambda: pool.apply(inner)):
            observed = observe(call)
            assert ("inner" in names(observed)) != bool(observed.incomplete)

    def own() -> int:
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(inner).result()

    observed = observe(own)
    assert "inner" in names(observed)
    assert not observed.incomplete


def test_who_takes_the_place_of_the_observer_meanwhile_is_told() -> None:
    def body() -> None:
        ours = sys.getprofile()
        sys.setprofile(None)
        inner()
        sys.setprofile(ours)

    observed = observe(body)
    assert ("inner" in names(observed)) != bool(observed.incomplete)
    assert not observe(helper).incomplete


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 669")
def test_where_others_have_all_that_pep_669_offers_a_profile_function_tells() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    observe(helper)
    ours = [number for number in (3, 4) if monitoring.get_tool(number) is not None]
    for number in ours:
        monitoring.free_tool_id(number)
    try:
        for number in (3, 4):
            monitoring.use_tool_id(number, "another")
        assert "inner" in names(observe(inner))
        assert sys.getprofile() is None
    finally:
        for number in (3, 4):
            monitoring.free_tool_id(number)

    def taken() -> None:
        monitoring.free_tool_id(4)
        inner()

    assert observe(taken).incomplete
    assert "inner" in names(observe(inner))


def test_the_profile_function_of_others_threads_goes_on() -> None:
    seen = []

    def profile(frame: Any, event: str, _argument: Any) -> None:
        seen.append((frame.f_code.co_name, event))

    def body() -> None:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    earlier = threading.getprofile()
    threading.setprofile(profile)
    try:
        observed = observe(body)
        assert threading.getprofile() is profile
    finally:
        threading.setprofile(earlier)
    assert "inner" in names(observed)
    assert ("inner", "call") in seen


def test_a_run_that_fails_ends_all_that_observes() -> None:
    before = sys.getprofile(), threading.getprofile(), type(os.environ)

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        observe(fail)
    assert (sys.getprofile(), threading.getprofile(), type(os.environ)) == before


@pytest.mark.parametrize(
    ("module", "is_own"),
    [
        *((name, True) for name in ("warnings", "traceback", "logging.handlers")),
        *((name, True) for name in ("subprocess", "tempfile", "multiprocessing.pool", "asyncio.events")),
        *((name, False) for name in ("pathlib", "os", "genericpath", "json.decoder", "linecache", "tokenize")),
    ],
)
def test_who_asks_through_the_standard_library(module: str, is_own: bool) -> None:
    """What some modules look at for their own ends is nobody's question."""
    namespace: dict[str, Any] = {"__name__": module}
    exec(compile("def look(ask): return ask()", f"{os.path.dirname(os.__file__)}/{module}.py", "exec"), namespace)
    found = namespace["look"](lambda: asker(sys._getframe(1), lambda file: file == __file__))
    assert found is (None if is_own else sys._getframe())


@pytest.mark.parametrize("absolute", [True, False])
def test_what_a_path_is_relative_to_where_the_run_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path)
    observed = observe(lambda: (os.chdir(tmp_path / "d" if absolute else "d"), os.path.exists("t")))
    places = [str(tmp_path / "d"), str(tmp_path / "d" / "t")]
    assert list(observed.absolute) == (places if absolute else [])
    assert observed.relative == ({} if absolute else dict(zip(places, ("d", "d/t"), strict=True)))


def test_the_source_of_a_module_is_imported_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_recorded.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    observed = observe(lambda: importlib.import_module("net_recorded"))
    del sys.modules["net_recorded"]
    assert str(tmp_path / "net_recorded.py") in observed.sources
    assert str(tmp_path / "net_recorded.py") not in observed.opened
    assert not observed.listed


def test_all_who_listen_to_an_event_are_told_once() -> None:
    told: list[str] = []
    first = {"cachec.test": lambda *_: told.append("first")}
    second = {"cachec.test": lambda *_: told.append("second")}
    hook = audit_hook()
    for handlers in (first, second, second):
        hook.listen(handlers)
    sys.audit("cachec.test")
    hook.leave(first)
    sys.audit("cachec.test")
    hook.leave(second)
    hook.leave(second)
    sys.audit("cachec.test")
    assert told == ["first", "second", "second"]


def test_what_is_opened_to_be_written_alone_is_no_look_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before")
    observed = observe(lambda: os.close(os.open(tmp_path / "log", os.O_WRONLY)))
    assert not observed.opened
    assert not observed.made
    assert not observed.absolute
