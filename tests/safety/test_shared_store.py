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

from cachec.base import file_ownership, fsio
from cachec.base.append_file import Appender
from cachec.config import load
from cachec.doctor.case import Case
from cachec.doctor.rights import rights
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
    before = team.modes()
    [[_, words]] = team.act(one, "077", "doctor:--fix")  # type: ignore[misc]
    assert "sharing:" in words
    assert f"chmod g+w {team.store}" in words.replace("\n    ", " ")
    assert team.modes().items() >= before.items()  # whether its owner has closed it is for a person to say
    team.store.chmod(0o2770)
    [[_, asked], [_, words]] = team.act(one, "077", "doctor", "doctor:--fix")  # type: ignore[misc]
    assert "sharing:" in asked
    assert "doctor --fix will give group" in asked.replace("\n    ", " ")
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


def _shared_by(place: Path, owner: int, user: int) -> Path:
    """A store of one user that another has agreed to share; the record."""
    place.mkdir()
    os.chown(place, owner, GROUP)
    place.chmod(0o2770)
    return _agree(place, user)


#: How a store with a record comes to differ from the one that the user agreed to.
FORGERIES: dict[str, Callable[[Path, Path], object]] = {
    "another user's record": lambda _store, record: os.chown(record, USERS[1], GROUP),
    "another group": lambda store, _record: (os.chown(store, USERS[1], OTHER_GROUP), store.chmod(0o2770)),
    "a link": lambda store, record: record.symlink_to(record.rename(store / "record")),
    "a link to another store's record": lambda store, record: _swap(
        store, lambda old: record.symlink_to(old / "shared" / record.name)
    ),
    "a link to another store's folder": lambda store, record: _swap(
        store, lambda old: (record.parent.rmdir(), record.parent.symlink_to(old / "shared"))
    ),
    "a record from another store": lambda store, record: _swap(
        store, lambda old: (old / "shared" / record.name).rename(record)
    ),
    "a copy": lambda store, _record: subprocess.run(
        ["cp", "-a", store.rename(store.with_name("old")), store], check=True
    ),
    "a record that others can write": lambda _store, record: record.chmod(0o666),
    "a record that is a folder": lambda _store, record: (record.unlink(), record.mkdir()),
    "a FIFO": lambda _store, record: (record.unlink(), os.mkfifo(record)),
}


def _swap(store: Path, change: Callable[[Path], object]) -> None:
    """Put another user's folder with the same group in the place of a store."""
    old = store.rename(store.with_name("old"))
    (store / "shared").mkdir(parents=True)
    for place in (store, store / "shared"):
        os.chown(place, USERS[2], GROUP)
        place.chmod(0o2770)
    change(old)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_record_of_another_store_or_user_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgery: str
) -> None:
    me, other, _ = USERS
    store = tmp_path / "store"
    record = _shared_by(store, other, me)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    Store(store).refuse_foreign()
    with pytest.raises(ConfigError, match="refuse"):
        Store(store).refuse_foreign("no")
    FORGERIES[forgery](store, record)
    with pytest.raises(ConfigError, match=r"CACHEC_SHARED=trusted|is no folder"):
        Store(store).refuse_foreign()
    assert not sharing.is_recorded(str(store))


