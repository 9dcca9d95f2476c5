"""What one machine has computed, another need not: where its reads hold there, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import cachec
from cachec import Reason
from cachec.cli import main
from cachec.errors import CacheMissError
from cachec.events import read_log
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector
from cachec.model import Fault, Read
from cachec.remote.chain import local_path
from tests.remote.casd_server import running_casd
from tests.remote.conftest import Machine
from tests.remote.moto_server import BUCKET, running_moto
from tests.remote.redis_server import running_redis
from tests.remote.server import Site, listening, refusing

Make = Callable[..., Machine]


def shared(machine: Make) -> tuple[Machine, bytes]:
    """A machine whose result is in the remote."""
    one = machine()
    value, outcome = one.call()
    assert (outcome.reason, outcome.stored) == (Reason.FIRST_RUN, True)
    assert [sent.put is not None and sent.put.is_new for sent in one.push()] == [True]
    return one, value


def test_another_machine_hits_what_one_has_run(machine: Make, site: Site) -> None:
    one, value = shared(machine)
    two = machine()
    site.requests.clear()
    found, outcome = two.call()
    assert (found, outcome.reason) == (value, Reason.HIT)
    assert outcome.remote is not None
    assert outcome.remote.hit
    assert outcome.remote.nbytes > 0
    assert len(site.requests) == 2, "one row to look at, one leaf with all"
    assert two.call()[1].remote is None, "it is local now"
    assert len(site.requests) == 2
    (_, logged) = read_log(two.store)
    assert logged.remote is None
    assert one.faults == two.faults == []


def test_a_run_without_reads_takes_one_round_trip(machine: Make, site: Site) -> None:
    one = machine()
    value, _ = one.call(5, "plain", mode="on")
    one.push()
    site.requests.clear()
    assert machine().call(5, "plain")[0] == value
    assert [method for method, _ in site.requests] == ["GET"]


def test_what_was_read_has_to_be_the_same_there(machine: Make) -> None:
    one, value = shared(machine)
    other = machine()
    (other.project / "table.txt").write_text("two")
    found, outcome = other.call()
    assert found[:9] == b"twotwotwo"
    assert outcome.reason is Reason.FIRST_RUN
    assert outcome.remote is not None
    assert not outcome.remote.hit
    assert [sent.put is not None for sent in other.push()] == [True]
    third, fourth = machine(), machine()
    (fourth.project / "table.txt").write_text("two")
    assert [third.call()[0], fourth.call()[0]] == [value, found]
    assert one.faults == other.faults == []


def test_other_namespaces_do_not_meet(machine: Make, url: str) -> None:
    shared(machine)
    branch = machine(url + "&namespace=pr/12")
    assert branch.call()[1].reason is Reason.FIRST_RUN
    branch.push()
    assert machine(url + "&namespace=pr/12&mode=read").call()[1].hit


def test_a_remote_that_is_only_read_is_not_written(machine: Make, url: str, site: Site) -> None:
    reader, writer = machine(url + "&mode=read"), machine(url + "&mode=write")
    reader.call()
    assert reader.push() == []
    assert not site.asked("PUT")
    site.requests.clear()
    assert writer.call()[1].remote is None
    assert site.requests == [], "nothing is asked before a run, and nothing sent while somebody waits"
    writer.push()
    assert reader.call(3)[1].hit, "its own"


def test_an_earlier_remote_gets_what_a_later_one_had(machine: Make, url: str, tmp_path: Path) -> None:
    _, value = shared(machine)
    near = f"file://{tmp_path}/near?timeout=60"
    assert machine(f"{near} {url}").push() == []
    both = machine(f"{near} {url}")
    assert both.call()[0] == value
    assert [sent.put is not None and sent.put.is_new for sent in both.push()] == [True]
    assert machine(near).call()[0] == value
    assert machine(f"{near} {refusing()}").call()[0] == value, "the later one is not asked"


def test_a_second_put_of_a_run_sends_nothing(machine: Make, site: Site) -> None:
    shared(machine)
    other = machine(site.url + "?timeout=60&mode=write")
    other.call()
    site.requests.clear()
    (sent,) = other.push()
    assert sent.put is not None
    assert (sent.put.is_new, sent.put.nbytes) == (False, 0)
    assert site.asked("PUT") == []


def test_who_was_first_is_gone_below(machine: Make, site: Site) -> None:
    """Two machines put the first run of a key at once, with other reads."""
    one, other = machine(), machine()
    (other.project / "table.txt").write_text("two")
    values = one.call()[0], other.call()[0]
    barrier = threading.Barrier(2)

    def answer(method: str, _path: str) -> None:
        if method == "GET" and not site.files:
            barrier.wait()

    site.answer = answer  # type: ignore[assignment]
    threads = [threading.Thread(target=each.push) for each in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    third, fourth = machine(), machine()
    (fourth.project / "table.txt").write_text("two")
    assert (third.call()[0], fourth.call()[0]) == values


def test_a_row_whose_blobs_are_gone_is_a_miss_and_heals(
    machine: Make, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachec.remote.trie.INLINE_BYTES", 0)
    shared(machine)
    for path in [path for path in site.files if "/b/" in path]:
        del site.files[path]
    two = machine()
    _, outcome = two.call()
    assert outcome.reason is Reason.FIRST_RUN
    assert two.faults == [Fault.REMOTE_CORRUPT.value]
    two.push()
    assert machine().call()[1].hit


def test_what_was_forgotten_does_not_come_back(machine: Make) -> None:
    one, value = shared(machine)
    two = machine()
    assert two.call()[0] == value
    stage = two.stage()
    assert stage.invalidate(3)
    again, outcome = stage.call(3)
    assert (outcome.reason, again == value) == (Reason.ENTRY_GONE, False)
    assert two.faults == []
    key = one.call()[1].key
    assert Maintainer(one.cache.store).plan(Selector(keys=(key,))).apply().removed == (key,)
    assert one.call()[0] != value


def test_modes(machine: Make, site: Site) -> None:
    _, value = shared(machine)
    site.requests.clear()
    assert machine().call(mode="read-only")[1].reason is Reason.FIRST_RUN
    assert machine().call(mode="off")[1].reason is Reason.MODE_OFF
    assert machine().call(mode="refresh")[1].reason is Reason.FIRST_RUN
    assert not site.requests
    assert machine().call(mode="require")[0] == value
    with pytest.raises(CacheMissError):
        machine().call(4, mode="require")
    verified = machine()
    assert verified.call(mode="verify")[1].reason is Reason.VERIFY_DIFFERS, "what a remote has is verified too"
    assert verified.call()[0] != value, "what was put away does not come back"


def test_an_async_stage_lets_others_go_on(machine: Make, site: Site) -> None:
    one, two = machine(), machine()
    for each in (one, two):
        text = (each.project / "model.py").read_text().replace("def build", "async def build")
        (each.project / "model.py").write_text(text)
    value = asyncio.run(one.stage()(3))
    one.push()
    asked, went_on = threading.Event(), threading.Event()

    def answer(_method: str, _path: str) -> None:
        asked.set()
        assert went_on.wait(60)

    async def both() -> bytes:
        task = asyncio.ensure_future(two.stage()(3))
        while not asked.is_set():
            await asyncio.sleep(0)
        went_on.set()
        return await task

    site.answer = answer  # type: ignore[assignment]
    assert asyncio.run(both()) == value


def test_a_hit_that_is_asked_of_asks_nobody(machine: Make, site: Site) -> None:
    shared(machine)
    two = machine()
    site.requests.clear()
    assert not two.stage().check(3).hit
    assert not site.requests


def test_paths_of_one_machine_are_not_shared(machine: Make, tmp_path: Path) -> None:
    def read(where: str, kind: str = "file", name: str = "") -> Read:
        return Read(kind, where, name, "0" * 64)

    own = "/home/me/x"
    assert local_path([read(where) for where in ("project:a", "home:b", "argument 0:c", "rel/d", "base_dir:e")]) == ""
    assert local_path([read("/usr/include/stdio.h"), read("/etc"), read(own, "env"), read("a.b", "module")]) == ""
    for kind in ("file", "absent", "there", "listing", "links", "access", "status", "tool", "code", "cwd"):
        assert local_path([read("/usr/x"), read(own, kind)]) == own
    assert local_path([read("", "same", f"project:a\0{own}")]) == own
    assert local_path([read("/usrlocal/x")]) == "/usrlocal/x"

    (tmp_path / "beside.txt").write_text("beside")
    one = machine()
    text = (one.project / "model.py").read_text()
    text = text.replace('Path(__file__).with_name("table.txt")', f'Path("{tmp_path}/beside.txt")')
    (one.project / "model.py").write_text(text)
    assert one.call()[1].stored
    assert one.push() == []
    assert one.faults == [Fault.REMOTE_SKIPPED.value]


def test_an_anchor_that_is_no_folder_here_holds_nothing(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = machine(), machine()
    for each in (one, two):
        text = (each.project / "model.py").read_text()
        text = text.replace("    table =", "    Path(os.environ['HOME'], 'none').exists()\n    table =", 1)
        (each.project / "model.py").write_text(text.replace("['HOME']", ".get('HOME', '/')"))
    one.call()
    one.push()
    stage = two.stage()
    monkeypatch.delenv("HOME")
    assert not stage.call(3)[1].hit


# --- nothing that a remote does fails a build


def test_a_remote_that_is_gone_costs_a_miss_and_is_left_alone(machine: Make) -> None:
    one = machine(refusing() + "?timeout=60")
    for size in range(5):
        assert one.call(size)[1].stored
    off = [Fault.REMOTE_OFF.value]
    assert one.faults == off + [Fault.REMOTE_UNREACHABLE.value] * 3
    assert one.push() == []
    assert len(list(one.remotes.spool.offers())) == 5, "all of it waits for better times"
    assert [record.reason for record in read_log(one.store)].count(Reason.FIRST_RUN) == 1


def test_a_remote_that_hangs_costs_two_time_outs(machine: Make) -> None:
    with listening() as url:
        one = machine(url + "?timeout=0.1")
        for size in range(5):
            assert one.call(size)[1].stored
        counts = Counter(one.faults)
        assert counts.keys() == {Fault.REMOTE_OFF.value, Fault.REMOTE_TIMEOUT.value}
        assert counts[Fault.REMOTE_TIMEOUT.value] <= 2, "one, where the machine was busy and it took longer"
        another_process = cachec.Cache(one.store, log="off")
        assert another_process._opened.remotes is not None
        assert another_process._opened.remotes.all[0].breaker.is_off()


HOSTILE: dict[str, Callable[[Site, str, bytes], bytes]] = {
    "nothing": lambda _site, _path, _data: b"",
    "half of it": lambda _site, _path, data: data[: len(data) // 2],
    "a bit less": lambda _site, _path, data: data[:-1],
    "a bit more": lambda _site, _path, data: data + b"}",
    "another byte at the end": lambda _site, _path, data: data[:-2] + bytes([data[-2] ^ 8]) + data[-1:],
    "what another asked for": lambda site, path, data: next(
        (site.files[key] for key in site.files if key != path), data
    ),
    "a page to sign in": lambda _site, _path, _data: b"<html>who are you?</html>",
    "zeros": lambda _site, _path, data: bytes(len(data)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["/r/", "/b/"])
@pytest.mark.parametrize("alter", HOSTILE.values(), ids=HOSTILE)
def test_a_remote_that_lies_costs_a_miss(
    machine: Make, site: Site, where: str, alter: Callable[[Site, str, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachec.remote.trie.INLINE_BYTES", 0)
    shared(machine)
    site.alter = lambda path, data: alter(site, path, data) if where in path else data
    one, alone = machine(), machine(refusing())
    value, outcome = one.call()
    assert (value[:9], outcome.reason, outcome.stored) == (b"oneoneone", Reason.FIRST_RUN, True)
    assert one.faults == [Fault.REMOTE_CORRUPT.value]
    assert one.call()[0] == value
    alone.call()
    assert one.rows() == alone.rows(), "nothing but its own run is here"


def test_a_remote_that_refuses_what_is_sent_gets_it_later(machine: Make, site: Site) -> None:
    one = machine()
    one.call()
    for status in (403, 507, 503):
        site.answer = lambda method, _path, status=status: (status, {}, b"") if method == "PUT" else None
        (sent,) = one.push()
        assert sent.fault is not None
    assert one.faults == ["remote-full", "remote-off", "remote-refused", "remote-unreachable"]
    assert one.push() == [], "it is left alone"
    site.answer = lambda _method, _path: None
    one.remotes.all[0].breaker.record_answer(0.0)
    assert [sent.put is not None for sent in one.push()] == [True]
    assert one.push() == []


def test_what_is_gone_before_it_was_sent_is_dropped(machine: Make) -> None:
    one = machine()
    one.cache.store.invalidate(one.call()[1].key)
    assert [sent.gone for sent in one.push()] == [True]
    assert one.push() == []


def test_a_spool_with_anything_in_it(machine: Make) -> None:
    one = machine()
    one.call()
    folder = Path(one.remotes.spool.folder)
    (offer,) = folder.iterdir()
    (folder / ("a" * 64)).write_bytes(offer.read_bytes())
    (folder / ("b" * 64)).write_bytes(b"[" * 100_000)
    (folder / ("c" * 64)).mkdir()
    (folder / "notes.txt").write_text("of somebody")
    offer.rename(folder / ("d" * 64))
    assert one.push() == []


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_store_where_nothing_can_be_kept(machine: Make, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place for the breaker or the spool, a build goes on as well."""
    one = machine(refusing() + "?timeout=60")
    one.store.mkdir()
    (one.store / "remote").write_text("no folder")
    monkeypatch.setattr(cachec.store.store.Store, "refuse_foreign", lambda *_args, **_kwargs: None)
    for size in range(5):
        assert one.call(size)[1].stored
    assert one.faults.count(Fault.REMOTE_UNREACHABLE.value) == 3


