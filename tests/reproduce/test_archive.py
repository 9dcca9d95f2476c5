"""The zip: deterministic when written, and nothing of a hostile one believed, written or run."""

from __future__ import annotations

import json
import os
import random
import stat
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from cachec.errors import ReproducerError
from cachec.reproduce import archive
from cachec.reproduce.archive import read_archive, write_archive
from cachec.reproduce.reader import load

from .conftest import Project

MEMBERS = {"README.md": b"read me", "work/a.mlir": b"x" * 1000, "recipe.json": b"{}"}


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def zipped(*entries: tuple[str, bytes], mode: int = stat.S_IFREG | 0o600, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # past what ZipInfo would change
            info.external_attr = mode << 16
            info.compress_type = method
            made.writestr(info, data)
    return out.getvalue()


def refuse(tmp_path: Path, data: bytes, says: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    path = tmp_path / "hostile.zip"
    path.write_bytes(data)
    with pytest.raises(ReproducerError, match=says) as caught:
        read_archive(path)
    assert str(path) in str(caught.value)
    path.unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_round_trip_and_the_same_bytes(tmp_path: Path) -> None:
    data = write_archive(MEMBERS)
    assert read_archive(written(tmp_path / "a.zip", data)) == MEMBERS
    assert write_archive(dict(reversed(MEMBERS.items()))) == data
    assert write_archive(MEMBERS | {"README.md": b"read mE"}) != data
    with zipfile.ZipFile(tmp_path / "a.zip") as made:
        assert {info.date_time for info in made.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in made.infolist()} == {stat.S_IFREG | 0o600}


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/etc/x",
        "a//b",
        "./a",
        "a/.",
        "..",
        "C:/x",
        "c:x",
        "a\\b",
        "..\\x",
        "a/",
        "x\ny",
        "\x1b[2J",
    ],
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    refuse(tmp_path, zipped(("README.md", b""), (name, b"x")), "expected")


def test_a_name_with_a_nul_behind_which_another_one_hides(tmp_path: Path) -> None:
    data = zipped(("ok.txt_../x", b"x")).replace(b"ok.txt_../x", b"ok.txt\0../x")
    refuse(tmp_path, data, "relative name")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR])
def test_links_and_special_files(tmp_path: Path, kind: int) -> None:
    refuse(tmp_path, zipped(("link", b"/etc/passwd"), mode=kind | 0o777), "regular file expected")


def test_names_that_come_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zipped(("a", b"1"), ("a", b"2"))
    refuse(tmp_path, data, "expected once, found again")
    refuse(tmp_path, zipped(("a", b"1"), ("A", b"2")), "expected once, found again")
    refuse(tmp_path, zipped(("a", b"1"), ("a/b", b"2")), "lies in one that is a file")


def test_a_bomb_by_ratio(tmp_path: Path) -> None:
    refuse(tmp_path, zipped(("bomb", bytes(8 << 20))), "a ratio of at most 200")
    # what is small may be as dense as it likes
    assert read_archive(written(tmp_path / "ok.zip", zipped(("zeros", bytes(1 << 20)))))["zeros"] == bytes(1 << 20)


def test_a_bomb_by_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FREE_TOTAL", 1000)
    refuse(tmp_path, zipped(*((name, bytes(4000)) for name in "abc")), "members of at most")
    assert read_archive(written(tmp_path / "ok.zip", zipped(("a", os.urandom(6000)))))


def test_what_is_written_is_never_taken_for_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"zeros": bytes(4 << 20), "small": b"x"}
    data = write_archive(members)
    assert read_archive(written(tmp_path / "a.zip", data)) == members
    assert write_archive(members) == data
    monkeypatch.setattr(archive, "FREE_TOTAL", 1 << 20)
    many = {name: (b"%s %d\n" % (name.encode(), n) * 9000) for n, name in enumerate("abcdefghijklmno")}
    many |= {"large": bytes(range(256)) * 5000}
    assert read_archive(written(tmp_path / "b.zip", write_archive(many))) == many


def test_a_bomb_by_count(tmp_path: Path) -> None:
    refuse(tmp_path, zipped(*((f"f{n}", b"") for n in range(4097))), "at most 4096 members")


def test_a_directory_that_says_less_than_there_is(tmp_path: Path) -> None:
    """The count in the end record is small, the members are many."""
    data = bytearray(zipped(*((f"f{n}", b"") for n in range(5000))))
    end = data.rfind(b"PK\5\6")
    struct.pack_into("<2H", data, end + 8, 1, 1)
    refuse(tmp_path, bytes(data), "at most 4096 members")


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    payload = os.urandom(100) * 3
    data = bytearray(zipped(("a", payload)))
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        struct.pack_into("<I", data, data.find(signature) + offset, 10)
    refuse(tmp_path, bytes(data), "hostile")
    data = bytearray(zipped(("a", payload)))
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        struct.pack_into("<I", data, data.find(signature) + offset, 100_000)
    refuse(tmp_path, bytes(data), "hostile")


