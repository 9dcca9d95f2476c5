"""Fixtures that every test may use."""

from __future__ import annotations

import compileall
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import cachec
from tests.effort import WHOLE, rounds

ROOT = Path(__file__).parents[1]
_CLOCK_REALTIME_COARSE = 5  # <linux/time.h>; Python's ``time`` has no name for it

# How long an example takes is the machine's business.
settings.register_profile(
    "ours",
    max_examples=rounds(settings.default.max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ours")

# Pytest may keep the test modules that it has rewritten, also where the environment forbids bytecode: rewriting them
# is half of collecting them. What tests write and import later is left as the environment wants it.
_dont_write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def pytest_configure(config: pytest.Config) -> None:
    """Compile cachec once. The tests start Python by the hundred, and where PYTHONDONTWRITEBYTECODE is set each of
    those processes would compile all of it: three quarters of what a worker of `cachec warm` does."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        for folder in ("cachec", "plugins"):
            compileall.compile_dir(ROOT / folder, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are processors: a third of the time a test waits, for a disk or for a process. Long
    tests wait longer, for processes that they kill and for what those sync to the disk."""
    return len(os.sched_getaffinity(0)) * (4 if WHOLE else 3) // 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-screens", action="store_true", help="write tests/cli/screens anew")


def pytest_itemcollected(item: pytest.Item) -> None:
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("fuzz")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``sampled`` the first of its parameters is for every run, the others are ``long``."""
    seen: set[str] = set()
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            name = item.nodeid.partition("[")[0]
            if name in seen:
                item.add_marker("long")
            seen.add(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays, so a search of it for garbage finds none: that is a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _dont_write_bytecode


@pytest.fixture(scope="module", autouse=True)
def _what_is_imported_is_no_garbage() -> None:
    """A collection looks at what the module's tests made, not at a million objects of torch, JAX and TVM each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CACHEC_") or name == "COLUMNS":  # pytest-xdist tells its workers how wide a terminal is
            monkeypatch.delenv(name)
    monkeypatch.setenv("CACHEC_SERVER", "off")  # no process outlives a test; what is about servers says otherwise
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    """A cache of its own for one test."""
    return cachec.Cache(tmp_path / "cache", log="off", mode="on", lock_timeout=60)


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    """A small safetensors checkpoint: ``scale`` (), ``a`` and ``b`` (4, 3), float32."""
    return write_weights(tmp_path / "w.safetensors", seed=0)


def write_weights(path: Path, *, seed: int, **changes: object) -> Path:
    """Write the checkpoint of ``weights_file`` with other numbers; ``changes`` replaces tensors by name."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    tensors = {
        "scale": np.full((), rng.random(), "f4"),
        "a": rng.standard_normal((4, 3)).astype("f4"),
        "b": rng.standard_normal((4, 3)).astype("f4"),
    }
    tensors.update(changes)  # type: ignore[arg-type]
    replacement = path.with_name(path.name + ".new")
    save_file(tensors, replacement)
    replacement.rename(path)
    return path


@pytest.fixture
def seconds_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Put this process's clock forward: digests are remembered of what was changed more than two seconds ago."""

    def put_forward(seconds: float) -> None:
        before = time.time
        now = before()
        while time.clock_gettime(_CLOCK_REALTIME_COARSE) <= now:
            pass  # files have their times from this clock: what is written from here on has another one
        monkeypatch.setattr(time, "time", lambda: before() + seconds)

    return put_forward


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Also of what cachec prints, which goes to handlers of its own logger and to none of the root logger's."""
    monkeypatch.setattr(logging.getLogger("cachec"), "handlers", [caplog.handler])
    monkeypatch.setattr(logging.getLogger("cachec"), "propagate", False)
    return caplog
