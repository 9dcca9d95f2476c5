"""iree-compile in several parts, each a stage: the same module, and only the parts run that an option can change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import cachec
import cachec_iree
from cachec.errors import PluginError, UsageError
from cachec.model import Reason
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_iree.compiler import _evaluates_weights, find_iree_compile
from cachec_iree.phases import _FIRST, END, PHASES, first_phase, split

#: A matmul with a weight, and constants that the compiler evaluates by compiling and running a program of its own.
TEXT = """\
util.global private @w1 = #flow.parameter.named<"model"::"up"> : tensor<8x16xf32>
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x16xf32> {
  %w1 = util.global.load @w1 : tensor<8x16xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x16xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x16xf32>) -> tensor<4x16xf32>
  %h = linalg.matmul ins(%x, %w1 : tensor<4x8xf32>, tensor<8x16xf32>) outs(%init : tensor<4x16xf32>)
    -> tensor<4x16xf32>
  %k = arith.constant dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]> : tensor<4x2xf32>
  %c = arith.constant dense<[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
                             [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]>
    : tensor<2x16xf32>
  %b = linalg.matmul ins(%k, %c : tensor<4x2xf32>, tensor<2x16xf32>) outs(%init : tensor<4x16xf32>)
    -> tensor<4x16xf32>
  %y = arith.addf %h, %b : tensor<4x16xf32>
  return %y : tensor<4x16xf32>
}
"""

X = np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8)


def weights(seed: int = 0) -> WeightSet:
    return WeightSet.from_arrays({"up": np.random.default_rng(seed).normal(size=(8, 16)).astype("f4")})


def expected(seed: int) -> np.ndarray:
    k = np.arange(1, 9, dtype="f4").reshape(4, 2)
    c = np.stack([np.arange(1, 17), np.abs(np.arange(9, -7, -1))]).astype("f4")
    return X @ weights(seed)["up"].read() + k @ c


def program(text: str = TEXT) -> Program:
    return Program(text, format="mlir:text", manifest=weights().manifest)


@pytest.fixture(scope="module")
def built() -> cachec.File:
    return cachec_iree.compile(program())


@pytest.fixture
def phased(cache):
    """Compile in parts that are stages of a cache; says which parts ran."""

    @cache.stage(tools=["iree-base-compiler"])
    def phase(program: cachec.Program, until: str, flags: tuple[str, ...]) -> object:
        return cachec_iree.compile_phase(program, until, flags)

    def compile(program=None, *, phases=("flow", "hal"), **options):
        ran = []

        def counted(program, until, flags):
            value, outcome = cache.call(phase, program, until, flags)
            if not outcome.hit:
                ran.append(until)
            return value

        file = cachec_iree.compile(program or globals()["program"](), phases=phases, phase=counted, **options)
        return file, ran

    return compile


def test_mlir_text_runs_every_weight_set(built):
    for seed in (0, 1):
        np.testing.assert_allclose(cachec.link(built, weights(seed))(X), expected(seed), rtol=1e-5)


@pytest.mark.long
def test_mlir_bytecode_is_taken_as_well(built):
    tool = cachec_iree.find_iree_compile().with_name("iree-opt")
    ir = subprocess.run([tool, "--emit-bytecode", "-"], input=TEXT.encode(), capture_output=True, check=True).stdout
    file = cachec_iree.compile(Program(ir, format="mlir:bytecode", manifest=weights().manifest))
    assert file.read_bytes() == built.read_bytes()


@pytest.mark.long
def test_two_texts_that_differ_in_a_constant_are_two_programs(cache):
    @cache.stage
    def build(program: cachec.Program) -> cachec.File:
        return cachec_iree.compile(program)

    assert cache.call(build, program())[1].reason is Reason.FIRST_RUN
    file, outcome = cache.call(build, program(TEXT.replace("16.0],", "17.0],")))
    assert outcome.reason is Reason.TOPOLOGY_CHANGED
    assert cachec.link(file, weights())(X)[0, 15] == pytest.approx(expected(0)[0, 15] + 1, rel=1e-5)


@pytest.mark.long
def test_every_part_is_byte_for_byte_what_one_step_makes(built):
    """All twelve phases in a row, each in a process of its own; and some of them."""
    for phases in (PHASES, ("flow",), ("stream", "executable-targets"), ("vm",)):
        file = cachec_iree.compile(program(), phases=phases)
        assert file.read_bytes() == built.read_bytes(), phases
        assert (file.kind, file.manifest) == (built.kind, built.manifest)


@pytest.mark.long
def test_a_program_of_jax_too():
    import jax
    import jax.numpy as jnp

    from cachec_jax import to_stablehlo

    lowered = to_stablehlo(
        lambda w, x: jnp.tanh(x @ w["up"]), weights().placeholders(), jax.ShapeDtypeStruct((4, 8), jnp.float32)
    )
    file = cachec_iree.compile(lowered, phases=("input", "global-optimization", "hal"))
    assert file.read_bytes() == cachec_iree.compile(lowered).read_bytes()


@pytest.mark.long
def test_a_late_option_runs_late_parts_alone(phased, built):
    file, ran = phased()
    assert ran == ["flow", "hal", END]
    assert file.read_bytes() == built.read_bytes()
    assert phased()[1] == []
    late = "--iree-vm-emit-polyglot-zip=false"
    file, ran = phased(options=[late])
    assert ran == [END]
    assert file.read_bytes() == cachec_iree.compile(program(), options=[late]).read_bytes()
    assert file.read_bytes() != built.read_bytes()
    late = "--iree-scheduling-optimize-bindings=false"
    file, ran = phased(options=[late])
    assert "flow" not in ran
    assert ran[0] == "hal"
    assert file.read_bytes() == cachec_iree.compile(program(), options=[late]).read_bytes()


@pytest.mark.long
def test_tiles_can_change_constants_unless_these_are_left_alone(phased):
    tile = "--iree-llvmcpu-distribution-size=8"
    phased()
    assert phased(options=[tile])[1][0] == ("hal" if _evaluates_weights() else "flow")
    alone = "--iree-opt-const-eval=false"
    phased(options=[alone])
    file, ran = phased(options=[alone, tile])
    assert ran[0] == "hal"
    assert file.read_bytes() == cachec_iree.compile(program(), options=[alone, tile]).read_bytes()


@pytest.mark.long
def test_an_early_option_runs_every_part(phased):
    phased()
    early = "--iree-input-demote-f64-to-f32=false"
    file, ran = phased(options=[early])
    assert ran[0] == "flow"
    assert file.read_bytes() == cachec_iree.compile(program(), options=[early]).read_bytes()
    assert phased(cpu="x86-64-v2")[1] == ["flow", "hal", END]
    assert phased(target="vmvx")[1] == ["flow", "hal", END]


def test_new_weights_hit_and_parts_are_small(cache, tmp_path):
    """Nested in a stage, as a user writes it; 4 MB of weights are in no part."""

    @cache.stage(tools=["iree-base-compiler"])
    def phase(program: cachec.Program, until: str, flags: tuple[str, ...]) -> object:
        return cachec_iree.compile_phase(program, until, flags)

    @cache.stage(tools=["iree-base-compiler"])
    def build(program: cachec.Program, *, options: tuple[str, ...] = ()) -> cachec.File:
        return cachec_iree.compile(program, options=options, phases=("flow", "hal"), phase=phase)

    @cache.stage(version="1", name="tests.describe")
    def describe(weights: cachec.WeightSet) -> cachec.Program:
        return Program(wide, format="mlir:text", manifest=weights.manifest)

    body = TEXT[: TEXT.index("  %k = ")] + TEXT[TEXT.index("  %y = ") :].replace("%b", "%h")
    wide = body.replace("16xf32", "131072xf32")
    x = np.ones((4, 8), "f4")
    for seed, reason in ((0, "miss"), (1, "hit")):
        w = WeightSet.from_arrays({"up": np.random.default_rng(seed).normal(size=(8, 131072)).astype("f4")})
        file, outcome = cache.call(build, describe(w))
        assert outcome.reason.kind == reason
        np.testing.assert_allclose(cachec.link(file, w)(x), 2 * x @ w["up"].read(), rtol=1e-4, atol=1e-4)
    assert max(path.stat().st_size for path in Path(cache.dir, "objects").rglob("*") if path.is_file()) < 1 << 20
    _, outcome = cache.call(build, describe(w), options=("--iree-vm-target-optimize-for-stack-size=false",))
    assert outcome.reason is Reason.OPTION_CHANGED


OTHER = {
    "iree-llvmcpu-distribution-size": "8",
    "iree-llvmcpu-matmul-tile-bytes": "64",
    "iree-llvmcpu-matmul-tile-undercount-whole-matrix": "0.9",
    "iree-llvmcpu-number-of-threads": "3",
    "iree-llvmcpu-vector-pproc-strategy": "none",
    "iree-scheduling-initialization-mode": "async",
    "iree-vm-bytecode-module-output-format": "flatbuffer-text",
    "iree-vm-target-index-bits": "32",
}


@pytest.fixture(scope="module")
def there():
    """The options of ``_FIRST`` that this release has."""
    command = [str(find_iree_compile()), "--help-hidden"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {option: phase for option, phase in _FIRST.items() if f"--{option}" in text}


@pytest.fixture(scope="module")
def printed():
    """What a phase prints, by the phase and the options; each made once."""
    known = {}

    def get(until, *options):
        if (until, options) not in known:
            flags = ("--iree-input-type=auto", "--iree-hal-target-device=local", *options)
            flags += ("--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
            known[until, options] = cachec_iree.compile_phase(program(), until, flags).ir
        return known[until, options]

    return get


@pytest.mark.long
@pytest.mark.parametrize("switches", ["true", "false"])
@pytest.mark.parametrize("first", sorted(set(_FIRST.values())))
def test_what_is_printed_before_an_options_first_phase_does_not_depend_on_it(first, switches, printed, there):
    """With the real compiler, for every option that is said to come late, both ways for a switch."""
    options = [f"--{option}={OTHER.get(option, switches)}" for option, phase in there.items() if phase == first]
    before = PHASES[(PHASES.index(first) if first != END else len(PHASES)) - 1]
    alone = ["--iree-opt-const-eval=false"] if first == "executable-configurations" or _evaluates_weights() else []
    assert all(first_phase(option, const_eval=not alone) == first for option in options)
    assert printed(before, *alone, *options) == printed(before, *alone)


@pytest.mark.skipif(_evaluates_weights(), reason="this release is told not to evaluate constants")
def test_constants_are_evaluated_by_a_compiler_in_the_compiler(printed):
    """What makes options of code generation early ones: the module that is tested with has such a constant."""
    assert printed("preprocessing").count(b"linalg.matmul") == 2
    assert printed("global-optimization").count(b"linalg.matmul") == 1
    assert printed("global-optimization", "--iree-opt-const-eval=false").count(b"linalg.matmul") == 2


def test_an_option_that_is_not_known_can_affect_everything():
    for option in ("--iree-llvmcpu-target-cpu=host", "--x86-asm-syntax=intel", "--iree-vm-bytecode-source-listing=x"):
        assert first_phase(option) == "input"
        assert all(option in flags for _, flags in split([option], ["input", "vm"]))


@pytest.mark.long
def test_a_file_that_an_option_names_counts_by_content(cache, tmp_path):
    spec = tmp_path / "tuning.mlir"
    text = """module attributes {iree_codegen.tuning_spec_with_default_entrypoint, transform.with_named_sequence} {
      transform.named_sequence @__kernel_config(%m: !transform.any_op {transform.consumed}) -> !transform.any_op
          attributes {iree_codegen.tuning_spec_entrypoint} {
        %0 = transform.foreach_match in %m @match -> @apply : (!transform.any_op) -> !transform.any_op
        transform.yield %0 : !transform.any_op
      }
      transform.named_sequence @match(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
        transform.match.operation_name %op ["linalg.NONE"] : !transform.any_op
        transform.yield %op : !transform.any_op
      }
      transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}) { transform.yield }
    }"""

    @cache.stage
    def build(program: cachec.Program, options: list[str]) -> cachec.File:
        return cachec_iree.compile(program, options=options)

    options = [f"--iree-codegen-tuning-spec-path={spec}"]
    with pytest.raises(subprocess.CalledProcessError):
        build(program(), options)
    for name in ("matmul", "generic"):
        spec.write_text(text.replace("NONE", name))
        assert cache.call(build, program(), options)[1].reason.kind == "miss"
        assert cache.call(build, program(), options)[1].reason is Reason.HIT


@pytest.mark.long
def test_names_are_not_kept_of_a_program_that_is_keyed_without_them():
    unnamed = Program(TEXT, format="mlir:text", manifest=weights().manifest, canonical="0" * 64)
    for option in (
        "--iree-llvmcpu-debug-symbols=true",
        "--iree-vm-bytecode-module-strip-source-map=false",
        "--emit-mlir-bytecode",
        "-mlir-use-nameloc-as-prefix",
        "--split-input-file",
    ):
        with pytest.raises(UsageError, match=f"{option} keeps names"):
            cachec_iree.compile(unnamed, options=[option])
        with pytest.raises(UsageError, match=f"{option} keeps names"):
            cachec_iree.compile_phase(unnamed, "flow", (option,))
    with pytest.raises(UsageError, match=r"iree-compile without --iree-.* keeps names"):
        cachec_iree.compile_phase(unnamed, "end", ())
    named = cachec_iree.compile(program(), options=["--iree-llvmcpu-debug-symbols=true"])
    plain = cachec_iree.compile(unnamed, options=["--iree-llvmcpu-debug-symbols=false"])
    assert len(named.read_bytes()) > len(plain.read_bytes())


@pytest.mark.long
def test_names_of_values_and_locations_do_not_come_into_the_module(built):
    """What a key without them rests on."""
    renamed = TEXT.replace("%h", "%other").replace("%w1", "%weight").replace("\n  %y", "\n\n  // a comment\n  %y")
    renamed = renamed.replace("return %y : tensor<4x16xf32>", 'return %y : tensor<4x16xf32> loc("elsewhere":7:7)')
    assert renamed != TEXT
    assert cachec_iree.compile(program(renamed)).read_bytes() == built.read_bytes()


def test_which_part_gets_which_option():
    flags = [
        "-a",
        "--iree-vm-target-index-bits=32",
        "--iree-vm-emit-polyglot-zip",
        "-iree-scheduling-optimize-bindings",
    ]
    assert split(flags, ("flow", "stream", "vm")) == [
        ("flow", ("-a",)),
        ("stream", ("-a", "-iree-scheduling-optimize-bindings")),
        ("vm", ("-a", "--iree-vm-target-index-bits=32", "-iree-scheduling-optimize-bindings")),
        (END, tuple(flags)),
    ]


def test_constants_count_as_evaluated_where_that_is_in_doubt():
    tile, off, on = "--iree-llvmcpu-distribution-size=8", "--iree-opt-const-eval=false", "--iree-opt-const-eval=true"
    for flags, early in (([tile], True), ([tile, off], False), ([tile, off, on], True), ([tile, on], True)):
        assert (tile in split(flags, ["flow"])[0][1]) is early, flags


def test_misuse_is_refused():
    with pytest.raises(UsageError, match="found 'nowhere'"):
        cachec_iree.compile(program(), phases=["nowhere"])
    for phases in (["hal", "flow"], ["flow", "flow"]):
        with pytest.raises(UsageError, match="order"):
            cachec_iree.compile(program(), phases=phases)
    with pytest.raises(UsageError, match="one string 'flow'"):
        cachec_iree.compile(program(), phases="flow")
    with pytest.raises(UsageError, match="found 'O2'"):
        cachec_iree.compile(program(), phases=["flow"], options=["--iree-opt-level", "O2"])
    with pytest.raises(PluginError, match="phase= returned None"):
        cachec_iree.compile(program(), phases=["flow"], phase=lambda program, until, flags: None)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        cachec_iree.compile(program("func.func @main() { bad }"), phases=["flow"])
    assert any("bad" in note for note in raised.value.__notes__)


@pytest.mark.long
def test_the_processor_counts_in_a_portable_stage_that_asks_for_it(cache, monkeypatch):
    @cache.stage(portable=True)
    def build(program: cachec.Program, cpu: str) -> cachec.File:
        return cachec_iree.compile(program, cpu=cpu)

    for cpu in ("host", "x86-64-v2"):
        assert cache.call(build, program(), cpu)[1].reason.kind == "miss"
        assert cache.call(build, program(), cpu)[1].reason is Reason.HIT
    for place in ("cachec.key.dependencies.processor_digest", "cachec.commands.run.processor_digest"):
        monkeypatch.setattr(place, lambda: "0" * 64)
    assert cache.call(build, program(), "x86-64-v2")[1].reason is Reason.HIT
    assert cache.call(build, program(), "host")[1].reason is Reason.DEPENDENCY_CHANGED
