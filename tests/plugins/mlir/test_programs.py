"""Modules as programs: what they are keyed by, the specs that they state, and weights renamed in the order of use."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.errors import CheckpointError, LinkError, UsageError
from cachec.weights import WeightSet
from cachec_mlir import link, program
from cachec_mlir.live.bindings import Bindings, write_bytecode
from cachec_mlir.text.alpha_renaming import alpha, alpha_manifest
from tests.plugins.mlir.conftest import arrays, inline_program
from tests.plugins.mlir.conftest import program as text_program

X = np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8)


def expected(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.tanh(X @ values["w1"]) @ values["w2"]


def reason(cache: cachec.Cache, stage: Any, *arguments: object) -> str:
    return cache.call(stage, *arguments)[1].reason.value


# --- specs and weights


@pytest.mark.parametrize("form", ["resource", "parameter"])
def test_the_manifest_has_the_types_of_the_ir(form, tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(text_program(0))
    found = program(path, to=form)
    specs = {name: (spec.dtype, spec.shape) for name, spec in found.program.manifest.weights.items()}
    assert specs == {"w1": ("float32", (8, 16)), "w2": ("float32", (16, 8))}
    assert found.program.manifest == found.weights.manifest
    assert found.program.format == "mlir:text"
    for name, value in arrays(0).items():
        np.testing.assert_array_equal(found.weights[name].read(), value)


def test_weights_that_a_module_only_names_are_in_the_manifest():
    stripped = program(text_program(0).encode(), to="parameter").program
    again = program(stripped.ir, to="parameter")
    assert again.program.manifest == stripped.manifest
    assert again.program.topology == stripped.topology
    assert dict(again.weights) == {}
    declared = text_program(0).partition("{-#")[0]
    assert program(declared.encode()).program.manifest == stripped.manifest
    unknown = declared.replace("dense_resource<w1> : tensor<8x16xf32>", "dense_resource<w1> : tensor<?x16xf32>")
    with pytest.raises(UsageError, match=r"'w1'.*static type"):
        program(unknown.encode())


def test_bytecode_tells_its_types_through_bindings(tmp_path):
    path = tmp_path / "m.mlirbc"
    write_bytecode(Bindings("iree").parse(text_program(0).encode()), path)
    plain = program(path)
    assert plain.program.format == "mlir:bytecode"
    assert plain.weights["w1"].spec.dtype == "uint8"
    typed = program(path, bindings="iree")
    assert typed.weights["w1"].shape == (8, 16)
    place = typed.weights["w1"].place()
    assert place is not None
    assert place.path == path  # in the original file
    text = program(path, bindings="iree", format="mlir:text")
    assert text.program.text.startswith('"builtin.module"')
    assert text.program.manifest == typed.program.manifest == program(text_program(0).encode()).program.manifest
    with pytest.raises(UsageError, match="bindings="):
        program(path, format="mlir:text")
    with pytest.raises(UsageError, match="bindings="):
        program(text_program(0).encode(), format="mlir:bytecode")
    again = program(text_program(0).encode(), format="mlir:bytecode", bindings="iree")
    assert again.program.topology == typed.program.topology


def test_a_live_module_keeps_its_bytes_for_as_long_as_its_weights(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = program(Bindings("iree").parse(text_program(0).encode()))
    part = found.weights.select(["w1"])
    del found
    np.testing.assert_array_equal(part["w1"].read(), arrays(0)["w1"])
    assert list(tmp_path.iterdir())
    del part
    assert not list(tmp_path.iterdir())


def test_wrong_use():
    text = text_program(0).encode()
    live = Bindings("iree").parse(text)
    for how in ({"format": "mlir:other"}, {"symbols": "beta"}, {"bindings": "other"}):
        with pytest.raises(UsageError, match="'"):
            program(text, **{"format": "mlir:bytecode", **how})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is for text"):
        program(live, to="parameter")
    with pytest.raises(UsageError, match="is for text"):
        program(live, format="mlir:bytecode", symbols="alpha")
    with pytest.raises(UsageError, match="'iree'"):
        program(live, bindings="jax")
    with pytest.raises(CheckpointError, match="byte"):
        program(b'module { "a')


# --- keys


def same_program(text: str) -> list[str]:
    return [
        text.replace("%x", "%input").replace("%h", "%7"),
        "// a comment\n" + text.replace("  ", "\t"),
        text.replace("math.tanh %h : tensor<4x16xf32>", 'math.tanh %h : tensor<4x16xf32> loc("x.py":1:2)'),
    ]


def other_programs(text: str) -> list[str]:
    return [
        text.replace("math.tanh", "math.sin"),
        text.replace("ins(%x, %w1", "ins(%w1, %x", 1),
        text.replace("dense<0.0> : tensor<4x16", "dense<1.0> : tensor<4x16"),
        text.replace("@main", "@other"),
        text.replace("private @w2", "@w2"),
    ]


@pytest.mark.parametrize("form", ["resource", "parameter"])
def test_a_stage_hits_for_other_names_places_and_weight_bytes(cache, form):
    @cache.stage
    def build(module: cachec.Program) -> int:
        return len(module.ir)

    def of(text: str, **how: Any) -> cachec.Program:
        return program(text.encode(), to=form, **how).program

    base = text_program(0)
    size = build(of(base))
    for text in [text_program(1), *same_program(base)]:
        assert text != base
        assert reason(cache, build, of(text)) == "hit"
        assert build(of(text)) == size
    for text in other_programs(base):
        assert text != base
        assert reason(cache, build, of(text)) == "miss:topology-changed"
    # a compiler that keeps debug information
    assert reason(cache, build, of(base, locations=True)) != "hit"
    assert reason(cache, build, of(text_program(1), locations=True)) == "hit"
    for text in same_program(base):
        assert reason(cache, build, of(text, locations=True)) != "hit"


def test_a_canonical_program_is_stored_as_one(cache):
    @cache.stage
    def lower(text: str) -> cachec.Program:
        return program(text.encode(), to="parameter").program

    @cache.stage
    def build(module: cachec.Program) -> int:
        return len(module.ir)

    build(lower(text_program(0)))
    again = lower(text_program(0))
    assert again.canonical is not None
    assert again.topology == program(same_program(text_program(0))[0].encode(), to="parameter").program.topology
    assert reason(cache, build, lower(same_program(text_program(0))[0])) == "hit"


def test_a_constant_that_stays_inline_is_keyed_by_value():
    programs = [program(inline_program(seed).encode(), minimum=10_000).program for seed in (0, 1, 0)]
    assert programs[0].topology == programs[2].topology != programs[1].topology
    lifted = [program(inline_program(seed).encode()) for seed in (0, 1)]
    assert lifted[0].program.topology == lifted[1].program.topology
    assert lifted[0].weights["w1"].read().tobytes() == arrays(0)["w1"].tobytes()


# --- symbols


def layer(first: str, second: str, *, swapped: bool = False) -> str:
    """The program with other names for its weights, declared and loaded in one order or in the other."""
    text = text_program(0)
    for row in (r"  util\.global private.*\n", r" *%\w+ = util\.global\.load.*\n"):
        rows = re.findall(row, text)
        assert "".join(rows) in text
        if swapped:
            text = text.replace("".join(rows), "".join(reversed(rows)))
    return re.sub(r"\bw([12])\b", lambda m: first if m[1] == "1" else second, text.replace("%w", "%v"))


@pytest.mark.parametrize("form", ["resource", "parameter"])
def test_equal_layers_are_one_program(form):
    names = [("layer0.a", "layer0.b"), ("layer1.a", "layer1.b"), ("z", "a")]
    texts = [layer(*each, swapped=swapped) for each in names for swapped in (False, True)]
    assert len(set(texts)) == 6
    found = [program(each.encode(), to=form, symbols="alpha") for each in texts]
    assert len({each.program.topology for each in found}) == 1
    assert len({each.program.ir for each in found}) == 1  # not in the hash alone
    rows = re.findall(r"^ *(?:%\w+ = )?util\.global.*?@alpha\.([0-9])", found[0].program.text, re.MULTILINE)
    assert rows == ["0", "1", "0", "1"]
    assert found[0].program.manifest.callers == {"alpha.0": "layer0.a", "alpha.1": "layer0.b"}
    assert found[4].program.manifest.callers == {"alpha.0": "z", "alpha.1": "a"}
    plain = {program(each.encode(), to=form).program.topology for each in texts}
    assert len(plain) == 6
    # the other way round is another program
    crossed = texts[0].replace("load @layer0.a", "load @X").replace("load @layer0.b", "load @layer0.a")
    crossed = crossed.replace("load @X", "load @layer0.b")
    other = program(crossed.encode(), to=form, symbols="alpha").program
    assert other.topology != found[0].program.topology


def test_symbols_that_are_seen_elsewhere_keep_their_names():
    public = layer("a", "b").replace("private @a", "@a")
    text = program(public.encode(), to="parameter", symbols="alpha").program.text
    assert "@a = " in text
    assert '"model"::"alpha.0"' in text
    called = layer("a", "b").replace("module @m {", "module @m {\n  module { func.func private @a() }\n")
    assert "@a = " in program(called.encode(), to="parameter", symbols="alpha").program.text
    in_string = layer("a", "b").replace("module @m {", 'module @m attributes {x = "@a"} { // @a')
    assert '"@a"} { // @a' in program(in_string.encode(), to="parameter", symbols="alpha").program.text


def test_a_text_that_has_such_names_already():
    text = layer("alpha.1", "alpha.0")
    found = program(text.encode(), symbols="alpha")
    assert found.program.manifest.callers == {"alpha_.0": "alpha.1", "alpha_.1": "alpha.0"}
    unused = WeightSet.from_arrays({**arrays(0), "alpha.0": arrays(1)["w2"]})
    names = alpha(text_program(0).encode(), to="resource", scope="", taken=unused).names
    assert names == {"alpha_.0": "w1", "alpha_.1": "w2"}
    manifest = alpha_manifest(unused.manifest, names)
    assert {name: spec.shape for name, spec in manifest.weights.items()} == {
        "alpha_.0": (8, 16),
        "alpha_.1": (16, 8),
        "alpha.0": (16, 8),
    }
    with pytest.raises(UsageError, match="linker"):
        program(b'module { memref.global "private" constant @w : memref<4xf32> }', to="undefined", symbols="alpha")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["on", "off"])
def test_two_layers_are_compiled_once_and_linked_to_their_own_weights(tmp_path, mode):
    """IREE's numbers."""
    import cachec_iree

    cache = cachec.Cache(tmp_path / "cache", log="off", mode=mode)
    layers = {}
    for number in range(2):
        values = {f"layer{number}.{name}": value for name, value in arrays(10 + number).items()}
        layers[number] = layer(f"layer{number}.w1", f"layer{number}.w2"), WeightSet.from_arrays(values)
    everything = WeightSet.from_arrays({n: w.read() for _, each in layers.values() for n, w in each.items()})

    @cache.stage
    def strip(text: str) -> cachec.Program:
        return program(text.encode(), to="parameter", symbols="alpha").program

    @cache.stage(tools=["iree-base-compiler"])
    def build(module: cachec.Program) -> cachec.File:
        return cachec_iree.compile(module, cpu="generic")

    outcomes = []
    for number, (text, weights) in layers.items():
        module, outcome = cache.call(build, strip(text))
        outcomes.append(outcome.reason.value)
        assert set(module.manifest.callers.values()) == set(weights)
        for offered in (weights, everything.select([f"layer{number}.*"])):
            found = cachec.link(module, offered)(X)
            np.testing.assert_allclose(found, expected(arrays(10 + number)), atol=1e-5)
        with pytest.raises(LinkError, match=rf"layer{number}\.w1"):
            cachec.link(module, layers[1 - number][1])
        with pytest.raises(LinkError, match="extra"):
            cachec.link(module, everything)
    assert outcomes[1] == ("hit" if mode == "on" else outcomes[0])


