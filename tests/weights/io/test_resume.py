"""Saving after a kill: what was written is not written again, the bytes are those of an undisturbed run, and nothing
that a killed run left is believed where it might be wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cachec.base import fsio
from cachec.base.mounts import Mounts
from cachec.store.store import Store
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.io import staging
from cachec.weights.io.writing import save
from cachec.weights.library.stored_weights import WeightStore

UNIT = 1 << 16
#: More than three units, and small weights that share some.
SIZES = {"big": 3 * UNIT + 77, **{f"s{number}": 9_001 for number in range(20)}}
TOTAL = sum(SIZES.values())


def arrays(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 256, size, np.uint8) for name, size in SIZES.items()}


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_UNIT", UNIT)
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -1.0)  # the files of a test are new


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    from_arrays(arrays()).save(tmp_path / "in" / "m.safetensors")
    return tmp_path / "in" / "m.safetensors"


@pytest.mark.parametrize("written_by", ["cachec", "safetensors"])
@pytest.mark.parametrize("suffix", [".safetensors", ".irpa"])
def test_a_weight_larger_than_a_unit(tmp_path: Path, source: Path, written_by: str, suffix: str) -> None:
    """Of a file without digests in pieces, else in one go."""
    if written_by == "safetensors":
        safetensors.numpy.save_file(arrays(), source)
    open_weights(source).save(tmp_path / "out" / f"m{suffix}")
    found = open_weights(tmp_path / "out" / f"m{suffix}")
    assert {name: found[name].read().tobytes() for name in found} == {
        name: value.tobytes() for name, value in arrays().items()
    }


KILLED = """
import os, signal, sys
from cachec.base import fsio
from cachec.weights import open_weights
from cachec.weights.io import staging
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
source, target, limit, settle, boot, format = sys.argv[1:7]
staging._UNIT, fsio.SETTLE_SECONDS = 1 << 16, float(settle)
staging._BOOT = boot or staging._BOOT
def die(done, total):
    if done >= int(limit):
        os.kill(os.getpid(), signal.SIGKILL)
store, _, name = source.partition("#")
weights = WeightStore(Store(store)).open(name) if name else open_weights(source)
weights.save(target, format=format, progress=die)
"""


def kill(
    source: str | Path, target: Path, limit: int, *, settle: float = -1, boot: str = "", format: str = "safetensors"
) -> Path:
    """Save, killed after so many bytes; gives the file that is left. source: a path, or ``store#name``."""
    command = [sys.executable, "-c", KILLED, str(source), str(target), str(limit), str(settle), boot, format]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    [left] = leftovers(target.parent)
    return left


def leftovers(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if "partial" in path.name)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes of weights that were written since the last call."""
    count = [0]
    for name in ("pwrite", "copy_file_range"):

        def counting(*args: Any, real: Any = getattr(os, name)) -> int:
            done: int = real(*args)
            count[0] += done if done != 32 else 0
            return done

        monkeypatch.setattr(os, name, counting)

    def since() -> int:
        found, count[0] = count[0], 0
        return found

    return since


def saved(weights: WeightSet, path: Path, **how: Any) -> bytes:
    save(weights, path, **how)
    assert not [left for left in leftovers(path.parent) if left.name.startswith(f".{path.name}.")]
    return path.read_bytes()


# --- at every step


STEPS = """
import json, mmap, os, signal, sys
from cachec.base import fsio
from cachec.weights import open_weights
from cachec.weights.io import staging
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore

source, folder, how = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
staging._UNIT, fsio.SETTLE_SECONDS = 1 << 16, -1.0
at, written = 0, mmap.mmap(-1, 8)
CALLS = ("pwrite", "write", "copy_file_range", "ftruncate", "fchmod", "rename", "unlink")

