"""A store that the user can't write: a hit is one, and says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachec.events import read_outcomes
from tests.needs import need

#: A user number without an account.
UID = 4242

#: A call of a stage with each kind of result, and of a cache of bytes.
STAGES = """
import os
import numpy as np
import cachec
cache = cachec.Cache()

@cache.stage
def number(n: int) -> int:
    return n

@cache.stage
def array(n: int):
    return np.arange(n)

@cache.stage
def file(n: int) -> cachec.File:
    with open("x.bin", "wb") as opened:
        opened.write(b"x" * n * 100_000)
    return cachec.File("x.bin")

@cache.stage
def folder(n: int) -> cachec.Dir:
    os.makedirs("d", exist_ok=True)
    with open("d/a", "wb") as opened:
        opened.write(b"x" * n)
    return cachec.Dir("d")

@cache.stage
def weights(n: int):
    return cachec.WeightSet.from_arrays({"w": np.ones(n, "f4")})

number(3), array(5), weights(4)
open(os.fspath(file(3).path)).read(3)
os.listdir(folder(4).path)
foreign = cache.foreign("bytes")
if foreign.get(b"key") is None:
    foreign.put(b"key", b"value")
if os.environ.get("DIES"):
    os.kill(os.getpid(), 9)
"""


class User:
    """An ordinary user with a project and a store. Reads what root's tests have made, writes nothing of it."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.stats = folder / "work" / "stats"
        self._work = folder / "work"
        self._work.mkdir()
        (self._work / "cachec.toml").touch()
        (self._work / "stages.py").write_text(STAGES)
        (self._work / "a.c").write_text("int main(void) { return 0; }\n")
        (self._work / "tool").write_text('#!/bin/sh\nread line < a.c\necho "$line" > out.txt\n')
        (self._work / "tool").chmod(0o755)
        for path in (folder, self._work, *self._work.iterdir()):
            os.chown(path, UID, UID)
        for above in folder.parents:
            if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o011)
        time.sleep(0.1)  # a run whose inputs are as new as its start is not stored

    def run(self, *line: str, code: int = 0, **variables: str) -> str:
        """Run a command; return what it wrote to standard error."""
        rights = "-all,+dac_read_search"
        become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        become += [f"--inh-caps={rights}", f"--ambient-caps={rights}"]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self._work), "CACHEC_DIR": str(self.store)}
        environ |= {"CACHEC_STATS_FILE": str(self.stats), "CACHEC_SERVER": "off", **variables}
        environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        done = subprocess.run(
            [*become, *line], cwd=self._work, env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    def build(self, *, hardlinks: bool = True, **variables: str) -> str:
        """Call everything once; return what was written to standard error. hardlinks: the kernel may refuse one to
        another user's file."""
        cachec = (sys.executable, "-m", "cachec", "exec")
        said = self.run(sys.executable, "stages.py", **variables)
        for options in ((), ("--hardlink",) if hardlinks else ()):
            (self._work / "a.o").unlink(missing_ok=True)
            said += self.run(*cachec, *options, "--", "clang-19", "-c", "a.c", "-o", "a.o", **variables)
        (self._work / "out.txt").unlink(missing_ok=True)
        return said + self.run(*cachec, "--", "./tool", **variables)

    def touch(self) -> None:
        """Give the inputs other times, so that each is hashed again."""
        for name in ("a.c", "tool"):
            os.utime(self._work / name)


@pytest.mark.sampled
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("owner", [UID, 0])
def test_hits_are_silent(tmp_path: Path, ends: str, owner: int) -> None:
    need("setpriv", "clang-19")
    user = User(tmp_path)
    user.build()
    if ends == "killed":  # its log of the index is still there
        user.run(sys.executable, "stages.py", DIES="1", code=-signal.SIGKILL)
    user.stats.unlink()
    for folder, _, files in os.walk(user.store):
        os.chown(folder, owner, owner)
        os.chmod(folder, 0o555)
        for name in files:
            os.chown(os.path.join(folder, name), owner, owner)
            os.chmod(os.path.join(folder, name), 0o444)
    before = {*user.store.rglob("*")}
    agreed = {} if owner == UID else {"CACHEC_SHARED": "trusted"}
    for _ in range(2):
        user.touch()
        assert user.build(hardlinks=owner == UID, **agreed) == ""
    assert {outcome.reason.value for outcome in read_outcomes(user.stats)} == {"hit"}
    assert len(list(read_outcomes(user.stats))) == 2 * 9
    assert {*user.store.rglob("*")} == before