@pytest.mark.long
def test_the_names_of_weights_are_kept_in_the_trace(tmp_path):
    """Programs and files that a stage makes of several layers mean the weights of their own layer, also on a hit."""
    import cachec_iree

    layers = {}
    for number in range(2):
        values = {f"layer{number}.{name}": value for name, value in arrays(10 + number).items()}
        layers[number] = layer(f"layer{number}.w1", f"layer{number}.w2"), WeightSet.from_arrays(values)

    def check(artifact: cachec.File, number: int) -> None:
        found = cachec.link(artifact, layers[number][1])(X)
        np.testing.assert_allclose(found, expected(arrays(10 + number)), atol=1e-5)

    for turn in range(2):  # as two processes
        cache = cachec.Cache(tmp_path / "cache", log="off", mode="on")

        @cache.stage
        def strip(text: str) -> cachec.Program:
            return program(text.encode(), to="parameter", symbols="alpha").program

        @cache.stage(tools=["iree-base-compiler"])
        def build(module: cachec.Program) -> cachec.File:
            return cachec_iree.compile(module, cpu="generic")

        @cache.stage
        def whole(text: str, *, build=build, strip=strip) -> cachec.File:
            return build(strip(text))

        @cache.stage
        def mixed(
            module: cachec.Program, text: str, *, build=build, strip=strip
        ) -> tuple[cachec.File, cachec.File, cachec.Program, cachec.Program]:
            other = strip(text)
            return build(module), build(other), module, other

        outcomes = []
        for number, (text, _) in layers.items():
            program_, outcome = cache.call(strip, text)
            outcomes.append(outcome.reason.value)
            check(build(program_), number)
            made, outcome = cache.call(whole, text)
            outcomes.append(outcome.reason.value)
            check(made, number)
            (own, others, module, other), outcome = cache.call(mixed, program_, layers[1 - number][0])
            outcomes.append(outcome.reason.value)
            check(own, number)
            check(others, 1 - number)
            check(build(module), number)
            check(build(other), 1 - number)
        assert turn == 0 or set(outcomes) == {"hit"}


