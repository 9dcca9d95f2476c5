"""What a process changed in modules that a stage imports inside counts there, and nowhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.soundness.altered import CASES, SUB

#: Runs all stages of a folder in one process. how: ``plain``, ``before`` (changed, then called), ``after`` (called,
#: changed, called).
DRIVER = """
import importlib, json, sys
folder, how, *names = sys.argv[1:]
sys.path.insert(0, folder)
results, kept = {}, []
for name in names:
    lower = importlib.import_module(f"st_{name}").lower
    change = open(f"{folder}/{name}.change").read()
    try:
        if how == "after":
            lower(1)
        if how != "plain":
            kept.append({"__name__": f"change_{name}"})
            exec(change, kept[-1])
        value, outcome = lower.call(1)
        results[name] = value, outcome.reason.value
    except Exception as error:
        results[name] = f"{type(error).__name__}: {error}", "raised"
print(json.dumps(results))
"""


def _written(folder: Path) -> None:
    """The modules of all cases, each under names of its own."""
    for name, (conf, body, change) in CASES.items():

        def own(text: str, name: str = name) -> str:
            text = re.sub(r"\b(conf2?|sub)\b(?!['\"(])", lambda m: f"{m[1]}_{name}", text)
            return text.replace("'nf'", f"'nf_{name}'").replace("'conf'", f"'conf_{name}'")

        (folder / f"conf_{name}.py").write_text(own(conf) + "\n")
        (folder / f"sub_{name}.py").write_text(SUB)
        (folder / f"conf2_{name}.py").write_text(f"from conf_{name} import *\n")
        (folder / f"{name}.change").write_text(f"import conf_{name}\n" + own(change) + "\n")
        inner = textwrap.indent(
            "def inner():\n" + textwrap.indent(own(body), "    ") + "\nreturn repr(inner())", "    "
        )
        opened = f"cachec.Cache({str(folder / 'store')!r}, log='off')"
        stage = f"import cachec\ncache = {opened}\n@cache.stage\ndef lower(k: int) -> str:\n"
        (folder / f"st_{name}.py").write_text(f"{stage}{inner}\n")


def _run(folder: Path, how: str, mode: str, names: list[str]) -> dict[str, tuple[str, str]]:
    command = [sys.executable, "-c", DRIVER, str(folder), how, *names]
    environ = {**os.environ, "CACHEC_MODE": mode}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: (value, reason) for name, (value, reason) in json.loads(done.stdout).items()}


@pytest.mark.long
def test_a_change_counts_in_its_process_alone(tmp_path: Path) -> None:
    folder, names = tmp_path, sorted(CASES)
    _written(folder)
    plain, changed = (_run(folder, how, "off", names) for how in ("plain", "before"))
    same = [
        name for name in names if plain[name][0] == changed[name][0] or "raised" in (plain[name][1], changed[name][1])
    ]
    assert same == [], "a change that changes nothing"
    for how, expected in (
        ("plain", plain),
        ("before", changed),
        ("plain", plain),
        ("after", changed),
        ("plain", plain),
    ):
        told = _run(folder, how, "on", names)
        wrong = {name: (told[name], expected[name][0]) for name in names if told[name][0] != expected[name][0]}
        assert wrong == {}, how
    missed = {name: reason for name, (_, reason) in told.items() if reason != "hit" and not reason.startswith("bypass")}
    assert missed == {}, "another process misses without a need"
