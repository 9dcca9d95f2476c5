"""The engines on rclone's servers: one of S3's protocol that ignores conditions, and one of WebDAV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachec.remote.engines.base import RemoteEngine
from cachec.testing.remotes import RemoteEngineConformance
from tests.remote.rclone_server import BUCKET, running_rclone
from tests.remote.test_engines import engine


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_rclone("s3", tmp_path_factory.mktemp("s3") / "files", "--auth-key", "somebody,something") as url:
        yield url


@pytest.fixture(scope="module")
def webdav(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_rclone("webdav", tmp_path_factory.mktemp("webdav") / "files") as url:
        yield url


class TestRcloneAsABucket(RemoteEngineConformance):
    is_conditional = False

    @pytest.fixture
    def place(self, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
        return f"s3://{BUCKET}/of/{tmp_path.name}?endpoint={bucket}&region=us-east-1"

    def make(self, place: Any) -> RemoteEngine:
        return engine(place)


class TestRcloneByWebDav(RemoteEngineConformance):
    is_conditional = False

    @pytest.fixture
    def place(self, webdav: str, tmp_path: Path) -> str:
        return f"{webdav}/{BUCKET}/{tmp_path.name}"

    def make(self, place: Any) -> RemoteEngine:
        return engine(place)
