"""Libraries whose weights are undefined symbols: bound where the weights lie, any number of sets at once."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachec
import cachec_native as native
from cachec.errors import LinkError, PluginError, UsageError
from cachec.weights import WeightSet
from tests.plugins.native.conftest import BATCH, X, arrays, call, compiled, expected


def test_every_weight_set_computes_with_its_own_numbers(library, save):
    for seed in (0, 1):
        linked = cachec.link(library, save(arrays(seed), f"{seed}.safetensors"))
        np.testing.assert_allclose(call(linked), expected(arrays(seed), X), rtol=1e-4, atol=1e-4)


def test_it_computes_what_the_inline_module_does(mlp, library):
    inside = compiled(mlp.inline_mlp(arrays(3), BATCH), WeightSet.from_arrays({}))
    found = call(cachec.link(inside, WeightSet.from_arrays({})))
    np.testing.assert_allclose(call(cachec.link(library, WeightSet.from_arrays(arrays(3)))), found, rtol=1e-5)


def test_many_sets_are_live_at_once(library, save):
    """More than the sixteen namespaces of dlmopen; used in turn, and again after others are gone."""
    linked = {seed: cachec.link(library, save(arrays(seed), f"{seed}.safetensors")) for seed in range(24)}
    for seed, each in linked.items():
        np.testing.assert_allclose(call(each), expected(arrays(seed), X), rtol=1e-4, atol=1e-4)
    for seed in range(0, 24, 2):
        del linked[seed]
    gc.collect()
    for seed in range(24, 30):
        linked[seed] = cachec.link(library, save(arrays(seed), f"{seed}.safetensors"))
    for seed, each in linked.items():
        np.testing.assert_allclose(call(each), expected(arrays(seed), X), rtol=1e-4, atol=1e-4)


def test_threads_link_at_the_same_time(library):
    from concurrent.futures import ThreadPoolExecutor

    def one(seed: int) -> float:
        found = call(cachec.link(library, WeightSet.from_arrays(arrays(seed))))
        return float(abs(found - expected(arrays(seed), X)).max())

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(one, range(64))) < 1e-3


def loaded() -> int:
    return sum("cachec-native" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.long
def test_what_is_no_longer_used_is_unloaded(library):
    gc.collect()
    before = loaded()
    linked = cachec.link(library, WeightSet.from_arrays(arrays(0)))
    assert loaded() > before
    run = linked.function("mlp", inputs=[("float32", X.shape)], outputs=[("float32", X.shape)])
    del linked
    gc.collect()
    np.testing.assert_allclose(run(X), expected(arrays(0), X), rtol=1e-4, atol=1e-4)
    del run
    gc.collect()
    assert loaded() == before


def test_a_function_outlives_the_weight_set(library, save):
    with save(arrays(0)) as weights:
        linked = cachec.link(library, weights)
    del weights
    gc.collect()
    np.testing.assert_allclose(call(linked), expected(arrays(0), X), rtol=1e-4, atol=1e-4)


def test_weights_in_memory_and_read_into_memory_link_too(library, save, tmp_path):
    save(arrays(0))
    for weights in (
        WeightSet.from_arrays(arrays(0)),
        cachec.open_weights(tmp_path / "w.safetensors", access="read"),
    ):
        np.testing.assert_allclose(call(cachec.link(library, weights)), expected(arrays(0), X), rtol=1e-4, atol=1e-4)


def test_sets_that_do_not_fit_are_refused(library):
    fitting = WeightSet.from_arrays(arrays(0))
    with pytest.raises(LinkError, match="missing 'b1'"):
        cachec.link(library, fitting.select(exclude=["b1"]))
    with pytest.raises(LinkError, match=r"'w1': shape expected \(16, 48\), found \(16, 49\)"):
        cachec.link(library, WeightSet.from_arrays(arrays(0) | {"w1": np.ones((16, 49), "f4")}))
    with pytest.raises(LinkError, match="dtype expected 'float32'"):
        cachec.link(library, WeightSet.from_arrays(arrays(0) | {"b1": np.ones(48, "i4")}))
    with pytest.raises(LinkError, match="extra 'more'"):
        cachec.link(library, WeightSet.from_arrays(arrays(0) | {"more": np.ones(2, "f4")}))


MEMORY = """
import json, sys, numpy as np, cachec
import cachec_native.linker
weights = cachec.open_weights(sys.argv[1])
file = cachec.File(sys.argv[2], kind="native:library", manifest=weights.manifest)
shape = (1, weights["w1"].shape[0])
def private():
    fields = dict(line.split(":") for line in open("/proc/self/smaps_rollup") if line.endswith("kB\\n"))
    return int(fields["Anonymous"].split()[0]) * 1024
