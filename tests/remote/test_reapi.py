"""The engine on caches of the Remote Execution API: a strict one that errs when it is told to, and buildbox-casd."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import MAX_ROW, RemoteEngine
from cachec.remote.engines.reapi import SMALL
from cachec.remote.engines.reapi_link import grpc
from cachec.testing.remotes import RemoteEngineConformance, blob_of
from tests.remote.casd_server import Casd, running_casd
from tests.remote.certificates import certificate
from tests.remote.conftest import Machine
from tests.remote.reapi_server import ReapiSite, serving_reapi
from tests.remote.server import listening, refusing
from tests.remote.test_engines import NAME, engine
from tests.remote.test_redis import fault_of, soon, stored
from tests.remote.test_remote_invalidation import invalidated

LARGE = 2 * SMALL + 7


@pytest.fixture
def site() -> Iterator[ReapiSite]:
    with serving_reapi() as site:
        yield site


class OnReapiSite(RemoteEngineConformance):
    is_conditional = False
    is_by_content = True

    @pytest.fixture
    def place(self, site: ReapiSite) -> ReapiSite:
        return site

    def make(self, place: Any) -> RemoteEngine:
        return engine(place.url)


class TestReapi(OnReapiSite):
    def test_what_is_small_goes_in_one_message(self, engine: RemoteEngine, place: ReapiSite, tmp_path: Path) -> None:
        for size in (1, SMALL, SMALL + 1):
            stored(engine, tmp_path, os.urandom(size))
        assert [call for call in place.calls if call != "GetCapabilities"] == ["BatchUpdateBlobs"] * 2 + ["Write"]
        assert place.calls.count("GetCapabilities") == 1

    def test_what_is_empty_is_not_asked_for(self, engine: RemoteEngine, place: ReapiSite, tmp_path: Path) -> None:
        blob = stored(engine, tmp_path, b"")
        assert engine.has_blob(blob, soon())
        pieces = engine.get_blob(blob, soon())
        assert pieces is not None
        assert list(pieces) == []
        assert place.calls == []

    def test_a_row_that_was_removed_can_be_put_again(self, engine: RemoteEngine) -> None:
        assert not engine.delete_row(NAME, soon())
        engine.put_row(NAME, b"row", (), soon(), replace=False)
        assert engine.delete_row(NAME, soon())
        assert not engine.delete_row(NAME, soon())
        engine.put_row(NAME, b"row", (), soon(), replace=False)
        assert engine.get_row(NAME, soon()) == b"row"

    def test_a_row_whose_blob_was_evicted_is_none(self, engine: RemoteEngine, place: ReapiSite, tmp_path: Path) -> None:
        blob = stored(engine, tmp_path, b"content")
        engine.put_row(NAME, b"row", (blob,), soon(), replace=False)
        assert engine.get_row(NAME, soon()) == b"row"
        place.forget_blobs()
        assert engine.get_row(NAME, soon()) is None
        assert engine.get_blob(blob, soon()) is None
        assert not engine.has_blob(blob, soon())


class TestReapiThatMovesRows(OnReapiSite):
    """As a server may that keeps results small: a row is to be fetched by its digest."""

    def make(self, place: Any) -> RemoteEngine:
        place.moves = True
        return super().make(place)


class TestReapiOfSmallBatches(OnReapiSite):
    """And of small messages."""

    def make(self, place: Any) -> RemoteEngine:
        place.batch, place.piece = 500, 1000
        return super().make(place)


class TestReapiThatSaysNothingOfItself(OnReapiSite):
    def make(self, place: Any) -> RemoteEngine:
        place.refuse["GetCapabilities"] = grpc.StatusCode.UNIMPLEMENTED
        return super().make(place)


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    with running_casd(tmp_path_factory.mktemp("casd")) as server:
        yield server


class TestCasd(RemoteEngineConformance):
    is_conditional = False
    is_by_content = True

    @pytest.fixture
    def place(self, casd: Casd) -> Casd:
        casd.evict("cas/objects", "actioncache")
        return casd

    def make(self, place: Any) -> RemoteEngine:
        return engine(place.url)

    def test_a_row_whose_blob_was_evicted_is_none(self, engine: RemoteEngine, place: Casd, tmp_path: Path) -> None:
        blob = stored(engine, tmp_path, b"content")
        engine.put_row(NAME, b"row", (blob,), soon(), replace=False)
        assert engine.get_row(NAME, soon()) == b"row"
        place.evict("cas/objects")
        assert engine.get_row(NAME, soon()) is None
        assert engine.get_blob(blob, soon()) is None


def test_casd_hangs_and_is_killed(tmp_path: Path) -> None:
    with running_casd(tmp_path / "casd") as server:
        served = engine(server.url)
        blob = stored(served, tmp_path, os.urandom(8 * SMALL))
        pieces = served.get_blob(blob, soon())
        assert pieces is not None
        assert next(pieces)
        server.stop()
        assert fault_of(lambda: served.get_row(NAME, monotonic() + 0.1)) is Fault.REMOTE_TIMEOUT
        server.kill()
        assert fault_of(lambda: list(pieces)) is Fault.REMOTE_UNREACHABLE
        assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE


def test_a_certificate_has_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, cert = certificate()
    credentials = grpc.ssl_server_credentials([(key, cert)])
    (tmp_path / "cert.pem").write_bytes(cert)
    with serving_reapi(credentials) as site:
        assert fault_of(lambda: engine(site.url).get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/cert.pem")
        assert engine(site.url).get_row(NAME, soon()) is None
        wrong = site.url.replace("localhost", "127.0.0.1")
        assert fault_of(lambda: engine(wrong).get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        plain = site.url.replace("reapis", "reapi")
        assert fault_of(lambda: engine(plain).get_row(NAME, soon())).is_remote


def test_secrets_go_to_the_server_and_are_not_shown(site: ReapiSite) -> None:
    with_user = site.url.replace("//", "//me:p%40ss@")
    for url, environ in ((with_user, {}), (site.url, {"CACHEC_REMOTE_TOKEN": "s3cret"}), (site.url, {})):
        engine(url, **environ).get_row(NAME, soon())
    assert [each.get("authorization") for each in site.metadata] == ["Basic bWU6cEBzcw==", "Bearer s3cret", None]
    site.refuse["GetActionResult"] = grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(StoreFault) as raised:
        engine(with_user).get_row(NAME, soon())
    assert raised.value.fault is Fault.REMOTE_REFUSED
    assert "p%40ss" not in str(raised.value)
    assert "\033" not in str(raised.value)
    with pytest.raises(StoreFault) as raised:
        engine(site.url, CACHEC_REMOTE_TOKEN="s3cret\n").get_row(NAME, soon())
    assert raised.value.fault.is_remote
    assert "s3cret" not in str(raised.value)


# --- faults

CODES = [
    *[(code, Fault.REMOTE_REFUSED) for code in ("PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")],
    ("RESOURCE_EXHAUSTED", Fault.REMOTE_FULL),
    ("UNAVAILABLE", Fault.REMOTE_UNREACHABLE),
    ("DEADLINE_EXCEEDED", Fault.REMOTE_TIMEOUT),
    *[(code, Fault.REMOTE_CORRUPT) for code in ("INVALID_ARGUMENT", "INTERNAL", "DATA_LOSS", "FAILED_PRECONDITION")],
]


@pytest.mark.parametrize(("code", "fault"), CODES, ids=[code for code, _ in CODES])
def test_what_a_server_refuses_is_a_fault(site: ReapiSite, code: str, fault: Fault, tmp_path: Path) -> None:
    served = engine(site.url)
    small, large = stored(served, tmp_path, b"x"), stored(served, tmp_path, os.urandom(LARGE))
    status = grpc.StatusCode[code]
    site.refuse = dict.fromkeys(
        ("GetActionResult", "UpdateActionResult", "FindMissingBlobs", "BatchUpdateBlobs", "Read", "Write"), status
    )
    (tmp_path / "y").write_bytes(b"y" * LARGE)
    calls: list[Callable[[], object]] = [
        lambda: served.get_row(NAME, soon()),
        lambda: served.put_row(NAME, b"row", (), soon(), replace=False),
        lambda: served.delete_row(NAME, soon()),
        lambda: served.has_blob(small, soon()),
        lambda: served.get_blob(large, soon()),
        lambda: stored(served, tmp_path, b"y"),
        lambda: stored(served, tmp_path, b"y" * LARGE),
    ]
    for call in calls:
        assert fault_of(call) is fault
    site.refuse = {"batch": status}
    assert fault_of(lambda: stored(served, tmp_path, b"y")) is fault
    site.refuse = {"stream": status}
    site.pieces = 3
    assert fault_of(lambda: list(served.get_blob(large, soon()) or ())) is fault
    assert fault_of(lambda: stored(served, tmp_path, b"y" * LARGE)) is fault
    assert engine(site.url).get_row(NAME, soon()) is None


def test_an_instance_that_is_not_there_is_a_fault(site: ReapiSite) -> None:
    for url in (site.url + "2", site.url.removesuffix("/team/main")):
        assert fault_of(lambda url=url: engine(url).get_row(NAME, soon())) is Fault.REMOTE_CORRUPT


def test_what_a_server_says_of_itself_is_heeded(site: ReapiSite, tmp_path: Path) -> None:
    blob = stored(engine(site.url), tmp_path, b"x")
    site.is_updated = False
    reader = engine(site.url)
    put: Callable[[], object] = lambda: reader.put_row(NAME, b"row", (), soon(), replace=False)  # noqa: E731
    assert fault_of(put) is Fault.REMOTE_REFUSED
    assert fault_of(lambda: stored(reader, tmp_path, b"y")) is Fault.REMOTE_REFUSED
    assert not site.results
    assert reader.has_blob(blob, soon())
    assert b"".join(reader.get_blob(blob, soon()) or ()) == b"x"
    site.is_updated, site.functions = True, (9,)
    reader = engine(site.url)
    assert fault_of(put) is Fault.REMOTE_REFUSED
    site.functions, site.most = (), 1000
    reader = engine(site.url)
    assert fault_of(lambda: stored(reader, tmp_path, b"y" * 1001)) is Fault.REMOTE_SKIPPED
    stored(reader, tmp_path, b"y" * 1000)


RAW = {
    "no message": b"\xff" * 20,
    "a message of nothing": b"",
    "a cut message": b"\x2a\x7frow",
    "another message": b"\x0a\x03abc\x12\x03abc\x32\x03abc",
    "a row that is too long": b"\x2a\x81\x80\x40" + b"x" * (MAX_ROW + 1),
    "a row elsewhere that is too long": b"\x32\x46\x0a\x40" + b"a" * 64 + b"\x10\xff\xff\x7f",
    "too large a message": b"\x2a\x80\x80\x80\x04" + b"x" * (8 << 20),
    "too many fields": b"\x08\x01" * 100_000,
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_what_is_no_answer_is_a_fault(site: ReapiSite, raw: bytes, tmp_path: Path) -> None:
    served = engine(site.url)
    blob = stored(served, tmp_path, b"content")
    methods = ("GetActionResult", "Read", "BatchUpdateBlobs")
    site.raw = dict.fromkeys(methods, raw)
    assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_CORRUPT
    assert fault_of(lambda: list(served.get_blob(blob, soon()) or ())) is Fault.REMOTE_CORRUPT
    assert fault_of(lambda: stored(served, tmp_path, b"y")) is Fault.REMOTE_CORRUPT
    site.raw = {"FindMissingBlobs": raw, "GetCapabilities": raw}
    with contextlib.suppress(StoreFault):  # of which nothing may be an answer
        served.has_blob(blob, soon())
    with contextlib.suppress(StoreFault):
        stored(engine(site.url), tmp_path, b"z")


def test_a_small_message_that_becomes_a_large_one_is_not_taken() -> None:
    with serving_reapi(compression=grpc.Compression.Gzip) as site:
        assert engine(site.url).get_row(NAME, soon()) is None
        site.raw["GetActionResult"] = b"\x2a\x80\x80\x80\x20" + bytes(64 << 20)
        assert fault_of(lambda: engine(site.url).get_row(NAME, soon())) is Fault.REMOTE_CORRUPT


def test_no_more_and_no_less_is_taken_than_a_blob_has(site: ReapiSite, tmp_path: Path) -> None:
    served = engine(site.url)
    for size in (1000, LARGE):
        blob = stored(served, tmp_path, os.urandom(size))
        for alter in (lambda data: data + b"x", lambda data: data[:-1], lambda _data: b""):
            site.alter = alter
            came: list[bytes] = []
            assert fault_of(lambda came=came: came.extend(served.get_blob(blob, soon()) or ())) is Fault.REMOTE_CORRUPT
            assert sum(map(len, came)) <= size
        site.alter = lambda data: data
        assert b"".join(served.get_blob(blob, soon()) or ())


def test_a_server_that_took_less_is_not_believed(site: ReapiSite, tmp_path: Path) -> None:
    served = engine(site.url)
    for committed in (0, LARGE - 1, LARGE + 1, -1):
        site.committed = committed
        site.forget_blobs()
        assert fault_of(lambda: stored(served, tmp_path, b"x" * LARGE)) is Fault.REMOTE_CORRUPT
    site.committed = None
    stored(served, tmp_path, b"x" * LARGE)
    stored(served, tmp_path, b"x" * LARGE)  # it ends at once where the blob is there


def test_a_server_that_hangs_is_given_up_in_time(site: ReapiSite, tmp_path: Path) -> None:
    served = engine(site.url)
    blob = stored(served, tmp_path, os.urandom(LARGE))
    site.pieces, site.hang = 3, {"stream", "GetActionResult", "BatchUpdateBlobs", "FindMissingBlobs"}
    with listening() as url:
        hung = engine(url.replace("http", "reapi"))
        for call in (
            lambda: hung.get_row(NAME, monotonic() + 0.1),
            lambda: served.get_row(NAME, monotonic() + 0.1),
            lambda: served.has_blob(blob, monotonic() + 0.1),
            lambda: served.put_row(NAME, b"row", (), monotonic() + 0.1, replace=False),
            lambda: list(served.get_blob(blob, monotonic() + 0.3) or ()),
            lambda: served.put_blob(blob_of(b"y" * LARGE), written(tmp_path, b"y" * LARGE), monotonic() + 0.3),
        ):
            assert fault_of(call) is Fault.REMOTE_TIMEOUT
    gone = engine(refusing().replace("http", "reapi"))
    assert fault_of(lambda: gone.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE


def written(folder: Path, data: bytes) -> str:
    (folder / "written").write_bytes(data)
    return os.fspath(folder / "written")


def test_a_stream_in_which_nothing_comes_is_given_up(
    site: ReapiSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = engine(site.url)
    blob = stored(served, tmp_path, os.urandom(LARGE))
    monkeypatch.setattr("cachec.remote.engines.reapi_link.STALL_SECONDS", 0.2)
    site.pieces, site.hang = 3, {"stream"}
    assert fault_of(lambda: list(served.get_blob(blob, soon()) or ())) is Fault.REMOTE_TIMEOUT
    large = os.urandom(64 * SMALL)
    assert fault_of(lambda: stored(served, tmp_path, large)) is Fault.REMOTE_TIMEOUT


def test_a_reader_that_takes_its_time_is_no_stall(
    site: ReapiSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = engine(site.url)
    blob = stored(served, tmp_path, data := os.urandom(LARGE))
    monkeypatch.setattr("cachec.remote.engines.reapi_link.STALL_SECONDS", 0.05)
    pieces = served.get_blob(blob, soon())
    assert pieces is not None
    first = next(pieces)
    threading.Event().wait(0.2)
    assert first + b"".join(pieces) == data


def test_a_file_that_is_not_what_it_was_is_not_sent(site: ReapiSite, tmp_path: Path) -> None:
    served = engine(site.url)
    for size in (1000, LARGE):
        blob = blob_of(os.urandom(size))
        for data in (b"", b"x", b"x" * size, b"x" * (size + 1)):
            assert fault_of(lambda: served.put_blob(blob, written(tmp_path, data), soon())) is Fault.REMOTE_CORRUPT
        with pytest.raises(FileNotFoundError):
            served.put_blob(blob, os.fspath(tmp_path / "none"), soon())
        with pytest.raises(IsADirectoryError):
            served.put_blob(blob, os.fspath(tmp_path), soon())


def test_a_file_that_can_not_be_read_to_its_end(site: ReapiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/self/mem opens, and its first byte is not to be had."""
    with pytest.raises(OSError, match="Input/output"):
        engine(site.url).put_blob(blob_of(bytes(LARGE)), "/proc/self/mem", soon())


