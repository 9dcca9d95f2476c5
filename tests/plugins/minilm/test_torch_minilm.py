"""``examples/torch_minilm``: its numbers. What compiles it is `make demo-torch`, which compares with these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachec
from tests.plugins.minilm.reference import embed

EXAMPLE = Path(__file__).parents[3] / "examples" / "torch_minilm"

PROGRAM = """
import json, sys
sys.path[:0] = [{example!r}, {example!r} + "/../minilm"]
import numpy as np
from checkpoint import folder, tokenize
import run, stages
weights = folder() / "model.safetensors"
run.main("eager", str(weights), "eager.npy")
ids, mask = tokenize(run.SENTENCES, run.LENGTH)
np.savez("tokens.npz", ids=ids, mask=mask)
program = stages.export(stages.open_weights(str(weights)), *ids.shape)
print(json.dumps([str(weights), len(program.ir), len(program.manifest.weights)]))
"""


@pytest.mark.long
def test_the_torch_model_is_the_one_that_jax_runs(tmp_path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(example=str(EXAMPLE))]
    environ = os.environ | {"CACHEC_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, size, count = json.loads(done.stdout.splitlines()[-1])
    weights = {name: weight.read() for name, weight in cachec.open_weights(place).items()}
    tokens = np.load(tmp_path / "tokens.npz")
    np.testing.assert_allclose(np.load(tmp_path / "eager.npy"), embed(weights, **tokens), atol=2e-6)
    assert count == len([name for name in weights if not name.startswith(("pooler.", "embeddings.position_ids"))])
    assert size < 1_000_000, "no weight is in the program"
