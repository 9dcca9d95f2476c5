"""The engine for HTTP on a real nginx."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachec.model import Fault
from cachec.remote.engines.base import RemoteEngine
from cachec.testing.remotes import RemoteEngineConformance
from tests import pages
from tests.remote.nginx_server import LOCATION, running_nginx
from tests.remote.test_engines import NAME, engine
from tests.remote.test_redis import fault_of, soon, stored


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nginx(tmp_path_factory.mktemp("nginx")) as url:
        yield url


class TestNginx(RemoteEngineConformance):
    is_conditional = False  # it ignores If-None-Match of a PUT

    @pytest.fixture
    def place(self, server: str, tmp_path: Path) -> str:
        return f"{server}/{tmp_path.name}"

    def make(self, place: Any) -> RemoteEngine:
        return engine(place)


def test_the_documentation_says_what_it_needs() -> None:
    assert all(f"`{each.strip()}`" in pages.text_of("reference/remotes.md") for each in LOCATION.split(";")[:-1])


def test_a_server_that_is_only_read_and_one_with_a_bound(tmp_path: Path) -> None:
    with running_nginx(tmp_path / "read", location="limit_except GET HEAD { deny all; }") as url:
        served = engine(url)
        assert served.get_row(NAME, soon()) is None
        assert fault_of(lambda: served.put_row(NAME, b"row", (), soon(), replace=True)) is Fault.REMOTE_REFUSED
    with running_nginx(tmp_path / "small", location=LOCATION.replace("size 0", "size 1m")) as url:
        served = engine(url)
        assert stored(served, tmp_path, b"x" * 1000)
        assert fault_of(lambda: stored(served, tmp_path, os.urandom(3 << 20))) is Fault.REMOTE_FULL


def test_a_password_counts(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:{PLAIN}s3cret\n")
    more = f"auth_basic cachec; auth_basic_user_file {tmp_path}/users;"
    with running_nginx(tmp_path / "server", more) as url:
        assert fault_of(lambda: engine(url).get_row(NAME, soon())) is Fault.REMOTE_REFUSED
        assert engine(url.replace("//", "//me:s3cret@")).get_row(NAME, soon()) is None