def test_without_a_remote_nothing_of_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import cachec, sys\n"
        f"cache = cachec.Cache({str(tmp_path / 'store')!r}, log='off')\n"
        "@cache.stage\ndef f(x: int) -> int:\n    return x\n"
        "assert [f.call(1)[1].hit for _ in range(2)] == [False, True]\n"
        "remotes = ('cachec.remote', 'ssl', 'http.client', 'grpc', 'redis', 'obstore')\n"
        "print(sorted(name for name in sys.modules if name.startswith(remotes)))\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "s.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- commands


@pytest.mark.long
@pytest.mark.parametrize("kind", ["http", "redis", "s3", "reapi"])
def test_a_command_is_handed_out_on_another_machine(
    tmp_path: Path, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``cachec exec``: another checkout, another store, another home."""
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            url = stack.enter_context(running_redis(tmp_path / "redis")).url
        elif kind == "s3":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            url = f"s3://{BUCKET}/cachec?region=us-east-1&endpoint={stack.enter_context(running_moto())}"
        elif kind == "reapi":
            url = stack.enter_context(running_casd(tmp_path / "casd")).url
        _handed_out(tmp_path, url)


def _handed_out(tmp_path: Path, url: str) -> None:

    def build(name: str, remote: str) -> tuple[bytes, dict[str, Any]]:
        source = tmp_path / name / "src"
        source.mkdir(parents=True)
        (source / "a.txt").write_text("a")
        environ = {
            **os.environ,
            "HOME": str(tmp_path / name),
            "CACHEC_DIR": str(tmp_path / name / "store"),
            "CACHEC_BASE_DIR": str(source),
            "CACHEC_REMOTE": remote,
            "CACHEC_LOG": "off",
        }
        made = "head -c 16 /dev/urandom > b.txt; cat a.txt >> b.txt"
        for words in (("exec", "--relocatable", "--output", "b.txt", "--", "sh", "-c", made), ("push",)):
            line = [sys.executable, "-m", "cachec", *words]
            subprocess.run(line, cwd=source, env=environ, check=True, capture_output=True)
        (outcome,) = read_log(tmp_path / name / "store")
        return (source / "b.txt").read_bytes(), msgspec.to_builtins(outcome)

    value, outcome = build("one", url)
    assert outcome["reason"].startswith("miss:")
    found, outcome = build("two", url)
    assert (found, outcome["reason"], outcome["remote"]["hit"]) == (value, "hit", True)


def test_a_question_says_that_no_remote_was_asked(machine: Make, url: str, site: Site, tmp_path: Path) -> None:
    shared(machine)
    two = machine()
    stage = two.stage()
    site.requests.clear()
    assert stage.why(3).startswith("miss:first-run: ")
    assert stage.why(3).endswith("; the remotes were not asked")
    (tmp_path / "in").write_text("x")
    words = ["--input", "in", "--output", "out", "--", "cp", "in", "out"]
    with contextlib.chdir(tmp_path):
        for question in ("check", "why"):
            said = CliRunner().invoke(main, ["--dir", str(two.store), question, *words])
            assert (said.exit_code, "the remotes were not asked" in " ".join(said.stdout.split())) == (1, True)
    assert site.requests == []
    assert stage.call(3)[1].hit
    assert stage.check(3).detail == ""
    assert "remotes" not in machine(f"{url}&mode=write").stage().why(3)
