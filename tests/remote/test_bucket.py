"""The engine on buckets: of moto's server, and of one that does everything wrong that it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from cachec.errors import ConfigError, StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import MAX_ROW, RemoteEngine
from cachec.testing.remotes import RemoteEngineConformance, blob_of
from tests.remote.moto_server import BUCKET, running_moto
from tests.remote.server import Site, listening, refusing, serving
from tests.remote.test_engines import NAME, engine
from tests.remote.test_redis import fault_of, soon, stored


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_moto() as url:
        yield url


def at(server: str, bucket: str = f"{BUCKET}/cachec", scheme: str = "s3") -> str:
    return f"{scheme}://{bucket}?endpoint={server}&region=us-east-1"


class TestBucket(RemoteEngineConformance):
    @pytest.fixture
    def place(self, server: str, tmp_path: Path) -> str:
        return at(server, f"{BUCKET}/of/{tmp_path.name}")

    def make(self, place: Any) -> RemoteEngine:
        return engine(place)

    def test_a_large_blob_comes_in_parts_and_goes_in_parts(self, engine: RemoteEngine, tmp_path: Path) -> None:
        blob = stored(engine, tmp_path, data := os.urandom(20 << 20))
        assert engine.has_blob(blob, soon())
        pieces = list(engine.get_blob(blob, soon()) or ())
        assert b"".join(pieces) == data
        assert max(map(len, pieces)) < 4 << 20


class OnSite(RemoteEngineConformance):
    @pytest.fixture
    def place(self) -> Iterator[Site]:
        with serving() as site:
            site.is_bucket, site.is_conditional = True, self.is_conditional
            yield site

    def make(self, place: Any) -> RemoteEngine:
        return engine(at(place.url.removesuffix("/team")))


class TestBucketOfASimpleServer(OnSite):
    pass


class TestBucketThatIgnoresConditions(OnSite):
    is_conditional = False


class TestBucketThatKnowsNoConditions(OnSite):
    """It answers 501, as older servers of Ceph do: a row is written without a condition then."""

    is_conditional = False

    def make(self, place: Any) -> RemoteEngine:
        def answer(method: str, _path: str) -> tuple[int, dict[str, str], bytes] | None:
            is_conditional = method == "PUT" and "if-none-match" in {name.lower() for name in place.headers[-1]}
            return (501, {}, b"<Error><Code>NotImplemented</Code></Error>") if is_conditional else None

        place.answer = answer
        return super().make(place)


def test_a_bucket_that_is_not_there_is_told(server: str, tmp_path: Path) -> None:
    served = engine(at(server, "nobody"))
    (tmp_path / "x").write_bytes(b"x")
    for call in (
        lambda: served.get_row(NAME, soon()),
        lambda: served.put_row(NAME, b"row", (), soon(), replace=False),
        lambda: served.delete_row(NAME, soon()),
        lambda: served.get_blob(blob_of(b"x"), soon()),
        lambda: served.put_blob(blob_of(b"x"), os.fspath(tmp_path / "x"), soon()),
    ):
        with pytest.raises(StoreFault, match="NoSuchBucket") as raised:
            call()
        assert raised.value.fault is Fault.REMOTE_REFUSED


def test_who_has_no_rights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_moto(INITIAL_NO_AUTH_ACTION_COUNT="1") as url:
        served = engine(at(url))
        assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        assert fault_of(lambda: served.put_row(NAME, b"row", (), soon(), replace=True)) is Fault.REMOTE_REFUSED
        with pytest.raises(StoreFault) as raised:
            served.get_row(NAME, soon())
        assert "s3cret" not in str(raised.value)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        assert fault_of(lambda: engine(at(url)).get_row(NAME, soon())) is Fault.REMOTE_REFUSED


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        *[(status, Fault.REMOTE_REFUSED) for status in (401, 403)],
        *[(status, Fault.REMOTE_CORRUPT) for status in (400, 500)],
        (503, Fault.REMOTE_UNREACHABLE),
        (507, Fault.REMOTE_FULL),
    ],
)
def test_what_a_server_refuses_is_a_fault(status: int, fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with serving() as site:
        site.is_bucket = True
        site.answer = lambda _method, _path: (status, {}, b"no")
        served = engine(at(site.url.removesuffix("/team")))
        for call in (
            lambda: served.get_row(NAME, soon()),
            lambda: served.put_row(NAME, b"row", (), soon(), replace=False),
            lambda: served.put_blob(blob_of(b"x"), os.fspath(tmp_path / "x"), soon()),
        ):
            assert fault_of(call) is fault


def test_no_more_is_taken_than_one_has(tmp_path: Path) -> None:
    with serving() as site:
        site.is_bucket = True
        served = engine(at(site.url.removesuffix("/team")))
        blob = stored(served, tmp_path, b"x" * 1000)
        served.put_row(NAME, b"row", (), soon(), replace=False)
        for data in (b"x" * 1001, b"x" * (MAX_ROW + 1)):
            site.alter = lambda _path, _data, data=data: data
            assert fault_of(lambda: served.get_blob(blob, soon())) is Fault.REMOTE_CORRUPT
        assert fault_of(lambda: served.get_row(NAME, soon())) is Fault.REMOTE_CORRUPT


def test_a_server_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    with listening() as url, serving() as site:
        site.is_bucket = True
        served = engine(at(site.url.removesuffix("/team")))
        blob = stored(served, tmp_path, b"x" * 100_000)
        served.put_row(NAME, b"row", (), soon(), replace=False)
        site.trickle = 2
        assert fault_of(lambda: served.get_row(NAME, monotonic() + 0.1)) is Fault.REMOTE_TIMEOUT
        pieces = served.get_blob(blob, monotonic() + 0.5)
        assert pieces is not None
        assert fault_of(lambda: list(pieces)) is Fault.REMOTE_TIMEOUT
        hung = engine(at(url.removesuffix("/team")))
        assert fault_of(lambda: hung.get_row(NAME, monotonic() + 0.1)) is Fault.REMOTE_TIMEOUT
    gone = engine(at(refusing().removesuffix("/team")))
    assert fault_of(lambda: gone.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE


def test_a_child_does_not_use_the_threads_of_its_parent(server: str) -> None:
    """It would hang, and have its parent hang: the client's sockets are of both."""
    served = engine(at(server))
    served.put_row(NAME, b"row", (), soon(), replace=True)
    child = os.fork()
    if not child:
        told = 2
        try:
            engine(at(server)).get_row(NAME, soon())
        except StoreFault as fault:
            told = int(fault.fault is not Fault.REMOTE_SKIPPED)
        os._exit(told)
    assert os.waitpid(child, 0)[1] == 0
    assert served.get_row(NAME, soon()) == b"row"


