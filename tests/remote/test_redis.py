"""The engine on a real server of Redis, and on what pretends to be one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from cachec.base.hashing import digest_bytes
from cachec.errors import ConfigError, StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import MAX_ROW, RemoteBlob, RemoteEngine
from cachec.remote.engines.redis import MAX_BLOB, PIECE
from cachec.testing.remotes import RemoteEngineConformance, blob_of
from tests.remote.certificates import certificate
from tests.remote.redis_server import Redis, running_redis
from tests.remote.server import listening, refusing
from tests.remote.test_engines import NAME, engine


def soon() -> float:
    return monotonic() + 60.0


def stored(engine: RemoteEngine, folder: Path, data: bytes) -> RemoteBlob:
    (folder / "content").write_bytes(data)
    engine.put_blob(blob_of(data), os.fspath(folder / "content"), soon())
    return blob_of(data)


def fault_of(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: Redis) -> Redis:
    with shared_server.client() as client:
        client.flushall()
    return shared_server


class TestRedis(RemoteEngineConformance):
    @pytest.fixture
    def place(self, server: Redis) -> Redis:
        return server

    def make(self, place: Any) -> RemoteEngine:
        return engine(place.url)

    def test_a_connection_is_used_again(self, engine: RemoteEngine, place: Redis) -> None:
        with place.client() as client:
            before = client.info("stats")["total_connections_received"]
            for _ in range(3):
                engine.get_row(NAME, soon())
            assert client.info("stats")["total_connections_received"] == before + 1

    def test_a_connection_that_was_closed_meanwhile_is_made_anew(self, engine: RemoteEngine, place: Redis) -> None:
        engine.get_row(NAME, soon())
        with place.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert engine.get_row(NAME, soon()) is None

    def test_a_child_has_connections_of_its_own(self, engine: RemoteEngine) -> None:
        assert engine.put_row(NAME, b"row", (), soon(), replace=False)
        child = os.fork()
        if not child:
            os._exit(engine.get_row(NAME, soon()) != b"row")
        assert engine.get_row(NAME, soon()) == b"row"
        assert os.waitpid(child, 0)[1] == 0
        assert engine.get_row(NAME, soon()) == b"row"


class TestRedisByASocket(TestRedis):
    def make(self, place: Any) -> RemoteEngine:
        return engine(f"redis+unix://{place.path}?db=3")


def test_databases_are_apart(server: Redis) -> None:
    one, other = engine(server.url), engine(server.url.replace("/0", "/1"))
    assert one.put_row(NAME, b"row", (), soon(), replace=False)
    assert other.get_row(NAME, soon()) is None
    assert fault_of(lambda: engine(server.url.replace("/0", "/999")).get_row(NAME, soon())) is Fault.REMOTE_REFUSED


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 7])
def test_a_blob_is_there_while_all_of_it_is(server: Redis, tmp_path: Path, size: int) -> None:
    served = engine(server.url)
    blob = stored(served, tmp_path, data := os.urandom(size))
    assert b"".join(served.get_blob(blob, soon()) or ()) == data
    with server.client() as client:
        keys = sorted(client.keys())
        assert [client.strlen(key) for key in keys] == [PIECE] * (size // PIECE) + [size % PIECE] * (size % PIECE > 0)
        client.delete(keys[-1])
    assert not served.has_blob(blob, soon())
    if len(keys) == 1:
        assert served.get_blob(blob, soon()) is None
    else:
        assert fault_of(lambda: list(served.get_blob(blob, soon()) or ())) is Fault.REMOTE_CORRUPT
    stored(served, tmp_path, data)
    assert served.has_blob(blob, soon())


def test_the_password_counts(tmp_path: Path) -> None:
    with running_redis(tmp_path, "--requirepass", "s3cret") as server:
        at = server.url.removeprefix("redis://")
        for wrong in (server.url, f"redis://:wr0ng@{at}", f"redis://me:wr0ng@{at}"):
            assert fault_of(lambda wrong=wrong: engine(wrong).get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        with pytest.raises(StoreFault) as raised:
            engine(f"redis://me:wr0ng@{at}").get_row(NAME, soon())
        assert "wr0ng" not in str(raised.value)
        assert engine(f"redis://:s3cret@{at}").get_row(NAME, soon()) is None
        assert engine(server.url, CACHEC_REMOTE_TOKEN="s3cret").get_row(NAME, soon()) is None


def test_who_may_only_read_is_refused_and_reads(server: Redis, tmp_path: Path) -> None:
    writer = engine(server.url)
    assert writer.put_row(NAME, b"row", (), soon(), replace=False)
    with server.client() as client:
        client.acl_setuser("reader", enabled=True, passwords=["+read"], keys=["cachec:*"], commands=["+@read"])
    reader = engine(server.url.replace("//", "//reader:read@"))
    assert reader.get_row(NAME, soon()) == b"row"
    (tmp_path / "x").write_bytes(b"x" * (2 * PIECE))
    for call in (
        lambda: reader.put_row(NAME, b"other", (), soon(), replace=True),
        lambda: reader.put_blob(blob_of(b"x" * 2 * PIECE), os.fspath(tmp_path / "x"), soon()),
        lambda: reader.delete_row(NAME, soon()),
    ):
        assert fault_of(call) is Fault.REMOTE_REFUSED
    assert reader.get_row(NAME, soon()) == b"row"


def test_a_replica_is_read_and_not_written(server: Redis, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "yes") as replica:
        served = engine(replica.url)
        assert served.get_row(NAME, soon()) is None
        call = lambda: served.put_row(NAME, b"row", (), soon(), replace=False)  # noqa: E731
        assert fault_of(call) is Fault.REMOTE_REFUSED
        with replica.client() as client:
            client.config_set("replica-serve-stale-data", "no")
        assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE, "it waits for its master"


def test_a_full_server_is_a_fault_and_keeps_no_part(server: Redis, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as full:
        served = engine(full.url)
        with full.client() as client:
            client.setrange("of another", 5 << 20, b"x")
        assert fault_of(lambda: stored(served, tmp_path, os.urandom(3 << 20))) is Fault.REMOTE_FULL
        with full.client() as client:
            assert client.keys() == [b"of another"]
            with pytest.raises(OutOfMemoryError):
                [client.set(f"fills it {number}", b"x" * (64 << 10)) for number in range(1000)]
        call = lambda: served.put_row(NAME, b"row", (), soon(), replace=False)  # noqa: E731
        assert fault_of(call) is Fault.REMOTE_FULL
        assert served.get_row(NAME, soon()) is None


def test_what_would_push_out_all_others_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_redis(tmp_path, "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as small:
        served = engine(small.url)
        assert served.put_row(NAME, b"row", (), soon(), replace=False)
        assert fault_of(lambda: stored(served, tmp_path, os.urandom(5 << 20))) is Fault.REMOTE_SKIPPED
        assert served.get_row(NAME, soon()) == b"row"
    with running_redis(tmp_path) as unbounded:
        (tmp_path / "large").touch()
        os.truncate(tmp_path / "large", MAX_BLOB + 1)
        blob = RemoteBlob(digest_bytes(b"large"), MAX_BLOB + 1, "")
        call = lambda: engine(unbounded.url).put_blob(blob, os.fspath(tmp_path / "large"), soon())  # noqa: E731
        assert fault_of(call) is Fault.REMOTE_SKIPPED
        with unbounded.client() as client:
            assert client.dbsize() == 0


def test_what_was_evicted_is_not_there(tmp_path: Path) -> None:
    with running_redis(tmp_path, "--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru") as server:
        served = engine(server.url)
        blobs = [stored(served, tmp_path, os.urandom(3 << 20)) for _ in range(6)]
        there = [served.has_blob(blob, soon()) for blob in blobs]
        assert True in there
        assert False in there
        for blob, is_there in zip(blobs, there, strict=True):
            content = b""
            with contextlib.suppress(StoreFault):
                content = b"".join(served.get_blob(blob, soon()) or ())
            assert (blob_of(content) == blob) == is_there


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        served = engine(server.url)
        blob = stored(served, tmp_path, os.urandom(4 << 20))
        pieces = served.get_blob(blob, soon())
        assert pieces is not None
        assert next(pieces)
        server.kill()
        assert fault_of(lambda: list(pieces)) is Fault.REMOTE_UNREACHABLE
        assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE
    assert fault_of(lambda: engine(refusing().replace("http", "redis").replace("team", "0")).get_row(NAME, soon())) is (
        Fault.REMOTE_UNREACHABLE
    )


def test_a_server_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    with listening() as url, running_redis(tmp_path) as server:
        served = engine(server.url)
        assert served.get_row(NAME, soon()) is None
        server.stop()
        for hung in (served, engine(server.url), engine(url.replace("http", "redis").replace("team", "0"))):
            assert fault_of(lambda hung=hung: hung.get_row(NAME, monotonic() + 0.1)) is Fault.REMOTE_TIMEOUT


def test_a_certificate_has_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, cert = certificate()
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "cert.pem").write_bytes(cert)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    files = (("--tls-cert-file", "cert.pem"), ("--tls-key-file", "key.pem"))
    options = [word for option, file in files for word in (option, f"{tmp_path}/{file}")]
    with running_redis(tmp_path / "redis", "--tls-port", str(port), "--tls-auth-clients", "no", *options):
        url = f"rediss://localhost:{port}/0"
        assert fault_of(lambda: engine(url).get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/cert.pem")
        assert engine(url).get_row(NAME, soon()) is None
        wrong = url.replace("localhost", "127.0.0.1")
        assert fault_of(lambda: engine(wrong).get_row(NAME, soon())) is Fault.REMOTE_REFUSED


ANSWERS = {
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a value that is too long": b"$%d\r\n" % (2 * MAX_ROW) + b"x" * (2 * MAX_ROW),
    "a length without end": b"$%s\r\n" % (b"9" * 30) + b"x" * (2 * MAX_ROW),
    "no length": b"$row\r\n",
    "an endless line": b"+" + b"x" * (2 * MAX_ROW),
    "an endless error": b"-ERR " + b"x" * (2 * MAX_ROW),
    "a number": b":1\r\n",
    "too large a number": b":%s\r\n" % (b"9" * 10_000),
    "a list": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "a list without end": b"*999999999\r\n" + b":1\r\n" * MAX_ROW,
    "lists in lists": b"*1\r\n" * MAX_ROW,
    "an error": b"-ERR unknown command\r\n",
    "another type": b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_answer_is_a_fault(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                try:
                    while asked := taken.recv(1 << 16):
                        for _ in range(asked.count(b"SETINFO")):
                            taken.sendall(b"+OK\r\n")
                        if b"GET\r\n" in asked:
                            taken.sendall(answer)
                except ConnectionError:
                    pass  # it was closed, as it should be

        thread = threading.Thread(target=serve)
        thread.start()
        served = engine(f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        fault = fault_of(lambda: served.get_row(NAME, monotonic() + 10))
        served.close()
        thread.join()
    assert fault is Fault.REMOTE_CORRUPT


def test_an_answer_whose_bytes_come_one_by_one_ends() -> None:
    """Each in time, and all of them never."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                try:
                    while not ended.wait(0.01):
                        taken.sendall(b"+")
                except ConnectionError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        served = engine(f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        assert fault_of(lambda: served.get_row(NAME, monotonic() + 0.3)) is Fault.REMOTE_TIMEOUT
        ended.set()
        thread.join()


def test_the_package_is_imported_by_the_first_question_and_named_where_it_is_missing(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, time\n"
        "from cachec.remote.engines import engine_of\nfrom cachec.remote.urls import parse\n"
        f"engine = engine_of(parse({server.url!r}, 'default', {{}}))\n"
        "print('redis' in sys.modules)\n"
        "engine.get_row('0' * 64, time.monotonic() + 60)\n"
        "print('redis' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    monkeypatch.setattr("cachec.remote.engines.redis.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"cachec\[redis\]"):
        engine(server.url)


def test_importing_the_client_is_no_waiting_for_the_remote(server: Redis, tmp_path: Path) -> None:
    """A process a call, and each imports anew: that would put a remote off which answers at once."""
    code = (
        "import os, sys, time\nfrom importlib.abc import MetaPathFinder\n"
        "class Slow(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'redis.connection':\n            late[0] = 1000.0\n"
        "late, clock = [0.0], time.monotonic\n"
        "time.monotonic = lambda: clock() + late[0]\n"  # the import takes a quarter of an hour
        "sys.meta_path.insert(0, Slow())\n"
        "import cachec\ncache = cachec.Cache(sys.argv[1], log='off')\n"
        "@cache.stage\ndef f(x: int) -> int:\n    return x\n"
        "f(1)\n"
        "assert 'redis.connection' in sys.modules\n"
        "remotes = cache._opened.remotes\n"
        "print(dict(cache.events.faults), remotes.all[0].breaker._seconds_lost()[0])\n"
    )
    environ = {**os.environ, "CACHEC_REMOTE": f"{server.url}?timeout=600&mode=read"}
    line = [sys.executable, "-c", code, os.fspath(tmp_path / "store")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "{} 0.0\n"


def test_clients_are_imported_for_children_to_come() -> None:
    """As the server of ``cachec exec`` does, whose children ask each for the first time."""
    code = (
        "import sys\nfrom cachec.remote.schemes import import_clients\n"
        "for schemes in ((), ('redis', 's3', 'reapi'), ('none', 'http')):\n"
        "    import_clients(schemes)\n"
        "    names = ('redis', 'obstore', 'grpc', 'cachec.remote.engines.http')\n"
        "    print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "['redis', 'obstore', 'grpc']",
        "['redis', 'obstore', 'grpc', 'cachec.remote.engines.http']",
    ]