def test_tied_weights_are_tied_under_other_names(tmp_path):
    """Whichever of them is used first."""
    value = arrays(0)["w1"]
    for first, second in (("a", "b"), ("b", "a")):
        weights = WeightSet.from_arrays({"a": value, "b": value}, tied=[("a", "b")])
        text = layer(first, second).replace("tensor<16x8xf32>", "tensor<8x16xf32>")
        ir, names = alpha(text.encode(), to="resource", scope="", taken=weights)
        manifest = alpha_manifest(weights.manifest, names)
        assert names == {"alpha.0": first, "alpha.1": second}
        assert {spec.alias for spec in manifest.weights.values()} == {"alpha.0"}
        ir = ir[: ir.index(b"{-#")]
        assert link(ir, weights, tmp_path / "m.mlir", names=names, manifest=manifest).nbytes
        manifest.check(weights.rename({old: new for new, old in names.items()}).specs)


@pytest.mark.long
def test_jax_names_weights_by_their_order_of_use(cache):
    import jax
    import jax.numpy as jnp

    import cachec_iree
    from cachec_jax import to_stablehlo

    def of(prefix: str, first: str, second: str) -> tuple[cachec.Program, WeightSet]:
        a, b = f"{prefix}.{first}", f"{prefix}.{second}"

        def forward(weights: dict[str, Any], x: Any) -> Any:
            return jnp.tanh(x @ weights[a]) @ weights[b]

        weights = WeightSet.from_arrays({a: arrays(len(prefix))["w1"], b: arrays(len(prefix))["w2"]})
        return to_stablehlo(forward, weights, jax.ShapeDtypeStruct((4, 8), "float32"), symbols="alpha"), weights

    one, first = of("l", "up", "down")
    two, second = of("layer", "gate", "out")  # the other order of the alphabet
    assert one.topology == two.topology
    assert two.manifest.callers == {"alpha.0": "layer.gate", "alpha.1": "layer.out"}

    @cache.stage(tools=["iree-base-compiler"])
    def build(module: cachec.Program) -> cachec.File:
        return cachec_iree.compile(module, cpu="generic")

    for module, weights, seed in ((one, first, 1), (two, second, 5)):
        np.testing.assert_allclose(cachec.link(build(module), weights)(X), expected(arrays(seed)), atol=1e-5)
    assert reason(cache, build, two) == "hit"
    with pytest.raises(UsageError, match="alpha"):
        to_stablehlo(lambda weights, x: x, first, jax.ShapeDtypeStruct((4, 8), "float32"), symbols="beta")
