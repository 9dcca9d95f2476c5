"""What plugins put around a run: when it is entered, for which stages, and that it is left again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

import cachec
from cachec import WeightSet
from cachec.programs.plugin import Plugin


class Around:
    """A context manager that can be entered again, as a library keeps one for each thread."""

    def __init__(self, told: list[str], key: str, inside: list[Around]) -> None:
        self.told, self.key, self.inside = told, key, inside

    def __enter__(self) -> None:
        self.inside.append(self)
        self.told.append("enter")

    def __exit__(self, *error: object) -> None:
        assert self.inside.pop() is self, "left in another order than entered"
        self.told.append("leave")


class Speaking(Plugin):
    name = "speaking"
    distributions = ("numpy",)

    def __init__(self) -> None:
        self.told: list[str] = []
        self.inside: list[Around] = []
        self.asked: list[Around] = []

    def running(self, key: str) -> Around:
        self.asked.append(Around(self.told, key, self.inside))
        return self.asked[-1]


@pytest.fixture
def plugin(monkeypatch) -> Iterator[Speaking]:
    plugin = Speaking()
    monkeypatch.setattr("cachec.programs.registry.Plugins.all", lambda self: (plugin,))
    yield plugin
    assert plugin.inside == []


def test_a_run_is_put_in_it_and_a_hit_is_not(plugin, cache):
    depth: list[int] = []

    @cache.stage(tools=["numpy"], ignore=["inside", "depth"])
    def stage(n: int, inside: list[Around], depth: list[int]) -> int:
        depth.append(len(inside))
        return n

    for _ in range(2):
        assert stage(1, plugin.inside, depth) == 1
    assert depth == [1]
    assert [each.key for each in plugin.asked] == [stage.key(1, plugin.inside, depth)]
    assert plugin.told == ["enter", "leave"] * 2  # the run, and storing what it made
    stage.check(2, plugin.inside, depth)
    stage.uncached(2, plugin.inside, depth)
    assert (len(plugin.asked), depth) == (1, [1, 0])


def test_only_for_stages_that_the_plugin_speaks_for(plugin, cache):
    @cache.stage
    def plain(n: int) -> int:
        return n

    @cache.stage
    def outer(n: int) -> int:
        return inner(n)

    @cache.stage(tools=["numpy"])
    def inner(n: int) -> int:
        return n

    assert plain(1) == 1
    assert plugin.asked == []
    assert outer(1) == 1  # which reaches the other one: what that works with is in its key too
    assert [each.key for each in plugin.asked] == [outer.key(1), inner.key(1)]


def test_an_error_passes_unchanged(plugin, cache):
    @cache.stage(tools=["numpy"])
    def stage(error: str) -> int:
        raise {"stop": StopIteration, "value": ValueError, "exit": SystemExit}[error](error)

    for name, kind in (("stop", StopIteration), ("value", ValueError), ("exit", SystemExit)):
        with pytest.raises(kind, match=name):
            stage(name)
        assert plugin.inside == []


def test_weights_that_are_made_when_they_are_stored_are_made_inside(plugin, cache):
    depth: list[int] = []

    @cache.stage(tools=["numpy"], ignore=["inside", "depth"])
    def double(weights: WeightSet, inside: list[Around], depth: list[int]) -> WeightSet:
        def doubled(weight: cachec.Weight) -> np.ndarray:
            depth.append(len(inside))
            return weight.read() * 2

        return weights.derive({"w": doubled})

    double(WeightSet.from_arrays({"w": np.ones(2, "f4")}), plugin.inside, depth)
    assert depth == [1]


def test_each_step_of_a_coroutine_is_inside_and_what_others_do_meanwhile_is_not(plugin, cache):
    """Entered and left in turn by tasks of one thread: none may be left in another one's."""
    seen: list[tuple[str, object]] = []

    @cache.stage(tools=["numpy"], ignore=["turns", "inside", "seen"])
    async def stage(name: str, turns: int, inside: list[Around], seen: list[tuple[str, object]]) -> str:
        for _ in range(turns):
            (around,) = inside
            seen.append((name, around))
            await asyncio.sleep(0)
        with contextlib.suppress(ValueError):
            await failing()
        assert len(inside) == 1
        return name

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def watched() -> None:
        for _ in range(8):
            assert plugin.inside == []
            await asyncio.sleep(0)

    async def main() -> list[object]:
        return await asyncio.gather(stage("a", 3, plugin.inside, seen), watched(), stage("b", 2, plugin.inside, seen))

    assert asyncio.run(main()) == ["a", None, "b"]
    each = {name: {id(around) for other, around in seen if other == name} for name in "ab"}
    assert len(each["a"]) == len(each["b"]) == 1
    assert each["a"] != each["b"]


def test_a_coroutine_that_is_cancelled_or_closed(plugin, cache):
    ended: list[str] = []

    class Never:
        def __await__(self):
            yield

    @cache.stage(tools=["numpy"], ignore=["waiting", "inside", "ended"])
    async def stage(n: int, waiting: object, inside: list[Around], ended: list[str]) -> int:
        try:
            await waiting
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append(f"over, {len(inside)} inside")
        return n

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stage(1, asyncio.sleep(60), plugin.inside, ended), 0.05)

    asyncio.run(main())
    assert ended == ["cancelled", "over, 1 inside"]
    waiting = stage(2, Never(), plugin.inside, ended)
    waiting.send(None)
    assert plugin.inside == []
    waiting.close()
    assert ended[2:] == ["over, 1 inside"]