def run():
    linked = cachec.link(file, cachec.open_weights(sys.argv[1]))
    run = linked.function("mlp", inputs=[("float32", shape)], outputs=[("float32", shape)])
    return linked, float(run(np.ones(shape, "f4")).sum())
first = run()
before = private()
linked, total = run()
print(json.dumps([private() - before, total, linked.copied]))
"""


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.sampled
def test_a_swap_takes_no_private_memory(mlp, save, tmp_path, aligned):
    """32 MiB of weights, all of them read. In place, unless the module states an alignment that their file lacks."""
    w = {"w1": np.ones((1024, 4096), "f4"), "b1": np.zeros(4096, "f4"), "w2": np.ones((4096, 1024), "f4")}
    weights = save(w)
    text = mlp.mlp(weights.specs, 1)
    if not aligned:
        text = text.replace("memref<1024x4096xf32>\n", "memref<1024x4096xf32> {alignment = 64}\n", 1)
    file = compiled(text, weights)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "w.safetensors"), str(file.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, total, copied = json.loads(done.stdout)
    assert total == 1024 * 1024 * 4096
    if aligned:
        assert (copied, grown < 1 << 20) == ([], True), grown
    else:
        assert copied == ["w1"]
        assert w["w1"].nbytes <= grown < w["w1"].nbytes * 1.2


def test_aligned_files_are_used_in_place_at_any_stated_alignment(mlp, save):
    weights = save({"w1": arrays(0)["w1"], "w2": arrays(0)["w2"], "b1": arrays(0)["b1"]}, skew=0)
    text = mlp.mlp(weights.specs, BATCH).replace("xf32>\n", "xf32> {alignment = 64}\n", 3)
    linked = cachec.link(compiled(text, weights), weights)
    assert linked.copied == ()
    np.testing.assert_allclose(call(linked), expected(arrays(0), X), rtol=1e-4, atol=1e-4)


COUNTER = """\
memref.global @n : memref<2048xf32>
func.func @count(%y: memref<1xf32>) attributes {llvm.emit_c_interface} {
  %i = arith.constant 1 : index
  %j = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %n = memref.get_global @n : memref<2048xf32>
  %old = memref.load %n[%i] : memref<2048xf32>
  %new = arith.addf %old, %one : f32
  memref.store %new, %n[%i] : memref<2048xf32>
  memref.store %new, %y[%j] : memref<1xf32>
  return
}
"""


@pytest.mark.parametrize("access", ["mmap", "read"])
def test_code_that_writes_to_a_weight_writes_to_a_copy_of_its_own(save, tmp_path, access):
    """What is not ``constant`` may be written to: pages of a file that nobody else sees, and no file changes."""
    start = np.arange(2048, dtype="f4")
    save({"n": start})
    before = (tmp_path / "w.safetensors").read_bytes()
    weights = cachec.open_weights(tmp_path / "w.safetensors", access=access)
    file = compiled(COUNTER, weights)
    one, two = (cachec.link(file, weights) for _ in range(2))
    assert one.copied == (() if access == "mmap" else ("n",))
    count, other = (each.function("count", outputs=[("float32", (1,))]) for each in (one, two))
    assert [float(count()[0]) for _ in range(3)] == [2, 3, 4]
    assert float(other()[0]) == 2
    np.testing.assert_array_equal(weights["n"].read(), start)
    assert (tmp_path / "w.safetensors").read_bytes() == before


def test_thousands_of_weights_take_few_descriptors(save):
    names = {f"w{i}": "f32" for i in range(300)}
    weights = save({name: np.full(3, i, "f4") for i, name in enumerate(names)})
    before = len(list(Path("/proc/self/fd").iterdir()))
    linked = cachec.link(compiled(sums(names), weights), weights)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 10
    assert linked.copied == ()
    assert main(linked) == sum(range(300))


def test_what_strip_makes_is_what_this_takes(mlp, tmp_path):
    """From a module with its weights inside, to a library, to the same numbers; then others."""
    from cachec_mlir import program

    (tmp_path / "inside.mlir").write_text(mlp.inline_mlp(arrays(0), BATCH))
    stripped, inside, _ = program(tmp_path / "inside.mlir", to="undefined", minimum=64)
    assert stripped.manifest == WeightSet.from_arrays(arrays(0)).manifest
    library = native.to_library(native.to_llvm_ir(native.to_llvm_dialect(stripped)))
    for weights, seed in ((inside, 0), (WeightSet.from_arrays(arrays(1)), 1)):
        found = call(cachec.link(library, weights))
        np.testing.assert_allclose(found, expected(arrays(seed), X), rtol=1e-4, atol=1e-4)


def sums(names: dict[str, str]) -> str:
    """y[0] = the sum of element 0 of every weight; names: weight -> type of its elements."""
    lines = [
        f"memref.global @{json.dumps(name, ensure_ascii=False)} : memref<3x{kind}>" for name, kind in names.items()
    ]
    lines += [
        "func.func @main(%y: memref<1xf32>) attributes {llvm.emit_c_interface} {",
        "%i = arith.constant 0 : index",
        "%s0 = arith.constant 0.0 : f32",
    ]
    for i, (name, kind) in enumerate(names.items()):
        lines += [
            f"%w{i} = memref.get_global @{json.dumps(name, ensure_ascii=False)} : memref<3x{kind}>",
            f"%e{i} = memref.load %w{i}[%i] : memref<3x{kind}>",
            f"%f{i} = "
            + {
                "f32": f"arith.addf %e{i}, %s0 : f32",
                "f64": f"arith.truncf %e{i} : f64 to f32",
                "bf16": f"arith.extf %e{i} : bf16 to f32",
                "i8": f"arith.sitofp %e{i} : i8 to f32",
                "i1": f"arith.uitofp %e{i} : i1 to f32",
            }[kind],
            f"%s{i + 1} = arith.addf %s{i}, %f{i} : f32",
        ]
    lines += [f"memref.store %s{len(names)}, %y[%i] : memref<1xf32>", "return }"]
    return "\n".join(lines)


def main(linked) -> float:
    return float(linked.function("main", outputs=[("float32", (1,))])()[0])


def test_names_and_types_of_weights(save):
    """The function is called ``main``, as one of the interpreter is."""
    import ml_dtypes

    w = {
        "naïve name": np.array([2, 0, 0], "f8"),
        "encoder.layer.0/a::b": np.array([1, 2, 3], "f4"),
        "$x": np.array([16, 0, 0], "f4"),
        "half": np.array([4, 0, 0], ml_dtypes.bfloat16),
        "bytes": np.array([-8, 0, 0], "i1"),
        "flag": np.array([True, False, False]),
    }
    weights = save(w)
    kinds = dict(zip(w, ("f64", "f32", "f32", "bf16", "i8", "i1"), strict=True))
    assert main(cachec.link(compiled(sums(kinds), weights), weights)) == 1 + 2 + 4 - 8 + 1 + 16


def test_a_weight_that_the_code_does_not_use_may_be_there():
    weights = WeightSet.from_arrays({"a": np.ones(3, "f4"), "unused": np.ones(3, "f4"), "none": np.ones((0, 3), "f4")})
    assert main(cachec.link(compiled(sums({"a": "f32"}), weights), weights)) == 1


@pytest.mark.parametrize("name", ["exp", "malloc", "environ"])
def test_a_weight_may_not_be_called_as_a_symbol_of_a_library_is(name):
    weights = WeightSet.from_arrays({name: np.ones(3, "f4")})
    with pytest.raises(PluginError, match=f"'{name}'.*rename"):
        compiled(sums({name: "f32"}), weights)


def test_a_version_in_a_name_is_refused():
    weights = WeightSet.from_arrays({"a@b": np.ones(3, "f4")})
    with pytest.raises(PluginError, match=r"'a@b'.*rename"):
        compiled(sums({"a@b": "f32"}), weights)


def test_a_private_weight_without_initialiser_is_refused():
    """mlir-translate makes ``undef`` of it, and clang drops the code that reads it: silently wrong."""
    weights = WeightSet.from_arrays({"a": np.ones(3, "f4")})
    with pytest.raises(PluginError, match=r"'a' is no undefined symbol.*public"):
        compiled(sums({"a": "f32"}).replace("memref.global @", 'memref.global "private" @'), weights)


def test_a_weight_that_is_inside_as_well_is_refused():
    weights = WeightSet.from_arrays({"a": np.ones(3, "f4")})
    text = sums({"a": "f32"}).replace("memref<3xf32>", "memref<3xf32> = dense<[1.0, 2.0, 3.0]>", 1)
    with pytest.raises(PluginError, match="'a' is no undefined symbol"):
        compiled(text, weights)


@pytest.mark.parametrize("wrong", [np.ones(4, "f4"), np.ones((1, 3), "f4"), np.ones(3, "f8"), np.ones(3, "i4")])
def test_a_manifest_that_says_something_else_than_the_module_is_refused(wrong):
    with pytest.raises(PluginError, match=r"'a' is .3 x float. in the module"):
        compiled(sums({"a": "f32"}), WeightSet.from_arrays({"a": wrong}))


def test_a_global_that_is_no_weight_is_refused():
    with pytest.raises(PluginError, match=r"needs 'b'.*neither one of its weights"):
        compiled(sums({"a": "f32", "b": "f32"}), WeightSet.from_arrays({"a": np.ones(3, "f4")}))


def test_calls_are_checked(library):
    linked = cachec.link(library, WeightSet.from_arrays(arrays(0)))
    run = linked.function("mlp", inputs=[("float32", X.shape)], outputs=[("float32", X.shape)])
    with pytest.raises(UsageError, match=r"argument 0 expected float32 \[4, 16\], found float64 \[4, 16\]"):
        run(X.astype("f8"))
    with pytest.raises(UsageError, match=r"found float32 \[16, 4\]"):
        run(X.T)
    with pytest.raises(UsageError, match="takes 1 arrays, found 2"):
        run(X, X)
    with pytest.raises(UsageError, match="emit_c_interface"):
        linked.function("other")
    np.testing.assert_allclose(run(np.asfortranarray(X)), expected(arrays(0), X), rtol=1e-4, atol=1e-4)


def test_only_such_files_are_linked(library):
    from cachec_native import plugin

    with pytest.raises(PluginError, match="does not link"):
        plugin.link(cachec.File(library.path, kind="mlir:other"), WeightSet.from_arrays({}))


@pytest.mark.parametrize("found", ["glibc 2.27", "glibc 1.99", None, "", "musl", ValueError])
def test_a_loader_that_may_not_do_it_is_refused(library, monkeypatch, found):
    def confstr(name):
        if found is ValueError:
            raise ValueError("unrecognized configuration name")
        return found

    monkeypatch.setattr("os.confstr", confstr)
    with pytest.raises(LinkError, match=r"expected glibc 2.28 or later"):
        cachec.link(library, WeightSet.from_arrays(arrays(0)))


def test_a_damaged_library_is_a_link_error(library, tmp_path):
    """Cut anywhere, it is refused before it is loaded: the section headers are at the end of the file."""
    data = library.read_bytes()
    path = tmp_path / "cut.so"
    weights = WeightSet.from_arrays(arrays(0))
    for keep in [*range(0, 200, 7), *range(200, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:keep])
        with pytest.raises(LinkError, match="no library that can be linked"):
            cachec.link(cachec.File(path, kind="native:library", manifest=library.manifest), weights)
    path.write_bytes(b"\x7fELF\1" + data[5:])
    with pytest.raises(LinkError, match="only 64-bit"):
        cachec.link(cachec.File(path, kind="native:library", manifest=library.manifest), weights)


def test_mutated_headers_are_read_or_refused(library):
    """Nothing but a LinkError, whatever stands where sizes, offsets and names do."""
    from cachec_native.elf import Library

    data = library.read_bytes()
    r = np.random.default_rng(0)
    headers = int.from_bytes(data[40:48], "little")
    places = [*range(64), *range(headers, len(data))]
    table = data.index(b"_mlir_ciface_mlp")
    places += range(table - 400, table + 100)
    refused = 0
    for _ in range(3000):
        mutated = bytearray(data)
        for at in r.choice(places, size=r.integers(1, 4)):
            mutated[at] = r.integers(256)
        try:
            Library(bytes(mutated), "it")
        except LinkError:
            refused += 1
    assert 0 < refused < 3000


@pytest.mark.parametrize("said", [b"48", b"0", b"-1", b"8192", b'"4"', b"4,"])
def test_a_damaged_section_is_a_link_error(library, tmp_path, said):
    from cachec_native.elf import SECTION, Library

    data = library.read_bytes()
    section = Library(data, "x").needs
    needs = {"alignment": 4, "constant": True}
    assert json.loads(section) == {"b1": needs, "w1": needs, "w2": needs}
    changed = b'{"w1":{"alignment":%s,"constant":true}}' % said
    (tmp_path / "bad.so").write_bytes(data.replace(section, changed.ljust(len(section))))
    with pytest.raises(LinkError, match=SECTION):
        cachec.link(
            cachec.File(tmp_path / "bad.so", kind="native:library", manifest=library.manifest),
            WeightSet.from_arrays(arrays(0)),
        )


def test_a_library_without_needs_gets_64(library, tmp_path, save):
    """One that was made by another build: nothing says what its code counts on."""
    (tmp_path / "other.so").write_bytes(library.read_bytes().replace(b".cachec.weights", b".cachec.nothing"))
    linked = cachec.link(
        cachec.File(tmp_path / "other.so", kind="native:library", manifest=library.manifest), save(arrays(0))
    )
    assert sorted(linked.copied) == ["b1", "w1", "w2"]
    np.testing.assert_allclose(call(linked), expected(arrays(0), X), rtol=1e-4, atol=1e-4)
