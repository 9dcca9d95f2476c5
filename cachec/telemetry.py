"""Calls as spans and counters of OpenTelemetry, for programs that have it: imported only where ``telemetry`` says so.

Only the API is used, so where these go is the program's own business (its SDK, or ``opentelemetry-instrument``); with
none they go nowhere. A span is made when its call has ended, from its begin to its end, below the span that the caller
is in; so a stage in a stage is beside it there. Names follow the semantic conventions' style: lower case, dots, units
apart.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from cachec.errors import ConfigError
from cachec.model import Outcome, Reason


def exporter() -> Callable[[Outcome], None]:
    """What is to be given every outcome. Raises ConfigError where OpenTelemetry is not installed."""
    try:
        trace = importlib.import_module("opentelemetry.trace")
        metrics = importlib.import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ConfigError(f"telemetry = 'otel' needs OpenTelemetry: pip install 'cachec[otel]' ({error})") from None
    return _Exporter(trace, metrics).export


class _Exporter:
    def __init__(self, trace: ModuleType, metrics: ModuleType) -> None:
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._tracer = trace.get_tracer("cachec")
        meter = metrics.get_meter("cachec")
        self._calls = meter.create_counter("cachec.calls", unit="{call}", description="Calls, by how they ended.")
        self._durations = meter.create_histogram("cachec.call.duration", unit="s", description="What calls took.")
        self._saved = meter.create_counter(
            "cachec.saved", unit="s", description="What the runs took that hits have spared."
        )

    def export(self, outcome: Outcome) -> None:
        """Make the span of a call, and count it."""
        end = round(outcome.time * 1e9)
        kind, _, reason = outcome.reason.value.partition(":")
        common = {"cachec.stage": outcome.stage, "cachec.outcome": kind, "cachec.reason": reason}
        more = {"cachec.key": outcome.key, "cachec.detail": outcome.detail, "cachec.stored": outcome.stored}
        begin = end - round(outcome.seconds * 1e9)
        span = self._tracer.start_span(outcome.stage, start_time=begin, attributes={**common, **more})
        if outcome.reason is Reason.STAGE_RAISED:
            span.set_status(self._failed)
        span.end(end_time=end)
        self._calls.add(1, common)
        self._durations.record(outcome.seconds, common)
        if outcome.hit:
            self._saved.add(max(outcome.saved, 0.0), common)
