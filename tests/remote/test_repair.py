"""Damaged entries of a remote, and entries that could not be sent for a while, are complete in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachec import Reason
from cachec.cli import main
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import RemoteBlob
from cachec.remote.engines.http import HttpServer
from cachec.remote.urls import parse
from cachec.store.store import Store
from tests.remote.server import Site, serving
from tests.remote.test_sharing import Make

LARGE = 1 << 18

#: What a disk, a proxy or an upload that broke off makes of bytes.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit at the begin": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a bit in the midst": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 64]) + data[len(data) // 2 + 1 :]
    ),
    "a bit at the end": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "half of it": lambda data: data[: len(data) // 2],
    "nothing": lambda _data: b"",
    "zeros": lambda data: bytes(len(data)),
    "more": lambda data: data + b"x",
}


def files(url: str) -> list[Path]:
    return [path for path in Path(url.removeprefix("file://")).rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("kind", ["r", "b"])
def test_what_was_damaged_is_sent_again(
    machine: Make, tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    url = f"file://{tmp_path}/remote"
    one = machine(url)
    one.call(LARGE, "noise")
    one.push()
    for path in files(f"{url}/{kind}"):
        path.write_bytes(damage(path.read_bytes()))
    two = machine(url)
    value, outcome = two.call(LARGE, "noise")
    assert outcome.reason is Reason.FIRST_RUN
    assert two.faults == [Fault.REMOTE_CORRUPT.value]
    assert [sent.put is not None and sent.put.is_new for sent in two.push()] == [True]
    three = machine(url)
    assert three.call(LARGE, "noise")[0] == value
    assert three.faults == []


def test_a_remote_behind_a_damaged_one_mends_it(machine: Make, tmp_path: Path) -> None:
    near, far = (f"file://{tmp_path}/{name}" for name in ("near", "far"))
    one = machine(f"{near} {far}")
    value = one.call(LARGE, "noise")[0]
    one.push()
    for path in files(near):
        path.write_bytes(DAMAGES["zeros"](path.read_bytes()))
    two = machine(f"{near} {far}?mode=read")
    assert two.call(LARGE, "noise")[0] == value
    two.push()
    assert machine(near).call(LARGE, "noise")[0] == value


def test_a_blob_that_was_cut_is_none() -> None:
    with serving() as site:
        served = HttpServer(parse(site.url, "default", {}))
        blob = RemoteBlob("ab" * 32, 10, "cd" * 32)
        site.files[f"/team/b/ab/{blob.digest}"] = b"0123456789"
        assert served.has_blob(blob, time.monotonic() + 60)
        site.files[f"/team/b/ab/{blob.digest}"] = b"01234"
        assert not served.has_blob(blob, time.monotonic() + 60)
        served.close()


@pytest.mark.parametrize("fault", [Fault.IO_ERROR, Fault.STORE_UNWRITABLE, Fault.INDEX_BUSY, Fault.STORE_FULL])
def test_what_could_not_be_read_for_a_while_waits(machine: Make, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    one = machine()
    value = one.call()[0]

    def fail(*_: object) -> None:
        raise StoreFault(fault, "no descriptor is free")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "lookup", fail)
        assert [sent.fault.fault for sent in one.push() if sent.fault] == [fault]
    assert [sent.put is not None for sent in one.push()] == [True]
    assert machine().call()[0] == value


def test_push_asks_a_remote_that_is_left_alone(machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()
    honest, site.answer = site.answer, lambda _method, _path: (503, {}, b"")
    for size in range(4):
        one.call(size)
    assert one.remotes.all[0].breaker.is_off()
    monkeypatch.setenv("CACHEC_DIR", str(one.store))
    result = CliRunner().invoke(main, ["push"])
    assert (result.exit_code, result.stdout) == (1, "0 sent (0 B), 0 were there, 0 gone, 4 wait\n")
    assert "remote-unreachable" in result.stderr, "and why is said"
    site.requests.clear()
    assert CliRunner().invoke(main, ["push"]).exit_code == 1
    assert len(site.requests) == 1, "once, and not once for each result"
    site.answer = honest
    result = CliRunner().invoke(main, ["push"])
    assert (result.exit_code, result.stderr) == (0, "")


def test_what_a_folder_could_not_take_waits(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cleans up there removes a folder that was just made."""
    url = f"file://{tmp_path}/remote"
    one = machine(url)
    one.call(LARGE, "noise")
    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", lambda *_args, **_options: None)
        assert [sent.fault.fault for sent in one.push() if sent.fault] == [Fault.REMOTE_UNREACHABLE]
    assert [sent.put is not None and sent.put.is_new for sent in one.push()] == [True]
    assert machine(url).call(LARGE, "noise")[1].hit
