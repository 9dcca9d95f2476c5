"""How a call waits: it blocks its thread, lets an event loop go on, or lets other calls of a ``cache.map``."""

from __future__ import annotations

import select
import time
import types
from collections.abc import Callable, Collection, Generator
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Waiter(Protocol):
    """The ways to wait of one call. Only the thread of the call runs meanwhile what belongs to it."""

    async def readable(self, fds: Collection[int], seconds: float | None) -> list[int]:
        """The descriptors that have data, or have ended; none after so many seconds."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def result_of(self, function: Callable[[], T]) -> T:
        """What a function returns that waits for others by itself: it may be called in another thread."""

    async def turn(self) -> None:
        """Wait until this call may begin a run."""


class Blocking:
    """Blocks the thread."""

    async def readable(self, fds: Collection[int], seconds: float | None) -> list[int]:
        return ready(fds, seconds)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def result_of(self, function: Callable[[], T]) -> T:
        return function()

    async def turn(self) -> None:
        pass


class InLoop:
    """Lets the event loop of asyncio go on."""

    async def readable(self, fds: Collection[int], seconds: float | None) -> list[int]:
        import asyncio  # whoever awaits this has it

        loop = asyncio.get_running_loop()
        has_data = asyncio.Event()
        for fd in fds:
            loop.add_reader(fd, has_data.set)
        try:
            await asyncio.wait_for(has_data.wait(), seconds)
        except TimeoutError:
            return []
        finally:
            for fd in fds:
                loop.remove_reader(fd)
        return ready(fds, 0.0)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def result_of(self, function: Callable[[], T]) -> T:
        import asyncio

        return await asyncio.to_thread(function)

    async def turn(self) -> None:
        pass


class Pause(NamedTuple):
    """What a coroutine that waits in ``Together`` yields."""

    #: It goes on when one of these is readable,
    fds: tuple[int, ...] = ()
    #: or at this time of the monotonic clock; None: never by itself.
    until: float | None = None
    #: It goes on when whoever drives it lets it begin its run.
    is_turn: bool = False


class Together:
    """Suspends the coroutine: whoever drives several of them polls for all (see ``stage.parallel_map``)."""

    async def readable(self, fds: Collection[int], seconds: float | None) -> list[int]:
        await _suspend(Pause(tuple(fds), None if seconds is None else time.monotonic() + seconds))
        return ready(fds, 0.0)

    async def sleep(self, seconds: float) -> None:
        await _suspend(Pause(until=time.monotonic() + seconds))

    async def result_of(self, function: Callable[[], T]) -> T:
        return function()

    async def turn(self) -> None:
        await _suspend(Pause(is_turn=True))


@types.coroutine
def _suspend(pause: Pause) -> Generator[Pause, None, None]:
    yield pause


def ready(fds: Collection[int], seconds: float | None) -> list[int]:
    """Those that are readable, or ended, within so many seconds; None: however long it takes."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if seconds is None else seconds * 1000)]
