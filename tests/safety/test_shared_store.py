"""A store that users of one group share: each agrees once, and ``doctor --fix`` takes nothing away."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cachec.base import foreign, fsio
from cachec.base.appending import Appender
from cachec.errors import ConfigError
from cachec.model import Fault
from cachec.store import sharing
from cachec.store.store import Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be three users")

GROUP, OTHER_GROUP = 65501, 65502
USERS = [65511, 65512, 65513]

#: What one user does: a call of a stage by name (a value, a file and a folder), a command, or the setting.
ACTIONS = """
import json, os, sys, tempfile
os.umask(int(sys.argv[1], 8))
import cachec, cachec.cli
from click.testing import CliRunner
from pathlib import Path

def made(name):
    def body(folder=name):
        place = Path(tempfile.mkdtemp())
        (place / "inner").mkdir()
        (place / "inner" / "tool").write_text(name + "#!/bin/sh")
        (place / "inner" / "tool").chmod(0o755)
        (place / "text").write_text("text of " + name)
        return cachec.Dir(place), name
    body.__module__ = "shared"
    return body

def call(name):
    stage = cachec.Cache(log="off").stage(name=name, version="1", mode="on")(made(name))
    (folder, text), outcome = stage.call()
    assert (Path(folder.path) / "text").read_text() == "text of " + name == "text of " + text
    return outcome.reason.value + (outcome.fault.value if outcome.fault else "")

said = []
for each in sys.argv[2:]:
    what, _, name = each.partition(":")
    if what == "shared":
        os.environ["CACHEC_SHARED"] = name
    elif what == "call":
        try:
            said.append(call(name))
        except cachec.errors.ConfigError as error:
            said.append(str(error))
    else:
        done = CliRunner().invoke(cachec.cli.main, [what, *name.split()], prog_name="cachec")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        said.append([done.exit_code, done.output])
print(json.dumps(said))
"""


class Team:
    """Users of one group, and the store that they share."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def act(self, user: int, umask: str, *actions: str, **variables: str) -> list[object]:
        """Do what ``ACTIONS`` says as a user; what each came to. An error of cachec comes as its text."""
        caps = "-all,+dac_read_search"  # Python may lie in a folder of root's
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={GROUP}"]
        become += [f"--inh-caps={caps}", f"--ambient-caps={caps}"]
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "CACHEC_DIR": str(self.store),
            "CACHEC_SERVER": "off",
            **variables,
        }
        line = [*become, sys.executable, "-c", ACTIONS, umask, *actions]
        done = subprocess.run(line, env=environ, cwd="/", capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def modes(self) -> dict[str, tuple[int, int, int]]:
        return {
            str(path): (stat.S_IMODE(path.lstat().st_mode), path.lstat().st_uid, path.lstat().st_gid)
            for path in [self.store, *self.store.rglob("*")]
        }


@pytest.fixture
def team(tmp_path: Path) -> Team:
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    store = tmp_path / "store"
    store.mkdir()
    os.chown(store, USERS[0], GROUP)
    store.chmod(0o2770)
    return Team(store)


def test_three_users_repair_and_clean_one_store(team: Team) -> None:
    one, two, three = USERS
    assert team.act(one, "077", "call:a", CACHEC_SHARED="trusted") == ["miss:first-run"]
    before = team.modes()
    refused, (status, words) = team.act(two, "002", "call:a", "doctor:--fix")  # type: ignore[misc]
    assert "shared with the group" in str(refused)
    assert "CACHEC_SHARED=trusted cachec doctor" in str(refused)
    assert status == 1
    assert "shared: this shared store is refused" in words
    assert "to fix" not in words
    assert team.modes().items() >= before.items()
    agree = ["shared:trusted", "doctor", "shared:"]
    for user, umask, own, first in ((two, "002", "c", agree), (three, "077", "d", agree), (one, "077", "b", ["ls"])):
        _, *said = team.act(user, umask, *first, "call:a", f"call:{own}", "doctor:--fix", f"call:{own}", "gc")
        assert said[0] == said[3] == "hit", said
        assert said[1] == "miss:first-run", said
        assert "to fix" not in str(said[2]), said
        assert said[4][0] == 0, said  # type: ignore[index]
    assert {gid for _, _, gid in team.modes().values()} == {GROUP}
    for user, umask in ((one, "002"), (three, "077")):
        assert team.act(user, umask, *(f"call:{name}" for name in "abcd")) == ["hit"] * 4


def test_gc_of_one_removes_what_another_made(team: Team) -> None:
    one, two, _ = USERS
    team.act(one, "077", "call:a", CACHEC_SHARED="trusted")
    [[_, words]] = team.act(two, "077", "gc:--max-size 1", CACHEC_SHARED="trusted")  # type: ignore[misc]
    assert "left out" not in words, words
    assert [*(team.store / "trees").iterdir()] == []
    assert not any(path.is_file() for path in (team.store / "objects").rglob("*"))


def test_a_store_that_lost_its_rights_gets_them_back(team: Team) -> None:
    """``doctor --fix`` of an earlier version took them."""
    one, two, _ = USERS
    for user in (one, two):
        team.act(user, "077", f"call:{user}", CACHEC_SHARED="trusted")
    team.store.chmod(0o2750)
    for path in [path for path in team.store.rglob("*") if path.stat().st_uid == one and path.parent.name != "shared"]:
        path.chmod(path.stat().st_mode & ~0o022)
    [[_, words]] = team.act(one, "077", "doctor")  # type: ignore[misc]
    assert "sharing:" in words
    assert "doctor --fix will give group" in words.replace("\n    ", " ")
    [[_, words]] = team.act(one, "077", "doctor:--fix")  # type: ignore[misc]
    assert words.startswith("to fix sharing: give group")
    assert team.act(two, "077", f"call:{one}", "call:new") == ["hit", "miss:first-run"]


def test_a_private_store_is_repaired_only_where_nobody_else_has_written(team: Team) -> None:
    one, two, _ = USERS
    team.store.chmod(0o700)
    team.act(one, "077", "call:a")
    team.store.chmod(0o777)
    [day] = (team.store / "log").iterdir()
    os.chown(day, two, two)
    [[_, words]] = team.act(one, "077", "doctor:--fix")  # type: ignore[misc]
    assert "mode:" in words
    assert "to fix" not in words
    assert stat.S_IMODE(team.store.stat().st_mode) == 0o777
    os.chown(day, one, one)
    [[_, words]] = team.act(one, "077", "doctor:--fix")  # type: ignore[misc]
    assert f"to fix mode: take the right to write from group and others: {team.store}" in words.replace("\n    ", " ")
    assert stat.S_IMODE(team.store.stat().st_mode) == 0o755


def _agree(folder: Path, uid: int) -> Path:
    """Have a user agree, as far as files show it."""
    assert sharing.agree(str(folder))
    record = folder / "shared" / str(uid)
    (folder / "shared" / "0").rename(record)
    os.chown(record, uid, GROUP)
    return record


@pytest.mark.parametrize("make", ["folder", "file", "log"])
def test_what_is_made_has_its_mode_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str) -> None:
    """Another member may open it at once: with the umask 077 it was closed for a moment."""
    tmp_path.chmod(0o2770)
    place = tmp_path / "made"
    real, seen = (os.chmod, os.fchmod), []

    def looked(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any) -> None:
            seen.append(place.exists())
            change(*args)

        return changed

    monkeypatch.setattr(os, "chmod", looked(real[0]))
    monkeypatch.setattr(os, "fchmod", looked(real[1]))
    before = os.umask(0o077)
    try:
        for _ in range(2):
            if make == "folder":
                fsio.make_dir(place)
            elif make == "file":
                os.close(fsio.open_own(place, os.O_RDWR))
            else:
                Appender(str(place)).append(b"line\n")
    finally:
        os.umask(before)
    assert seen == [False]
    assert stat.S_IMODE(place.stat().st_mode) == (0o2770 if make == "folder" else 0o660)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_lease_is_made_by_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    os.close(fsio.open_own(tmp_path / "lease", os.O_RDONLY | os.O_EXCL))
    with pytest.raises(FileExistsError):
        fsio.open_own(tmp_path / "lease", os.O_RDONLY | os.O_EXCL)
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