def child(number, half, target):
    # What is called is counted; the call of that number is the last one, or only half of it is done.
    def wrapped(name, real):
        def call(*args):
            global at
            at += 1
            if at == number and half:
                if name in {"pwrite", "write"}:
                    real(args[0], bytes(args[1])[:len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                done = real(*args)
                if name in {"pwrite", "copy_file_range"} and done != 32:
                    written[:] = (int.from_bytes(written[:], "little") + done).to_bytes(8, "little")
                return done
            finally:
                if at == number:
                    os.kill(os.getpid(), signal.SIGKILL)
        return call
    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    store, _, name = source.partition("#")
    weights = WeightStore(Store(store)).open(name) if name else open_weights(source)
    weights.save(target, **how)

def forked(*args):
    pid = os.fork()
    if pid == 0:
        try:
            child(*args)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

number, over, report = 0, False, []
while not over:
    number += 1
    for half in (True, False):
        place = os.path.join(folder, f"{number}-{int(half)}")
        os.mkdir(place)
        target = os.path.join(place, "m." + how.get("format", "safetensors"))
        written[:] = bytes(8)
        first = forked(number, half, target)
        over = first == 0
        assert first in {0, -signal.SIGKILL}, first
        assert forked(0, False, target) == 0
        report.append(int.from_bytes(written[:], "little"))
print(json.dumps(report))
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("owned", "how"),
    [(False, {}), (True, {"format": "irpa"}), (False, {"shard_size": 2 * UNIT})],
    ids=["file", "owned irpa", "shards"],
)
def test_a_kill_at_any_step(tmp_path: Path, source: Path, owned: bool, how: dict[str, Any]) -> None:
    few = ["big", "s0", "s1", "s2"]
    total = sum(SIZES[name] for name in few)
    from_arrays({name: arrays()[name] for name in few}).save(source)
    place = str(source)
    if owned:
        WeightStore(Store(tmp_path / "store")).add(open_weights(source), "m")
        place = f"{tmp_path / 'store'}#m"
    (tmp_path / "wanted").mkdir()
    save(open_weights(source), tmp_path / "wanted" / f"m.{how.get('format', 'safetensors')}", **how)
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "wanted").iterdir()}
    command = [sys.executable, "-c", STEPS, place, str(tmp_path / "out"), json.dumps(how)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert len(report) > 20
    for folder in (tmp_path / "out").iterdir():
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted, folder.name
    # The last two rounds were not killed, so everything was written twice. Of the others, what is written twice is a
    # unit (an owned weight is one, for its digest is of all of it), but for the last steps: files get their names.
    assert report[-2:] == [2 * total, 2 * total]
    once = [each for each in report[:-2] if each <= total + (SIZES["big"] if owned else UNIT)]
    given_up = int(owned)  # the lease on the revision, when everything is written
    assert len(once) >= len(report) - 2 - len(wanted) * 6 - given_up
    assert min(report) == total


# --- what is gone on with


@pytest.mark.parametrize("format", ["safetensors", "irpa"])
def test_whole_units_are_kept(tmp_path: Path, source: Path, written: Any, format: str) -> None:
    wanted = saved(open_weights(source), tmp_path / "out" / "wanted", format=format)
    assert written() == TOTAL
    left = kill(source, tmp_path / "out" / "m", 3 * UNIT, format=format)
    assert left.stat().st_mode & 0o777 == 0o600
    seen: list[int] = []
    found = saved(
        open_weights(source), tmp_path / "out" / "m", format=format, progress=lambda done, _: seen.append(done)
    )
    assert found == wanted
    assert TOTAL - 4 * UNIT <= written() <= TOTAL - 2 * UNIT
    assert seen == sorted(seen)
    assert seen[-1] == TOTAL


@pytest.mark.parametrize(
    ("kind", "are_kept"),
    [("ext4", True), ("tmpfs", True), ("overlay", True), ("nfs", True), ("nfs4", True), ("vfat", False), ("", False)],
)
def test_where_units_are_kept(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, kind: str, are_kept: bool
) -> None:
    monkeypatch.setattr(Mounts, "kind", lambda self, path: kind)
    kept, cut = [], os.ftruncate

    def counted(fd: int, size: int) -> None:
        kept.append(os.fstat(fd).st_size - size)
        cut(fd, size)

    monkeypatch.setattr(os, "ftruncate", counted)
    saved(open_weights(source), tmp_path / "out" / "m")
    assert any(kept) == are_kept


def test_twice_killed(tmp_path: Path, source: Path, written: Any) -> None:
    target = tmp_path / "out" / "m"
    first = kill(source, target, 2 * UNIT)
    second = kill(source, target, 5 * UNIT)
    assert first == second, "the same file is gone on with"
    assert saved(open_weights(source), target)[-1000:] == arrays()["s9"].tobytes()[-1000:]
    assert written() <= TOTAL - 4 * UNIT


def test_of_several_files_that_were_left_one_is_gone_on_with(tmp_path: Path, source: Path, written: Any) -> None:
    target = tmp_path / "out" / "m"
    left = kill(source, target, 3 * UNIT)
    for number in range(3):
        (left.parent / f".m.partial-1-{number:016x}").write_bytes(b"what somebody left")
    saved(open_weights(source), target)
    assert written() <= TOTAL - 2 * UNIT


def test_shards_of_workers(tmp_path: Path, source: Path, written: Any) -> None:
    whole = open_weights(source)
    rows = {"big": (SIZES["big"] - 1) // 4 * 4}
    with_rows = from_arrays({"big": arrays()["big"][: rows["big"]].reshape(4, -1), **{"s0": arrays()["s0"]}})
    with_rows.save(tmp_path / "in" / "rows.safetensors")
    whole = open_weights(tmp_path / "in" / "rows.safetensors")
    whole.save_shards(tmp_path / "wanted", {"big": 0}, 2)
    total = written()
    script = KILLED.replace(
        "weights.save(target, format=format, progress=die)", 'weights.save_shards(target, {"big": 0}, 2, progress=die)'
    )
    out = tmp_path / "shards"
    command = [sys.executable, "-c", script, str(tmp_path / "in" / "rows.safetensors"), str(out), str(2 * UNIT), "-1"]
    assert subprocess.run([*command, "", ""], check=False).returncode == -signal.SIGKILL
    assert [path.name[:5] for path in sorted(out.iterdir())] == [".rank", ".rank"], "none has its name before all do"
    written()
    whole.save_shards(out, {"big": 0}, 2)
    assert written() <= total - UNIT
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "wanted").iterdir()
    }


