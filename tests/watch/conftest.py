"""A project of ``tests/warm`` and a watcher that runs beside the test."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("watchdog")

from cachec import config
from cachec.watch import Event, Watcher

# the helpers of tests/warm, as importlib mode has no packages of tests
_spec = importlib.util.spec_from_file_location("warm_helpers", Path(__file__).parents[1] / "warm" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
helpers = sys.modules.setdefault("warm_helpers", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(helpers)
project = helpers.project


class Watching:
    """Collects what a watcher tells."""

    def __init__(self, **options: object) -> None:
        self.events: list[Event] = []
        self._seen = 0
        self._condition = threading.Condition()
        self.watcher = Watcher(config.load(), self._tell, **options)  # type: ignore[arg-type]
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.watcher.run()
        except BaseException as error:
            self.error = error
            with self._condition:
                self._condition.notify_all()

    def _tell(self, event: Event) -> None:
        with self._condition:
            self.events.append(event)
            self._condition.notify_all()

    def start(self) -> Watching:
        self._thread.start()
        self.next("watching")
        return self

    def next(self, kind: str, target: str = "", seconds: float = 60.0) -> Event:
        """The next event of this kind (and target); those before it are passed over."""
        end = time.monotonic() + seconds
        with self._condition:
            while True:
                for at in range(self._seen, len(self.events)):
                    if self.events[at].kind == kind and target in {"", self.events[at].target}:
                        self._seen = at + 1
                        return self.events[at]
                assert self.error is None, self.error
                left = end - time.monotonic()
                assert left > 0, f"no {kind} {target} in {self.events}"
                self._condition.wait(left)

    def looked(self) -> None:
        """Until every target was looked at, after one of them was told of."""
        end = time.monotonic() + 60
        while self.watcher._busy:
            assert time.monotonic() < end
            time.sleep(0.01)

    def quiet(self, seconds: float) -> list[Event]:
        """What is told while nothing is to be told."""
        before = len(self.events)
        time.sleep(seconds)
        return self.events[before:]

    def stop(self) -> None:
        self.watcher.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def watch(project: object) -> Iterator[Callable[..., Watching]]:
    """Makes watchers, and stops them."""
    made: list[Watching] = []

    def make(**options: object) -> Watching:
        made.append(Watching(**options))
        return made[-1].start()

    yield make
    for each in made:
        each.stop()
