"""docs/howto/warm-and-ci.md: its tables and its files for pre-commit and GitHub name what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "howto" / "warm-and-ci.md").read_text()


def test_the_hooks_are_those_that_are_offered() -> None:
    (hooks,) = re.findall(r"```yaml\n# \.pre-commit-config\.yaml\n(.*?)```", TEXT, re.DOTALL)
    offered = re.findall(r"- id: (\S+)", (ROOT / ".pre-commit-hooks.yaml").read_text())
    assert re.findall(r"- id: (\S+)", hooks) == offered


def test_the_action_has_the_inputs_and_saves_on_the_events_of_the_page() -> None:
    (workflow,) = re.findall(r"```yaml\n# \.github/.*?\n(.*?)```", TEXT, re.DOTALL)
    place = re.search(r"uses: OWNER/cachec/(\S+)@", workflow)
    assert place is not None
    action = ROOT / place[1]
    declared = (action / "action.yml").read_text().split("\noutputs:")[0]
    inputs = set(re.findall(r"^  ([a-z-]+):\n    description:", declared, re.MULTILINE))
    given = set(re.findall(r"^          ([a-z-]+): ", workflow, re.MULTILINE))
    assert given
    assert given <= inputs
    rows = TEXT.split("| input | meaning |")[1].split("\n\n")[0].splitlines()[2:]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])} == inputs
    saving = re.search(r"case \$\{GITHUB_EVENT_NAME:-\} in (.*?)\) saves", (action / "cachec-ci.sh").read_text())
    assert saving is not None
    for event in saving[1].split(" | "):
        assert f"`{event}`" in TEXT
