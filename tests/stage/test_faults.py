"""A fault of the cache costs time, never a result: each one is counted, and the call gives what the stage gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

import cachec
from cachec import Reason
from cachec.model import Fault
from tests.effort import sample


@pytest.fixture
def stage(cache):
    @cache.stage(name="stage")
    def stage(n: int) -> bytes:
        return b"%d " % n + os.urandom(100_000)

    return stage


def artifact(cache: cachec.Cache, content: bytes) -> Path:
    """The stored object with this content."""
    [found] = [path for path in (cache.dir / "objects").rglob("*") if path.is_file() and path.read_bytes() == content]
    return found


def rewrite(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(0o444)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), Reason.ARTIFACT_MISSING),
        (lambda path: rewrite(path, path.read_bytes()[:-1]), Reason.ARTIFACT_CORRUPT),
        (lambda path: rewrite(path, b"x" * path.stat().st_size), Reason.ARTIFACT_CORRUPT),
        (lambda path: rewrite(path, b""), Reason.ARTIFACT_CORRUPT),
    ],
    ids=["missing", "short", "altered", "empty"],
)
@pytest.mark.parametrize("reopen", [False, True])
def test_a_damaged_artifact_is_a_counted_miss_and_heals(cache, stage, tmp_path, damage, reason, reopen):
    first = stage(1)
    assert stage(1) == first
    damage(artifact(cache, first))
    if reopen:
        cache.close()
    value, outcome = cache.call(stage, 1)
    assert (outcome.reason, outcome.stored) == (reason, True)
    assert value.startswith(b"1 ")
    assert stage(1) == value
    assert stage.check(1).hit


def test_a_deleted_store_is_made_again(cache, stage):
    import shutil

    first = stage(1)
    shutil.rmtree(cache.dir)
    value, outcome = cache.call(stage, 1)
    assert value != first
    assert not outcome.hit
    assert stage(1) == stage(1)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_corrupt_database_is_set_aside(cache, stage, content):
    stage(1)
    cache.close()
    for file in (cache.dir / "index").glob("cache.db*"):
        file.unlink()
    (cache.dir / "index" / "cache.db").write_bytes(content)
    value, outcome = cache.call(stage, 1)
    assert value.startswith(b"1 ")
    assert not outcome.hit
    assert stage(2) == stage(2)
    assert stage(1) == stage(1)


def test_a_network_mount_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("cachec.base.mounts.Mounts.kind", lambda self, path: "nfs4")
    monkeypatch.setattr("cachec.base.mounts.Mounts.kind_of_device", lambda self, dev, path=None: "nfs4")
    cache = cachec.Cache(tmp_path / "c", log="off")

    @cache.stage
    def stage(n: int) -> bytes:
        return b"%d" % n

    value, outcome = cache.call(stage, 1)
    assert value == b"1"
    assert outcome.fault is Fault.NETWORK_MOUNT
    assert not outcome.stored


def test_a_store_that_is_a_file_only_costs_the_entry(tmp_path):
    (tmp_path / "c").write_text("not a folder")
    cache = cachec.Cache(tmp_path / "c", log="off")

    @cache.stage
    def stage(n: int) -> bytes:
        return b"%d" % n

    for _ in range(2):
        value, outcome = cache.call(stage, 1)
        assert value == b"1"
        assert not outcome.stored
        assert outcome.fault is not None


_CHILD = """
import os, sys
import cachec

cache = cachec.Cache(sys.argv[1], log="off", mode="on")

@cache.stage(name="child")
def stage(n: int) -> tuple[bytes, str, dict]:
    return b"%d " % n + b"x" * 3000, "text" * 2000, {"n": n}
"""


def child(tmp_path: Path, body: str, *args: object, **options: object) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "child_stages.py"
    script.write_text(_CHILD)
    runner = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from child_stages import *\n" + textwrap.dedent(body)
    command = [sys.executable, "-c", runner, str(tmp_path / "cache"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]


def test_a_full_store_gives_the_result_and_says_so(tmp_path):
    done = child(
        tmp_path,
        """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        value, outcome = cache.call(stage, 1)
        assert value == stage.uncached(1)
        assert not outcome.stored
        print(outcome.fault.value)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
        value, outcome = cache.call(stage, 1)
        assert outcome.stored, outcome
        assert cache.call(stage, 1)[1].hit
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "store-full"