def test_a_child_that_is_forked_before_the_first_question_asks(server: str) -> None:
    code = (
        "import os, sys, time\n"
        "from cachec.remote.engines import engine_of\nfrom cachec.remote.urls import parse\n"
        f"engine = engine_of(parse({at(server)!r}, 'default', {{}}))\n"
        "assert 'obstore' not in sys.modules\n"
        "child = os.fork()\n"
        "assert engine.get_row('0' * 64, time.monotonic() + 60) is None\n"
        "if not child:\n    os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_clouds_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    gone = refusing().removesuffix("/team")
    azure = engine(f"az://{BUCKET}/cachec?endpoint={gone}")
    assert fault_of(lambda: azure.get_row(NAME, soon())) is Fault.REMOTE_UNREACHABLE
    assert engine("gs://bucket/x")
    monkeypatch.setattr("cachec.remote.engines.bucket.find_spec", lambda _name: None)
    for url in ("s3://bucket", "gs://bucket/x", "az://container"):
        with pytest.raises(ConfigError, match=r"cachec\[s3\]"):
            engine(url)


def test_children_of_a_process_that_only_imported_the_client_ask(server: str) -> None:
    """As the server of ``cachec exec`` has it."""
    code = (
        "import os, sys, time\n"
        "from cachec.remote.engines import engine_of\nfrom cachec.remote.schemes import import_clients\n"
        "from cachec.remote.urls import parse\n"
        "import_clients(['s3'])\n"
        "for _ in range(2):\n"
        "    if not (child := os.fork()):\n"
        f"        engine = engine_of(parse({at(server)!r}, 'default', {{}}))\n"
        "        os._exit(engine.get_row('0' * 64, time.monotonic() + 60) is not None)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
