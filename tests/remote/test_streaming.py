"""Weights of a remote that are read as they are used: only what is read travels, once, and nothing else is believed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cachec
from cachec.errors import HandleClosed, UsageError, WeightError
from cachec.maintain.maintainer import Maintainer
from cachec.remote.keys import keypair
from tests.remote.server import Site, serving
from tests.remote.test_weights import COUNT, KEY, Place, arrays, check, files

OTHER = keypair("ci-3")

Open = Callable[..., cachec.Cache]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Caches of machines of their own."""
    made: list[cachec.Cache] = []

    def make(name: str, url: str) -> cachec.Cache:
        monkeypatch.setenv("CACHEC_REMOTE", url)
        made.append(cachec.Cache(tmp_path / name, log="off"))
        return made[-1]

    yield make
    for each in made:
        assert each._opened.remotes is not None
        each._opened.remotes.close()
        each.close()


@pytest.fixture
def remote(site: Site, tmp_path: Path) -> str:
    """The URL of a server that has ``w``, and ``tuned``: two other tensors."""
    pushed(tmp_path / "writer", site.url)
    site.requests.clear()
    return f"{site.url}?namespace=main&timeout=60"


def pushed(folder: Path, url: str, environ: dict[str, str] | None = None) -> None:
    place = Place(folder, url, environ)
    place.add("w")
    place.add("tuned", 0, 3)
    place.push("w")
    place.push("tuned")


def blobs(site: Site) -> list[str]:
    """The tensors that were fetched: the first blob of a set is its list of tensors."""
    return [path for path in site.asked("GET") if "/b/" in path]


def objects(cache: cachec.Cache) -> int:
    return sum(1 for _ in cache.store.objects.iterate())


def test_names_and_types_need_the_list_alone(remote: str, opened: Open, site: Site) -> None:
    cache = opened("one", remote)
    weights = cache.weights("w")
    local = cachec.WeightSet.from_arrays(arrays())
    assert weights.spec_digest == local.spec_digest
    assert (len(weights), weights.select(["l1.*"])["l1.w"].shape) == (COUNT, (16,))
    assert {name: weights[name].digest() for name in weights} == {name: local[name].digest() for name in local}
    assert len(site.requests) == 2, "the row of the name, and the list"
    assert objects(cache) == 0


@pytest.mark.parametrize("kind", ["folder", "http", "bazel"])
def test_a_tensor_comes_when_it_is_read_and_then_stays(kind: str, opened: Open, tmp_path: Path) -> None:
    with serving() as site:
        (tmp_path / "remote").mkdir(mode=0o700)
        url = f"file://{tmp_path / 'remote'}" if kind == "folder" else site.url
        url += "?namespace=main" + ("&layout=bazel" if kind == "bazel" else "")
        pushed(tmp_path / "writer", url)
        cache = opened("one", url)
        weights = cache.weights("w")
        for number in range(2):
            assert np.array_equal(weights["l2.w"].read(), arrays()["l2.w"])
            assert np.array_equal(weights["l4.w"].private(), arrays()["l4.w"])
            assert objects(cache) == 2, number
        with cache.weights("tuned") as tuned:
            check({name: tuned[name].read().copy() for name in tuned}, arrays(0, 3))
        assert objects(cache) == COUNT
        check({weight.name: weight.read().copy() for weight in weights.stream()}, arrays())
        assert objects(cache) == COUNT + 2


def test_what_is_here_is_not_fetched(remote: str, opened: Open, site: Site) -> None:
    cache = opened("one", remote)
    for name in ("w", "tuned", "w"):
        with cache.weights(name) as weights:
            for weight in weights.values():
                weight.read()
    fetched = blobs(site)
    assert len(fetched) == 3 + COUNT + 2, "three lists, and each tensor once"
    assert len({*fetched}) == 2 + COUNT + 2


def test_a_hit_fetches_no_tensor_and_a_run_those_that_it_reads(remote: str, opened: Open, site: Site) -> None:
    def total(weights: cachec.WeightSet) -> float:
        return float(weights["l1.w"].read().sum())

    one, other = opened("one", remote), opened("other", remote)
    expected = float(arrays()["l1.w"].sum())
    assert one.stage(total).call(one.weights("w"))[0] == expected
    assert objects_of_weights(one) == 1
    assert one._opened.remotes is not None
    assert [sent.fault for sent in one._opened.remotes.drain()] == [None]
    for _ in range(2):
        value, outcome = other.stage(total).call(other.weights("w"))
        assert (value, outcome.hit) == (expected, True)
        assert objects_of_weights(other) == 0
    tuned, outcome = other.stage(total).call(other.weights("tuned"))
    assert (tuned, outcome.hit) == (expected, True), "only what it reads counts"
    assert objects_of_weights(other) == 0


def objects_of_weights(cache: cachec.Cache) -> int:
    known = {
        weight.digest() for tuned in ((), (0, 3)) for weight in cachec.WeightSet.from_arrays(arrays(*tuned)).values()
    }
    return sum(ref.digest in known for ref, _ in cache.store.objects.iterate())


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _data: b"",
    "less": lambda data: data[:-1],
    "more": lambda data: data + b"\0",
    "another byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
