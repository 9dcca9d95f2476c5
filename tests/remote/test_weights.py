"""Owned weights in remotes: what is there does not travel, and nothing that comes is believed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import cachec
from cachec.cli import main
from cachec.errors import StoreFault, UsageError
from cachec.model import Fault
from cachec.remote.chain import Remote
from cachec.remote.keys import keypair
from cachec.remote.revisions import RemoteWeights
from cachec.remote.urls import parse
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
from tests.remote.reapi_server import serving_reapi
from tests.remote.server import serving

COUNT = 6
KEY, OTHER = keypair("ci-1"), keypair("ci-2")


def arrays(*tuned: int) -> dict[str, np.ndarray]:
    return {f"l{n}.w": np.arange(16, dtype=np.float32) + n + 100 * (n in tuned) for n in range(COUNT)}


class Place:
    """A store of weights on a machine of its own."""

    def __init__(self, folder: Path, url: str, environ: dict[str, str] | None = None) -> None:
        store = Store(folder)
        store.prepare()
        self.store = WeightStore(store)
        self.remote = Remote(parse(url, "main", environ or {}), store)
        self.there = RemoteWeights(self.remote, self.store)

    def add(self, name: str, *tuned: int) -> None:
        self.store.add(cachec.WeightSet.from_arrays(arrays(*tuned)), name)

    def push(self, name: str, **options: bool) -> tuple[int, int]:
        revision = self.store.find(name)
        assert revision is not None
        moved = self.there.push(revision, name, **options)
        return moved.tensors, moved.moved

    def pull(self, name: str, to: str = "", **options: bool) -> tuple[int, int] | None:
        moved = self.there.pull(name, to or name, **options)
        return None if moved is None else (moved.tensors, moved.moved)

    def values(self, name: str) -> dict[str, np.ndarray]:
        with self.store.open(name) as weights:
            return {each: weights[each].read().copy() for each in weights}


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def folder_url(tmp_path: Path) -> str:
    (tmp_path / "remote").mkdir(mode=0o700)
    return f"file://{tmp_path / 'remote'}"


@pytest.fixture(params=["folder", "http", "bazel", "reapi"])
def url(request: pytest.FixtureRequest, folder_url: str) -> Iterator[str]:
    if request.param == "folder":
        yield folder_url
        return
    if request.param == "reapi":
        with serving_reapi() as api:
            yield api.url
        return
    with serving() as site:
        yield site.url + ("?layout=bazel" if request.param == "bazel" else "")


def test_only_what_is_missing_travels(url: str, tmp_path: Path) -> None:
    one = Place(tmp_path / "one", url)
    one.add("base")
    one.add("tuned", 0, 3)
    assert one.push("base") == (COUNT, COUNT)
    assert one.push("tuned") == (COUNT, 2)
    assert one.push("tuned") == (COUNT, 0)
    other = Place(tmp_path / "other", url)
    assert other.pull("base") == (COUNT, COUNT)
    assert other.pull("tuned", "here") == (COUNT, 2)
    assert other.pull("tuned", "here") == (COUNT, 0)
    assert other.pull("none") is None
    check(other.values("base"), arrays())
    check(other.values("here"), arrays(0, 3))


def test_a_name_is_moved_only_where_that_is_asked_for(url: str, tmp_path: Path) -> None:
    one, other = Place(tmp_path / "one", url), Place(tmp_path / "other", url)
    one.add("w")
    one.push("w")
    other.add("w", 1)
    with pytest.raises(UsageError, match="--replace"):
        other.push("w")
    with pytest.raises(UsageError, match="name of other weights"):
        other.pull("w")
    check(other.values("w"), arrays(1))
    assert other.push("w", replace=True) == (COUNT, 1)
    assert one.pull("w", replace=True) == (COUNT, 1)
    check(one.values("w"), arrays(1))


@pytest.mark.parametrize("damage", [lambda row: row[:-9], lambda row: row[:-9] + b"x" + row[-8:], lambda _: b""])
def test_a_name_that_was_damaged_is_replaced_where_that_is_asked_for(
    folder_url: str, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    one, other = Place(tmp_path / "one", folder_url), Place(tmp_path / "other", folder_url)
    one.add("w")
    one.push("w")
    (row,) = (path for path in (tmp_path / "remote" / "r").rglob("*") if path.is_file())
    row.write_bytes(damage(row.read_bytes()))
    for refused in (lambda: other.pull("w"), lambda: one.push("w")):
        with pytest.raises(StoreFault) as raised:
            refused()
        assert raised.value.fault is Fault.REMOTE_CORRUPT
    assert one.push("w", replace=True) == (COUNT, 0)
    assert other.pull("w") == (COUNT, COUNT)
    check(other.values("w"), arrays())


def test_weights_in_place_are_not_pushed(folder_url: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "one", folder_url)
    cachec.WeightSet.from_arrays(arrays()).save(tmp_path / "w.safetensors")
    place.store.add(cachec.open_weights(tmp_path / "w.safetensors"), "w", own=False)
    with pytest.raises(UsageError, match="--own"):
        place.push("w")
    assert not list((tmp_path / "remote").iterdir())


@pytest.mark.parametrize("after", range(COUNT))
def test_what_broke_off_goes_on(after: int, folder_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Place(tmp_path / "one", folder_url), Place(tmp_path / "other", folder_url)
    one.add("w")
    monkeypatch.setattr("cachec.remote.revisions._PARALLEL", 1)
    with breaking(one, "put_blob", after), pytest.raises(StoreFault):
        one.push("w")
    assert other.pull("w") is None, "there is no name before all is there"
    assert one.push("w") == (COUNT, COUNT - after)
    with breaking(other, "get_blob", after + 1), pytest.raises(StoreFault):  # the manifest is the first
        other.pull("w")
    assert other.store.find("w") is None
    assert other.pull("w") == (COUNT, COUNT - after)
    check(other.values("w"), arrays())


@contextmanager
def breaking(place: Place, method: str, after: int) -> Iterator[None]:
    """A connection that is lost after so many calls."""
    left, call = [after], getattr(place.remote.engine, method)

    def broken(*words: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise StoreFault(Fault.REMOTE_UNREACHABLE, "gone")
        return call(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.remote.engine, method, broken)
        yield


def files(remote: Path, kind: str) -> list[Path]:
    """What a folder has of ``r``ows or ``b``lobs."""
    return sorted(path for path in (remote / kind).rglob("*") if path.is_file())


def altered(data: bytes, how: int) -> bytes:
    """Another text: cut, longer, with another byte at each of some places, or of another kind."""
    match how % 4:
        case 0:
            return data[: len(data) * how // 40]
        case 1:
            return data + b"x" * how
        case 2:
            at = len(data) * how // 40
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        case _:
            return b"{}" if how % 8 == 3 else b""


@pytest.mark.parametrize("kind", ["r", "b"])
@pytest.mark.parametrize("trusted", [False, True], ids=["everybody", "one"])
def test_what_was_altered_is_refused_and_names_nothing(
    kind: str, trusted: bool, folder_url: str, tmp_path: Path
) -> None:
    trust = f"?trust={KEY.public}" if trusted else ""
    one = Place(tmp_path / "one", folder_url + trust, {"CACHEC_REMOTE_KEY": KEY.secret} if trusted else {})
    one.add("w")
    one.push("w")
    reading = f"{folder_url}{trust}{'&' if trust else '?'}mode=read"
    told: list[Fault] = []
    for number, path in enumerate(files(tmp_path / "remote", kind)):
        whole = path.read_bytes()
        for how in range(number, 40, 5):
            other = Place(tmp_path / f"other{number}-{how}", reading)
            path.chmod(0o600)
            path.write_bytes(altered(whole, how))
            if altered(whole, how) == whole:
                continue
            try:
                other.pull("w")
            except StoreFault as fault:
                told.append(fault.fault)
                assert other.store.find("w") is None
            else:  # one byte of its time, in a row that nobody has signed
                assert kind == "r"
                assert not trusted
                check(other.values("w"), arrays())
        path.write_bytes(whole)
    assert len(told) > 5
    assert {*told} <= {Fault.REMOTE_CORRUPT, Fault.REMOTE_UNTRUSTED, Fault.REMOTE_REFUSED}
    assert Place(tmp_path / "last", reading).pull("w") == (COUNT, COUNT)


def test_a_row_counts_under_its_own_name_alone(folder_url: str, tmp_path: Path) -> None:
    one = Place(tmp_path / "one", folder_url)
    one.add("w")
    one.add("v", 1)
    one.push("w")
    (first,) = files(tmp_path / "remote", "r")
    one.push("v")
    (second,) = set(files(tmp_path / "remote", "r")) - {first}
    second.chmod(0o600)
    second.write_bytes(first.read_bytes())
    with pytest.raises(StoreFault, match="is that of 'w'"):
        Place(tmp_path / "other", folder_url).pull("v")
    with pytest.raises(StoreFault, match="is that of 'w'"):
        one.push("v")


@pytest.mark.parametrize("writer", [OTHER.secret, ""], ids=["another", "nobody"])
def test_only_who_is_trusted_names_weights(writer: str, folder_url: str, tmp_path: Path) -> None:
    one = Place(tmp_path / "one", folder_url, {"CACHEC_REMOTE_KEY": writer})
    one.add("w")
    one.push("w")
    with pytest.raises(StoreFault) as refused:
        Place(tmp_path / "other", f"{folder_url}?mode=read&trust={KEY.public}").pull("w")
    assert refused.value.fault is Fault.REMOTE_UNTRUSTED


def test_weights_of_another_namespace_are_others(folder_url: str, tmp_path: Path) -> None:
    one = Place(tmp_path / "one", folder_url)
    one.add("w")
    one.push("w")
    assert Place(tmp_path / "other", f"{folder_url}?namespace=branch").pull("w") is None


def test_the_commands(folder_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHEC_REMOTE", raising=False)
    cachec.WeightSet.from_arrays(arrays()).save("w.safetensors")

    def run(*words: str, store: str = "one") -> tuple[int, str]:
        done = CliRunner().invoke(main, ["--dir", store, "weights", *words])
        return done.exit_code, done.output

    assert run("add", "w.safetensors", "w", "--own")[0] == 0
    assert run("push", "w")[1].endswith("set CACHEC_REMOTE (see docs/reference/remotes.md#weights)\n")
    monkeypatch.setenv("CACHEC_REMOTE", folder_url)
    code, told = run("push", "w", "--as", "team/w", "--json")
    (row,) = json.loads(told)["remotes"]
    assert (code, row["tensors"], row["sent"], row["bytes"]) == (0, COUNT, COUNT, 64 * COUNT)
    assert run("pull", "w", store="two")[0] == 1
    code, told = run("pull", "team/w", "--as", "mine", store="two")
    assert (code, told.split(";")[0]) == (0, f"pulled mine from {folder_url}: {COUNT} tensors, {64 * COUNT} B")
    assert run("verify", "mine", store="two")[0] == 0
    assert run("push", "nothing")[0] == 1
    cachec.WeightSet.from_arrays(arrays(1)).save("other.safetensors")
    assert run("add", "other.safetensors", "mine", store="three")[0] == 0
    code, told = run("pull", "team/w", "--as", "mine", store="three")
    assert (code, "or say --replace" in " ".join(told.split())) == (2, True)
    monkeypatch.setenv("CACHEC_REMOTE", f"{folder_url}?mode=read")
    code, told = run("push", "w")
    assert (code, f"{folder_url} (mode=read)" in " ".join(told.split())) == (2, True)
