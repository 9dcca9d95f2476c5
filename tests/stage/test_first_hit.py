"""What the first hit of a process imports: most of what it takes is Python's search for modules and their bodies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_PROGRAM = """
import json, sys, cachec
cache = cachec.Cache("store", log="off")

@cache.stage
def lower(weights: cachec.WeightSet, batch: int) -> cachec.Program:
    return cachec.Program(f"{len(weights)} {batch}", format="text", manifest=weights.manifest)

program, outcome = cache.call(lower, cachec.open_weights("w.safetensors"), 3)
assert program.text == "1 3"
print(json.dumps([outcome.reason.value, sorted(sys.modules)]))
"""

#: Of misses, of results and arguments of other kinds, of tools, and of what the process has changed.
_LEFT_OUT = """
    codecs.arrays codecs.json_data codecs.records codecs.weight_sets key.code.rebound_names key.code.key_coverage
    key.code.constant_folding key.path_digests key.flatten key.tools.own_checkout key.tools.record_files programs.ir
    programs.plugin programs.supported_versions recording.audit_observer recording.recorder key.weight_guards stage.run
    store.nearest_keys store.search_index store.trees weights.formats.declared_specs weights.formats.presharded
    weights.formats.values
"""


def test_it_imports_what_it_uses(tmp_path: Path) -> None:
    save_file({"w": np.arange(4.0)}, tmp_path / "w.safetensors")
    (tmp_path / "main.py").write_text(_PROGRAM)
    (first, _), (second, imported) = [
        json.loads(
            subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        )
        for _ in range(2)
    ]
    assert (first, second) == ("miss:first-run", "hit")
    ours = {name for name in imported if name.partition(".")[0] == "cachec"}
    assert ours.isdisjoint(f"cachec.{name}" for name in _LEFT_OUT.split())
    assert len(ours) <= 108, sorted(ours)
    assert {"numpy", "typing_extensions", "inspect", "linecache", "dataclasses"}.isdisjoint(imported)
