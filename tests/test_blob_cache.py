"""Caches of bytes whose keys are made elsewhere."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

import cachec
from cachec.base.call_hooks import Oversight, overseen
from cachec.blob_cache import Foreign
from cachec.cli import main
from cachec.events import read_log
from cachec.model import Fault, Mode, Reason, artifacts
from cachec.report import statistics
from cachec.testing.blob_caches import ForeignConformance


class TestForeign(ForeignConformance):
    name = "toy.compiler"

    def make(self, cache):
        return cache.foreign("toy.compiler")


class TestSelective(ForeignConformance):
    """Of what is asked for, only some is put."""

    name = "choosy"
    selective = True

    def make(self, cache):
        return cache.foreign("choosy", selective=True)

    def test_what_cannot_be_stored_is_a_miss_all_the_same(self, open_cache):
        cache, seam = open_cache(max_size=100_000)
        assert seam.get(self.key(0)) is None
        seam.put(self.key(0), self.data(0, 200_000))
        (outcome,) = read_log(cache.dir)
        assert (outcome.reason, outcome.fault, outcome.stored) == (Reason.FIRST_RUN, Fault.STORE_FULL, False)

    def test_what_is_forgotten_is_a_miss_at_once(self, open_cache):
        _, seam = open_cache()
        seam.put(self.key(0), self.data(0))
        cache, _ = open_cache()
        for entry in list(cache.store.entries()):
            cache.store.invalidate(entry.key)
        cache, seam = open_cache(mode="require")
        with pytest.raises(cachec.CacheMissError, match="entry-gone"):
            seam.get(self.key(0))


@pytest.mark.long
class TestBytes(TestForeign):
    """Keys of another kind."""

    def key(self, number):
        return bytes([number, 0xFF, 0])


def values(cache, *names, version="1", tags=()):
    """Three values under ``names``, each with what its key was made of."""
    seam = cache.foreign("toy", version=version, tags=tags)
    for number, name in enumerate(names):
        seam.put(name, b"%d" % number, seconds=2.5, detail=f"module: jit_{name}\nXLA_FLAGS: --level={number}\nplain")
    return seam


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


def test_name_version_and_kind_of_key_tell_values_apart(cache):
    seams = [
        (cache.foreign("a"), "k"),
        (cache.foreign("a"), b"k"),
        (cache.foreign("b"), "k"),
        (cache.foreign("a", version="2"), "k"),
        (cache.foreign("a"), "k\udcff"),
        (cache.foreign("a"), ""),
    ]
    for number, (seam, key) in enumerate(seams):
        assert seam.get(key) is None
        seam.put(key, b"%d" % number)
    assert [seam.get(key) for seam, key in seams] == [b"%d" % number for number in range(len(seams))]
    assert cache.foreign("a", tags=["x"]).get("k") == b"0"


@pytest.mark.parametrize("nbytes", [0, 8, 80_000])
def test_any_buffer_is_stored_as_its_bytes(cache, nbytes):
    class Own(bytes):
        pass

    data = bytes(range(8)) * (nbytes // 8)
    seam = cache.foreign("a")
    views = (bytearray(data), memoryview(data).cast("I"), memoryview(data)[::2], Own(data))
    for number, view in enumerate(views):
        seam.put(str(number), view)
    for number, view in enumerate(views):
        found = seam.get(str(number))
        assert (type(found), found) == (bytes, bytes(view))
    assert not cache.events.faults


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda cache: cache.foreign(""), "name=''"),
        (lambda cache: cache.foreign("a\n"), "printable"),
        (lambda cache: cache.foreign("a", tags="x"), "give a list"),
        (lambda cache: cache.foreign("a").get(1), "key expected str or bytes; found int"),
        (lambda cache: cache.foreign("a").put(None, b""), "found NoneType"),
        (lambda cache: cache.foreign("a").put("k", "text"), "data expected bytes; found str"),
        (lambda cache: cache.foreign("a").put("k", [1]), "found list"),
        (lambda cache: cache.foreign("a").put("k", b"1", seconds="x"), "found seconds='x'"),
        (lambda cache: cache.foreign("a").put("k", b"1", seconds=None), "seconds expected a number"),
        (lambda cache: cache.foreign("a").put("k", b"1", detail=1), "detail a text; found .*detail=1"),
        (lambda cache: cache.foreign("a").bypass(Reason.HIT, ""), "kind 'bypass'; found <Reason.HIT"),
    ],
)
def test_wrong_use_is_refused(cache, call, words):
    with pytest.raises(cachec.UsageError, match=words):
        call(cache)
    assert not cache.events.counts


@pytest.mark.parametrize("mode", ["on", "off", "read-only", "require", "refresh", "verify"])
def test_a_bypass_is_counted_and_nothing_else(tmp_path, mode):
    cache = cachec.Cache(tmp_path / "store", mode=mode)
    cache.foreign("a", selective=True).bypass(Reason.PROCESS_BOUND, "it calls back")
    found = [(outcome.reason, outcome.detail, outcome.stage) for outcome in read_log(cache.dir)]
    assert found == ([] if mode == "off" else [(Reason.PROCESS_BOUND, "it calls back", "a")])


def test_a_hit_saves_what_it_took(cache):
    seam = cache.foreign("a")
    for key, seconds in (("given", 3.5), ("measured", 0.0), ("negative", -1.0), ("infinite", math.inf)):
        seam.get(key)
        seam.put(key, b"x", seconds=seconds)
    seam.put("never missed", b"x")
    for key in ("given", "measured", "negative", "infinite", "never missed"):
        seam.get(key)
    saved = [outcome.saved for outcome in read_log(cache.dir) if outcome.hit]
    assert saved[0] == 3.5
    assert all(0 < each < 60 for each in saved[1:4])
    assert saved[4] == 0
    numbers = statistics(read_log(cache.dir))["stages"]["a"]
    assert (numbers["hits"], numbers["misses"]) == (5, 4)
    assert numbers["seconds_saved"] > 3


def test_only_what_was_stored_is_told(tmp_path, caplog):
    seam = cachec.Cache(tmp_path / "store", log="miss", mode="on").foreign("toy")
    seam.get("small")
    assert not caplog.messages
    for number in (1, 2):
        seam.get(f"large-{number}")
        seam.put(f"large-{number}", b"x", seconds=4, detail=f"module: jit_f\nXLA_FLAGS: {number}")
    assert caplog.messages == [
        "miss toy: first-run (4.00 s)",
        "miss toy: first-run: XLA_FLAGS: 1 -> 2 (4.00 s)",
    ]


def test_what_the_keys_were_made_of_is_compared_and_searched(cache):
    def run(*args, code=0):
        done = CliRunner().invoke(main, ["--dir", str(cache.dir), *args])
        assert done.exit_code == code, done.output
        return done.output

    values(cache, "f", "g", tags=["nightly"])
    keys = {value["parts"][-1]["detail"]: key for key, value in (
        (entry.key, json.loads(run("show", entry.key, "--json"))) for entry in cache.store.entries())}  # fmt: skip
    assert set(keys) == {"f", "g"}
    assert "toy" in run("ls")
    shown = run("show", keys["f"])
    for words in ("arg/module", "jit_f", "arg/XLA_FLAGS", "--level=0", "arg/detail", "plain", "nightly"):
        assert words in shown
    why = json.loads(run("why", keys["g"], "--json"))
    assert [each["words"] for each in why["differences"]] == [
        "module: jit_f -> jit_g", "XLA_FLAGS: --level=0 -> --level=1", "key: f -> g"]  # fmt: skip
    assert run("repro", keys["g"], code=2)
    run("invalidate", "--option", "module=jit_f", "--yes")
    assert [entry.key for entry in cache.store.entries()] == [keys["g"]]
    run("invalidate", "--tag", "nightly", "--yes")
    assert not list(cache.store.entries())
    seam = cache.foreign("toy")
    assert seam.get("f") is None
    assert [outcome.reason for outcome in read_log(cache.dir)] == [Reason.ENTRY_GONE]


def test_what_another_process_stores_meanwhile_is_not_gone(cache, monkeypatch):
    """Lookups hold no lock: it may be stored between the look and the question why it was not there."""
    other = cachec.Cache(cache.dir, log="off").foreign("toy")
    look = Foreign._find

    def late(self, digest):
        found = look(self, digest)
        monkeypatch.setattr(Foreign, "_find", look)
        other.put("f", b"data")
        return found

    monkeypatch.setattr(Foreign, "_find", late)
    seam = cache.foreign("toy")
    assert seam.get("f") is None
    assert [outcome.reason for outcome in read_log(cache.dir)] == [Reason.FIRST_RUN]
    assert seam.get("f") == b"data"


def test_any_text_is_a_detail(cache):
    seam = cache.foreign("toy")
    seam.put(b"\xff\x00", b"x", detail="a: \ud800\n: no name\n\x1b[31m: red\n" + "long: " + "x" * 10_000)
    assert seam.get(b"\xff\x00") == b"x"
    assert not cache.events.faults
    (entry,) = cache.store.entries()
    assert all(len(part.detail) <= 200 and part.detail.isprintable() for part in cache.store.parts(entry))


def test_who_oversees_a_process_hears_and_decides(cache):
    heard = []
    cache.foreign("a").put("k", b"x")
    with overseen(Oversight(heard.append)):
        assert cache.foreign("a").get("k") == b"x"
    with overseen(Oversight(heard.append, mode=Mode.OFF)):
        assert cache.foreign("a").get("k") is None
    assert [outcome.reason for outcome in heard] == [Reason.HIT, Reason.MODE_OFF]


def test_a_verification_asks_what_is_the_same(tmp_path):
    """Of a compiler that writes a date into what it makes, say."""
    for mode, data in (("on", b"1 same"), ("verify", b"2 same"), ("verify", b"3 other")):
        cache = cachec.Cache(tmp_path / "store", log="off", mode=mode)
        seam = cache.foreign("a", same=lambda a, b: a[1:] == b[1:])
        seam.get("k")
        seam.put("k", data)
        cache.close()
    reasons = [outcome.reason for outcome in read_log(cache.dir)]
    assert reasons == [Reason.FIRST_RUN, Reason.REFRESH, Reason.VERIFIED, Reason.REFRESH, Reason.VERIFY_DIFFERS]
    assert not list(cache.store.entries())


def test_a_stage_that_looks_there_reads_nothing_of_its_own(cache, tmp_path):
    """What JAX keeps in the store is no input of the stage that called JAX."""

    @cache.stage(name="outer", version="1", ignore=["seam"])
    def outer(n: int, seam) -> bytes:
        data = seam.get("k")
        if data is None:
            data = b"x" * 70_000
            seam.put("k", data)
        return data

    for seam in (cache.foreign("a"), cachec.Cache(tmp_path / "other", log="off").foreign("a")):
        _, first = cache.call(outer, 1, seam)
        assert first.hit or first.stored
    (entry,) = (entry for entry in cache.store.entries() if entry.stage == "outer")
    assert not entry.traces[0].reads
    assert cache.call(outer, 1, seam)[1].hit


def test_a_put_that_replaces_a_damaged_entry_meanwhile_stays(cache, monkeypatch):
    """Between a look that found damage and the taking away, another process may have put a good value."""
    seam = cache.foreign("a")
    seam.put("k", b"x" * 70_000)
    (entry,) = cache.store.entries()
    (ref,) = artifacts(entry.traces[0].value)
    cache.store.objects.path(ref).unlink()
    lock = cache.store.lock

    def heals_first(key):
        monkeypatch.setattr(cache.store, "lock", lock)
        cache.foreign("a").put("k", b"y" * 70_000)
        return lock(key)

    monkeypatch.setattr(cache.store, "lock", heals_first)
    assert seam.get("k") is None
    assert seam.get("k") == b"y" * 70_000


def test_a_lock_that_is_held_is_a_fault_and_no_obstacle(tmp_path):
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on", lock_timeout=0)
    seam = cache.foreign("a")
    seam.put("k", b"x")
    (entry,) = cache.store.entries()
    lock = cache.store.lock(entry.key)
    assert lock.try_acquire()
    seam.put("k", b"y")
    assert seam.get("k") == b"y"
    assert dict(cache.events.faults) == {Fault.LOCK_TIMEOUT: 1}
    lock.release()


def test_what_others_were_handed_stays_theirs(cache):
    ref = cache.store.objects.add_bytes(b"a file that a stage has returned")
    cache.store.objects.path(ref)
    cache.foreign("a").put("k", b"x" * 70_000)
    assert cache.store.objects.leases.holds(ref.digest)
