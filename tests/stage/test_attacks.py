"""Wrong hits, hangs and needless misses that were found by attacking stages: each once was one."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import os
import subprocess
import sys
import textwrap
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import cachec
from cachec import Reason, WeightSet
from cachec.errors import CapturedWeights, UnkeyableArgument


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class Derived:
    """Holds weights in a field that ``__init__`` does not take, and in an attribute that is no field."""

    whole: Any
    part: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", self.whole.select(["scale"]))
        object.__setattr__(self, "beside", self.whole.select(["scale"]))


class Struct(msgspec.Struct, frozen=True):
    w: Any


LONG = "k" * 60
PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (lambda w: (1, w), lambda v: v[1]),
    "named tuple": (lambda w: Pair(1, w), lambda v: v.b),
    "ordered dict": (lambda w: collections.OrderedDict(w=w), lambda v: v["w"]),
    "default dict": (lambda w: collections.defaultdict(list, w=w), lambda v: v["w"]),
    "mapping proxy": (lambda w: types.MappingProxyType({"w": w}), lambda v: v["w"]),
    "namespace": (lambda w: types.SimpleNamespace(w=w), lambda v: v.w),
    "msgspec": (lambda w: Struct(w), lambda v: v.w),
    "long keys": (lambda w: {LONG + "1": w, LONG + "2": w}, lambda v: v[LONG + "1"]),
    "enum key": (lambda w: {Colour.RED: w}, lambda v: v[Colour.RED]),
    "no field of init": (lambda w: Derived(w), lambda v: v.part),
    "no field": (lambda w: Derived(w), lambda v: v.beside),
}


def weights(scale: float, a: float = 1) -> WeightSet:
    return WeightSet.from_arrays({"scale": np.full((), scale, "f4"), "a": np.full((2,), a, "f4")})


@pytest.mark.parametrize("place", PLACES)
def test_a_weight_read_anywhere_in_an_argument_counts(cache: cachec.Cache, place: str) -> None:
    put, take = PLACES[place]

    @cache.stage
    def stage(value: Any) -> float:
        return float(take(value)["scale"].read())

    given = put(weights(1))
    assert cache.call(stage, given)[0] == 1
    assert stage(given) == 1
    value, outcome = cache.call(stage, put(weights(2)))
    assert (value, outcome.reason) == (2, Reason.WEIGHT_CONTENT_CHANGED)
    value, outcome = cache.call(stage, put(weights(2, a=5)))
    assert (value, outcome.reason) == (2, Reason.HIT)
    assert float(take(given)["scale"].read()) == 1  # the caller's own was not touched


def test_weights_where_no_read_can_be_recorded_are_refused(cache: cachec.Cache) -> None:
    @cache.stage
    def stage(value: Any) -> float:
        return float(next(iter(value))["scale"].read())

    for value in ({weights(1)}, frozenset({weights(1)}), {weights(1): 1}):
        with pytest.raises(UnkeyableArgument, match="can't be recorded"):
            stage(value)
    assert stage([weights(3)]) == 3


def test_a_result_that_contains_itself_is_no_endless_search(cache: cachec.Cache) -> None:
    @cache.stage(mode="read-only")
    def stage() -> Any:
        found: list[Any] = []
        found.append(found)
        return found

    found = stage()
    assert found[0] is found


class Scaler:
    def __init__(self, by: Any) -> None:
        self.by = by

    def times(self) -> Any:
        return self.by

    def read(self) -> float:
        return float(self.by["scale"].read())


def test_a_bound_method_as_an_argument_is_its_object_too(cache: cachec.Cache) -> None:
    @cache.stage
    def stage(method: Callable[[], Any]) -> Any:
        return method()

    assert stage(Scaler(2).times) == 2
    assert stage(Scaler(3).times) == 3
    assert cache.call(stage, Scaler(2).times)[1].reason is Reason.HIT
    with pytest.raises(CapturedWeights, match="WeightSet"):
        stage(Scaler(weights(1)).read)


@pytest.mark.parametrize("wrap", [Path, cachec.File])
def test_a_path_that_is_no_file_runs_uncached_and_is_never_waited_for(
    cache: cachec.Cache, tmp_path: Path, wrap: Callable[[Path], Any]
) -> None:
    @cache.stage
    def stage(value: Any) -> int:
        return 1

    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path / "fifo", Path("/dev/zero"), Path("/proc/self/status")):
        value, outcome = stage.call(wrap(place))
        assert (value, outcome.reason) == (1, Reason.KEY_UNREADABLE)
        assert "argument value is a path" in outcome.detail
    (tmp_path / "empty").write_bytes(b"")
    assert stage(wrap(tmp_path / "empty")) == 1


STAGE = """
    import os
    import cachec
    cache = cachec.Cache(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cache"), log="off")

    @cache.stage
    def stage(x):
        return x + 1
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stage_can_be_given_to_worker_processes(tmp_path: Path, method: str) -> None:
    (tmp_path / "module.py").write_text(textwrap.dedent(STAGE))
    main = f"""
        import copy, multiprocessing, pickle, module
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(module.stage)) is module.stage is copy.deepcopy(module.stage)
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                print(pool.map(module.stage, [1, 2, 1]))
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(main))
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[2, 3, 2]\n", done.stderr


def test_a_relative_dependency_is_looked_up_where_the_call_is(
    cache: cachec.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @cache.stage
    def stage() -> str:
        cachec.depends("settings")
        return Path("settings").read_text()

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert stage() == name
        assert cache.call(stage)[1].reason is Reason.HIT


def test_a_dangling_link_is_an_absent_file(cache: cachec.Cache, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")

    @cache.stage(version="1")
    def stage() -> bool:
        return Path(cachec.depends(tmp_path / "link")).exists()

    assert stage() is False
    assert cache.call(stage)[1].reason is Reason.HIT
    (tmp_path / "target").write_text("x")
    assert stage() is True


def test_links_in_a_folder_are_stored_in_their_shortest_form(cache: cachec.Cache, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("x")
    (folder / "dot").symlink_to("./file")
    (folder / "slash").symlink_to(".//file")

    @cache.stage
    def stage() -> cachec.Dir:
        return cachec.Dir(folder)

    assert cache.call(stage)[1].stored
    found, outcome = cache.call(stage)
    assert outcome.reason is Reason.HIT
    assert {name: os.readlink(found.path / name) for name in ("dot", "slash")} == {"dot": "file", "slash": "file"}
    (folder / "self").symlink_to(".")
    outcome = cache.call(cache.stage(name="other")(stage.__wrapped__))[1]
    assert outcome.reason is Reason.UNSTORABLE
    assert "'self'" in outcome.detail


def test_a_cache_opens_though_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(name="stage")
    def stage(n: int) -> int:
        return n

    assert (stage(1), cache.call(stage, 1)[1].reason) == (1, Reason.HIT)


SCRIPT = """
    import os, sys
    import cachec
    cache = cachec.Cache("cache", log="off")
    results, started = [], os.getpid()
    factor = 2

    def helper(x):
        return x * factor

    class Base: ...
    class Kind(Base): ...

    @cache.stage
    def stage(x):
        return helper(x)

    for x in (1, 1, 2, 1):
        value, outcome = cache.call(stage, x)
        results.append(outcome.reason.value)
    factor = 3
    results.append(cache.call(stage, 1)[0])
    print(*results)
"""


def test_what_a_running_script_collects_is_no_reason_to_miss(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))

    def run() -> list[str]:
        command = [sys.executable, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return done.stdout.split()

    assert run() == ["miss:first-run", "hit", "miss:option-changed", "hit", "3"]
    assert run() == ["hit", "hit", "hit", "hit", "3"]


def test_a_warning_names_the_line_that_called_the_stage(cache: cachec.Cache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    @cache.stage
    def stage(place: str) -> str:
        return place

    @cache.stage
    async def later(place: str) -> str:
        return place

    async def main() -> None:
        await later(str(tmp_path / "file"))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        stage(str(tmp_path / "file"))
        asyncio.run(main())
    assert [each.filename for each in told] == [__file__] * 2


def test_what_a_folder_links_to_counts_wherever_it_lies(cache: cachec.Cache, tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("1")
    (folder / "to_file").symlink_to(outside / "file")
    (folder / "to_folder").symlink_to("../outside")
    (folder / "to_itself").symlink_to(".")
    (folder / "upwards").symlink_to("..")

    @cache.stage
    def stage(place: Path) -> list[str]:
        return [(place / name).read_text() for name in ("to_file", "to_folder/file")]

    assert stage(folder) == ["1", "1"]
    assert cache.call(stage, folder)[1].reason is Reason.HIT
    (outside / "file").write_text("2")
    assert stage(folder) == ["2", "2"]


def test_what_a_path_tells_beside_its_content_counts(cache: cachec.Cache, tmp_path: Path) -> None:
    for name in ("a.c", "b.c", "a.cpp"):
        (tmp_path / name).write_text("same")

    @cache.stage
    def stage(file: Any) -> list[object]:
        manifest = getattr(file, "manifest", None)
        return [Path(file).suffix, getattr(file, "kind", ""), manifest is not None and manifest.digest]

    assert stage(tmp_path / "a.c") == [".c", "", False]
    assert cache.call(stage, tmp_path / "b.c")[1].reason is Reason.HIT
    assert stage(tmp_path / "a.cpp") == [".cpp", "", False]
    assert stage(cachec.File(tmp_path / "a.c", "iree:vmfb")) == [".c", "iree:vmfb", False]
    manifest = weights(1).manifest
    assert stage(cachec.File(tmp_path / "a.c", manifest=manifest)) == [".c", "", manifest.digest]


def test_the_rank_is_seen_only_where_it_is_in_the_key(cache: cachec.Cache) -> None:
    arrays = {"a": np.arange(8, dtype="f4").reshape(4, 2)}

    def of(rank: int) -> cachec.WeightSet:
        return cachec.WeightSet.from_arrays(arrays).shard({"a": 0}, rank, 2)

    def look(weights: cachec.WeightSet) -> int | None:
        return weights.select(["a"]).rank

    alike, each = cache.stage(name="alike")(look), cache.stage(name="each", per_rank=True)(look)
    with pytest.raises(cachec.WeightReadError, match="per_rank=True"):
        alike(of(0))
    assert [each(of(0)), each(of(1))] == [0, 1]
    assert alike(cachec.WeightSet.from_arrays(arrays)) is None

    @cache.stage
    def through(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.select(["a"])

    assert [through(of(0)).rank, through(of(1)).rank] == [0, 1]
    assert through.check(of(1)).hit
