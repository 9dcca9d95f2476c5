"""The engines of remotes under the suite that everybody's inherit, and servers that misbehave."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import ConfigError, StoreFault
from cachec.model import Fault
from cachec.remote.engines import action, engine_of
from cachec.remote.engines.base import MAX_ROW, RemoteEngine, run_with_deadline
from cachec.remote.urls import parse
from cachec.testing.remotes import RemoteEngineConformance, blob_of
from tests.recipes import block, entry_points, install
from tests.remote.server import Site, listening, refusing, serving

NAME = digest_bytes(b"name")


def engine(url: str, **environ: str) -> RemoteEngine:
    return engine_of(parse(url, "default", environ))


class TestFolder(RemoteEngineConformance):
    def make(self, place: Any) -> RemoteEngine:
        Path(place).mkdir(exist_ok=True)  # no engine makes it
        return engine(f"file://{place}")


class Served(RemoteEngineConformance):
    @pytest.fixture
    def place(self) -> Iterator[Site]:
        with serving() as site:
            yield site

    def make(self, place: Any) -> RemoteEngine:
        return engine(place.url)


class TestHttp(Served):
    def test_a_connection_is_used_again(self, engine: RemoteEngine, place: Site) -> None:
        for _ in range(3):
            engine.get_row(NAME, monotonic() + 60)
        assert len(place.ports) == 1

    def test_a_connection_that_was_closed_meanwhile_is_made_anew(self, engine: RemoteEngine, place: Site) -> None:
        engine.get_row(NAME, monotonic() + 60)
        for each in place.open:
            each.shutdown(socket.SHUT_RDWR)
        assert engine.get_row(NAME, monotonic() + 60) is None
        assert len(place.ports) == 2


class TestHttpInChunks(Served):
    def make(self, place: Site) -> RemoteEngine:
        place.is_chunked = True
        return engine(place.url)


class TestHttpThatClosesAndIgnoresConditions(Served):
    is_conditional = False

    def make(self, place: Site) -> RemoteEngine:
        place.is_conditional, place.is_closed = False, True
        return engine(place.url)


class TestWebDav(Served):
    def make(self, place: Site) -> RemoteEngine:
        place.is_webdav = True
        return engine(place.url + "/a/b")


class TestBazel(Served):
    is_conditional = False

    def make(self, place: Site) -> RemoteEngine:
        place.is_bazel = True
        return engine(place.url + "?layout=bazel")


def test_a_row_of_bazel_is_an_action_result() -> None:
    # Made with protoc of build/bazel/remote/execution/v2: output_files {path digest {hash size_bytes}}, stdout_raw.
    blob = blob_of(b"abc")
    message = action.encode_result(b"row", (blob,))
    inner = b"\x0a\x40" + blob.sha256.encode() + b"\x10\x03"
    assert message == b"\x12\x88\x01\x0a\x40" + blob.digest.encode() + b"\x12\x44" + inner + b"\x2a\x03row"
    assert action.decode_row(message) == b"row"
    assert action.decode_row(b"\x20\x05" + message + b"\x4d1234\x5112345678") == b"row"
    for cut in range(len(message) - 1):
        with pytest.raises(StoreFault):
            action.decode_row(message[:cut])


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        *[(status, Fault.REMOTE_REFUSED) for status in (401, 403, 405)],
        *[(status, Fault.REMOTE_CORRUPT) for status in (301, 400, 500)],
        (503, Fault.REMOTE_UNREACHABLE),
        (507, Fault.REMOTE_FULL),
    ],
)
def test_what_a_server_refuses_is_a_fault(status: int, fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with serving() as site:
        site.answer = lambda _method, _path: (status, {"Location": site.url}, b"no")
        served = engine(site.url)
        for call in (
            lambda: served.get_row(NAME, monotonic() + 60),
            lambda: served.put_row(NAME, b"row", (), monotonic() + 60, replace=False),
            lambda: served.put_blob(blob_of(b"x"), os.fspath(tmp_path / "x"), monotonic() + 60),
        ):
            with pytest.raises(StoreFault) as raised:
                call()
            assert raised.value.fault is fault


ANSWERS = {
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "a cut head": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n",
    "a cut body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nrow",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nrow",
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nrow",
    "a length without end": b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\nrow" % (b"9" * 30),
    "a header without a colon": b"HTTP/1.1 200 OK\r\nContent-Length 3\r\n\r\nrow",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "an unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nrow",
    "a packed body": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nrow",
    "a chunk without a size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nrow\r\n0\r\n\r\n",
    "a cut chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nrow",
    "a row that is too long": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * (MAX_ROW + 1),
    "nothing": b"",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_answer_is_a_fault(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StoreFault) as raised:
            engine(f"http://127.0.0.1:{server.getsockname()[1]}").get_row(NAME, monotonic() + 60)
        thread.join()
    assert raised.value.fault in {Fault.REMOTE_CORRUPT, Fault.REMOTE_UNREACHABLE}


def test_a_server_that_hangs_is_given_up_in_time() -> None:
    with listening() as url, serving() as site:
        for place in (url, site.url):
            site.trickle = 2
            site.files[f"/team/r/{NAME[:2]}/{NAME}"] = b"a row that stops"
            with pytest.raises(StoreFault) as raised:
                engine(place).get_row(NAME, monotonic() + 0.05)
            assert raised.value.fault is Fault.REMOTE_TIMEOUT
    with pytest.raises(StoreFault) as raised:
        engine(refusing()).get_row(NAME, monotonic() + 60)
    assert raised.value.fault is Fault.REMOTE_UNREACHABLE


def test_what_no_timeout_ends_is_left_to_itself() -> None:
    ended = threading.Event()
    with pytest.raises(StoreFault) as raised:
        run_with_deadline(ended.wait, monotonic() + 0.05, "a folder")
    ended.set()
    assert raised.value.fault is Fault.REMOTE_TIMEOUT


def test_what_comes_after_an_answer_is_not_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                taken, _ = server.accept()
                with taken:
                    taken.recv(1 << 16)
                    taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nonetwo")

        thread = threading.Thread(target=serve)
        thread.start()
        served = engine(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert [served.get_row(NAME, monotonic() + 60) for _ in range(2)] == [b"one", b"one"]
        thread.join()


def test_secrets_go_to_the_server_and_are_not_shown() -> None:
    with serving() as site:
        with_user = site.url.replace("//", "//me:p%40ss@")
        for url, environ in ((with_user, {}), (site.url, {"CACHEC_REMOTE_TOKEN": "s3cret"})):
            engine(url, **environ).get_row(NAME, monotonic() + 60)
        assert [each["Authorization"] for each in site.headers] == ["Basic bWU6cEBzcw==", "Bearer s3cret"]
        address = parse(with_user, "default", {})
        assert (address.user, "p%40ss" in address.shown, "p@ss" in address.shown) == ("me:p@ss", False, False)
        site.answer = lambda _method, _path: (401, {}, b"")
        with pytest.raises(StoreFault) as raised:
            engine(with_user).get_row(NAME, monotonic() + 60)
        assert "p%40ss" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/x", "file://host/x", "http://", "http://host:x/", "http://host/a b", "http://host/#x"),
        *("http://host/x?mode=all", "http://host/x?speed=1", "http://host/x?mode=read&mode=write"),
        *("file:///x?layout=bazel", "http://host/x?namespace=", "http://me:p4ss@host/x?mode=all"),
        *("http://host/\r\nX: y", "http://host/x?timeout=0", "http://host/x?timeout=1e9"),
        # what a password has that was not escaped
        *("http://me:p4ss/p4ss@host/x", "https://me:1?p4ss@host/x", "http://me:#p4ss@host/"),
        *("redis://:p4ss/@host/0", "http://p4ss?p4ss@host/x", "reapi://me:p4ss/x@host"),
        "http://me:[p4ss@host/",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(url, "default", {})
    assert "p4ss" not in str(raised.value)


@pytest.mark.parametrize(
    "urls",
    ["file:///a,file:///b", "http://a/x;https://me:p4ss@b/y", "file:///a?mode=read,redis+unix:///run/redis.sock?db=0"],
)
def test_urls_with_commas_between_are_told_of_the_space(urls: str) -> None:
    with pytest.raises(ConfigError, match="spaces between") as raised:
        parse(urls, "default", {})
    assert "p4ss" not in str(raised.value)


def test_a_url_of_grpc_is_told_of_reapi() -> None:
    with pytest.raises(ConfigError, match="grpc is reapi here, and grpcs reapis"):
        parse("grpcs://host:9092", "default", {})


def test_a_folder_holds_no_traps(tmp_path: Path) -> None:
    served = engine(f"file://{tmp_path}")
    place = tmp_path / "r" / NAME[:2] / NAME
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    for _ in range(2):
        with pytest.raises(StoreFault) as raised:
            served.get_row(NAME, monotonic() + 60)
        assert raised.value.fault is Fault.REMOTE_CORRUPT
        place.unlink()
        place.symlink_to("/dev/zero")
    place.unlink()
    place.write_bytes(b"x" * (MAX_ROW + 1))
    with pytest.raises(StoreFault) as raised:
        served.get_row(NAME, monotonic() + 60)


def test_a_scheme_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "toy_remote", block("toy_remote.py"), entry_points("toy_remote"))
    monkeypatch.syspath_prepend(tmp_path)
    plain, sharded = (parse(f"toy:///data?mode=read{more}", "default", {}) for more in ("", "&shard=2"))
    assert (plain.mode, sharded.mode) == ("read", "read")
    assert sharded.options == (("shard", "2"),)
    assert plain.name != sharded.name
    with pytest.raises(ConfigError, match="'shard' is no option"):
        parse("http://host/data?shard=2", "default", {})
    with pytest.raises(ConfigError, match="mode is one of"):
        parse("toy:///data?mode=some", "default", {})
