"""Archives: what is saved comes back, within bounds, and nothing else does."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest

import cachec
from cachec.errors import StoreFault
from cachec.store.store import Store, references
from cachec.warm import archive
from cachec.warm.archive import ArchiveError

from .conftest import Project


@pytest.fixture
def made(tmp_path: Path) -> tuple[cachec.Cache, cachec.Stage, list[str]]:
    """A cache with three entries of about 1, 20 and 40 kB, their stage, and their keys."""
    cache = cachec.Cache(tmp_path / "from", log="off")

    @cache.stage
    def blob(n: int) -> bytes:
        cachec.depends(tmp_path / "side")
        return bytes([n]) * (20_000 * n + 1_000)

    (tmp_path / "side").write_text("side")
    outcomes = [blob.call(n)[1] for n in (0, 1, 2)]
    return cache, blob, [outcome.key for outcome in outcomes]


def test_what_was_saved_hits_in_another_store(made: tuple, tmp_path: Path) -> None:
    cache, blob, keys = made
    path = tmp_path / "a.tar"
    saved = archive.save(cache.store, [*keys[:2], keys[0], "0" * 64], path)
    assert (saved.entries, saved.left_out, saved.size) == (2, 0, path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600
    names = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True).stdout.split()
    assert names[0] == "cachec.json"
    assert {f"entries/{key}.json" for key in keys[:2]} < set(names)
    shutil.rmtree(tmp_path / "from")
    cache.close()
    assert archive.restore(Store(tmp_path / "from"), path) == 2
    assert [blob.check(n).hit for n in (0, 1, 2)] == [True, True, False]
    assert blob(1) == b"\1" * 21_000
    assert archive.restore(Store(tmp_path / "from"), path) == 2, "again: nothing changes"
    entry = cache.store.lookup(keys[0])
    assert entry is not None
    assert len(entry.traces) == 1
    (tmp_path / "side").write_text("other")
    assert not blob.check(0).hit, "what the runs read counts after as before"


def test_bounds_keep_what_saves_most_a_byte(made: tuple, tmp_path: Path) -> None:
    cache, _, keys = made
    sizes = {}
    for key in keys:
        sizes[key] = archive.save(cache.store, [key], tmp_path / "one.tar").size
    saved = archive.save(cache.store, keys, tmp_path / "a.tar", max_size=sizes[keys[0]] + 30_000)
    assert (saved.entries, saved.left_out) == (2, 1)
    assert saved.size <= sizes[keys[0]] + 30_000
    whole = archive.save(cache.store, keys, tmp_path / "a.tar")
    assert archive.save(cache.store, keys, tmp_path / "b.tar", max_size=whole.size).left_out == 0
    assert archive.save(cache.store, keys, tmp_path / "b.tar", max_size=whole.size - 1).left_out == 1
    assert archive.save(cache.store, keys, tmp_path / "b.tar", max_size=1).entries == 0


def test_an_entry_with_a_damaged_artifact_is_left_out(made: tuple, tmp_path: Path) -> None:
    cache, _, keys = made
    entry = cache.store.lookup(keys[2])
    largest = max(references(entry), key=lambda ref: ref.size)
    path = cache.store.objects.path(largest)
    path.chmod(0o600)
    path.write_bytes(b"x" * largest.size)
    assert archive.save(cache.store, keys, tmp_path / "a.tar").entries == 2


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def write(path: Path, given: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    out = io.BytesIO()
    for info, data in given:
        out.write(info.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % 512))
    out.write(b"\0" * 1024)
    path.write_bytes(out.getvalue())


def member(name: str, data: bytes, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def refused(tmp_path: Path, path: Path) -> str:
    """Restore into an empty store: refused, and no entry is there."""
    store = Store(tmp_path / f"to-{len(os.listdir(tmp_path))}")
    with pytest.raises(ArchiveError) as caught:
        archive.restore(store, path)
    assert [*store.entries()] == []
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_hostile_members(made: tuple, tmp_path: Path) -> None:
    cache, _, keys = made
    path = tmp_path / "a.tar"
    archive.save(cache.store, keys, path)
    good = members(path)
    head, objects, entries = good[0], good[1:-3], good[-3:]
    entry = msgspec.json.decode(entries[0][1])
    other = {**entry, "key": keys[1] if entry["key"] != keys[1] else keys[0]}
    none = {**entry, "traces": []}
    many = {**entry, "traces": entry["traces"] * 33}
    old = {**entry, "version": 0}
    name = entries[0][0].name
    zeros = "objects/" + "0" * 64
    newer = member("cachec.json", b'{"format":"cachec-archive","version":9}')
    for words, given in [
        ("it begins with 'objects/", good[1:]),
        ("it is 'cachec-archive' version 9", [newer, *objects]),
        ("it is 'other' version 1", [member("cachec.json", b'{"format":"other","version":1}')]),
        ("cachec.json is malformed", [member("cachec.json", b"{"), *good[1:]]),
        ("it begins with 'cachec.json'", [member("cachec.json", b" " * 4096), *good[1:]]),
        ("has other content than its name says", [head, member(objects[0][0].name, b"other"), *good[2:]]),
        ("has no place there", [head, objects[0], *good[1:]]),
        ("has no place there", [*good, entries[0]]),
        ("has no place there", [head, entries[0], *objects]),
        ("has no place there", [head, member("../../etc/passwd", b"x")]),
        ("has no place there", [head, member("/objects/" + "0" * 64, b"x")]),
        ("has no place there", [head, member("objects/" + "0" * 63 + "G", b"x")]),
        ("is no regular file", [head, member(zeros, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")]),
        ("is no regular file", [head, member(zeros, b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")]),
        ("is no regular file", [head, member(zeros, b"", type=tarfile.FIFOTYPE)]),
        ("is no regular file", [head, member("objects", b"", type=tarfile.DIRTYPE)]),
        ("is no regular file", [head, member("././@PaxHeader", b"30 path=x\n", type=tarfile.XHDTYPE)]),
        ("says 1099511627776 bytes", [head, member(zeros, b"x", size=1 << 40)]),
        ("which is absent", [head, *objects[1:], *entries]),
        ("is malformed", [head, *objects, member(name, b"{}")]),
        ("is malformed", [head, *objects, member(name, b"[" * 100_000)]),
        ("is of key", [head, *objects, member(name, msgspec.json.encode(other))]),
        ("with 0 runs", [head, *objects, member(name, msgspec.json.encode(none))]),
        ("with 33 runs", [head, *objects, member(name, msgspec.json.encode(many))]),
        ("version 0", [head, *objects, member(name, msgspec.json.encode(old))]),
    ]:  # fmt: skip
        write(path, given)
        assert words in refused(tmp_path, path)
    write(path, good)
    assert archive.restore(Store(tmp_path / "to"), path) == 3


def test_an_archive_cut_anywhere_or_followed_by_more(made: tuple, tmp_path: Path) -> None:
    cache, _, keys = made
    path = tmp_path / "a.tar"
    archive.save(cache.store, keys[:1], path)
    whole = path.read_bytes()
    for end in [*range(0, len(whole), 173), len(whole) - 1]:
        path.write_bytes(whole[:end])
        refused(tmp_path, path)
    for more in (b"x", b"\0" * 512):
        path.write_bytes(whole + more)
        assert "more after its end" in refused(tmp_path, path)


def test_every_flipped_byte_of_headers_and_content_is_seen_or_means_nothing(made: tuple, tmp_path: Path) -> None:
    cache, _, keys = made
    path = tmp_path / "a.tar"
    archive.save(cache.store, keys[:1], path)
    whole = path.read_bytes()
    store = Store(tmp_path / "to")
    expected = cache.store.lookup(keys[0])
    for at in range(0, len(whole), 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        try:
            archive.restore(store, path)
        except (ArchiveError, StoreFault):
            continue
        # JSON has no checksum of its own: a changed time or tag passes for another one, a changed digest does not
        found = store.lookup(keys[0])
        assert found is not None
        assert {*references(found)} == {*references(expected)}  # type: ignore[arg-type]
        store.invalidate(keys[0])


@pytest.mark.long
def test_on_the_command_line(project: Project) -> None:
    project.targets('[warm.targets.doubled]\ncall = "stages:doubled"\nmatrix = { n = [1, 2] }\n')
    first = project.command("warm", "--restore", "a.tar", "--save", "a.tar")
    assert first.returncode == 0
    assert "cachec: no archive a.tar yet" in first.stderr
    assert "cachec: 2 entries saved to a.tar, " in first.stderr
    shutil.rmtree(project.store)
    again = project.command("warm", "--restore", "a.tar", "--save", "a.tar", "--save-limit", "1MiB")
    assert again.stdout.startswith("2 hit in ")
    assert "cachec: 2 entries restored from a.tar" in again.stderr
    assert "cachec: 2 entries saved" in again.stderr, "what hit was used"
    assert "1 entries saved" in project.command("warm", "doubled[n=1]", "--save", "a.tar").stderr
    shutil.rmtree(project.store)
    with (project.folder / "a.tar").open("r+b") as file:
        file.truncate(700)
    bad = project.command("warm", "--restore", "a.tar")
    assert bad.returncode == 0, "a cache that fails costs time, no more"
    assert "nothing is restored: a.tar is refused: it is cut" in bad.stderr
    assert bad.stdout.startswith("2 compiled in ")
    wrong = project.command("warm", "--save", "a.tar", "--save-limit", "much")
    assert (wrong.returncode, "--save-limit 'much'" in wrong.stderr) == (2, True)


def test_what_another_program_used_is_saved_without_targets(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    record = project.folder / "stats.jsonl"
    monkeypatch.setenv("CACHEC_STATS_FILE", str(record))
    subprocess.run(["python3", "-c", "pass"], check=True)
    import sys

    subprocess.run([sys.executable, "-c", "import stages; stages.double(3)"], cwd=project.folder, check=True)
    done = project.command("warm", "--save", "a.tar", "--used", os.fspath(record))
    assert (done.returncode, "1 entries saved" in done.stderr) == (0, True), done.stderr