# --- what starts anew


def test_a_changed_source(tmp_path: Path, source: Path, written: Any) -> None:
    target = tmp_path / "out" / "m"
    kill(source, target, 5 * UNIT)
    with source.open("r+b") as file:
        file.seek(-SIZES["s9"], 2)
        file.write(b"another")
    wanted = saved(open_weights(source), tmp_path / "out" / "wanted")
    written()
    assert saved(open_weights(source), target) == wanted
    assert written() == TOTAL


def test_of_owned_weights_only_what_changed(tmp_path: Path, source: Path, written: Any) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    store.add(open_weights(source), "a")
    store.add(from_arrays({**arrays(), "s0": arrays(1)["s0"]}), "b")
    target = tmp_path / "out" / "m"
    kill(f"{store.folder.parent}#a", target, TOTAL)
    written()
    with store.open("b") as weights:
        found = saved(weights, target)
        assert written() <= 2 * UNIT, "the unit with s0, and the last one, which had no mark yet"
        assert found == saved(weights, tmp_path / "out" / "wanted")


def test_another_plan(tmp_path: Path, source: Path, written: Any) -> None:
    weights = open_weights(source)
    for number, (other, how) in enumerate(
        [
            (weights.rename({"s0": "t0"}), {}),
            (weights.select(exclude=["s0"]), {}),
            (weights, {"metadata": {"a": "b"}}),
            (weights, {"format": "irpa"}),
        ]
    ):
        target = tmp_path / "out" / f"m{number}"
        kill(source, target, 5 * UNIT)
        written()
        found = saved(other, target, **how)
        assert written() == other.nbytes
        assert found == saved(other, tmp_path / "out" / "wanted", **how)


