"""Weights from elsewhere: identifiers, resolvers, and a server on the loopback that does everything wrong."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError, PluginError, UsageError, WeightError
from cachec.store.store import Store
from cachec.weights import from_arrays
from cachec.weights.library.http_ranges import HttpResolver
from cachec.weights.library.identifier import Identifier
from cachec.weights.library.resolver import Resolvers, fetch_file, resolve
from cachec.weights.library.stored_weights import WeightStore
from tests.weights.server import Site, serving

MIB = 1 << 20


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


@pytest.fixture
def weights_file(tmp_path: Path, site: Site) -> bytes:
    """A checkpoint of 3 MiB, which the site offers."""
    arrays = {"a": np.arange(MIB // 2, dtype=np.float32), "b": np.ones(MIB // 4, np.float32)}
    from_arrays(arrays).save(tmp_path / "original.safetensors")
    site.data = (tmp_path / "original.safetensors").read_bytes()
    return site.data


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(Store(tmp_path))


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def resolvers(pauses: list[float]) -> Resolvers:
    return Resolvers({"http": HttpResolver(timeout=60, sleep=pauses.append)})


def fetch(site: Site, store: WeightStore, resolvers: Resolvers, **how: Any) -> bytes:
    with fetch_file(store.folder, Identifier.parse(how.pop("text", site.identifier)), resolvers, **how) as path:
        assert path.name == "m.safetensors"
        return path.read_bytes()


def kept(store: WeightStore) -> list[Path]:
    return sorted((store.folder / "fetched").glob("*/*"))


# --- identifiers

HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"https://h/x/m.gguf#sha256={HEX}", ("https", "https://h/x/m.gguf", "m.gguf", "sha256", HEX, None)),
        (f"http://h:80/m.pt?a=b#blake3={HEX}&size=12", ("http", "http://h:80/m.pt?a=b", "m.pt", "blake3", HEX, 12)),
        (f"hub+x://h/o/m.irpa#size=0&sha256={HEX}", ("hub+x", "hub+x://h/o/m.irpa", "m.irpa", "sha256", HEX, 0)),
    ],
)
def test_identifiers(text: str, expected: tuple[Any, ...]) -> None:
    assert Identifier.parse(text) == (text, *expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m.safetensors",
        "https://h/m.safetensors",
        "https://h/m.safetensors#",
        "https://h/m.safetensors#size=3",
        f"https://h/m.safetensors#md5={HEX}",
        f"https://h/m.safetensors#sha256={HEX[:-1]}",
        f"https://h/m.safetensors#sha256={HEX.upper()}",
        f"https://h/m.safetensors#sha256={HEX}&size=-3",
        f"https://h/m.safetensors#sha256={HEX}&size=٣",
        f"https://h/m.safetensors#sha256={HEX}&other=3",
        f"https://h/#sha256={HEX}",
        f"https://h/a b#sha256={HEX}",
        f"https://h/..#sha256={HEX}",
        f"https://h/.hidden#sha256={HEX}",
        f"/etc/passwd#sha256={HEX}",
    ],
)
def test_what_is_no_identifier(text: str) -> None:
    with pytest.raises(UsageError, match="an identifier of weights expected"):
        Identifier.parse(text)


# --- fetching


def test_fetched_once_checked_and_owned(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    seen: list[tuple[int, int]] = []
    revision = resolve(store, site.identifier, "m", resolvers, progress=lambda done, total: seen.append((done, total)))
    assert revision.source == site.identifier
    assert revision.owned
    assert (len(weights_file), len(weights_file)) in seen
    with store.open("m") as weights:
        np.testing.assert_array_equal(weights["b"].read(), np.ones(MIB // 4, np.float32))
    assert kept(store) == []
    again = resolve(store, site.identifier, "m", resolvers)
    other = resolve(store, site.identifier, "n", resolvers)
    assert again.id == other.id == revision.id
    assert len(site.requests) == 1
    assert site.requests[0]["Accept-Encoding"] == "identity"


def test_sha256_without_a_size(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    text = f"{site.url}#sha256={hashlib.sha256(weights_file).hexdigest()}"
    assert fetch(site, store, resolvers, text=text) == weights_file
    site.length = -1  # no Content-Length: the end of the connection is the end
    assert fetch(site, store, resolvers, text=text) == weights_file


def test_a_connection_that_breaks_is_continued(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, pauses: list[float]
) -> None:
    site.drops = [100_000, 1_000_000, 5]
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked == [None, "bytes=100000-", "bytes=1100000-", "bytes=1100005-"]
    assert {request.get("If-Range") for request in site.requests[1:]} == {'"v1"'}
    assert pauses == []


def test_last_modified_serves_where_there_is_no_etag(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.etag, site.modified, site.drops = None, "Wed, 01 Jan 2025 00:00:00 GMT", [1000]
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked == [None, "bytes=1000-"]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_validator_it_starts_anew(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, etag: str | None
) -> None:
    site.etag, site.drops = etag, [1000]
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked == [None, None]


def test_a_server_that_knows_no_ranges(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.ranges, site.drops = False, [1000, 2000]
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked == [None, "bytes=1000-", "bytes=2000-"]


def test_another_version_midway_starts_anew(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    """The first bytes are of an older file: with them, the digest would be wrong."""
    good, site.data = site.data, bytes(len(weights_file))
    text = f"{site.url}#blake3={digest_bytes(good)}&size={len(good)}"

    def replace(site: Site) -> None:
        site.data, site.etag = good, '"v2"'

    site.drops, site.after = [1000], replace
    assert fetch(site, store, resolvers, text=text) == good
    assert site.asked == [None, "bytes=1000-"]


def test_another_version_from_a_server_that_ignores_if_range(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    good, site.data, site.if_range = site.data, bytes(len(weights_file)), False
    text = f"{site.url}#blake3={digest_bytes(good)}&size={len(good)}"

    def replace(site: Site) -> None:
        site.data, site.etag = good, '"v2"'

    site.drops, site.after = [1000], replace
    assert fetch(site, store, resolvers, text=text) == good
    assert site.asked == [None, "bytes=1000-", None]


def test_a_range_that_was_not_asked_for(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.drops, site.shift = [1000], 7
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked == [None, "bytes=1000-", None]


def test_a_length_that_is_too_large(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, pauses: list[float]
) -> None:
    site.length = len(weights_file) + 10
    with pytest.raises(WeightError, match=rf"expected {len(weights_file)} bytes, found {site.length} announced"):
        fetch(site, store, resolvers)
    text = f"{site.url}#blake3={digest_bytes(weights_file)}"
    with pytest.raises(WeightError, match="gave up after 5 attempts"):
        fetch(site, store, resolvers, text=text)
    assert len(pauses) == 5


def test_a_length_that_is_too_small(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    site.length = 1000
    with pytest.raises(WeightError, match="found 1000 announced"):
        fetch(site, store, resolvers)
    with pytest.raises(WeightError, match=r"expected blake3 .*, found .* of 1000 bytes; nothing was kept"):
        fetch(site, store, resolvers, text=f"{site.url}#blake3={digest_bytes(weights_file)}")
    assert [path for path in kept(store) if path.stat().st_size] == []


def test_more_bytes_than_stated_end_the_download(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.length, site.extra = -1, bytes(8 * MIB)
    with pytest.raises(WeightError, match=f"expected {len(weights_file)} bytes, found more"):
        fetch(site, store, resolvers)
    (part,) = (path for path in kept(store) if path.name == "part")
    assert part.stat().st_size <= len(weights_file)


def test_other_bytes_than_stated_are_refused_and_removed(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    text = site.identifier
    site.data = weights_file[:-1] + b"x"
    with pytest.raises(WeightError, match=r"expected blake3 .*, found"):
        resolve(store, text, "m", resolvers)
    assert kept(store) == []
    assert store.revisions() == []
    site.data = weights_file
    assert resolve(store, text, "m", resolvers).count == 2


def test_what_arrived_is_continued_by_the_next_call(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.drops, site.statuses = [2000], []
    site.after = lambda site: site.statuses.extend([503] * 5)
    with pytest.raises(WeightError, match=r"gave up .*with 2000 bytes here: HTTP 503.*goes on from there"):
        fetch(site, store, resolvers)
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked[-1] == "bytes=2000-"
    assert kept(store) == []


def test_passing_trouble_is_waited_for(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, pauses: list[float]
) -> None:
    for statuses in ([503, 429, 500], [408, 425, 502, 504]):
        pauses.clear()
        site.statuses = [*statuses]
        assert fetch(site, store, resolvers) == weights_file
        assert pauses == [0.5, 1.0, 2.0, 4.0][: len(statuses)]


@pytest.mark.parametrize(
    "error", [http.client.IncompleteRead(b""), ConnectionResetError(), TimeoutError(), ssl.SSLError(), OverflowError()]
)
def test_a_connection_that_fails_is_made_again(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, monkeypatch: pytest.MonkeyPatch,
    error: Exception, pauses: list[float],
) -> None:  # fmt: skip
    real, failing = HttpResolver._receive, [error]

    def receive(*args: Any) -> None:
        if failing:
            raise failing.pop()
        real(*args)

    monkeypatch.setattr(HttpResolver, "_receive", receive)
    assert fetch(site, store, resolvers) == weights_file
    assert len(pauses) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 410, 501])
def test_a_refusal_is_final(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, pauses: list[float], status: int
) -> None:
    site.statuses = [status]
    with pytest.raises(WeightError, match=f"expected the file, found HTTP {status}"):
        fetch(site, store, resolvers)
    assert pauses == []


def test_nobody_listens(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    text = f"http://127.0.0.1:1/m.safetensors#blake3={digest_bytes(weights_file)}"
    with pytest.raises(WeightError, match=r"gave up .*refused"):
        fetch(site, store, resolvers, text=text)


def test_a_download_is_for_its_owner_alone(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    with fetch_file(store.folder, Identifier.parse(site.identifier), resolvers) as path:
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_state_starts_anew(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    def spoil(done: int, total: int) -> None:
        (state,) = (path for path in kept(store) if path.name == "state.json")
        state.write_bytes(b"{}")

    site.drops = [1000]
    assert fetch(site, store, resolvers, progress=spoil) == weights_file
    assert site.asked == [None, None]


def test_credentials_do_not_follow_a_redirect(site: Site, weights_file: bytes, store: WeightStore) -> None:
    site.location = f"{site.base}/elsewhere/m.safetensors"
    resolvers = Resolvers({"http": HttpResolver({"Authorization": "Bearer secret"}, sleep=lambda seconds: None)})
    assert fetch(site, store, resolvers) == weights_file
    assert [request.get("Authorization") for request in site.requests] == ["Bearer secret", None]


@pytest.mark.parametrize("where", ["file:///etc/hostname", "data:,hello"])
def test_a_redirect_leaves_http_for_nothing(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, where: str
) -> None:
    site.location = where
    with pytest.raises(WeightError):
        fetch(site, store, resolvers)


# --- what is then done with it


def test_a_download_that_nobody_went_on_with_is_removed(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    day = 86400
    old, recent, locked = ("a" * 32, "b" * 32, "c" * 32)
    for name, age in ((old, 8), (recent, 6), (locked, 8), ("somebody's own", 8)):
        place = store.folder / "fetched" / name
        place.mkdir(parents=True)
        (place / "part").write_bytes(b"beginning")
        (place / "state.json").write_text("{}")
        os.utime(place / "part", (time.time() - age * day,) * 2)
    (store.folder / "fetched" / "stray").mkdir()
    with (store.folder / "fetched" / locked / "part").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetch(site, store, resolvers)
        assert sorted(os.listdir(store.folder / "fetched")) == [recent, locked, "somebody's own", "stray"]
    fetch(site, store, resolvers)
    assert sorted(os.listdir(store.folder / "fetched")) == [recent, "somebody's own", "stray"]


def test_an_old_download_of_what_is_wanted_is_continued(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    site.drops = [MIB]

    def gone(_site: Site) -> None:
        site.statuses = [404]

    site.after = gone
    with pytest.raises(WeightError):
        fetch(site, store, resolvers)
    [part] = (store.folder / "fetched").rglob("part")
    have = part.stat().st_size
    assert 0 < have <= MIB
    os.utime(part, (0, 0))
    assert fetch(site, store, resolvers) == weights_file
    assert site.asked[-1] == f"bytes={have}-"


def test_a_file_that_is_no_checkpoint(site: Site, store: WeightStore, resolvers: Resolvers) -> None:
    site.data = b"hello, I am no checkpoint"
    with pytest.raises(CheckpointError):
        resolve(store, site.identifier, "m", resolvers)
    assert kept(store) == []
    assert store.revisions() == []


def test_when_the_copy_fails_the_download_stays(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WeightStore, "add", lambda *args, **how: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            resolve(store, site.identifier, "m", resolvers)
    assert resolve(store, site.identifier, "m", resolvers).count == 2
    assert len(site.requests) == 1
    assert kept(store) == []


def test_a_checkpoint_of_several_files(site: Site, tmp_path: Path, store: WeightStore, resolvers: Resolvers) -> None:
    class Many(HttpResolver):
        def fetch(self, identifier: Identifier, fd: int, state: Path, progress: Any) -> None:
            os.pwrite(fd, (tmp_path / identifier.file).read_bytes(), 0)

    from_arrays({f"w{n}": np.full(25, n, np.float32) for n in range(3)}).save(
        tmp_path / "m.safetensors", shard_size=100
    )
    shards = sorted(tmp_path.glob("m-*.safetensors"))
    texts = [f"many://h/{path.name}#blake3={digest_bytes(path.read_bytes())}" for path in shards]
    revision = resolve(store, texts, "m", Resolvers({"many": Many()}))
    assert list(revision.specs) == ["w0", "w1", "w2"]
    with pytest.raises(UsageError, match="names of their own"):
        resolve(store, [texts[0], texts[0]], "n", Resolvers({"many": Many()}))
    with pytest.raises(UsageError, match="names of their own"):
        resolve(store, [], "n", Resolvers({"many": Many()}))


def test_a_name_of_other_weights(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    store.add(from_arrays({"x": np.ones(3)}), "m", source="mine")
    with pytest.raises(UsageError, match="'m' is the name of weights from mine"):
        resolve(store, site.identifier, "m", resolvers)
    assert site.requests == []


KILLED = """
import os, signal, sys
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
from cachec.weights.library.resolver import Resolvers, resolve
def die(done, total):
    if done > 1 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
