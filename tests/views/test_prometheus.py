"""Text for Prometheus, read by its own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from cachec.model import Outcome, Reason
from cachec.report import Statistics
from cachec.views.prometheus import exposition

NAME = 'a"b\\c\nd{}'


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> values of the labels -> value."""
    families = text_string_to_metric_families(text)
    return {
        sample.name: {tuple(each.labels.values()): each.value for each in family.samples if each.name == sample.name}
        for family in families
        for sample in family.samples
    }


def test_it_is_read_as_it_was_meant() -> None:
    counts = Statistics()
    for reason, saved in ((Reason.HIT, 5.0), (Reason.HIT, 7.0), (Reason.NEW_INPUT, 0.0), (Reason.STAGE_RAISED, 0.0)):
        counts.add(Outcome(reason=reason, stage=NAME, key="", seconds=1.0, saved=saved))
    counts.add(Outcome(reason=Reason.FIRST_RUN, stage="other", key="", seconds=float("inf")))
    text = exposition(counts, {"store-full": 2}, {"size": 10, "limit": 20})
    assert read(text) == {
        "cachec_calls_total": {
            (NAME, "hit", ""): 2,
            (NAME, "miss", "new-input"): 1,
            (NAME, "error", "stage-raised"): 1,
            ("other", "miss", "first-run"): 1,
        },
        "cachec_saved_seconds": {(NAME,): 10.0, ("other",): 0.0},
        "cachec_spent_seconds_total": {
            (NAME, "miss", "new-input"): 1.0,
            (NAME, "error", "stage-raised"): 1.0,
            ("other", "miss", "first-run"): float("inf"),
        },
        "cachec_faults_total": {("store-full",): 2},
        "cachec_store_bytes": {(): 10},
        "cachec_store_limit_bytes": {(): 20},
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert kinds["cachec_calls"] == "counter"
    assert kinds["cachec_store_bytes"] == "gauge"


def test_nothing_yet() -> None:
    assert read(exposition(Statistics(), {}, None)) == {}
    assert read(exposition(Statistics(), {}, {"size": 0, "limit": None})) == {"cachec_store_bytes": {(): 0}}
