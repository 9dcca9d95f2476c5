"""JAX functions to StableHLO: weights by name, everything else by value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cachec.errors import PluginError, WeightReadError
from cachec.weights import WeightSet
from cachec_jax import fold, lowering, plugin, to_stablehlo
from cachec_jax.internals import enable_x64

X = jax.ShapeDtypeStruct((2, 4), jnp.float32)


def weights(seed: int = 0, **more: np.ndarray) -> WeightSet:
    r = np.random.default_rng(seed)
    arrays = {"down": r.normal(size=(3, 2)).astype("f4"), "up.w": r.normal(size=(4, 3)).astype("f4")}
    return WeightSet.from_arrays(arrays | more)


def mlp(w, x):
    return jnp.tanh(x @ w["up.w"]) @ w["down"]


def lower(fn, w=None, *inputs):
    return to_stablehlo(fn, (w or weights()).placeholders(), *(inputs or (X,)))


def test_two_weight_sets_give_one_program():
    a, b = lower(mlp, weights(0)), lower(mlp, weights(1))
    assert a.text == b.text
    assert a.topology == b.topology


def test_weights_are_globals_by_name_and_inputs_stay_arguments():
    program = lower(mlp)
    assert program.format == "jax:stablehlo"
    assert '#flow.parameter.named<"model"::"up.w"> : tensor<4x3xf32>' in program.text
    assert program.text.count("flow.parameter.named") == 2
    assert "@main(%arg0: tensor<2x4xf32>)" in program.text
    assert "loc(" not in program.text
    assert set(program.manifest.weights) == {"up.w", "down"}


def test_the_name_of_the_function_and_of_the_module_leave_no_trace():
    def another_name(w, x):
        return jnp.tanh(x @ w["up.w"]) @ w["down"]

    assert lower(another_name).text == lower(mlp).text


def test_lowering_twice_in_one_process_gives_the_same_text():
    assert len({lower(mlp).text for _ in range(3)}) == 1


def test_a_scalar_that_the_function_closes_over_counts_by_value():
    def scaled(factor):
        return lambda w, x: mlp(w, x) * factor

    assert lower(scaled(1.0)).topology != lower(scaled(1.5)).topology
    assert lower(scaled(1.5)).topology == lower(scaled(1.5)).topology


def test_an_array_that_the_function_closes_over_counts_by_value_splat_or_not():
    def shifted(values):
        constant = jnp.asarray(values, jnp.float32)
        return lambda w, x: mlp(w, x) + constant

    splat, other, trained = lower(shifted([1, 1])), lower(shifted([2, 2])), lower(shifted([1, 2]))
    assert len({splat.topology, other.topology, trained.topology}) == 3
    assert "dense<1.000000e+00>" in splat.text
    assert "dense<[1.000000e+00, 2.000000e+00]>" in trained.text


def test_a_large_constant_is_in_the_text_in_full():
    def shifted(values):
        constant = jnp.asarray(values)
        return lambda w, x: mlp(w, x)[:, :1] + constant

    a = np.arange(5000, dtype="f4")
    b = a.copy()
    b[2500] += 1
    assert lower(shifted(a)).topology != lower(shifted(b)).topology
    assert len(lower(shifted(a)).ir) > 40_000


def test_shape_dtype_and_input_change_the_program():
    base = lower(mlp)
    assert lower(mlp, None, jax.ShapeDtypeStruct((3, 4), jnp.float32)).topology != base.topology
    assert lower(mlp, None, jax.ShapeDtypeStruct((2, 4), jnp.bfloat16)).topology != base.topology


def test_an_unused_weight_and_an_unused_input_keep_their_places():
    more = weights(a_first=np.ones((7,), "f4"), z_last=np.ones((), "f4"))
    program = to_stablehlo(lambda w, unused, x: mlp(w, x), more.placeholders(), jax.ShapeDtypeStruct((9,), "int32"), X)
    assert "@main(%arg0: tensor<9xi32>, %arg1: tensor<2x4xf32>)" in program.text
    assert '"model"::"a_first"> : tensor<7xf32>' in program.text
    assert '"model"::"z_last"> : tensor<f32>' in program.text


def test_names_that_mlir_must_quote():
    names = ["main", 'a"b', "back\\slash", "naïve", "with space", "a::b"]
    w = WeightSet.from_arrays({name: np.ones((2, 2), "f4") for name in names})
    program = to_stablehlo(lambda w, x: sum(x @ each for each in w.values()), w.placeholders(), jnp.ones((2, 2)))
    for quoted in ['"main"', '"a\\22b"', '"back\\\\slash"', '"na\\C3\\AFve"', '"with space"', '"a::b"']:
        symbol = '"weight:' + quoted[1:]
        parameter = f'#flow.parameter.named<"model"::{quoted}> : tensor<2x2xf32>'
        assert f"  util.global private @{symbol} = {parameter}\n" in program.text
        assert f" = util.global.load immutable @{symbol} : tensor<2x2xf32>\n" in program.text


def test_jax_settings_change_the_program():
    base = lower(mlp)
    with jax.default_matmul_precision("highest"):
        assert lower(mlp).topology != base.topology
    assert lower(mlp).topology == base.topology


def test_reading_a_weight_while_tracing_names_it():
    w = weights().placeholders("lower")
    with pytest.raises(WeightReadError, match=r"up\.w"):
        to_stablehlo(lambda v, x: x @ w["up.w"].read(), w, X)


def test_the_functions_own_error_passes_through():
    with pytest.raises(TypeError, match="dot_general"):
        lower(lambda w, x: x @ w["down"])


def test_a_64_bit_weight_needs_x64():
    w = WeightSet.from_arrays({"ids": np.arange(3, dtype="int64")})
    with pytest.raises(PluginError, match=r"'ids' is int64.*jax_enable_x64"):
        to_stablehlo(lambda w: w["ids"], w.placeholders())
    with enable_x64(True):
        assert "tensor<3xi64>" in to_stablehlo(lambda w: w["ids"], w.placeholders()).text


def test_bfloat16_weights():
    import ml_dtypes

    w = WeightSet.from_arrays({"w": np.ones((4, 2), ml_dtypes.bfloat16)})
    assert '"w"> : tensor<4x2xbf16>' in to_stablehlo(lambda w, x: x @ w["w"], w.placeholders(), X).text


@pytest.mark.skipif(
    not hasattr(jax.config, "jax_use_simplified_jaxpr_constants"), reason="this release of JAX has no such option"
)
def test_simplified_constants_stay_in_the_text_by_value():
    def shifted(first):
        constant = jnp.arange(2000.0).reshape(1000, 2) + first
        return lambda w, x: mlp(w, x) + constant[:1]

    old = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        assert lower(shifted(0)).topology != lower(shifted(1)).topology
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", old)


def test_a_main_with_arguments_of_its_own_is_refused():
    """If JAX hoisted constants into arguments of ``@main``, their values would be in no key."""
    module = jax.jit(lambda x, hoisted: x + hoisted).lower(1.0, 2.0).compiler_ir("stablehlo")
    with pytest.raises(PluginError, match="2 arguments where the function has 1"):
        lowering._rewrite(module, {}, 1)


def test_strip_takes_a_lowered_and_leaves_it_alone():
    abstract = {"up.w": jax.ShapeDtypeStruct((4, 3), "f4"), "down": jax.ShapeDtypeStruct((3, 2), "f4")}
    lowered = jax.jit(mlp).trace(abstract, X).lower(lowering_platforms=("cpu",))
    text = lowered.as_text()
    program = plugin.strip(lowered, weights())
    assert program.topology == lower(mlp).topology
    assert lowered.as_text() == text


def test_strip_follows_arguments_that_jax_dropped():
    abstract = {"a": jax.ShapeDtypeStruct((2,), "f4"), "b": jax.ShapeDtypeStruct((3,), "f4")}
    w = WeightSet.from_arrays({"a": np.ones(2, "f4"), "b": np.ones(3, "f4")})
    program = plugin.strip(jax.jit(lambda x, w: x + w["b"]).lower(jnp.ones(3), abstract), w)
    assert '"b"> : tensor<3xf32>' in program.text
    assert '"model"::"a"' not in program.text
    assert set(program.manifest.weights) == {"a", "b"}


def test_strip_refuses_what_has_no_such_weights():
    lowered = jax.jit(lambda x: x + 1).lower(X)
    with pytest.raises(PluginError, match="0 arguments"):
        plugin.strip(lowered, weights())
    with pytest.raises(PluginError, match="does not strip"):
        plugin.strip(object(), weights())


def test_fold_puts_one_weight_in_by_value():
    w = weights()
    program = lower(mlp, w)
    folded = fold(program, w["down"])
    assert set(folded.manifest.weights) == {"up.w"}
    assert folded.manifest.folded == {"down": (w["down"].content(),)}
    assert folded.topology != program.topology
    assert folded.topology != fold(program, weights(1)["down"]).topology
    assert fold(program, w["down"]).topology == folded.topology
    with pytest.raises(PluginError, match="no parameter 'down'"):
        fold(folded, w["down"])


def test_link_says_to_build_first():
    with pytest.raises(PluginError, match="build it first"):
        plugin.link(lower(mlp), weights())