resolve(WeightStore(Store(sys.argv[1])), sys.argv[2], "m", Resolvers.discover({}), progress=die)
"""


def test_after_a_kill_it_goes_on(site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers) -> None:
    command = [sys.executable, "-c", KILLED, str(store.folder.parent), site.identifier]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert resolve(store, site.identifier, "m", resolvers).count == 2
    first, second = site.asked
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").removesuffix("-")) > MIB


def test_two_that_want_the_same_fetch_it_once(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers
) -> None:
    found: list[str] = []

    def want() -> None:
        found.append(resolve(WeightStore(Store(store.folder.parent)), site.identifier, "m", resolvers).id)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert store.verify("m") == ()


def test_who_waits_may_begin_while_the_folder_goes(
    site: Site, weights_file: bytes, store: WeightStore, resolvers: Resolvers, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree
    of = store.folder / "fetched" / digest_bytes(site.identifier.encode())[:32]

    def removing(path: Path) -> None:
        of.mkdir(exist_ok=True)
        (of / "part").write_bytes(b"of who waited")
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", removing)
    assert resolve(store, site.identifier, "m", resolvers).count == 2
    assert [part.read_bytes() for part in (store.folder / "fetched").glob("*/part")] == [b"of who waited"]


# --- resolvers of others


def test_discovered_resolvers(tmp_path: Path, store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_hub.py").write_text(
        "import os\n"
        "class Hub:\n"
        "    def fetch(self, identifier, fd, state, progress):\n"
        "        os.pwrite(fd, identifier.url.encode(), 0)\n"
        "hub = Hub()\n"
        "nothing = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = Resolvers.discover({"hub": "fake_hub:hub", "bad": "fake_hub:absent", "odd": "fake_hub:nothing"})
    assert isinstance(found.of("https"), HttpResolver)
    assert "fake_hub" not in sys.modules
    data = b"hub://h/m.safetensors"
    with fetch_file(
        store.folder, Identifier.parse(f"hub://h/m.safetensors#blake3={digest_bytes(data)}"), found
    ) as path:
        assert path.read_bytes() == data
    for scheme, message in (("bad", "can't be loaded"), ("odd", "is a int, expected a .*Resolver")):
        with pytest.raises(PluginError, match=message):
            fetch(Site(b"", base=f"{scheme}://h"), store, found)
    with pytest.raises(UsageError, match=r"no resolver for 'ftp' \(there are: bad, http, https, hub, odd\)"):
        found.of("ftp")


def test_nothing_of_the_network_is_imported_before_it_is_needed() -> None:
    code = (
        "import json, sys\n"
        "from cachec.weights.library.resolver import Resolvers\n"
        "Resolvers.discover({})\n"
        "print(json.dumps([m for m in ('urllib.request', 'http.client', 'ssl', 'socket') if m in sys.modules]))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == []
