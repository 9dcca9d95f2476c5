"""Calls as spans and counters, read back from OpenTelemetry's own SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cachec
from cachec import telemetry
from cachec.errors import ConfigError
from cachec.events import EventLog
from cachec.model import Outcome, Reason

_SCRIPT = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))

import cachec

cache = cachec.Cache(sys.argv[1], log="off")

@cache.stage
def double(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return 2 * number

with trace.get_tracer("test").start_as_current_span("around"):
    double(1)
    double(1)
    try:
        double(-1)
    except ValueError:
        pass
*calls, around = spans.get_finished_spans()
found = [
    {
        "name": each.name,
        "is_below": each.parent.span_id == around.context.span_id,
        "is_within": around.start_time - 10**7 <= each.start_time <= each.end_time <= around.end_time + 10**7,
        "status": each.status.status_code.name,
        **each.attributes,
    }
    for each in calls
]
points = {
    metric.name: sorted((p.attributes["cachec.outcome"], getattr(p, "value", None)) for p in metric.data.data_points)
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics
    for metric in scope.metrics
}
print(json.dumps([found, points]))
"""


def test_spans_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    monkeypatch.setenv("CACHEC_TELEMETRY", "otel")
    line = [sys.executable, "script.py", str(tmp_path / "store")]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    spans, points = json.loads(done.stdout)
    assert [(each["cachec.outcome"], each["cachec.reason"], each["status"]) for each in spans] == [
        ("miss", "first-run", "UNSET"),
        ("hit", "", "UNSET"),
        ("error", "stage-raised", "ERROR"),
    ]
    for each in spans:
        assert each["name"] == each["cachec.stage"] == "__main__.double"
        assert each["is_below"]
        assert each["is_within"]
    assert spans[0]["cachec.key"] == spans[1]["cachec.key"] != ""
    assert points["cachec.calls"] == [["error", 1], ["hit", 1], ["miss", 1]]
    assert [outcome for outcome, _ in points["cachec.call.duration"]] == ["error", "hit", "miss"]
    ((outcome, saved),) = points["cachec.saved"]
    assert outcome == "hit"
    assert saved > 0


def test_nothing_of_it_is_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    code = "import sys, cachec; c = cachec.Cache(sys.argv[1]); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    monkeypatch.setenv("CACHEC_TELEMETRY", "otel")
    with pytest.raises(ConfigError, match=r"pip install 'cachec\[otel\]'"):
        cachec.Cache(tmp_path)


def test_an_exporter_that_raises_fails_no_call_and_is_asked_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def export(outcome: Outcome) -> None:
        asked.append(outcome)
        raise RuntimeError("no collector")

    monkeypatch.delitem(sys.modules, "logging")
    log = EventLog(tmp_path, export=export)
    for _ in range(2):
        log.emit(Outcome(reason=Reason.HIT, stage="s", key=""))
    assert len(asked) == 1
    assert log.counts[Reason.HIT] == 2
    assert capsys.readouterr().err == "cachec: calls are exported no more: RuntimeError: no collector\n"


def test_what_can_not_be_measured_is_exported_all_the_same() -> None:
    telemetry.exporter()(Outcome(reason=Reason.HIT, stage="", key="", seconds=-1.0, saved=-1.0, time=0.0))
