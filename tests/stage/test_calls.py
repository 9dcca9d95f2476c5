"""Calls of stages: what hits, what misses and why, what the caller gets."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec import Reason
from cachec.key.tools.distribution_watch import MIN_LOOKUPS
from tests.key.tools.test_toolchain import Clock, wheel


def test_a_second_call_hits_and_gives_the_same(cache):
    @cache.stage
    def stage(n: int) -> bytes:
        return os.urandom(8) + bytes([n])

    first, outcome = cache.call(stage, 3)
    assert (outcome.reason, outcome.stored, outcome.fault) == (Reason.FIRST_RUN, True, None)
    assert outcome.saved == 0 < outcome.seconds
    again, outcome = cache.call(stage, n=3)
    assert outcome.reason is Reason.HIT
    assert outcome.saved > 0
    assert again == first
    other, outcome = cache.call(stage, 4)
    assert outcome.reason is Reason.OPTION_CHANGED
    assert "n" in outcome.detail
    assert "3" in outcome.detail
    assert "4" in outcome.detail
    assert other != first


def test_a_new_cache_object_on_the_same_folder_hits(cache, tmp_path):
    def build(opened: cachec.Cache):
        @opened.stage(name="stage")
        def stage(n: int) -> bytes:
            return os.urandom(8)

        return stage

    first = build(cache)(1)
    other = cachec.Cache(tmp_path / "cache", log="off")
    assert build(other)(1) == first
    separate = cachec.Cache(tmp_path / "cache", log="off", namespace="other")
    assert build(separate)(1) != first


def test_defaults_and_keywords_bind_like_positionals(cache):
    @cache.stage
    def stage(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> bytes:
        return os.urandom(8)

    first = stage(1)
    assert stage(a=1, b=2, c=3) == first
    assert stage(1, 2) == first
    assert stage(1, 2, 9) != first
    assert stage(1, x=5, y=6) == stage(1, x=5, y=6)
    assert stage(1, x=5, y=6) != stage(1, y=6, x=5)  # the function sees the order of its ``more``
    with pytest.raises(TypeError, match="stage"):
        stage()
    with pytest.raises(TypeError, match="b"):
        stage(1, 2, b=3)


def test_options_of_different_types_differ(cache):
    @cache.stage
    def stage(value: object) -> bytes:
        return os.urandom(8)

    values = [1, 1.0, True, "1", b"1", None, 0.0, -0.0, (1,), [1], {"a": 1}, frozenset({1}), float("inf")]
    results = [stage(value) for value in values]
    assert len(set(results)) == len(values)
    assert [stage(value) for value in values] == results
    assert stage(float("nan")) == stage(float("nan"))
    assert stage({"a": 1, "b": 2}) == stage({"a": 1, "b": 2})
    assert stage({"a": 1, "b": 2}) != stage({"b": 2, "a": 1})  # as ``list(value)`` shows


def test_an_argument_that_cannot_be_keyed_is_refused_by_name(cache):
    @cache.stage
    def stage(options: object) -> bytes:
        return b""

    with pytest.raises(cachec.UnkeyableArgument, match=r"options\['x'\]"):
        stage({"x": object()})
    with pytest.raises(cachec.UnkeyableArgument, match=r"missing\.bin"):
        stage.key(Path("missing.bin"))


def test_ignored_arguments_leave_the_key(cache):
    @cache.stage(ignore=["verbose"])
    def stage(n: int, verbose: object = None) -> bytes:
        return os.urandom(8)

    assert stage(1, verbose=object()) == stage(1)
    with pytest.raises(cachec.UsageError, match="nowhere"):
        cache.stage(ignore=["nowhere"])(stage.__wrapped__)
    with pytest.raises(cachec.UsageError, match="list"):
        cache.stage(ignore="verbose")(stage.__wrapped__)


def test_the_version_is_part_of_the_key(cache):
    def function(n: int) -> bytes:
        return os.urandom(8)

    one = cache.stage(name="f", version="1")(function)
    two = cache.stage(name="f", version="2")(function)
    first = one(1)
    value, outcome = cache.call(two, 1)
    assert value != first
    assert outcome.reason is Reason.STAGE_CHANGED


def test_declared_variables_of_the_environment_count(cache, monkeypatch):
    @cache.stage(env=["CACHEC_TEST_LEVEL"])
    def stage() -> bytes:
        return os.urandom(8)

    unset = stage()
    monkeypatch.setenv("UNDECLARED", "1")
    assert stage() == unset
    monkeypatch.setenv("CACHEC_TEST_LEVEL", "2")
    value, outcome = cache.call(stage)
    assert value != unset
    assert outcome.reason is Reason.ENVIRONMENT_CHANGED
    assert "CACHEC_TEST_LEVEL" in outcome.detail


def test_paths_count_by_content_and_text_by_value(cache, tmp_path):
    @cache.stage
    def stage(source: object) -> bytes:
        return os.urandom(8)

    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    first = stage(one)
    assert stage(two) == first
    assert stage(cachec.File(one)) == first
    two.write_bytes(b"else")
    value, outcome = cache.call(stage, two)
    assert value != first
    assert (outcome.reason, outcome.detail) == (Reason.NEW_INPUT, "two was never compiled")
    two.write_bytes(b"again")
    assert cache.call(stage, two)[1].reason is Reason.FILE_CHANGED
    with pytest.warns(cachec.CachecWarning, match="keyed by its text"):
        assert stage(str(one)) != first


def test_a_dict_where_weights_are_asked_for(cache):
    def named(weights: cachec.WeightSet) -> int:
        return len(weights)

    def plain(weights) -> int:
        return len(weights)

    plain.__annotations__["weights"] = cachec.WeightSet
    for stage in (cache.stage(named), cache.stage(plain)):
        with pytest.warns(cachec.CachecWarning, match=r"pass cachec\.WeightSet\.from_tree\(weights\)"):
            assert stage({"a": 1}) == 1


def test_folders_count_by_content(cache, tmp_path):
    @cache.stage
    def stage(source: Path) -> bytes:
        return os.urandom(8)

    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "f").write_bytes(b"1")
    first = stage(folder)
    assert stage(folder) == first
    (folder / "sub" / "f").write_bytes(b"2")
    second = stage(folder)
    (folder / "new").mkdir()
    third = stage(folder)
    (folder / "sub" / "f").chmod(0o755)
    fourth = stage(folder)
    assert len({first, second, third, fourth}) == 4


def test_plain_arrays_count_by_content_and_large_ones_warn(cache):
    @cache.stage
    def stage(x: np.ndarray) -> bytes:
        return os.urandom(8)

    x = np.arange(6, dtype="f4")
    first = stage(x)
    assert stage(x.copy()) == first
    assert stage(x.reshape(2, 3)) != first
    assert stage(x.astype("i4")) != first
    assert stage(x[::-1].copy()[::-1]) != first
    with pytest.warns(cachec.CachecWarning, match="WeightSet"):
        stage(np.zeros(1 << 19))


def test_a_callable_argument_counts_by_its_code(cache):
    @cache.stage
    def stage(f: object) -> bytes:
        return os.urandom(8)

    def make(n: int):
        return lambda x: x + n

    assert stage(make(1)) == stage(make(1))
    assert stage(make(1)) != stage(make(2))
    assert stage(lambda x: x * 2) != stage(lambda x: x * 3)


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    cache: object = dataclasses.field(default=None, compare=False)


def test_methods_count_self(tmp_path, cache):
    @dataclasses.dataclass
    class Pipeline:
        level: int

        @cache.stage
        def build(self, n: int) -> bytes:
            return os.urandom(8)

    assert Pipeline(1).build(2) == Pipeline(1).build(2)
    assert Pipeline(1).build(2) != Pipeline(2).build(2)
    assert Pipeline(1).build.check(2).hit

    class Plain:
        def __init__(self, held: object) -> None:
            self.held = held

        @cache.stage
        def build(self, n: int) -> bytes:
            return os.urandom(8)

    assert Plain(1).build(2) == Plain(1).build(2)
    assert Plain(1).build(2) != Plain(2).build(2)
    with pytest.raises(cachec.UnkeyableArgument, match="self"):
        Plain(iter([])).build(1)


def test_no_call_of_a_method_keeps_its_instance(cache):
    class Pipeline:
        @cache.stage
        def build(self, n: int) -> int:
            return n

    one = Pipeline()
    assert [one.build(2) for _ in range(3)] == [2, 2, 2]
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_what_arguments_bring_counts_after_calls_that_brought_nothing(cache, monkeypatch):
    @cache.stage
    def stage(value: object) -> bytes:
        return os.urandom(8)

    def labels(value: object) -> set[str]:
        return {part.label for part in cache._engine.tools.key_builder.build(stage, {"value": value}).parts()}

    plain = labels(1)
    assert labels(1) == labels(2) == plain
    brought = labels(pytest.approx) - plain
    assert "distribution/pytest" in brought
    assert labels(1) == plain
    key = stage.key(1)
    monkeypatch.setitem(globals(), "os", dataclasses)  # what its code names is another module
    assert stage.key(1) != key


def test_an_edited_file_of_a_followed_tool_is_a_miss(cache, tmp_path, monkeypatch):
    """After calls that came when its files were due for a look, so that it is followed, and beside another tool."""
    for name in ("comp", "beside"):
        wheel(tmp_path / name, name=name)
        monkeypatch.syspath_prepend(str(tmp_path / name))

    @cache.stage(tools=["comp", "beside"])
    def stage() -> bytes:
        return os.urandom(8)

    clock = Clock()
    tools = cache._engine.tools.key_builder._tools
    tools._clock, tools._distribution_watch._clock = clock, lambda: time.time() + 3600
    stage()
    for _ in range(MIN_LOOKUPS + 2):
        clock.now += 1.0
        assert cache.call(stage)[1].hit
    looked = []
    monkeypatch.setattr(tools, "_distribution_part", lambda *given: looked.append(given[0].name) or part(*given))
    part = type(tools)._distribution_part.__get__(tools)
    clock.now += 1.0
    assert cache.call(stage)[1].hit
    assert looked == []
    (tmp_path / "comp/comp/core.py").write_bytes(b"edited")
    assert cache.call(stage)[1].hit  # not due yet
    clock.now += 1.0
    _, outcome = cache.call(stage)
    assert outcome.reason is Reason.TOOL_CHANGED
    assert "comp" in outcome.detail
    assert set(looked) == {"comp"}
    clock.now += 1.0
    wheel(tmp_path / "beside", name="beside", version="2.0")
    _, outcome = cache.call(stage)
    assert outcome.reason is Reason.TOOL_CHANGED


def test_async_stages(cache):
    @cache.stage
    async def stage(n: int) -> bytes:
        await asyncio.sleep(0.01)
        return os.urandom(8)

    async def main():
        first = await stage(1)
        assert await stage(1) == first
        value, outcome = await cache.call(stage, 1)
        assert (value, outcome.reason) == (first, Reason.HIT)
        value, outcome = await stage.call(1)
        assert (value, outcome.reason) == (first, Reason.HIT)
        # one execution among tasks that ask at once
        assert len(set(await asyncio.gather(*(stage(2) for _ in range(8))))) == 1

    asyncio.run(main())


def test_one_execution_among_threads(cache):
    started = threading.Barrier(8)

    @cache.stage
    def stage(n: int) -> bytes:
        import time

        time.sleep(0.1)
        return os.urandom(8)

    results, outcomes = [], []

    def work():
        started.wait()
        value, outcome = cache.call(stage, 1)
        results.append(value)
        outcomes.append(outcome.reason)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert outcomes.count(Reason.HIT) == 7


def test_a_stage_inside_a_stage(cache):
    @cache.stage
    def inner(n: int) -> bytes:
        return os.urandom(8)

    @cache.stage
    def outer(n: int) -> bytes:
        return inner(n) + inner(n + 1)

    first = outer(1)
    assert first == inner(1) + inner(2)
    assert outer(1) == first
    inner.invalidate(1)
    assert outer(1) == first


def test_a_stage_that_reaches_its_own_key_does_not_wait_for_itself(cache):
    @cache.stage
    def stage(n: int, deep: bool) -> bytes:
        return stage(n, True) if not deep and n else b"%d" % n

    assert stage(1, False) == b"1"
    assert stage(0, True) == b"0"

    @cache.stage(ignore=["deep"])
    def same(n: int, deep: bool) -> bytes:
        return b"inner" if deep else same(n, True) + b" outer"

    assert same(1, False) == b"inner outer"


class _Callable:
    def __call__(self, n: int) -> int:
        return n

    def method(self) -> int:
        return 1

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


async def _later() -> int:
    return 1


def _numbers():
    yield 1


async def _numbers_later():
    yield 1


@pytest.mark.parametrize("options", [{}, {"name": "s"}])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            functools.partial(pow, 2),
            r"a functools.partial of pow \(builtin_function_or_method\); define",
        ),
        (functools.partialmethod(_Callable.method), r"a functools.partialmethod of _Callable.method \(function\)"),
        (operator.itemgetter(1), "not an object of type operator.itemgetter"),
        (operator.methodcaller("x"), "not an object of type operator.methodcaller"),
        (_Callable(), "not an object of type .*test_calls._Callable; define"),
        (_Callable().method, r"not _Callable.method \(method\)"),
        (_Callable, r"not _Callable \(type\)"),
        (len, r"not len \(builtin_function_or_method\)"),
        (str.upper, r"not str.upper \(method_descriptor\)"),
        (functools.lru_cache(_later), r"not _later \(functools._lru_cache_wrapper\)"),
        (functools.singledispatchmethod(_later), "not an object of type functools.singledispatchmethod"),
        (property(_later), "not an object of type property"),
        (3, "not an object of type int"),
        ("stage", "not an object of type str"),
        (staticmethod(len), "put @staticmethod above @cache.stage"),
        (classmethod(len), "put @classmethod above @cache.stage"),
        (_numbers, "_numbers is a generator"),
        (_numbers_later, "_numbers_later is a generator"),
    ],
    ids=range(18),
)
def test_what_is_no_plain_function_is_refused_by_name(cache, given, words, options):
    with pytest.raises(cachec.UnsupportedFunction, match=words):
        cache.stage(**options)(given)


def test_a_stage_of_nothing_or_without_a_name_is_refused(cache):
    with pytest.raises(cachec.UnsupportedFunction, match="not an object of type NoneType"):
        cache.stage(None)
    scope: dict[str, Any] = {}
    exec("def made(): return 1", scope)
    with pytest.raises(cachec.UnsupportedFunction, match=r"made says no module.* give one by name="):
        cache.stage(scope["made"])
    assert cache.stage(name="made")(scope["made"])() == 1


def test_functions_of_all_kinds_are_stages(cache):
    @functools.wraps(pow)
    def wrapped(*args):
        return args[0] + 1

    async def asynchronous(n):
        return n + 1

    assert cache.stage(lambda n: n + 1)(1) == 2
    assert cache.stage(wrapped)(1) == 2
    assert asyncio.run(cache.stage(asynchronous)(1)) == 2
    assert cache.stage(_Callable.__call__, name="of a class")(None, 1) == 1


def test_the_stage_keeps_the_function_and_its_name(cache):
    @cache.stage
    def stage(n: int) -> bytes:
        """Says what it does."""
        return os.urandom(8)

    assert stage.__name__ == "stage"
    assert stage.__doc__ == "Says what it does."
    assert stage.uncached(1) != stage.uncached(1)
    assert stage.__wrapped__(1) != stage(1)
    assert len(stage.key(1)) == 64
    assert stage.key(1) == stage.key(n=1) != stage.key(2)


def test_check_and_why_run_nothing(cache):
    @cache.stage
    def stage(n: int) -> bytes:
        raise AssertionError("ran")

    assert stage.check(1).reason is Reason.FIRST_RUN
    assert stage.why(1).startswith("miss:first-run")


def test_invalidate(cache):
    @cache.stage
    def stage(n: int) -> bytes:
        return os.urandom(8)

    first = stage(1)
    assert stage.invalidate(1)
    assert not stage.invalidate(1)
    value, outcome = cache.call(stage, 1)
    assert value != first
    assert outcome.reason is Reason.ENTRY_GONE


def test_failures_pass_through_and_are_not_cached(cache):
    class Custom(Exception):
        pass

    @cache.stage
    def stage(path: str) -> bytes:
        raise Custom(path)

    for _ in range(2):
        with pytest.raises(Custom):
            stage("x")
    assert stage.check("x").reason is Reason.FIRST_RUN


def test_results_of_every_codec_come_back_like_a_hit(cache, tmp_path):
    @cache.stage
    def stage(kind: str) -> object:
        return {
            "bytes": b"12",
            "text": "ä" * 5000,
            "none": None,
            "tree": {"a": [1, 2.5, None, True], "b": ("x", b"y")},
            "array": np.arange(12, dtype="f4").reshape(3, 4).T,
        }[kind]

    for kind in ("bytes", "text", "none", "tree"):
        fresh = stage(kind)
        assert stage(kind) == fresh == stage.uncached(kind)
        assert type(stage(kind)) is type(fresh)
    fresh, hit = stage("array"), stage("array")
    np.testing.assert_array_equal(fresh, np.arange(12, dtype="f4").reshape(3, 4).T)
    np.testing.assert_array_equal(fresh, hit)
    hit += 1  # as the program may do with the array of a plain call
    np.testing.assert_array_equal(stage("array"), fresh)


def test_a_mutable_result_is_fresh_at_each_call(cache):
    @cache.stage
    def stage() -> dict:
        return {"a": [1]}

    stage()["a"].append(2)
    assert stage() == {"a": [1]}


class Kinds(enum.Flag):
    A = 1
    B = 2


#: Results that no codec takes, by the place in them that is told.
UNSTORABLE = {
    "['x'][0]": lambda: {"x": [object()]},
    "result is a": lambda: Kinds.A | Kinds.B,
    "decimal.Decimal": lambda: decimal.Decimal("1.5"),
    "datetime.date": lambda: datetime.date(2020, 1, 1),
    "datetime.timedelta": lambda: datetime.timedelta(1),
    "collections.OrderedDict": lambda: collections.OrderedDict(a=1),
    "collections.defaultdict": lambda: collections.defaultdict(int),
    "ValueError": lambda: ValueError("x"),
    "a set": lambda: {1, 2},
    "an array of dtype": lambda: np.zeros(2, [("a", "f4")]),
}


@pytest.mark.parametrize("said", UNSTORABLE)
def test_a_result_that_cannot_be_stored_is_returned(said: str, cache: cachec.Cache) -> None:
    made = UNSTORABLE[said]
    runs: list[int] = []

    @cache.stage(version="1")
    def stage() -> object:
        runs.append(1)
        return made()

    for number in (1, 2):
        value, outcome = stage.call()
        assert type(value) is type(made())
        assert outcome.reason is Reason.UNSTORABLE
        assert said in outcome.detail
        assert len(runs) == number


def test_a_path_of_no_file_is_what_the_stage_makes_of_it(cache: cachec.Cache, tmp_path: Path) -> None:
    @cache.stage
    def stage(path: Path) -> str:
        return path.read_text() if path.name == "read" else "none"

    value, outcome = stage.call(tmp_path / "gone")
    assert (value, outcome.reason) == ("none", Reason.KEY_UNREADABLE)
    assert "argument path is a path and keyed by the content" in outcome.detail
    with pytest.raises(FileNotFoundError):
        stage(tmp_path / "read")
    with pytest.raises(cachec.UnkeyableArgument):
        stage.key(tmp_path / "gone")
    assert stage.check(tmp_path / "gone").reason is Reason.KEY_UNREADABLE


def test_files_and_folders_as_results(cache, tmp_path):
    @cache.stage
    def stage(n: int) -> tuple[cachec.File, cachec.Dir]:
        out = tmp_path / f"out{n}"
        (out / "sub").mkdir(parents=True)
        (out / "sub" / "x").write_bytes(b"%d" % n)
        (out / "y.bin").write_bytes(os.urandom(8))
        return cachec.File(out / "y.bin"), cachec.Dir(out)

    file, _ = stage(1)
    again, folder_again = stage(1)
    assert file.path == again.path
    assert file.read_bytes() == again.read_bytes()
    assert file.name == "y.bin"
    assert file.path.stat().st_mode & 0o777 == 0o444
    assert (folder_again.path / "sub" / "x").read_bytes() == b"1"
    assert str(file.path).startswith(str(cache.dir))


def test_a_file_that_code_holds_counts_by_content_and_suffix(cache, tmp_path):
    def call(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        held = cachec.File(path)

        @cache.stage(name="stage")
        def stage() -> bytes:
            return os.urandom(8) + held.path.suffix.encode()

        return stage()

    first = call("a/x.txt", "1")
    assert call("b/y.txt", "1") == first
    assert call("b/y.txt", "2") != first
    assert call("b/y.mlir", "1") != first


def test_a_distribution_that_the_run_changes(cache, tmp_path, monkeypatch):
    """It is looked at again, however short the run was."""
    (tmp_path / "comp-1.0.dist-info").mkdir()
    (tmp_path / "comp-1.0.dist-info" / "METADATA").write_text("Name: comp\nVersion: 1.0\n")
    (tmp_path / "comp-1.0.dist-info" / "RECORD").write_text("comp.py,,\ncomp-1.0.dist-info/METADATA,,\n")
    (tmp_path / "comp.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    @cache.stage(tools=["comp"])
    def stage(text: str) -> bytes:
        (tmp_path / "comp.py").write_text(text)
        return os.urandom(8)

    _, outcome = cache.call(stage, "")
    assert outcome.stored
    _, outcome = cache.call(stage, "VERSION = 1")
    assert (outcome.reason, outcome.stored) == (Reason.INPUT_CHANGED, False)


@pytest.mark.parametrize("form", [lambda array: array, lambda array: {"k": [array]}], ids=["alone", "inside"])
def test_an_array_counts_by_its_elements_and_strides(cache: cachec.Cache, form: Callable[[Any], object]) -> None:
    stage = cache.stage(lambda value: 0)
    one = np.array([[1, 2], [3, 4]], "i4")
    key = stage.key(form(one))
    assert stage.key(form(one.copy())) == key
    others = (
        one + 1,
        one.T,
        one.reshape(4),
        one.astype("u4"),
        one.astype(">i4"),
        one.view("f4"),
        np.asfortranarray(one),
        np.repeat(one, 2, axis=1)[:, ::2],
        one[:, ::-1],
        [[1, 2], [3, 4]],
    )
    assert len({key, *(stage.key(form(other)) for other in others)}) == 1 + len(others)


def test_an_interrupted_stage_is_not_one_that_raised(cache):
    @cache.stage
    def build(value: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(1)
    assert not cache.events.counts


@pytest.mark.parametrize("name", ["/nowhere/op.cc", "<made>"])
def test_frames_that_stand_for_other_languages_are_no_code_of_a_file(tmp_path, name):
    """TVM makes some with the names of its C++ sources, in a namespace of no module."""
    cache = cachec.Cache(tmp_path, log="off")

    @cache.stage
    def stage(name: str) -> int:
        return eval(compile("1", name, "eval"), {"_": 1})

    assert [cache.call(stage, name)[1].reason.kind for _ in range(2)] == ["miss", "hit"]


def test_a_miss_is_compared_with_the_call_of_the_same_arguments(cache):
    first, second = {"x": 1}, {"x": 1}

    @cache.stage
    def stage(n: int, m: int = 1) -> int:
        return n + first["x"] + second["x"]

    assert cache.call(stage, 1)[1].reason is Reason.FIRST_RUN
    first["x"] = second["x"] = 2
    cache.call(stage, 2)  # fewer parts differ from this one's
    outcome = cache.call(stage, 1)[1]
    assert outcome.reason is Reason.CODE_CHANGED
    assert "first['x']: 1 -> 2" in outcome.detail


def test_a_reason_names_the_attribute_that_a_run_changed(cache):
    class Lazy:
        def __init__(self) -> None:
            self.path = "a"
            self.data: int | None = None

        def read(self) -> int:
            self.data = 3
            return self.data

    lazy = Lazy()

    @cache.stage
    def stage() -> int:
        return lazy.read()

    outcome = cache.call(stage)[1]
    assert outcome.reason is Reason.INPUT_CHANGED
    assert ".data: None -> 3" in outcome.detail