def test_a_tensor_that_is_another_is_never_handed_out(
    alter: Callable[[bytes], bytes], remote: str, opened: Open, site: Site
) -> None:
    cache = opened("one", remote)
    weights = cache.weights("w")
    site.alter = lambda _path, data: alter(data)
    for look in ("read", "raw", "private", "place"):
        with pytest.raises(WeightError, match=rf"weight 'l2\.w' of 'w' .*{site.url}.*remote-corrupt"):
            getattr(weights["l2.w"], look)()
    assert objects(cache) == 0
    site.alter = lambda _path, data: data
    assert np.array_equal(weights["l2.w"].read(), arrays()["l2.w"])


@pytest.mark.parametrize("status", [404, 403, 503])
def test_a_remote_that_is_lost_is_told_by_name(status: int, remote: str, opened: Open, site: Site) -> None:
    cache = opened("one", remote)
    weights = cache.weights("w")
    first = weights["l0.w"].read().copy()
    site.answer = lambda _method, _path: (status, {}, b"gone")
    with pytest.raises(WeightError, match=rf"weight 'l3\.w' of 'w' is not here, and {site.url} did not give its 64"):
        weights["l3.w"].read()
    assert np.array_equal(weights["l0.w"].read(), first), "what came is here"

    def total(weights: cachec.WeightSet) -> float:
        return float(weights["l5.w"].read().sum())

    with pytest.raises(WeightError, match="l5"):
        cache.stage(total).call(weights)
    if status != 404:
        with pytest.raises(WeightError, match=f"weights 'w' can't be looked for at {site.url}: remote-"):
            cache.weights("w")
    site.answer = lambda _method, _path: None
    assert np.array_equal(weights["l3.w"].read(), arrays()["l3.w"]), "the same set goes on"
    assert cache.stage(total).call(weights)[0] == float(arrays()["l5.w"].sum())


def test_of_many_threads_one_fetches(remote: str, opened: Open, site: Site) -> None:
    caches = [opened("one", remote) for _ in range(3)]
    sets = [cache.weights("w") for cache in caches for _ in range(2)]
    site.requests.clear()
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda number: sets[number % 6]["l1.w"].read().copy(), range(24)))
    assert all(np.array_equal(each, arrays()["l1.w"]) for each in found)
    assert len(blobs(site)) == 1


READER = """
import sys, cachec
cache = cachec.Cache(sys.argv[1], log="off")
weights = cache.weights("w")
sys.stdin.read(1)
print([float(weights[name].read().sum()) for name in weights])
"""


@pytest.mark.long
def test_of_many_processes_one_fetches(
    remote: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEC_REMOTE", remote)
    line = [sys.executable, "-c", READER, str(tmp_path / "one")]
    readers = [subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for each in readers:
        assert each.stdin is not None
        each.stdin.write("x")
        each.stdin.flush()
    told = {each.communicate()[0] for each in readers}
    assert told == {f"{[float(each.sum()) for each in arrays().values()]}\n"}
    assert len(blobs(site)) == 4 + COUNT, "each its list, and all together each tensor once"


def test_what_is_read_stays_while_it_is_open(remote: str, opened: Open, site: Site) -> None:
    cache = opened("one", remote)
    weights = cache.weights("w")
    weights["l0.w"].read()
    Maintainer(cache.store, clock=lambda: 4e9).collect(limit=0)
    assert objects(cache) == 1
    weights.release()
    del weights
    Maintainer(cache.store, clock=lambda: 4e9).collect(limit=0)
    assert objects(cache) == 0
    assert np.array_equal(cache.weights("w")["l0.w"].read(), arrays()["l0.w"])


def test_a_released_set_asks_nobody(remote: str, opened: Open, site: Site) -> None:
    weights = opened("one", remote).weights("w")
    weights.release()
    site.requests.clear()
    for look in ("read", "digest", "extent"):
        with pytest.raises(HandleClosed):
            getattr(weights["l0.w"], look)()
    assert not site.requests


def test_what_has_a_name_here_is_asked_of_nobody(remote: str, opened: Open, site: Site, tmp_path: Path) -> None:
    cache = opened("writer", remote)
    check({name: weight.read().copy() for name, weight in cache.weights("tuned").items()}, arrays(0, 3))
    assert not site.requests
    with pytest.raises(WeightError, match=rf"no weights are named 'none', neither here nor at {site.url}"):
        cache.weights("none")
    with pytest.raises(WeightError, match="neither here"):
        opened("one", f"{remote}&mode=write").weights("w")
    with pytest.raises(UsageError, match="name of weights expected"):
        cache.weights("../w")


def test_a_stage_is_given_its_weights(remote: str, opened: Open, site: Site) -> None:
    cache = opened("one", remote)

    def total() -> int:
        return len(cache.weights("w"))

    with pytest.raises(UsageError, match="as an argument"):
        cache.stage(total).call()
    assert not blobs(site)


@pytest.mark.parametrize("writer", [OTHER.secret, ""], ids=["another", "nobody"])
def test_only_who_is_trusted_names_weights(writer: str, opened: Open, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir(mode=0o700)
    url = f"file://{tmp_path / 'remote'}?namespace=main"
    pushed(tmp_path / "writer", url, {"CACHEC_REMOTE_KEY": writer})
    with pytest.raises(WeightError, match="remote-untrusted"):
        opened("one", f"{url}&mode=read&trust={KEY.public}").weights("w")


def test_a_list_that_was_altered_is_refused(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir(mode=0o700)
    url = f"file://{tmp_path / 'remote'}?namespace=main"
    pushed(tmp_path / "writer", url)
    for path in files(tmp_path / "remote", "b"):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes().replace(b"float32", b"  int32"))
    with pytest.raises(WeightError, match=r"can't be looked for .* is not what its row says"):
        opened("one", url).weights("w")