def test_a_full_disk_gives_the_result_and_says_so(tmp_path):
    mount = tmp_path / "cache"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        (mount / "filler").write_bytes(b"x" * 56_000)
        done = child(
            tmp_path,
            """
            value, outcome = cache.call(stage, 1)
            assert value == stage.uncached(1)
            assert not outcome.stored
            print(outcome.fault.value)
            """,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "store-full"
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_read_only_store_still_hits(tmp_path):
    assert child(tmp_path, "stage(1)").returncode == 0
    mount = str(tmp_path / "cache")
    bound = subprocess.run(["mount", "--bind", mount, mount], capture_output=True, check=False)
    if bound.returncode:
        pytest.skip("a read-only bind mount needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True)
        done = child(
            tmp_path,
            """
            assert cache.call(stage, 1)[1].hit
            value, outcome = cache.call(stage, 2)
            assert value == stage.uncached(2)
            print(outcome.reason.value, outcome.stored, outcome.fault.value)
            """,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[1:] == ["False", "store-unwritable"]
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


_KILLER = """
import sys
steps = int(sys.argv[2])
count = 0

def hook(event, args):
    # every system call of publication that Python audits, in every process of ours: die before the n-th
    global count
    if event in {"open", "os.rename", "os.mkdir", "os.remove", "os.chmod", "os.link", "os.truncate", "sqlite3.connect",
                 "fcntl.flock", "os.rmdir"}:
        count += 1
        if count == steps:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)

# Everything is imported before the count begins.
cachec.Cache(sys.argv[1] + "-other", log="off").stage(lambda n: n)(1)
cache.store
import diskcache, cachec.codecs, uuid
import cachec.codecs.arrays
sys.addaudithook(hook)
value = stage(1)
assert value == stage.uncached(1)
"""


@pytest.mark.long
@pytest.mark.fuzz
def test_killed_at_every_step_of_publication_leaves_only_right_entries(tmp_path):
    survived = 0
    for number, step in enumerate(sample(range(1, 1000, 7))):
        done = child(tmp_path, _KILLER, step)
        if done.returncode == 0:
            survived = step
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        if number % 3:
            continue  # let several crashes pile up before looking
        look = child(
            tmp_path,
            """
            outcome = stage.check(1)
            if outcome.hit:
                assert cache.call(stage, 1)[0] == stage.uncached(1)
            """,
        )
        assert look.returncode == 0, look.stderr
    assert survived > 5, "the child was never killed"
    done = child(tmp_path, "assert cache.call(stage, 1)[1].hit; assert stage(2) == stage.uncached(2)")
    assert done.returncode == 0, done.stderr


_AT_ONCE = """
import time
from pathlib import Path
import cachec
go = Path(sys.argv[2])

@cache.stage(name="slow", ignore=["ran"])
def slow(n: int, ran: Path) -> bytes:
    with ran.open("a") as file:
        file.write("ran\\n")
    time.sleep(0.5)
    return b"%d" % n

while not go.exists():
    time.sleep(0.001)
value, outcome = cache.call(slow, 1, Path(sys.argv[3]))
assert value == b"1"
print(outcome.reason.kind)
"""


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.long)])
def test_many_processes_execute_once(tmp_path, count):
    script = tmp_path / "at_once.py"
    script.write_text(_CHILD + _AT_ONCE)
    go, ran = tmp_path / "go", tmp_path / "ran"
    command = [sys.executable, str(script), str(tmp_path / "cache"), str(go), str(ran)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    go.touch()
    outcomes = Counter(each.communicate(timeout=120)[0].strip() for each in children)
    assert outcomes == {"miss": 1, "hit": count - 1}
    assert ran.read_text() == "ran\n"


@pytest.mark.long
def test_a_killed_holder_blocks_nobody(tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(
        _CHILD
        + textwrap.dedent("""
        import time

        @cache.stage(name="slow", ignore=["seconds"])
        def slow(n: int, seconds: float) -> bytes:
            print("running", flush=True)
            time.sleep(seconds)
            return b"%d" % n

        print(slow(1, float(sys.argv[2])), flush=True)
        """)
    )
    command = [sys.executable, str(script), str(tmp_path / "cache")]
    holder = subprocess.Popen([*command, "600"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "running\n"
    waiter = subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(timeout=1.5)
    holder.kill()
    out, _ = waiter.communicate(timeout=60)
    assert out == "running\nb'1'\n"
    holder.communicate()


def test_a_lock_time_out_compiles_anyway(tmp_path, cache):
    import threading

    entered, leave = threading.Event(), threading.Event()

    @cache.stage(ignore=["body"], lock_timeout=0.1)
    def slow(n: int, body: object) -> bytes:
        return body()

    def first():
        entered.set()
        leave.wait(30)
        return b"first"

    thread = threading.Thread(target=slow, args=(1, first))
    thread.start()
    assert entered.wait(30)
    value, outcome = cache.call(slow, 1, lambda: b"second")
    assert value == b"second"
    assert outcome.fault is Fault.LOCK_TIMEOUT
    leave.set()
    thread.join()
