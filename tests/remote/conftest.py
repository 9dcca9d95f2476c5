"""Machines: each with its own store, checkout and home, and one remote for all."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec.model import Outcome
from cachec.remote.chain import OfferResult, Remotes
from tests.remote.server import Site, serving

#: A stage that runs anew shows it: what it returns is another one each time.
MODEL = """
import os
from pathlib import Path


def build(size: int) -> bytes:
    table = Path(__file__).with_name("table.txt").read_text()
    return table.encode() * size + os.urandom(8)


def plain(size: int) -> bytes:
    return b"x" * size + os.urandom(8)


def noise(size: int) -> bytes:
    return os.urandom(size)
"""


class Machine:
    """A user's machine. Use it through ``call``, as everything of it is set meanwhile."""

    def __init__(self, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.url = url
        self._monkeypatch = monkeypatch
        self.project = folder / "src" / "project"
        self.store = folder / "store"
        self.project.mkdir(parents=True)
        (folder / "home").mkdir()
        (self.project / "cachec.toml").touch()
        (self.project / "model.py").write_text(MODEL)
        (self.project / "table.txt").write_text("one")
        self._cache: cachec.Cache | None = None

    @property
    def cache(self) -> cachec.Cache:
        if self._cache is None:
            self._monkeypatch.setenv("CACHEC_REMOTE", self.url)
            self._cache = cachec.Cache(self.store, log="off")
        return self._cache

    @property
    def remotes(self) -> Remotes:
        remotes = self.cache._opened.remotes
        assert remotes is not None
        return remotes

    @property
    def faults(self) -> list[str]:
        return sorted(fault.value for fault in self.cache.events.faults.elements())

    def stage(self, name: str = "build", **options: Any) -> Any:
        self._monkeypatch.setenv("HOME", str(self.folder / "home"))
        spec = importlib.util.spec_from_file_location("model", self.project / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return self.cache.stage(**options)(getattr(module, name))

    def call(self, size: int = 3, name: str = "build", **options: Any) -> tuple[bytes, Outcome]:
        result: tuple[bytes, Outcome] = self.stage(name, **options).call(size)
        return result

    def push(self) -> list[OfferResult]:
        return list(self.remotes.drain())

    def rows(self) -> list[str]:
        """All keys in the index: what a refused answer must not add to."""
        names = list(self.cache.store.index.keys())
        return sorted(name for name in names if not name.startswith(("digest:", "sha256:")))

    def objects(self) -> int:
        return sum(len(names) for _, _, names in os.walk(self.store / "objects"))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def url(site: Site) -> str:
    return site.url + "?timeout=60"


@pytest.fixture
def machine(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(at: str = "") -> Machine:
        for place in re.findall(r"file://([^ ?]+)", at):  # no build makes it
            Path(place).mkdir(exist_ok=True)
        made.append(Machine(tmp_path / f"machine{len(made)}", at or url, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        if each._cache is not None:
            each.remotes.close()
            each.cache.close()
