"""What counts of a processor where a compiler is asked for code for this machine."""

from __future__ import annotations

from cachec.commands.run import host_accelerators, host_processor
from cachec.key.tools.platform import processor
from cachec.model import Reason

CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2596.098
flags\t\t: fpu avx avx2 sse4_2
bogomips\t: 5192.29
"""


def test_what_changes_it():
    for old, new in (("avx2", ""), ("family\t: 25", "family\t: 26"), ("\t: 17", "\t: 1"), ("AMD\n", "Intel\n")):
        assert processor(CPUINFO.replace(old, new)) != processor(CPUINFO), old


def test_what_does_not():
    for old, new in (("2596", "3000"), ("AMD EPYC", "AMD EPYC 9"), ("fpu avx", "fpu constant_tsc avx"), ("5192", "1")):
        changed = CPUINFO.replace(old, new)
        assert changed != CPUINFO
        assert processor(changed) == processor(CPUINFO), old


def test_arm():
    text = "processor: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\n"
    assert processor(text) == processor(text.replace("revision\t: 1", "revision\t: 2"))
    assert processor(text) != processor(text.replace("0xd40", "0xd0c"))


def test_it_is_a_read_of_the_stage_that_asks_and_of_those_around_it(cache, monkeypatch):
    @cache.stage(portable=True)
    def inner(x: int) -> int:
        host_processor()
        return x

    @cache.stage(portable=True)
    def outer(x: int) -> int:
        return inner(x)

    @cache.stage(portable=True)
    def plain(x: int) -> int:
        return x

    for stage in (outer, plain):
        assert cache.call(stage, 1)[1].reason is Reason.FIRST_RUN
        assert cache.call(stage, 1)[1].reason is Reason.HIT
    for place in ("cachec.key.trace_validation.processor_digest", "cachec.commands.run.processor_digest"):
        monkeypatch.setattr(place, lambda: "0" * 64)
    assert cache.call(plain, 1)[1].reason is Reason.HIT
    assert outer.check(1).reason is Reason.DEPENDENCY_CHANGED
    assert "processor host has another processor" in cache.call(outer, 1)[1].detail


def test_accelerators_are_a_read_too(cache, monkeypatch):
    @cache.stage
    def compiled(x: int) -> int:
        host_accelerators()
        return x

    assert [cache.call(compiled, 1)[1].reason for _ in range(2)] == [Reason.FIRST_RUN, Reason.HIT]
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")
    assert "processor accelerators has another processor" in cache.call(compiled, 1)[1].detail


def test_outside_a_stage_nothing_is_recorded():
    host_processor()
    host_accelerators()