def test_a_system_without_a_rename_that_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o2770)
    monkeypatch.setattr("ctypes.CDLL", lambda *_args, **_how: object())
    fsio.make_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o2770


@pytest.mark.long
def test_three_users_at_once(team: Team) -> None:
    """Nobody meets a folder, a file or a database that he can't write."""
    one, two, three = USERS
    calls = [f"call:{number}" for number in range(25)]
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(team.act, user, umask, *calls, CACHEC_SHARED="trusted")
            for user, umask in ((one, "077"), (two, "002"), (three, "077"))
        ]
        said = Counter(str(outcome) for run in runs for outcome in run.result())
    assert set(said) <= {"hit", "miss:first-run"}, said
    assert said["miss:first-run"] == len(calls)


@pytest.mark.parametrize("forged", ["another user's", "moved", "another group", "a link", "writable"])
def test_a_record_that_another_made_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    me, other, _ = USERS
    place = tmp_path / "store"
    place.mkdir()
    os.chown(place, other, GROUP)
    place.chmod(0o2770)
    record = _agree(place, me)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    monkeypatch.setattr(foreign, "why_distrusted", lambda path: f"{path} belongs to user {other}")
    Store(place).refuse_foreign()
    with pytest.raises(ConfigError, match="is refused by CACHEC_SHARED=no") as refusal:
        Store(place).refuse_foreign("no")
    assert "trusted" not in str(refusal.value)
    if forged == "another user's":
        os.chown(record, other, GROUP)
    elif forged == "moved":
        place = place.rename(tmp_path / "elsewhere")
    elif forged == "another group":
        os.chown(place, other, OTHER_GROUP)
        place.chmod(0o2770)
    elif forged == "a link":
        record.rename(tmp_path / "record")
        record.symlink_to(tmp_path / "record")
        os.chown(tmp_path / "record", other, GROUP)
    else:
        record.chmod(0o666)
    with pytest.raises(ConfigError, match="CACHEC_SHARED=trusted"):
        Store(place).refuse_foreign()


def test_everybody_is_not_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, other, _ = USERS
    (tmp_path / "store" / "index").mkdir(parents=True)
    for place in (tmp_path / "store", tmp_path / "store" / "index"):
        os.chown(place, other, GROUP)
        place.chmod(0o2770)
    _agree(tmp_path / "store", me)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    Store(tmp_path / "store").refuse_foreign()
    (tmp_path / "store" / "index").chmod(0o2777)
    with pytest.raises(ConfigError, match=r"writable for everybody|belongs to user"):
        Store(tmp_path / "store").refuse_foreign()


@pytest.mark.parametrize(("number", "faults"), [(errno.EROFS, []), (errno.ENOSPC, [Fault.STORE_FULL])])
def test_a_record_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, faults: list[Fault]
) -> None:
    def refused(_folder: str) -> bool:
        raise OSError(number, os.strerror(number))

    found: list[Fault] = []
    monkeypatch.setattr(sharing, "agree", refused)
    Store(tmp_path, on_fault=lambda fault, _detail: found.append(fault)).record_agreement()
    assert found == faults
