"""Caches of frameworks (JAX, torch) with remotes: equal machines share compiled programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec import Reason
from cachec.errors import CacheMissError, UsageError
from cachec.remote.keys import keypair
from tests.remote.server import Site

DATA = b"compiled " * 10_000
KEY = keypair("ci-1")

Make = Callable[..., cachec.Cache]


@pytest.fixture
def made(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Caches of machines of their own."""

    def make(name: str, at: str = "", **settings: object) -> cachec.Cache:
        monkeypatch.setenv("CACHEC_REMOTE", at or url)
        return cachec.Cache(tmp_path / name, log="off", **settings)  # type: ignore[arg-type]

    return make


def push(cache: cachec.Cache) -> int:
    remotes = cache._opened.remotes
    assert remotes is not None
    return sum(sent.put is not None and sent.put.is_new for sent in remotes.drain())


def test_what_one_puts_another_gets(made: Make, site: Site) -> None:
    one, other = made("one"), made("other")
    assert one.foreign("jax", shared="all").get("k") is None
    one.foreign("jax", shared="all").put("k", DATA, seconds=3.0)
    assert push(one) == 1
    seam = other.foreign("jax", shared="all")
    assert seam.get("k") == DATA
    asked = len(site.requests)
    assert seam.get("k") == DATA
    assert len(site.requests) == asked, "it is here by now"
    assert other.foreign("jax", shared="all").get("another") is None


def test_nothing_is_asked_and_sent_unless_it_is_shared(made: Make, site: Site) -> None:
    cache = made("one")
    seam = cache.foreign("jax")
    assert seam.get("k") is None
    seam.put("k", DATA)
    assert push(cache) == 0
    assert not site.requests
    with pytest.raises(UsageError, match='expected "off", "signed" or "all"'):
        cache.foreign("jax", shared="yes")  # type: ignore[arg-type]


def test_a_machine_of_another_kind_gets_nothing(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made("one")
    one.foreign("jax", shared="all").put("k", DATA)
    assert push(one) == 1
    monkeypatch.setattr("cachec.blob_cache._machine", lambda: "another processor")
    assert made("other").foreign("jax", shared="all").get("k") is None


@pytest.mark.parametrize("trust", [f"&trust={KEY.public}", ""], ids=["signed", "unsigned"])
def test_what_runs_code_is_taken_from_signed_remotes_alone(
    trust: str, made: Make, url: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEC_REMOTE_KEY", KEY.secret)
    one = made("one", url + trust)
    one.foreign("torch", shared="signed").put("k", DATA)
    assert push(one) == bool(trust)
    made("writer", url).foreign("torch", shared="all").put("other", DATA)
    assert made("other", url + trust).foreign("torch", shared="signed").get("k") == (DATA if trust else None)
    assert bool(site.requests) == bool(trust)


def test_modes(made: Make) -> None:
    one = made("one")
    one.foreign("jax", shared="all").put("k", DATA)
    push(one)
    required = made("required", mode="require").foreign("jax", shared="all")
    assert required.get("k") == DATA
    with pytest.raises(CacheMissError):
        required.get("another")
    for mode in ("off", "read-only", "refresh"):
        assert made(f"in-{mode}", mode=mode).foreign("jax", shared="all").get("k") is None
    verifying = made("verifying", mode="verify")
    seam = verifying.foreign("jax", shared="all")
    assert seam.get("k") is None, "made anew, and compared"
    seam.put("k", DATA + b"other")
    assert Reason.VERIFY_DIFFERS in verifying.events.counts


def test_a_remote_that_is_gone_costs_a_miss(made: Make) -> None:
    cache = made("one", "http://127.0.0.1:9?timeout=1")
    seam = cache.foreign("jax", shared="all")
    assert seam.get("k") is None
    seam.put("k", DATA)
    assert seam.get("k") == DATA
    assert [fault.value for fault in cache.events.faults] == ["remote-unreachable"]


PROGRAM = """
import sys, cachec, cachec_jax
cache = cachec_jax.install(cachec.Cache(sys.argv[1], log="off"), shared=True)
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
print(float(jax.jit(lambda x: (x * 3.0).sum())(jax.numpy.ones(64))))
list(cache._opened.remotes.drain())
print(sum(n for reason, n in cache.events.counts.items() if reason.value == "hit"), bool(cache.events.faults))
"""


@pytest.mark.long
def test_jax_compiles_once_for_two_machines(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_REMOTE", url)
    monkeypatch.setenv("CACHEC_SERVER", "off")
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / name)], capture_output=True, text=True, check=True
        ).stdout.split()
        for name in ("one", "other")
    ]
    assert [each[0] for each in told] == ["192.0", "192.0"]
    assert told[0][1:] == ["0", "False"]
    assert int(told[1][1]) > 0
    assert told[1][2] == "False"