def test_a_server_that_went_and_came_again_is_asked(tmp_path: Path) -> None:
    with serving_reapi() as site:
        served = engine(site.url)
        assert served.get_row(NAME, soon()) is None
    assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE
    served.close()
    with serving_reapi() as site:
        again = engine(site.url)
        again.close()
        assert again.get_row(NAME, soon()) is None


# --- machines that share one


def test_a_result_is_handed_on_and_comes_again_after_an_eviction(
    machine: Callable[..., Machine], site: ReapiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachec.remote.trie.INLINE_BYTES", 0)
    url = site.url + "?timeout=60"
    one, two, three, four = (machine(url) for _ in range(4))
    value, _ = one.call()
    assert [sent.fault for sent in one.push()] == [None]
    assert two.call()[0] == value
    kept = dict(site.blobs)
    site.forget_blobs()
    other, outcome = three.call()  # the rows of blobs that are gone are gone, too
    assert not outcome.hit
    assert three.faults == []
    assert [sent.fault for sent in three.push()] == [None]
    assert four.call()[0] == other
    site.trusts, site.blobs = True, {name: data for name, data in kept.items() if name not in site.blobs}
    five = machine(url)
    assert not five.call()[1].hit
    assert five.faults == [Fault.REMOTE_CORRUPT.value]


def test_what_is_forgotten_stays_so(machine: Callable[..., Machine], site: ReapiSite) -> None:
    url = site.url + "?timeout=60"
    one = machine(url)
    value, _ = one.call()
    one.push()
    done = invalidated(one, "--remote")
    assert json.loads(done.stdout)["remote"] == {"removed": 1, "left": 0, "left_at": {}, "faults": {}}
    other, outcome = (two := machine(url)).call()
    assert (outcome.hit, other == value) == (False, False)
    two.push()
    assert machine(url).call()[0] == other


def test_a_remote_that_is_only_read_costs_no_build(machine: Callable[..., Machine], site: ReapiSite) -> None:
    site.refuse = dict.fromkeys(("UpdateActionResult", "BatchUpdateBlobs"), grpc.StatusCode.PERMISSION_DENIED)
    one = machine(site.url + "?timeout=60")
    assert one.call()[1].stored
    assert [sent.fault.fault for sent in one.push() if sent.fault] == [Fault.REMOTE_REFUSED]
    assert one.faults == [Fault.REMOTE_REFUSED.value]


def test_a_remote_that_hangs_is_left_alone(machine: Callable[..., Machine], site: ReapiSite) -> None:
    site.hang = {"GetActionResult"}
    one = machine(site.url + "?timeout=0.1&mode=read")
    for size in range(8):
        assert one.call(size)[1].stored
    assert 1 <= one.faults.count(Fault.REMOTE_TIMEOUT.value) <= 3
    assert Fault.REMOTE_OFF.value in one.faults
