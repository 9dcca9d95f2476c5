"""What the tests of the doctor share: a store that is well, and all that can be told of its surroundings."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cachec import config
from cachec.base.distributions import Distributions
from cachec.doctor import examine
from cachec.doctor.case import Case
from cachec.store.locks import KeyLock
from cachec.weights import WeightSet
from cachec.weights.library.stored_weights import WeightStore
from tests.maintain.conftest import Yard, key_of

KEY = key_of(1)

#: Seconds for which nothing is taken for left over.
HOURS = 3 * 3600.0


class Patient:
    """A store with an entry and weights, in a folder of its own, and all that the doctor is told beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "store"
        self.outside = folder
        self.patch = monkeypatch
        self.settings: dict[str, object] = {"dir": self.folder}
        self.environ: dict[str, str] = {}
        self.given: dict[str, Any] = {}
        self.locks: list[KeyLock] = []
        self.yard = Yard(self.folder, now=time.time())
        self.yard.publish(KEY)
        WeightStore(self.yard.store).add(WeightSet.from_arrays({"a": np.ones(3, np.float32)}), "base")
        self.yard.store.close()
        self.yard.store.release()

    def case(self) -> Case:
        settings = config.load(self.settings, environ=self.environ, cwd=self.outside)
        return Case(settings, environ=self.environ, **self.given)

    def found(self) -> set[str]:
        return {finding.check for finding in examine(self.case()).findings}

    def write(self, name: str, data: bytes = b"", ago: float = HOURS) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (time.time() - ago,) * 2)
        return path

    def space(self, **changed: int) -> None:
        def asked(path: Path) -> Any:
            real = os.statvfs(path)
            names = [name for name in dir(real) if name.startswith("f_")]
            return SimpleNamespace(**{name: getattr(real, name) for name in names} | changed)

        self.given["space"] = asked

    def installed(self, name: str, **files: str) -> None:
        folder = self.outside / "site" / f"{name}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name.partition('-')[0]}\n")
        for file, text in files.items():
            (folder / f"{file}.txt").write_text(text)
        self.given["distributions"] = Distributions([str(self.outside / "site"), *sys.path])


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    monkeypatch.chdir(tmp_path)
    return Patient(tmp_path, monkeypatch)
