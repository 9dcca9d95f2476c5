"""Faults that are planted, each found by its own check and by no other; a healthy store gives none."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachec import config
from cachec.base.mounts import Mounts
from cachec.commands.traced_run import BARE
from cachec.doctor import examine, machine
from cachec.doctor.case import Case
from cachec.doctor.examination import repair
from cachec.model import RECORD_VERSION
from cachec.store.row_codec import pack
from cachec.store.store_size import ROW, TAG, Usage
from cachec.tracing.accesses import TraceProblem, TraceProblemKind

from .conftest import HOURS, KEY, Patient, key_of

# --- the faults, by the check that finds each


def _no_store(patient: Patient) -> None:
    patient.settings["dir"] = patient.outside / "none"
    patient.patch.setattr(os, "access", lambda path, *_, **__: os.fspath(path) != os.fspath(patient.outside))


def _file_for_a_store(patient: Patient) -> None:
    (patient.outside / "file").touch()
    patient.settings["dir"] = patient.outside / "file"


def _linked_part(patient: Patient) -> None:
    (patient.folder / "trees").rmdir()
    (patient.folder / "trees").symlink_to(patient.outside)


def _open_above(patient: Patient) -> None:
    patient.outside.chmod(0o777)


def _of_another(patient: Patient) -> None:
    if os.geteuid():
        pytest.skip("needs root, who gives files to others")
    os.chown(patient.folder / "objects", 1001, -1)


def _of_another_within(patient: Patient) -> None:
    if os.geteuid():
        pytest.skip("needs root, who gives files to others")
    os.chown(patient.folder / "index" / "cache.db", 1001, -1)


def _unwritable(patient: Patient) -> None:
    log = os.fspath(patient.folder / "log")
    patient.patch.setattr(os, "access", lambda path, *_, **__: os.fspath(path) != log)


def _devices(patient: Patient) -> None:
    real = Path.stat

    def stat(path: Path, **how: Any) -> os.stat_result:
        found = real(path, **how)
        return os.stat_result((*found[:2], found[2] + (path.name == "trees"), *found[3:]))

    patient.patch.setattr(Path, "stat", stat)


def _network(patient: Patient) -> None:
    dev = os.stat(patient.folder).st_dev
    line = f"30 20 {os.major(dev)}:{os.minor(dev)} / / rw - nfs4 server:/export rw\n"
    (patient.outside / "mountinfo").write_text(line)
    patient.given["mounts"] = Mounts(patient.outside / "mountinfo")


def _no_maps(patient: Patient) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENODEV, "no maps")

    patient.patch.setattr(mmap, "mmap", refused)
    patient.patch.setattr(
        machine, "run_traced_apart", lambda *_, **__: SimpleNamespace(accesses=SimpleNamespace(problems=()))
    )


def _whole_seconds(patient: Patient) -> None:
    real = os.utime
    patient.patch.setattr(os, "utime", lambda file, ns: real(file, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9)))


def _configured(patient: Patient, text: str) -> None:
    (patient.outside / "cachec.toml").write_text(text)
    patient.patch.chdir(patient.outside)


def _disk_clock(patient: Patient) -> None:
    now = time.time_ns() - 60 * 10**9
    patient.patch.setattr(time, "time_ns", lambda: now)


def _too_large(patient: Patient, rest: int = 0) -> None:
    usage = Usage(version=RECORD_VERSION, nbytes=rest or 1 << 20, rest=rest)
    patient.yard.store.index.write(ROW, pack(usage), TAG)
    patient.settings["max_size"] = 500_000


def _torn_pages(patient: Patient) -> None:
    file = patient.folder / "index" / "cache.db"
    data = bytearray(file.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 64] = os.urandom(64)
    file.write_bytes(data)


def _no_database(patient: Patient) -> None:
    (patient.folder / "index" / "cache.db").write_bytes(b"no database" * 1000)


def _journal(patient: Patient) -> None:
    os.mkfifo(patient.folder / "index" / "cache.db-journal")


def _moved(patient: Patient) -> None:
    patient.write(f"index/corrupt-{time.time_ns()}/cache.db")


def _long_log(patient: Patient) -> None:
    os.truncate(patient.write("index/cache.db-wal", ago=0), 300 << 20)


def _row(patient: Patient, change: Callable[[bytearray], None]) -> None:
    index, name = patient.yard.store.index, patient.yard.store.entry_row(KEY)
    row = bytearray(index.read(name) or b"")
    change(row)
    index.write(name, bytes(row), "pkg.build")


def _damaged_row(patient: Patient) -> None:
    _row(patient, lambda row: row.__setitem__(-5, row[-5] ^ 1))


def _put_away(patient: Patient) -> None:
    patient.yard.publish(key_of(2))
    patient.yard.store.quarantine(KEY, "the fresh result has other bytes")


def _hanging(patient: Patient) -> None:
    lock = patient.yard.store.lock(key_of(3))
    assert lock.try_acquire()
    os.utime(lock.path, (time.time() - HOURS,) * 2)
    patient.locks.append(lock)


def _damaged_weights(patient: Patient) -> None:
    (record,) = (patient.folder / "weights" / "revisions").iterdir()
    record.chmod(0o600)
    record.write_bytes(record.read_bytes() + b" ")


def _inotify(patient: Patient) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    patient.patch.setattr(machine, "Inotify", refused)


def _untraced(patient: Patient, reason: TraceProblemKind) -> None:
    ran = SimpleNamespace(problems=(TraceProblem(reason, "refused"),))
    patient.patch.setattr(machine, "run_traced_apart", lambda *_, **__: SimpleNamespace(accesses=ran))


def _clock(patient: Patient) -> None:
    patient.given["clock"] = lambda: time.time() - 10 * 86400


def _broken_plugin(patient: Patient) -> None:
    patient.installed("toy-1.0", entry_points="[cachec.plugins]\ntoy = no_such_module_here:plugin\n")


FAULTS: dict[str, tuple[str, Callable[[Patient], object]]] = {
    "the store is a file": ("folder", _file_for_a_store),
    "the store can't be made": ("place", _no_store),
    "a part is a link": ("part", _linked_part),
    "the folder above is everybody's": ("folder-above", _open_above),
    "a folder is everybody's": ("mode", lambda p: (p.folder / "log").chmod(0o777)),
    "the database is everybody's": ("mode", lambda p: (p.folder / "index" / "cache.db").chmod(0o666)),
    "the store is everybody's": ("mode", lambda p: p.folder.chmod(0o777)),
    "a folder is another user's": ("owner", _of_another),
    "the database is another user's": ("owner", _of_another_within),
    "the log can't be written": ("owner", _unwritable),
    "mounted read-only": ("read-only", lambda p: p.space(f_flag=os.ST_RDONLY, f_bavail=0, f_favail=0)),
    "on a network mount": ("network", _network),
    "a part is another disk": ("devices", _devices),
    "no locks": ("locks", lambda p: p.patch.setattr(fcntl, "flock", lambda *_: None)),
    "no maps": ("maps", _no_maps),
    "no nanoseconds": ("times", _whole_seconds),
    "the disk has another clock": ("disk-clock", _disk_clock),
    "no room": ("space", lambda p: p.space(f_bavail=1)),
    "no inodes": ("inodes", lambda p: p.space(f_favail=3, f_files=100)),
    "far over its bound": ("bound", lambda p: _too_large(p, 0)),
    "what gc can't bring into its bound": ("bound", lambda p: _too_large(p, 600_000)),
    "torn pages": ("index", _torn_pages),
    "no database": ("index", _no_database),
    "a journal that is no file": ("index", _journal),
    "a database that was moved aside": ("index-moved", _moved),
    "a log that nobody takes over": ("index-log", _long_log),
    "another namespace": ("namespace", lambda p: p.settings.update(namespace="ci")),
    "a damaged row": ("rows", _damaged_row),
    "an entry that was put away": ("quarantine", _put_away),
    "a process that hangs": ("lock-held", _hanging),
    "a lock of a killed process": ("locks", lambda p: p.write(f"locks/{KEY[:2]}/{KEY}")),
    "a lease of a killed process": ("leases", lambda p: p.write(f"leases/123-{'0' * 16}")),
    "a file of a killed process": ("unfinished", lambda p: p.write(f"tmp/stage-999999999-{'0' * 16}")),
    "an unfinished download": ("unfinished", lambda p: p.write(f"weights/fetched/{'0' * 32}/part", ago=8 * 86400)),
    "a damaged record of weights": ("weights", _damaged_weights),
    "a remote that does not answer": ("remote", lambda p: p.settings.update(remote=["http://127.0.0.1:9/cache"])),
    "results that were not sent": ("remote-spool", lambda p: p.write(f"remote/spool/{KEY}", ago=3 * 86400)),
    "a misspelt variable": ("variable", lambda p: p.environ.update(CACHEC_MAXSIZE="1GB")),
    "switched off": ("mode", lambda p: p.environ.update(CACHEC_MODE="off")),
    "always refreshed": ("mode", lambda p: p.environ.update(CACHEC_MODE="refresh")),
    "a base folder that is gone": ("base-dir", lambda p: p.settings.update(base_dir=p.outside / "gone")),
    "a statistics file in no folder": ("stats-file", lambda p: p.settings.update(stats_file=p.outside / "gone" / "f")),
    "reproducers in a file": ("repro-dir", lambda p: p.settings.update(repro_dir=Path(__file__))),
    "a clock that is behind": ("clock", _clock),
    "no more inotify": ("inotify", _inotify),
    "a setting of commands that is none": ("exec", partial(_configured, text="[exec]\noutput = []\n")),
    "an adapter without names": ("adapters", partial(_configured, text="[adapters.mycc]\nmatch = []\n")),
    **{f"a tracer that is refused: {each.value}": ("tracer", partial(_untraced, reason=each)) for each in sorted(BARE)},
    "a plugin that can't be imported": ("plugin", _broken_plugin),
    "an unknown compiler": ("compiler", lambda p: p.installed("jax-0.1.0")),
}

#: What ``--fix`` makes good.
SAFE = {
    "a folder is everybody's",
    "the database is everybody's",
    "the store is everybody's",
    "torn pages",
    "no database",
    "a journal that is no file",
    "a lock of a killed process",
    "a lease of a killed process",
    "a file of a killed process",
    "an unfinished download",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(patient: Patient, fault: str) -> None:
    check, plant = FAULTS[fault]
    plant(patient)
    case = patient.case()
    findings = examine(case).findings
    assert {finding.check for finding in findings} == {check}
    assert all(finding.fix and finding.words for finding in findings)
    done = repair(findings)
    assert bool(done) == (fault in SAFE)
    assert not any(why for _, why in done)
    if done:
        assert patient.found() <= {"index-moved"}  # which a repaired index says of what was in it
    for lock in patient.locks:
        lock.release()


def test_nothing_is_found_in_a_healthy_store(patient: Patient) -> None:
    assert not examine(patient.case()).findings


def test_a_store_that_is_not_made_yet_is_healthy(tmp_path: Path) -> None:
    settings = config.load({"dir": tmp_path / "none"}, environ={}, cwd=tmp_path)
    found = examine(Case(settings, environ={}))
    assert not found.findings
    assert not (tmp_path / "none").exists()


def test_what_running_processes_hold_is_healthy(patient: Patient) -> None:
    store = patient.yard.store
    lock = store.lock(key_of(4))
    assert lock.try_acquire()
    store.objects.path(patient.yard.publish(key_of(5)))  # leased
    with store.objects.new_staging():
        assert not patient.found()
    lock.release()


def test_a_look_changes_nothing(patient: Patient) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_size, path.stat().st_mode) for path in patient.folder.rglob("*")}

    before = state()
    examine(patient.case())
    assert state() == before


def test_the_platform_in_words(patient: Patient) -> None:
    facts = examine(patient.case()).facts["platform"]
    assert len(facts["digest"]) == len(facts["portable"]) == 64
    assert facts["machine"] == os.uname().machine
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in facts["python"]
