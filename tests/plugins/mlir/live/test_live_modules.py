"""Live modules of IREE's and JAX's bindings as arguments and results of stages."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path

import numpy as np
import pytest

import cachec
from cachec.errors import LinkError, PluginError, UsageError
from cachec.weights import WeightSet
from cachec_mlir import load, program, strip, topology
from cachec_mlir.live import live_modules
from cachec_mlir.live.bindings import Bindings, bindings_of, generic, write_bytecode
from cachec_mlir.plugin import MlirPlugin
from tests.plugins.mlir.conftest import PROGRAM, arrays, inline_program, trailer
from tests.plugins.mlir.conftest import program as text_program


def live(seed: int, bindings: str = "iree", text: str | None = None) -> object:
    """A module in memory with its weights: resources of 512 bytes."""
    found = program((text_program(seed) if text is None else text).encode())
    return load(found.program, found.weights, bindings=bindings)


def reason(cache: cachec.Cache, stage: object, *arguments: object) -> str:
    return cache.call(stage, *arguments)[1].reason.value


def resources(module: object, folder: Path) -> dict[str, bytes]:
    write_bytecode(module, folder / "look.mlirbc")
    found = strip(folder / "look.mlirbc").resources
    return {name: b"".join(resource.blob.pieces()) for name, resource in found.items()}


def weights_of(seed: int) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in arrays(seed).items()}


@pytest.fixture
def run() -> object:
    from iree.compiler import passmanager

    def inner(module: object, pipeline: str) -> None:
        passmanager.PassManager.parse(pipeline, context=module.context).run(module.operation)

    return inner


def test_a_module_is_an_argument_by_operations_and_bytes(cache):

    @cache.stage
    def size(module: object) -> int:
        return len(generic(module))

    text = text_program(0)
    size(live(0))
    assert reason(cache, size, live(0)) == "hit"
    assert reason(cache, size, live(0, text=text.replace("%t ", "%u ").replace("%t,", "%u,"))) == "hit"  # a name
    assert reason(cache, size, live(1)) != "hit"  # other bytes: the stage could read them
    assert reason(cache, size, live(0, text=text.replace("tanh", "sinh"))) != "hit"


def test_a_module_that_a_pass_changed_in_place_is_another(cache, run):
    """The same object, other content."""

    @cache.stage
    def text(module: object) -> str:
        return generic(module).decode()

    module = live(0)
    first = text(module)
    assert reason(cache, text, module) == "hit"
    run(module, "builtin.module(func.func(linalg-generalize-named-ops))")
    second = text(module)
    assert second != first
    assert "linalg.generic" in second


def test_a_stage_that_changes_its_argument_is_not_stored(cache, run):
    @cache.stage
    def generalised(module: object) -> str:
        run(module, "builtin.module(func.func(linalg-generalize-named-ops))")
        return generic(module).decode()

    assert "linalg.generic" in generalised(live(0))
    assert reason(cache, generalised, live(0)) != "hit"


@pytest.mark.parametrize("bindings", ["iree", "jax"])
@pytest.mark.sampled
def test_a_module_is_a_result_with_its_resources(cache, bindings, tmp_path):
    body = "func.func @f() -> tensor<8x16xf32> {{ %0 = {op} dense_resource<w1> : tensor<8x16xf32>\n"
    body += "return %0 : tensor<8x16xf32> }}"
    text = "module @m {\n" + body.format(op="stablehlo.constant" if bindings == "jax" else "arith.constant") + "\n}\n"
    trailer = text_program(0)[text_program(0).index("{-#") :]
    trailer = re.sub(r',\s*w2: "0x\w+"', "", trailer)

    @cache.stage
    def build(name: str) -> object:
        return live(0, name, text + trailer)

    fresh, (again, outcome) = build(bindings), cache.call(build, bindings)
    assert outcome.reason.value == "hit"
    for each in (fresh, again):
        assert bindings_of(each) == bindings
        assert resources(each, tmp_path) == {"w1": arrays(0)["w1"].tobytes()}
    assert fresh is not again
    assert topology(fresh) == topology(again) == topology(build.uncached(bindings))


@pytest.mark.long
def test_a_hit_can_be_changed_without_harm(cache, run):
    @cache.stage
    def build() -> object:
        return live(0)

    first = build()
    before = topology(first)
    run(first, "builtin.module(func.func(linalg-generalize-named-ops))")
    assert topology(first) != before
    assert topology(build()) == before


@pytest.mark.long
def test_what_is_stored_is_small_and_shares_the_resources(cache, run, tmp_path):
    @cache.stage
    def build(seed: int) -> object:
        return live(seed)

    @cache.stage
    def lower(module: object) -> object:
        run(copy := load(program(module).program, program(module).weights, bindings="iree"), "builtin.module(cse)")
        run(copy, "builtin.module(func.func(linalg-generalize-named-ops))")
        return copy

    lowered = lower(build(0))
    assert resources(lowered, tmp_path) == weights_of(0)
    stored = [path.read_bytes() for path in Path(cache.dir, "objects").rglob("*") if path.is_file()]
    for value in weights_of(0).values():
        assert stored.count(value) == 1
        assert not any(value in each for each in stored if each != value)
        assert not any(value.hex().upper().encode() in each.upper() for each in stored)
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in Path(cache.dir, "objects").rglob("*") if path.is_file())


def test_a_module_goes_between_two_llvm_versions_as_text(tmp_path):
    text = "module { func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { %c = arith.constant dense_resource<w> : "
    text += "tensor<4xf32>\n %y = arith.addf %x, %c : tensor<4xf32>\n return %y : tensor<4xf32> } }\n"
    values = np.arange(4, dtype="f4")
    from tests.plugins.mlir.conftest import trailer

    there = live(0, "iree", text + trailer({"w": values}))
    sent = program(there)
    assert len(sent.program.ir) < 2000
    here = load(sent.program, sent.weights, bindings="jax")
    assert bindings_of(here) == "jax"
    assert resources(here, tmp_path) == {"w": values.tobytes()}
    back = program(here)
    again = load(back.program, back.weights, bindings="iree")
    assert generic(again) == generic(there)
    assert (back.weights["w"].read() == values).all()


def test_mlir_19_reads_what_is_sent(mlir_opt, tmp_path):
    sent = program(live(0, text="module { func.func @f(%x: i32) -> i32 { return %x : i32 } }"))
    assert b"func.func @f" in mlir_opt(sent.program.ir)


def test_what_does_not_fit_is_refused():
    found = program(text_program(0).encode())
    with pytest.raises(LinkError, match="'w2'"):
        load(found.program, found.weights.select(["w1"]), bindings="iree")
    other = arrays(0) | {"w1": arrays(0)["w1"].reshape(16, 8)}
    with pytest.raises(LinkError, match=r"'w1'.*shape"):
        load(found.program, WeightSet.from_arrays(other), bindings="iree")
    with pytest.raises(UsageError, match="'mlir:text'"):
        load(cachec.Program("", format="jax:stablehlo", manifest=cachec.Manifest.of({})), bindings="iree")
    declared = load(found.program, bindings="iree")
    assert b"dense_resource<w1>" in generic(declared)


@pytest.mark.parametrize("nbytes", [0, 1, 16, 4096, 16384 - 4096, 16384, 3 * 4096 + 64])
@pytest.mark.parametrize("alignment", [16, 64, 4096])
def test_resources_of_any_size_are_read_back(nbytes, alignment, tmp_path):
    """LLVM maps large files only, and none that a page ends with; the rest it would not align."""
    kind = f"tensor<{nbytes}xi8>"
    text = f"module {{ util.global private @w = dense_resource<w> : {kind} }}".encode()
    if not nbytes:
        text = b"module { util.global private @w = dense<> : tensor<0xi8> }"
    found = program(text)
    value = np.random.default_rng(nbytes).integers(0, 127, nbytes, dtype="i1")
    weights = WeightSet.from_arrays({"w": value} if nbytes else {})
    module = load(found.program, weights, bindings="iree", alignment=alignment)
    assert resources(module, tmp_path) == ({"w": value.tobytes()} if nbytes else {})


# --- by reference


@pytest.fixture
def no_copy(monkeypatch) -> None:
    """Linking to a file of its own is an error."""

    def refused(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(live_modules, "_load_mapped", refused)


def saved(values: dict[str, np.ndarray], path: Path) -> WeightSet:
    WeightSet.from_arrays(values).save(path)
    return cachec.open_weights(path)


def test_weights_of_a_file_are_used_where_they_lie(no_copy, run, tmp_path):
    found = program(text_program(0).encode()).program
    weights = saved(arrays(1), tmp_path / "w.safetensors")
    module = load(found, weights, bindings="iree", alignment=8)
    assert generic(module) == generic(Bindings("iree").parse(text_program(1).encode()))
    del weights
    (tmp_path / "w.safetensors").unlink()
    gc.collect()
    run(module, "builtin.module(func.func(linalg-generalize-named-ops), cse)")
    assert resources(module, tmp_path) == weights_of(1)


def test_in_place_and_copied_are_the_same_module(tmp_path, monkeypatch):
    found = program(text_program(0).encode()).program
    weights = saved(arrays(1), tmp_path / "w.safetensors")
    in_place = load(found, weights, bindings="iree", alignment=8)
    monkeypatch.setattr(live_modules, "views_in_place", lambda bound: None)
    copied = load(found, weights, bindings="iree", alignment=8)
    assert live_modules.fingerprint(in_place) == live_modules.fingerprint(copied)
    assert str(in_place) == str(copied)


@pytest.mark.parametrize("bindings", ["iree", "jax"])
def test_a_stored_module_comes_back_without_a_copy(no_copy, bindings, tmp_path):
    nbytes = 24 << 20
    text = f"module {{ func.func private @f() attributes {{a.b = dense_resource<w> : tensor<{nbytes}xi8>}} }}"
    value = np.arange(nbytes, dtype="u1").view("i1")
    np.savez(tmp_path / "w.npz", w=value)
    plugin, out = MlirPlugin(), Out(tmp_path)
    weights = cachec.open_weights(tmp_path / "w.npz")
    meta = plugin.encode(load(program(text.encode()).program, weights, bindings=bindings, alignment=1), out)
    before = private()
    module = plugin.decode(meta, out.paths)
    assert private() - before < 8 << 20
    for path in out.paths:
        path.unlink()
    assert resources(module, tmp_path)["w"] == value.tobytes()


def private() -> int:
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


USES = {
    "in a list": "a.b = [dense_resource<w> : tensor<4xf32>]",
    "in a dictionary": "a.b = {c = dense_resource<w> : tensor<4xf32>}",
    "of two types": "a.b = dense_resource<w> : tensor<4xf32>, a.c = dense_resource<w> : tensor<2x2xf32>",
    "in both": "a.b = dense_resource<w> : tensor<4xf32>, a.c = [dense_resource<w> : tensor<4xf32>]",
    "twice": "a.b = dense_resource<w> : tensor<4xf32>, a.c = dense_resource<w> : tensor<4xf32>",
    "a name that is no word": 'a.b = dense_resource<"w"> : tensor<4xf32>, a.c = "dense_resource<w>"',
    "a name like a placeholder": 'a.b = dense_resource<w> : tensor<4xf32>, a.c = "cachec-resource-0"',
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bindings", ["iree", "jax"])
def test_wherever_a_resource_is_used_it_has_its_bytes(use, bindings, tmp_path):
    """In place where that can be done, copied where not."""
    text = f"module attributes {{{USES[use]}}} {{}}"
    values = {"w": np.arange(4, dtype="f4")}
    weights = saved(values, tmp_path / "w.safetensors")
    found = cachec.Program(text, format="mlir:text", manifest=weights.manifest)
    module = load(found, weights, bindings=bindings, alignment=8)
    assert generic(module) == generic(Bindings(bindings).parse(text.encode()))
    assert resources(module, tmp_path) == {"w": values["w"].tobytes()}


def test_what_can_not_be_used_in_place_is_copied(tmp_path):
    found = program(text_program(0).encode()).program
    skewed = tmp_path / "w.bin"
    values = arrays(1)
    skewed.write_bytes(b"\0" * 3 + values["w1"].tobytes() + values["w2"].tobytes())
    specs = found.manifest.weights
    odd = WeightSet.from_weights(
        {
            "w1": WeightSet.from_files({"w1": (cut(skewed, 3, 512), specs["w1"])})["w1"],
            "w2": WeightSet.from_arrays(values)["w2"],
        }
    )
    for weights in (WeightSet.from_arrays(values), odd):
        assert resources(load(found, weights, bindings="iree"), tmp_path) == weights_of(1)
    good = saved(values, tmp_path / "w.safetensors")
    for alignment in (1, 8, 64, 4096):
        module = load(found, good, bindings="iree", alignment=alignment)
        assert resources(module, tmp_path) == weights_of(1)


def test_an_alignment_that_mlir_can_not_give_is_refused(tmp_path):
    """A mapped file begins at a page, so a larger alignment would be read or not as the address happens to be."""
    found = program(text_program(0).encode()).program
    with pytest.raises(LinkError, match="aligned to 8192 bytes"):
        load(found, WeightSet.from_arrays(arrays(1)), bindings="iree", alignment=8192)
    text = PROGRAM.format(w1="dense_resource<w1>", w2="dense_resource<w2>") + trailer(arrays(0), 8192)
    with pytest.raises(cachec.UnstorableResult, match=r"'w1' of an ir\.Module is aligned to 8192 bytes"):
        MlirPlugin().encode(Bindings("iree").parse(text.encode()), Out(tmp_path))


def cut(path: Path, start: int, nbytes: int) -> Path:
    out = path.with_suffix(f".{start}")
    out.write_bytes(path.read_bytes()[start : start + nbytes])
    return out


# --- bad rows


class Out:
    """An ArtifactWriter to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def write(self, data: bytes | memoryview) -> None:
        self.paths.append(self.folder / f"artifact{len(self.paths)}")
        self.paths[-1].write_bytes(data)

    def copy(self, path: Path) -> None:
        self.write(path.read_bytes())