def test_another_boot(tmp_path: Path, source: Path, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot").write_text("another\n")
    kill(source, tmp_path / "out" / "m", 5 * UNIT, boot=str(tmp_path / "boot"))
    saved(open_weights(source), tmp_path / "out" / "m")
    assert written() == TOTAL
    monkeypatch.setattr(staging, "_BOOT", str(tmp_path / "nothing"))  # none is known: nothing is noted
    saved(open_weights(source), tmp_path / "out" / "n")
    left = kill(source, tmp_path / "out" / "m", 5 * UNIT, boot=str(tmp_path / "nothing"))
    assert left.stat().st_size <= (tmp_path / "out" / "n").stat().st_size


def test_a_source_whose_state_says_nothing(tmp_path: Path, source: Path, written: Any) -> None:
    kill(source, tmp_path / "out" / "m", 5 * UNIT, settle=3600)
    saved(open_weights(source), tmp_path / "out" / "m")
    assert written() == TOTAL
    with source.open("r+b"):  # somebody may write into it unseen
        kill(source, tmp_path / "out" / "m", 5 * UNIT)
    saved(open_weights(source), tmp_path / "out" / "m")
    assert written() == TOTAL


def test_weights_in_memory_and_strided_slices(tmp_path: Path, source: Path, written: Any) -> None:
    target = tmp_path / "out" / "m"
    kill(source, target, 5 * UNIT)
    assert saved(from_arrays(arrays(1)), target) == saved(from_arrays(arrays(1)), tmp_path / "out" / "wanted")
    assert written() == 2 * TOTAL


@pytest.mark.parametrize("slot", [0, 1, 2, 3, 4])
def test_a_damaged_mark(tmp_path: Path, source: Path, written: Any, slot: int) -> None:
    wanted = saved(open_weights(source), tmp_path / "out" / "wanted")
    left = kill(source, tmp_path / "out" / "m", 5 * UNIT)
    with left.open("r+b") as file:
        file.seek(len(wanted) + 32 * slot)
        old = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([old ^ 1]))
        # What the mark stood for is wrong too; if it were still believed, that would show.
        file.seek(len(wanted) - TOTAL + max(0, slot - 1) * UNIT)
        file.write(b"wrong")
    written()
    assert saved(open_weights(source), tmp_path / "out" / "m") == wanted
    again = written()
    assert again == TOTAL if slot == 0 else 0 < again <= TOTAL - 2 * UNIT


def test_a_source_that_comes_back(tmp_path: Path, source: Path, written: Any) -> None:
    """What A had written, B overwrites in part: A must not find its marks again."""
    store = WeightStore(Store(tmp_path / "store"))
    store.add(open_weights(source), "a")
    store.add(from_arrays({**arrays(1), "s19": arrays()["s19"]}), "b")
    target = tmp_path / "out" / "m"
    first_of, second_of = (f"{tmp_path / 'store'}#{name}" for name in "ab")
    for first, second in ((first_of, second_of), (str(source), second_of)):
        kill(first, target, TOTAL)
        kill(second, target, 3 * UNIT)
        weights = store.open("a") if "#" in first else open_weights(source)
        found = saved(weights, target)
        assert found == saved(weights, tmp_path / "out" / "wanted")


def test_files_that_are_none_of_ours(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "out" / "m"
    left = kill(source, target, 5 * UNIT)
    os.link(left, tmp_path / "precious")
    before = (tmp_path / "precious").read_bytes()
    saved(open_weights(source), target)
    assert (tmp_path / "precious").read_bytes() == before, "who has another name for it keeps what is in it"
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out" / f".m.partial-1-{0:016x}").symlink_to(tmp_path / "victim")
    (tmp_path / "out" / ".m.partial-x.partial-1-0").write_bytes(b"of another name")
    save(open_weights(source), target)
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "out" / ".m.partial-x.partial-1-0").exists()


def test_more_files_than_can_be_open(tmp_path: Path, source: Path) -> None:
    script = """
import resource, sys
from cachec.errors import UsageError
from cachec.weights import open_weights
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
try:
    open_weights(sys.argv[1]).save(sys.argv[2] + "/m.safetensors", shard_size=10_000)
except UsageError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "out")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.startswith("save: 21 files are open until all are written")
    assert list((tmp_path / "out").iterdir()) == []