def test_one_store_at_two_paths_needs_one_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename, a link and a bind mount lead to the same folder."""
    me, other, _ = USERS
    record = _shared_by(tmp_path / "store", other, me)
    (tmp_path / "store").rename(tmp_path / "renamed")
    (tmp_path / "store").symlink_to("renamed")
    monkeypatch.setattr(os, "geteuid", lambda: me)
    for name in ("store", "renamed"):
        Store(tmp_path / name).refuse_foreign()
        assert sharing.agree(str(tmp_path / name))
    assert [path.name for path in (tmp_path / "renamed" / "shared").iterdir()] == [record.name]


@pytest.mark.parametrize(
    ("mode", "owner", "group", "words"),
    [
        (0o755, 0, 0, ""),
        (0o777, 0, 0, "writable for everybody"),
        (0o2777, 0, GROUP, "writable for everybody"),
        (0o1777, 0, 0, ""),
        (0o2775, 0, GROUP, ""),
        (0o775, 0, OTHER_GROUP, f"writable for the group {OTHER_GROUP}"),
        (0o755, USERS[1], 0, ""),  # the store's owner
        (0o755, USERS[2], 0, f"belongs to user {USERS[2]}"),
        (0o1777, USERS[2], 0, f"belongs to user {USERS[2]}"),
    ],
)
def test_who_can_replace_a_shared_store_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, group: int, words: str
) -> None:
    me, other, _ = USERS
    above = tmp_path / "above"
    above.mkdir()
    _shared_by(above / "store", other, me)
    os.chown(above, owner, group)
    above.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    why = Store(above / "store").why_refused("auto")
    assert words in why
    assert bool(words) == bool(why)
    case = Case(load({"dir": above / "store"}, environ={}, cwd=tmp_path))
    told = [finding for finding in rights(case) if finding.check == "shared"]
    assert [words in finding.words and "agree once" not in finding.fix for finding in told] == [True] * bool(words)


#: What makes a store of the records of a shared one, and is private: by a name.
PRIVATE: dict[str, str] = {
    "a copy": "cp -r {store} {copy}",
    "a copy with its modes": "cp -a {store} {copy} && chmod -R g-ws {copy}",
    "an archive": "mkdir {copy} && tar -C {store} -c . | tar -C {copy} --no-same-permissions -x && chmod -R g-w {copy}",
    "a store that was closed": "mv {store} {copy} && chgrp -R {other} {copy} && chmod -R g-ws {copy}",
    "a store that was closed at its top": "mv {store} {copy} && chmod -R g-w {copy} && chmod 2700 {copy}",
    "a store without setgid": "mv {store} {copy} && chmod -R g-ws {copy}",
}


@pytest.mark.parametrize("how", PRIVATE)
def test_a_private_store_with_records_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    record = _shared_by(store, 0, 0)
    Store(store).prepare()
    (store / "shared" / "12").write_text("cachec shared 1\n/elsewhere\n2000\n")
    del record
    command = PRIVATE[how].format(store=store, copy=copy, other=OTHER_GROUP)
    subprocess.run(["sh", "-c", f"umask 022; {command}"], check=True)
    before = Team(copy).modes()
    monkeypatch.setattr(file_ownership, "_is_private", lambda _gid: False)
    case = Case(load({"dir": copy}, environ={}, cwd=tmp_path))
    assert not case.is_shared
    assert [finding.words for finding in rights(case)] == []
    assert Team(copy).modes() == before


@pytest.mark.parametrize("block", ["a folder", "a full folder", "a file", "nothing"])
def test_an_agreement_that_can_not_be_recorded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    me, other, _ = USERS
    store = tmp_path / "store"
    _shared_by(store, other, USERS[2])
    place = store / "shared" / "0"
    monkeypatch.setattr(os, "geteuid", lambda: me)
    if "folder" in block:
        (store / "shared" / str(me) / ("full" if "full" in block else "")).mkdir(parents=True)
    elif block == "a file":
        (store / "shared" / str(me)).touch()
    found: list[Fault] = []
    Store(store, on_fault=lambda fault, _detail: found.append(fault)).record_agreement()
    if "folder" not in block:
        os.chown(store / "shared" / str(me), me, GROUP)  # root made it
    assert bool(found) == ("folder" in block)
    assert not place.exists()
    case = Case(load({"dir": store, "shared": "trusted"}, environ={}, cwd=tmp_path))
    told = [finding.fix for finding in rights(case) if finding.check == "shared"]
    assert [f"rm -r {store}/shared/{me}" in fix for fix in told] == [True] * ("folder" in block)


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