def test_a_malformed_row_is_refused(tmp_path):
    plugin, out = MlirPlugin(), Out(tmp_path)
    meta = plugin.encode(live(0), out)
    assert topology(plugin.decode(json.loads(json.dumps(meta)), out.paths)) == topology(live(0))
    first, second = meta["resources"]
    bad = [
        ({**meta, "bindings": "other"}, out.paths),
        ({**meta, "bindings": 3}, out.paths),
        ({**meta, "more": 1}, out.paths),
        ({**meta, "resources": [first]}, out.paths),
        ({**meta, "resources": [first, first]}, out.paths),
        ({**meta, "resources": [first, {**second, "name": "other"}]}, out.paths),
        ({**meta, "resources": [first, {**second, "alignment": 3}]}, out.paths),
        ({**meta, "resources": [first, {**second, "alignment": 0}]}, out.paths),
        ({**meta, "resources": [first, {**second, "alignment": 1 << 40}]}, out.paths),
        (meta, out.paths[:2]),
        (meta, [out.paths[1], out.paths[1], out.paths[2]]),
    ]
    for each, paths in bad:
        with pytest.raises((PluginError, ValueError, UsageError)):
            plugin.decode(each, paths)
    data = out.paths[0].read_bytes()
    for cut in range(0, len(data), 37):
        out.paths[0].write_bytes(data[:cut])
        with pytest.raises((PluginError, ValueError)):
            plugin.decode(meta, out.paths)


def test_compare_says_what_differs():
    plugin = MlirPlugin()
    assert plugin.compare(live(0), live(0)) is None
    assert "math.tanh" in plugin.compare(live(0, text=text_program(0).replace("tanh", "sinh")), live(0))
    assert plugin.compare(live(1), live(0)) == "the bytes of a resource differ"


def test_strip_gives_the_program_of_just_these_weights():
    plugin = MlirPlugin()
    found = plugin.strip(live(0), WeightSet.from_arrays(arrays(1)))
    assert found.format == "mlir:text"
    assert found.topology == plugin.strip(live(1), WeightSet.from_arrays(arrays(1))).topology
    with pytest.raises(LinkError, match="'w2'"):
        plugin.strip(live(0), WeightSet.from_arrays({"w1": arrays(0)["w1"]}))
    with pytest.raises(PluginError, match="does not strip"):
        plugin.strip(b"module {}", WeightSet.from_arrays({}))


def test_inline_constants_are_part_of_a_module(cache):
    @cache.stage
    def text(module: object) -> str:
        return generic(module).decode()

    one, other = (Bindings("iree").parse(inline_program(seed).encode()) for seed in (0, 1))
    assert text(one) == generic(one).decode() != text(other)
