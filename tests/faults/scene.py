"""A folder with a store in it that has something of everything, and what was put into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import cachec
from cachec.weights.library.stored_weights import WeightStore
from tests.faults import stages

#: Copies its input and talks; started without a shell, so that all the calls but a few are the launcher's.
COMMAND = ("/bin/cp", "-v", "in.txt", "out.txt")
OPTIONS = ("--input=in.txt", "--output=out.txt")
WARM = '[warm.targets.one]\ncall = "warmed:one"\n[warm.targets.two]\ncall = "warmed:two"\n'
WARMED = """
import cachec
cache = cachec.Cache()
@cache.stage(version="1")
def text(n: int) -> str:
    return "warm %d " % n * 1000
def one():
    text(1)
def two():
    text(2)
"""


class Scene:
    """Paths, and what lies there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.work = folder / "work"
        self.weights = self.work / "w.safetensors"

    def enter(self) -> None:
        """Make this the place of the process, with no settings but these."""
        for name in list(os.environ):
            if name.startswith("CACHEC_"):
                del os.environ[name]
        os.environ |= {
            "CACHEC_DIR": str(self.store),
            "CACHEC_SERVER": "off",
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": "/nonexistent",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        os.chdir(self.work)

    def cache(self, **settings: Any) -> cachec.Cache:
        """The cache, opened as a user's program does."""
        return cachec.Cache(self.store, log="off", mode="on", lock_timeout=5, **settings)

    def make(self) -> Scene:
        """Fill it: results of all kinds, a command with its memo, weights, a log, a history of warming."""
        (self.work / "tree" / "sub").mkdir(parents=True)
        (self.work / "tree" / "sub" / "file").write_bytes(b"in a folder" * 50)
        (self.work / "tree" / "link").symlink_to("sub/file")
        (self.work / "in.txt").write_bytes(b"an input\n" * 500)
        (self.work / "cachec.toml").write_text(WARM)
        (self.work / "warmed.py").write_text(WARMED)
        rng = np.random.default_rng(0)
        arrays = {"a": rng.random((8, 4)).astype("f4"), "b": np.arange(600, dtype="i4"), "c": np.ones(3)}
        cachec.WeightSet.from_arrays(arrays).save(self.weights)
        cache = self.cache()
        found = stages.stages(cache)
        given = cachec.open_weights(self.weights)
        for n in (9, 1, 2):  # the first call of all sees plugins being imported, which its entry then rests on
            found["plain"](n)
        found["scaled"](given, 3)
        found["doubled"](given)
        found["folder"](1, self.work / "tree")
        cache.foreign("foreign").put("1", stages.foreign(1))
        WeightStore(cache.store).add(given, "base")
        WeightStore(cache.store).add(given, "placed", own=False)
        cache.close()
        for line in (["exec", *OPTIONS, "--", *COMMAND], ["warm", "one"], ["gc"]):
            environ = {**os.environ, "CACHEC_DIR": str(self.store), "PYTHONPATH": f"{self.work}:{_ROOT}"}
            subprocess.run(
                [sys.executable, "-m", "cachec", *line], cwd=self.work, env=environ, check=True, capture_output=True
            )
        return self


def remove(folder: Path) -> None:
    """Remove a folder with stored trees in it, which nobody but root can, as they are."""
    for place, _, _ in os.walk(folder) if os.geteuid() else ():
        os.chmod(place, 0o700)
    shutil.rmtree(folder)


_ROOT = Path(__file__).parents[2]