def test_overlapping_members(tmp_path: Path) -> None:
    """Fifield's bomb: many names, one compressed stream."""
    data = bytearray(zipped(("a", os.urandom(300)), ("b", os.urandom(300))))
    first = data.find(b"PK\1\2")
    second = data.find(b"PK\1\2", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    refuse(tmp_path, bytes(data), "hostile")


def test_encrypted_members_and_other_methods(tmp_path: Path) -> None:
    data = bytearray(zipped(("a", b"x")))
    data[data.find(b"PK\1\2") + 8] |= 1
    refuse(tmp_path, bytes(data), "an encrypted one")
    refuse(tmp_path, zipped(("a", b"x"), method=zipfile.ZIP_LZMA), "found method 14")
    refuse(tmp_path, zipped(("a", b"x"), method=zipfile.ZIP_BZIP2), "found method 12")


def test_a_wrong_checksum(tmp_path: Path) -> None:
    data = bytearray(zipped(("a", b"hello world"), method=zipfile.ZIP_STORED))
    data[data.find(b"hello")] ^= 1
    refuse(tmp_path, bytes(data), "CRC")


def test_what_is_no_archive(tmp_path: Path) -> None:
    refuse(tmp_path, b"", "a zip archive expected")
    refuse(tmp_path, b"PK\5\6", "a zip archive expected")
    refuse(tmp_path, b"\0" * 5000, "no end record")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        read_archive(fifo)


def test_cut_at_every_byte(tmp_path: Path) -> None:
    data = write_archive(MEMBERS)
    for end in range(len(data)):
        refuse(tmp_path, data[:end], "hostile")


@pytest.mark.long
def test_mutated_bytes_are_refused_or_read_whole(tmp_path: Path) -> None:
    """Whatever a flipped byte does: a clear error, or members that their checksums vouch for."""
    data, r, path = write_archive(MEMBERS), random.Random(1), tmp_path / "m.zip"
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(r.choice((1, 1, 2, 8))):
            changed[r.randrange(len(data))] = r.randrange(256)
        path.write_bytes(changed)
        try:
            found = read_archive(path)
        except ReproducerError:
            continue
        assert set(found.values()) <= {*MEMBERS.values()} | {b""}, "zip checks the CRC of each"


# --- a reproducer whose contents lie


@pytest.fixture
def bug(project: Project, program) -> Path:
    return project.make(project.upper.call(program)[1])


def tampered(bug: Path, change, name: str = "recipe.json") -> Path:
    with zipfile.ZipFile(bug) as made:
        members = {each: made.read(each) for each in made.namelist()}
    data = json.loads(members[name])
    change(data)
    members[name] = json.dumps(data).encode()
    if name == "recipe.json":
        from blake3 import blake3

        about = json.loads(members["reproducer.json"])
        about["recipe"] = blake3(members[name]).hexdigest()
        members["reproducer.json"] = json.dumps(about).encode()
    return written(bug.with_name("tampered.zip"), write_archive(members))


def command(change):
    return lambda recipe: change(recipe["commands"][0])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (command(lambda c: c["inputs"][0].update(path="../../x")), "a path within its folder"),
        (command(lambda c: c["inputs"][0].update(path="/etc/x")), "a path within its folder"),
        (command(lambda c: c["outputs"][0].update(path="a/../../x")), "a path within its folder"),
        (command(lambda c: c["inputs"][0].update(folder=9)), "one of 1 folders"),
        (command(lambda c: c["inputs"][0].update(folder=-1)), "one of 1 folders"),
        (command(lambda c: c.update(cwd="/etc")), "numbered folders expected to run in"),
        (command(lambda c: c.update(cwd=[0, "/../.."])), "numbered folders expected to run in"),
        (command(lambda c: c.update(args=["-o", [7, "/x"]])), "one of 1 folders"),
        (command(lambda c: c.update(args=["a\0b"])), "a NUL"),
        (command(lambda c: c["tool"].update(name="/bin/sh")), "the name of a tool"),
        (command(lambda c: c["tool"].update(name="../sh")), "the name of a tool"),
        (command(lambda c: c.update(environ={"A=B": "x"})), "the name of a variable"),
        (lambda r: r.update(version=9), "of version 9"),
        (lambda r: r.update(commands=[{"tool": 3}]), "malformed"),
        (lambda r: r.update(arguments={"x": {"type": "code", "module": 3, "qualname": "f"}}), "malformed"),
        (lambda r: r.update(folders="many"), "malformed"),
    ],
)
def test_a_recipe_that_leads_elsewhere(bug: Path, change, says: str) -> None:
    with pytest.raises(ReproducerError, match=says):
        load(tampered(bug, change))


def test_about_and_manifests_that_lie(bug: Path) -> None:
    for change, says in [
        (lambda a: a.update(version=9), "of version 9"),
        (lambda a: a.update(version=1, parts=[{"name": "arg/x"}]), "of version 1"),  # its parts had no kind
        (lambda a: a.update(generator=2), "generator 2"),
        (lambda a: a.update(recipe="0" * 64), "is not the one"),
        (lambda a: a.update(expected=[{"codec": "file", "digest": "x", "nbytes": 1}]), "malformed"),
    ]:
        with pytest.raises(ReproducerError, match=says):
            load(tampered(bug, change, "reproducer.json"))
    with pytest.raises(ReproducerError, match=r"'reproducer.json' expected"):
        load(written(bug.with_name("x.zip"), write_archive({"README.md": b""})))


def test_more_weights_than_there_can_be(project: Project) -> None:
    import cachec

    huge = cachec.WeightSpec(name="w", dtype="uint8", shape=(1 << 50,), nbytes=1 << 50)
    program = cachec.Program("module {}", format="mlir:text", manifest=cachec.Manifest.of({"w": huge}))
    bug = project.make(project.upper.call(program)[1])
    with pytest.raises(ReproducerError, match="weights of 0 to"):
        load(bug)


def test_deep_json_is_an_error_and_no_crash(bug: Path) -> None:
    with zipfile.ZipFile(bug) as made:
        members = {each: made.read(each) for each in made.namelist()}
    members["reproducer.json"] = b"[" * 200_000
    with pytest.raises(ReproducerError, match="malformed"):
        load(written(bug.with_name("deep.zip"), write_archive(members)))
