"""Two processes: one changes settings of a library in many ways, the other is given what a plugin says of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_CALLER = """
import contextlib, json, pickle, sys
{setup}
from {package} import plugin
changes, sent = json.loads(sys.argv[1]), open(sys.argv[2], "wb")
seen, values = [], []
for change in changes:
    with contextlib.ExitStack() as stack:
        exec(change)
        values.append(plugin.ambient_values())
        seen.append([dict(plugin.ambient()), {probe}])
    plugin.set_ambient({{}})
pickle.dump(values, sent)
print(json.dumps(seen))
"""

_WORKER = """
import json, pickle, sys
{setup}
from {package} import plugin
seen = []
for values in pickle.load(open(sys.argv[2], "rb")):
    plugin.set_ambient(values)
    assert plugin.ambient_values() == values, (plugin.ambient_values(), values)
    plugin.set_ambient(values)
    seen.append([dict(plugin.ambient()), {probe}])
    plugin.set_ambient({{}})
    seen[-1].append(dict(plugin.ambient()))
print(json.dumps(seen))
"""


class Seen(NamedTuple):
    """What ``ambient`` said and what a probe found, in both processes; and ``ambient`` after all was set back."""

    caller: tuple[dict[str, str], object]
    worker: tuple[dict[str, str], object]
    after: dict[str, str]


def compared(folder: Path, package: str, setup: str, probe: str, changes: Mapping[str, str]) -> dict[str, Seen]:
    """Of each change, what two processes saw. changes: name -> statements, which may enter contexts into ``stack``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outputs = []
    for program in (_CALLER, _WORKER):
        text = program.format(setup=setup, package=package, probe=probe)
        command = [sys.executable, "-c", text, json.dumps(list(changes.values())), str(folder / "sent")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout))
    return {
        name: Seen(tuple(caller), tuple(worker[:2]), worker[2])
        for name, caller, worker in zip(changes, *outputs, strict=True)
    }
