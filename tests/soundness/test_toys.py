"""The harness of generated toy compilers finds wrong hits and needless misses. ``test_soundness`` runs the toys."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.effort import sample
from tests.needs import need
from tests.soundness import toys
from tests.soundness.toy_ways import READS, WRITES


@pytest.mark.parametrize(
    ("reason", "then", "found"),
    [
        ("hit", ":", set()),
        ("hit", "echo more >> o.out", {"wrong"}),
        ("hit", "echo more", {"wrong"}),
        ("hit", "chmod 700 o.out", {"wrong"}),
        ("hit", "rm o.out; ln -s f o.out", {"wrong"}),
        ("hit", "mkdir new", {"wrong"}),
        ("hit", "exit 3", {"wrong"}),
        ("miss:new-input", "echo more", {"failed"}),
        ("miss:new-input", ":", {"needless"}),
        ("bypass:untraced", ":", {"refused"}),
    ],
)
def test_a_difference_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, then: str, found: set[str]
) -> None:
    """In the place of cachec is a script that runs the command, does more, and says that it was a hit, or not."""
    stored = "false" if reason.startswith("bypass") else "true"
    record = f'{{"reason": "{reason}", "stage": "exec:toy", "key": "", "stored": {stored}}}'
    script = f"echo '{record}' >> $CACHEC_STATS_FILE; \"$@\"; {then}"

    def line(_command: str, *args: str) -> list[str]:
        return ["/bin/sh", "-c", script, "sh", *args[1:]]

    monkeypatch.setattr(toys, "_cachec", line)
    report = toys.Session(_toy(tmp_path, "py", "open"), tmp_path / "s", tmp_path / "p", random.Random(1)).run(edits=0)
    assert {each for each in ("wrong", "failed", "needless", "refused") if getattr(report, each)} == found, (
        report.text()
    )
    assert set(report.ways) >= {("py: open", each) for each in found - {"failed"}}


def _toy(folder: Path, language: str, name: str, write: str = "file of an argument") -> toys.Toy:
    way = next(each for each in READS if each.name == name)
    made = next(each for each in WRITES if each.name == write)
    return toys.make_toy(random.Random(0), folder / "p", language, (way,), (made,))


@pytest.mark.parametrize("language", toys.LANGUAGES)
def test_every_way_works_without_a_cache(tmp_path: Path, language: str) -> None:
    """It reads, writes what it says, and does the same again: no toy depends on chance."""
    need("gcc", "bash")
    pairs = [(each.name, WRITES[0].name) for each in READS if getattr(each, language)]
    pairs += [("open", each.name) for each in WRITES if getattr(each, language)]
    for number, pair in enumerate(sample(pairs)):
        toy = _toy(tmp_path, language, *pair)
        session = toys.Session(toy, tmp_path / str(number), tmp_path / "p", random.Random(0))
        one, other = session.run_bare()
        assert one == other, pair
        assert one.status in {0, pair[1] == "exit status"}, (pair, one)
        assert b"rror" not in one.stderr, (pair, one)
        assert pair[1] == "standard output" or one.stdout or one.stderr or one.written, pair
        subprocess.run(["rm", "-r", tmp_path / str(number)], check=True)
