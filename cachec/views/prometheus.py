"""Statistics as text for Prometheus: "Exposition formats", text format version 0.0.4 (https://prometheus.io/docs)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cachec.model import Reason
from cachec.report import Statistics

Sample = tuple[Mapping[str, str], float]


def exposition(counts: Statistics, faults: Mapping[str, int], store: Mapping[str, Any] | None) -> str:
    """Return all metrics. faults: by kind. store: ``report.store_details``, or None without a store."""
    lines: list[str] = []
    stages = sorted(counts.stages.items())
    calls = (
        ({"stage": name, "outcome": reason.kind, "reason": reason.value.partition(":")[2]}, count)
        for name, tally in stages
        for reason, count in sorted(tally.reasons.items(), key=lambda item: item[0].value)
    )
    lines += _metric("cachec_calls_total", "counter", "Calls of stages and commands, by how they ended.", calls)
    lines += _metric(
        "cachec_saved_seconds",
        "gauge",
        "Seconds that hits have saved: what was stored took them, less what the hits took.",
        (({"stage": name}, tally.saved) for name, tally in stages),
    )
    lines += _metric(
        "cachec_spent_seconds_total",
        "counter",
        "Seconds that calls took which were no hits.",
        (
            ({"stage": name, "outcome": reason.kind, "reason": reason.value.partition(":")[2]}, seconds)
            for name, tally in stages
            for reason, seconds in sorted(tally.seconds.items(), key=lambda item: item[0].value)
            if reason is not Reason.HIT
        ),
    )
    lines += _metric(
        "cachec_faults_total",
        "counter",
        "Faults of the cache itself; the call went on without it.",
        (({"fault": fault}, count) for fault, count in sorted(faults.items())),
    )
    if store is not None:
        lines += _metric("cachec_store_bytes", "gauge", "Bytes on disk of what is stored.", [({}, store["size"])])
        if store["limit"] is not None:
            words = "Bytes that the store is kept within."
            lines += _metric("cachec_store_limit_bytes", "gauge", words, [({}, store["limit"])])
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, kind: str, words: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        named = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels.items())
        yield f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
