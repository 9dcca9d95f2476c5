"""MiniLM against a numpy forward pass, through JAX alone and through the cached pipeline."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachec

SENTENCES = ["A cat sits on the mat.", "Stocks fell today.", "A kitten rests on a rug, far away from any of the noise."]
EXAMPLE = Path(__file__).parents[3] / "examples" / "minilm"


@pytest.fixture(scope="module")
def weights() -> cachec.WeightSet:
    from checkpoint import open_checkpoint

    return open_checkpoint()


@pytest.fixture(scope="module")
def tokens():
    from checkpoint import tokenize

    return tokenize(SENTENCES, 16)


def reference(weights, tokens, layers=6):
    from reference import embed

    return embed({name: weight.read() for name, weight in weights.items()}, *tokens, layers)


def perturbed(weights: cachec.WeightSet) -> cachec.WeightSet:
    r = np.random.default_rng(1)
    return cachec.WeightSet.from_arrays(
        {
            name: (weight.read() * (1 + 0.05 * r.standard_normal(weight.shape))).astype(np.float32)
            for name, weight in weights.items()
        }
    )


def test_tokens_are_those_of_the_published_vocabulary(tokens):
    ids, mask = tokens
    assert ids.dtype == mask.dtype == np.int32
    assert ids.shape == mask.shape == (3, 16)
    # vocab.txt: [CLS] 101, [SEP] 102, [PAD] 0, "a" 1037, "cat" 4937, "." 1012
    assert ids[0, :3].tolist() == [101, 1037, 4937]
    assert ids[0, mask[0].sum() - 2 : mask[0].sum()].tolist() == [1012, 102]
    assert mask.sum(1).tolist() == [9, 6, 16]
    assert (ids[mask == 0] == 0).all()


def test_the_checkpoint_without_its_unused_buffer(weights):
    assert len(weights) == 103
    assert {spec.dtype for spec in weights.specs.values()} == {"float32"}


@pytest.mark.long
def test_the_model_in_jax_is_the_reference(weights, tokens):
    import jax
    from model import minilm

    found = jax.jit(minilm)({name: weight.read() for name, weight in weights.items()}, *tokens)
    np.testing.assert_allclose(found, reference(weights, tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [1, pytest.param(6, marks=pytest.mark.long)])
def test_the_pipeline_is_the_reference_for_one_compile_and_two_weight_sets(weights, tokens, layers):
    from pipeline import compiled

    weights = weights.select(exclude=[f"encoder.layer.{number}.*" for number in range(layers, 6)])
    cold = compiled(weights, 3, 16)
    np.testing.assert_allclose(cold.embed(*tokens), reference(weights, tokens, layers), rtol=0, atol=1e-5)
    other = perturbed(weights)
    warm = compiled(other, 3, 16)
    assert {stage: each.reason.value for stage, each in warm.outcomes.items()} == {"lower": "hit", "build": "hit"}
    found = warm.embed(*tokens)
    np.testing.assert_allclose(found, reference(other, tokens, layers), rtol=0, atol=1e-5)
    assert abs(found - cold.embed(*tokens)).max() > 0.01


@pytest.mark.long
def test_fewer_layers_by_the_names_that_are_there(weights, tokens):
    from pipeline import compiled

    shorter = weights.select(exclude=["encoder.layer.5.*", "encoder.layer.4.*"])
    found = compiled(shorter, 3, 16).embed(*tokens)
    np.testing.assert_allclose(found, reference(weights, tokens, layers=4), rtol=0, atol=1e-5)


@pytest.mark.long
def test_folding_a_weight_gives_the_same_numbers_and_depends_on_it_alone(weights, tokens):
    from pipeline import compiled
    from stages import SEGMENT

    cold = compiled(weights, 3, 16, fold=True)
    np.testing.assert_allclose(cold.embed(*tokens), reference(weights, tokens), rtol=0, atol=1e-5)

    arrays = {name: weight.read() for name, weight in weights.items()}
    read = cachec.WeightSet.from_arrays(arrays | {SEGMENT: arrays[SEGMENT] * 2})
    again = compiled(read, 3, 16, fold=True)
    assert again.outcomes["fold_segment"].reason is cachec.Reason.WEIGHT_CONTENT_CHANGED
    np.testing.assert_allclose(again.embed(*tokens), reference(read, tokens), rtol=0, atol=1e-5)

    name = "encoder.layer.0.output.dense.weight"
    unread = cachec.WeightSet.from_arrays(arrays | {name: arrays[name] * 2})
    hit = compiled(unread, 3, 16, fold=True)
    assert {each.reason for each in hit.outcomes.values()} == {cachec.Reason.HIT}
    np.testing.assert_allclose(hit.embed(*tokens), reference(unread, tokens), rtol=0, atol=1e-5)


@pytest.mark.long
def test_padding_and_batch_do_not_change_a_sentence(weights):
    from checkpoint import tokenize
    from pipeline import compiled

    wide = compiled(weights, 3, 24).embed(*tokenize(SENTENCES, 24))
    narrow = compiled(weights, 3, 16).embed(*tokenize(SENTENCES, 16))
    np.testing.assert_allclose(wide[:2], narrow[:2], rtol=0, atol=1e-5)


@pytest.mark.long
def test_the_demo_goes_through(tmp_path):
    """Every step has the outcome that it must have, or the program ends with status 1."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "JAX_"))}
    command = [sys.executable, str(EXAMPLE / "demo.py"), str(tmp_path / "demo")]
    done = subprocess.run(command, env=environ | {"COLUMNS": "150"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for step in ["1 cold", "4 a second weight set", "10 jax_enable_x64 flipped"]:
        assert step in done.stdout
    assert json.loads((tmp_path / "demo" / "sentences.json").read_text())
    *_, last = done.stdout.splitlines()
    next_one = re.search(r"cache: (.*) stats; then", last)
    assert next_one is not None
    program, *rest = shlex.split(next_one[1])
    assert Path(program).absolute() == Path(sys.executable).with_name("cachec")
    assert rest == ["--dir", f"{tmp_path}/demo/cache"]


@pytest.mark.long
def test_the_demo_fails_where_a_step_does(tmp_path):
    """With the cache switched off nothing hits, so step 2 is not as it should be."""
    environ = dict(os.environ) | {"CACHEC_MODE": "off"}
    command = [sys.executable, str(EXAMPLE / "demo.py"), str(tmp_path / "demo")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not as it should be" in done.stdout


@pytest.mark.long
def test_a_chain_of_one_block_is_the_reference_at_any_depth(weights, tokens):
    """Only the first of the layers is lowered and built."""
    from blocks import build, chained, layer, lower_block

    chained(weights, 1, 3)
    for number in range(1, 6):
        own = layer(weights, number)
        assert lower_block.check(own, 3, 16).hit
        assert build.check(lower_block(own, 3, 16)).hit
    for used in (weights, perturbed(weights)):
        np.testing.assert_allclose(chained(used, 6, 3)(*tokens), reference(used, tokens), rtol=0, atol=1e-5)
