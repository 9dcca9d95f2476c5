"""The modes, and the verdicts of ``verify``."""

from __future__ import annotations

import os

import pytest

import cachec
from cachec import Mode, Reason


def make(cache, mode=None, **options):
    @cache.stage(name="stage", mode=mode, **options)
    def stage(n: int) -> bytes:
        return os.urandom(8)

    return stage


def test_off_runs_and_touches_nothing(cache):
    stage = make(cache, "off")
    first, outcome = cache.call(stage, 1)
    assert (outcome.reason, outcome.key) == (Reason.MODE_OFF, "")
    assert stage(1) != first
    assert not make(cache).check(1).hit


def test_read_only_hits_but_stores_nothing(cache):
    reader, writer = make(cache, "read-only"), make(cache)
    first, outcome = cache.call(reader, 1)
    assert (outcome.reason, outcome.stored) == (Reason.FIRST_RUN, False)
    assert reader(1) != first
    kept = writer(1)
    assert reader(1) == kept


def test_refresh_runs_and_replaces(cache):
    stage, refresh = make(cache), make(cache, Mode.REFRESH)
    first = stage(1)
    second, outcome = cache.call(refresh, 1)
    assert second != first
    assert (outcome.reason, outcome.stored) == (Reason.REFRESH, True)
    assert stage(1) == second


def test_require_raises_instead_of_running(cache):
    required, stage = make(cache, "require"), make(cache)
    with pytest.raises(cachec.CacheMissError, match="first-run"):
        required(1)
    kept = stage(1)
    assert required(1) == kept


def test_the_mode_of_the_cache_holds_where_the_stage_has_none(tmp_path):
    off = cachec.Cache(tmp_path / "c", mode="off", log="off")
    stage = make(off)
    assert stage(1) != stage(1)


def test_verify_returns_the_fresh_result_and_quarantines_a_difference(cache):
    stage, verify = make(cache), make(cache, "verify")
    kept = stage(1)
    fresh, outcome = cache.call(verify, 1)
    assert fresh != kept
    assert outcome.reason is Reason.VERIFY_DIFFERS
    assert not stage.check(1).hit


def test_verify_keeps_an_entry_that_is_the_same(cache):
    def build(mode):
        @cache.stage(name="stage", mode=mode)
        def stage(n: int) -> bytes:
            return b"%d" % n

        return stage

    build(None)(1)
    value, outcome = cache.call(build("verify"), 1)
    assert value == b"1"
    assert outcome.reason is Reason.VERIFIED
    assert build(None).check(1).hit


@pytest.mark.parametrize("record", ["auto", "off"])
def test_verify_reports_undeclared_files_and_commands(record, tmp_path, monkeypatch):
    cache = cachec.Cache(tmp_path / "store", record=record)
    monkeypatch.setattr("cachec.stage.verify_mode._covered_roots", lambda: ("/proc/",))
    secret, declared = tmp_path / "secret.txt", tmp_path / "declared.txt"
    secret.write_text("s")
    declared.write_text("d")

    def build(mode):
        @cache.stage(name="stage", mode=mode, ignore=["one", "two"], version="1")
        def stage(one: str, two: str) -> str:
            import subprocess

            if record == "off":  # else nothing would be stored
                subprocess.run(["true"], check=True)
            open("/proc/self/comm").close()
            with open(cachec.depends(two)) as file, open(one) as other:
                return file.read() + other.read()

        return stage

    build(None)(str(secret), str(declared))
    _, outcome = cache.call(build("verify"), str(secret), str(declared))
    assert outcome.reason is Reason.VERIFIED
    assert ("secret.txt" in outcome.detail) == (record == "off")  # else it is a read of the trace
    assert "declared.txt" not in outcome.detail
    assert ("true" in outcome.detail) == (record == "off")
    assert "not to be read again alike: /proc/self/comm" in outcome.detail
