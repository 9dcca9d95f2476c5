"""``cachec verify``: artifacts by their digests, rows against files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cachec.cli import main
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault, Part
from cachec.store.index import DiskcacheIndex
from cachec.store.objects import Objects
from cachec.store.store import Store
from cachec.verify.artifacts import ROW, VerifyState, finish, hash_artifacts
from cachec.weights import WeightSet
from cachec.weights.library.stored_weights import WeightStore
from tests.maintain.conftest import Yard, key_of
from tests.parts import part

ONE, TWO, THREE = map(key_of, range(3))


@pytest.fixture
def filled(yard: Yard) -> Yard:
    """Three entries, each with an artifact and its parts, and weights of one tensor."""
    for key in (ONE, TWO, THREE):
        yard.publish(key)
    weights = WeightSet.from_arrays({"layer.bias": np.arange(8.0)})
    WeightStore(yard.store).add(weights, "base")
    yard.store.release()
    return yard


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.chdir(tmp_path)
    return Yard(tmp_path / "store")


def run(yard: Yard, *args: str) -> Result:
    result = CliRunner().invoke(main, ["--dir", str(yard.folder), "verify", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def verified(yard: Yard, *args: str, code: int = 0) -> Any:
    result = run(yard, *args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def product(yard: Yard, key: str) -> ArtifactRef:
    entry = yard.store.lookup(key)
    assert entry is not None
    return entry.traces[0].value.artifacts[0]  # type: ignore[union-attr]


def meddled(yard: Yard, digest: str) -> None:
    """Change a bit where neither size nor time tell."""
    place = yard.store.objects.place(digest)
    status = os.stat(place)
    os.chmod(place, 0o644)
    with open(place, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_nothing_is_wrong(filled: Yard) -> None:
    document = verified(filled)
    assert (document["artifacts"], document["problems"], document["resumed"]) == (7, [], False)
    assert run(filled).output.splitlines()[-1] == "all is as it should be"
    assert filled.store.index.read(ROW) is None


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--dir", str(tmp_path / "none"), "verify"])
    assert (result.exit_code, result.output) == (0, f"there is no store in {tmp_path / 'none'}\n")


def test_a_damaged_artifact_puts_its_entry_away(filled: Yard) -> None:
    ref = product(filled, TWO)
    meddled(filled, ref.digest)
    problems = verified(filled, code=1)["problems"]
    assert [(each["kind"], each["name"], each["put_away"]) for each in problems] == [
        ("artifact", ref.digest, False),
        ("entry", TWO, True),
    ]
    assert filled.keys() == {ONE, THREE}
    assert ref.digest not in filled.objects()
    assert verified(filled)["problems"] == []


def test_what_only_explains_an_entry_leaves_it(filled: Yard) -> None:
    entry = filled.store.lookup(ONE)
    assert entry is not None
    meddled(filled, entry.parts.digest)
    problems = verified(filled, code=1)["problems"]
    assert [(each["kind"], each["put_away"]) for each in problems] == [("artifact", False), ("entry", False)]
    assert "hits all the same" in problems[1]["words"]
    assert filled.store.lookup(ONE) is not None


def _gone(yard: Yard) -> None:
    os.unlink(yard.store.objects.place(product(yard, ONE).digest))


def _cut(yard: Yard) -> None:
    place = yard.store.objects.place(product(yard, ONE).digest)
    os.chmod(place, 0o644)
    os.truncate(place, 10)


def _row(yard: Yard) -> None:
    name = yard.store.entry_row(ONE)
    row = bytearray(yard.store.index.read(name) or b"")
    row[-9] ^= 1
    yard.store.index.write(name, bytes(row), "pkg.build")


def _weights(yard: Yard) -> None:
    (digest,) = WeightStore(yard.store).find("base").digests.values()  # type: ignore[union-attr]
    meddled(yard, digest)


def _record(yard: Yard) -> None:
    (record,) = (yard.folder / "weights" / "revisions").iterdir()
    record.chmod(0o600)
    record.write_bytes(record.read_bytes() + b" ")


def _index(yard: Yard) -> None:
    yard.store.close()
    file = yard.folder / "index" / "cache.db"
    data = bytearray(file.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 64] = b"\xff" * 64
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_gone, {("entry", ONE)}),
        (_cut, {("artifact", "digest"), ("entry", ONE)}),
        (_row, {("row", ONE)}),
        (_weights, {("artifact", "digest"), ("weights", "base")}),
        (_record, {("weights", "base")}),
        (_index, {("index", "cache.db")}),
    ],
)
def test_damage_is_told(filled: Yard, damage: Callable[[Yard], None], told: set[tuple[str, str]]) -> None:
    damage(filled)
    problems = verified(filled, code=1)["problems"]
    found = {(each["kind"], "digest" if each["kind"] == "artifact" else each["name"]) for each in problems}
    assert found == told
    assert all(each["words"] for each in problems)


def test_an_entry_of_another_namespace(filled: Yard) -> None:
    other = Yard(filled.folder, "ci:nightly")
    ref = other.publish(key_of(9))
    other.store.release()
    meddled(filled, ref.digest)
    problems = verified(filled, code=1)["problems"]
    assert ("entry", key_of(9), True) in [(each["kind"], each["name"], each["put_away"]) for each in problems]
    assert other.keys() == set()


def test_an_ended_run_goes_on(filled: Yard) -> None:
    digests = sorted(filled.objects())
    meddled(filled, digests[0])
    seen: list[int] = []

    def ends(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hash_artifacts(filled.store, 1.0, ends)
    hashed: list[int] = []
    went_on = hash_artifacts(filled.store, 1.0, lambda done, total: hashed.append(done))
    assert (went_on.resumed, went_on.artifacts, len(hashed)) == (True, 7, 4)
    assert list(went_on.damaged) == [digests[0]]
    again = hash_artifacts(filled.store, 1.0, lambda done, total: None, restart=True)
    assert (again.resumed, again.artifacts, again.damaged) == (False, 6, {})
    finish(filled.store)


def test_an_ended_run_of_the_command_goes_on(filled: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Objects.verify, []

    def ends(objects: Objects, ref: ArtifactRef) -> str:
        calls.append(ref)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(objects, ref)

    monkeypatch.setattr(Objects, "verify", ends)
    assert CliRunner().invoke(main, ["--dir", str(filled.folder), "verify"]).exit_code != 0
    document = verified(filled)
    assert (document["resumed"], document["artifacts"], len(calls)) == (True, 7, 3 + 5)


def test_samples_are_others_each_time() -> None:
    digests = [key_of(number) for number in range(1000)]
    samples = [VerifyState(share=0.25, begin=begin) for begin in (0.0, 0.25, 0.5, 0.75)]
    taken = [sum(each.takes(digest) for each in samples) for digest in digests]
    assert taken == [1] * 1000
    count = sum(samples[0].takes(digest) for digest in digests)
    assert 200 < count < 300
    assert all(VerifyState(share=1.0, begin=0.3).takes(digest) for digest in digests)


def test_a_sample(filled: Yard) -> None:
    assert verified(filled, "--sample", "100%")["artifacts"] == 7
    assert verified(filled, "--sample", "0%")["artifacts"] == 0
    assert run(filled, "--sample", "many").exit_code == 2


def test_what_gc_takes_meanwhile_is_no_problem(filled: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Objects.verify
    ref = product(filled, THREE)

    def evicting(objects: Objects, each: ArtifactRef) -> str:
        if each.digest == ref.digest:
            Store(filled.folder).invalidate(THREE)
            os.unlink(objects.place(ref.digest))
        return real(objects, each)

    monkeypatch.setattr(Objects, "verify", evicting)
    assert verified(filled)["problems"] == []


def test_a_row_of_another_version_is_no_damage(filled: Yard) -> None:
    name = filled.store.entry_row(ONE)
    row = bytearray(filled.store.index.read(name) or b"")
    row[6] -= 1
    DiskcacheIndex(filled.folder / "index", version=row[6]).write(name, bytes(row), "pkg.build")
    assert verified(filled)["problems"] == []
    filled.store.index.write(name, bytes(row), "pkg.build")  # among those of this version it is
    assert [each["kind"] for each in verified(filled, code=1)["problems"]] == ["row"]


def test_a_store_that_is_only_read(filled: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise StoreFault(Fault.STORE_UNWRITABLE, "read-only")

    monkeypatch.setattr("cachec.store.index.DiskcacheIndex.atomically", refused)
    os.unlink(filled.store.objects.place(product(filled, ONE).digest))
    document = verified(filled, code=1)
    assert document["artifacts"] == 6
    assert [(each["name"], each["put_away"]) for each in document["problems"]] == [(ONE, False)]


def test_parts_that_many_entries_share(yard: Yard) -> None:
    shared: tuple[Part, ...] = (part("arg/batch", "1"),)
    yard.publish(ONE, parts=shared, content=b"same" * 50)
    yard.publish(TWO, parts=shared, content=b"same" * 50)
    yard.store.release()
    meddled(yard, product(yard, ONE).digest)
    problems = verified(yard, code=1)["problems"]
    assert {each["name"] for each in problems if each["put_away"]} == {ONE, TWO}
