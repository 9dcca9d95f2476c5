"""MLIR to native as cached stages: what each stage depends on, and what it makes."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachec
import cachec_mlir
import cachec_native as native
from cachec.errors import PluginError, UsageError
from cachec.model import Reason
from cachec.weights import WeightSet
from cachec_mlir.compilers import named_files
from tests.plugins.native.conftest import BATCH, EXAMPLE, X, arrays, call, compiled, expected


@pytest.fixture
def stages(cache, mlp):
    """The example's stages in a cache of their own; calls them all and says how each ended."""

    @cache.stage(version="1")
    def describe(weights: cachec.WeightSet, threshold: float) -> cachec.Program:
        text = mlp.mlp(weights.placeholders().specs, BATCH, threshold=threshold)
        return cachec.Program(text, format="mlir:text", manifest=weights.manifest)

    @cache.stage
    def lower(program: cachec.Program, passes=native.PASSES) -> cachec.Program:
        return native.to_llvm_dialect(program, passes=passes)

    @cache.stage
    def translate(program: cachec.Program) -> cachec.Program:
        return native.to_llvm_ir(program)

    @cache.stage
    def build(program: cachec.Program, level: int) -> cachec.File:
        return native.to_library(program, options=[f"-O{level}"])

    def run(weights, *, threshold=0.0, level=2, passes=native.PASSES):
        program, one = cache.call(describe, weights, threshold)
        program, two = cache.call(lower, program, passes)
        program, three = cache.call(translate, program)
        library, four = cache.call(build, program, level)
        return library, [each.reason for each in (one, two, three, four)]

    return run


def test_new_weights_hit_everywhere_and_compute_with_their_own_numbers(stages, save):
    first, second = save(arrays(0), "0.safetensors"), save(arrays(1), "1.safetensors")
    library, cold = stages(first)
    assert [reason.kind for reason in cold] == ["miss"] * 4
    np.testing.assert_allclose(call(cachec.link(library, first)), expected(arrays(0), X), rtol=1e-4, atol=1e-4)
    library, warm = stages(second)
    assert warm == [Reason.HIT] * 4
    np.testing.assert_allclose(call(cachec.link(library, second)), expected(arrays(1), X), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_constant_that_no_name_stands_for_is_in_every_key(stages):
    weights = WeightSet.from_arrays(arrays(0))
    results = {}
    for threshold in (0.0, 1.5):
        library, reasons = stages(weights, threshold=threshold)
        assert all(reason.kind == "miss" for reason in reasons), reasons
        results[threshold] = call(cachec.link(library, weights))
    hidden = X @ arrays(0)["w1"] + arrays(0)["b1"]
    for threshold, found in results.items():
        want = np.maximum(hidden, np.float32(threshold)) @ arrays(0)["w2"]
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_an_option_of_the_last_tool_runs_the_last_tool_alone(stages):
    weights = WeightSet.from_arrays(arrays(0))
    stages(weights)
    _, reasons = stages(weights, level=1)
    assert reasons == [Reason.HIT] * 3 + [Reason.OPTION_CHANGED]


def test_early_cutoff(stages):
    """Passes that make the same module: mlir-opt runs, what follows does not."""
    weights = WeightSet.from_arrays(arrays(0))
    stages(weights)
    _, reasons = stages(weights, passes=("--canonicalize=test-convergence=false max-iterations=0", *native.PASSES))
    assert reasons == [Reason.HIT, Reason.OPTION_CHANGED, Reason.HIT, Reason.HIT]


@pytest.mark.long
def test_another_shape_compiles_anew(stages):
    stages(WeightSet.from_arrays(arrays(0)))
    library, reasons = stages(WeightSet.from_arrays(arrays(0, hidden=32)))
    assert all(reason.kind == "miss" for reason in reasons)
    found = call(cachec.link(library, WeightSet.from_arrays(arrays(0, hidden=32))))
    np.testing.assert_allclose(found, expected(arrays(0, hidden=32), X), rtol=1e-4, atol=1e-4)


def test_two_compiles_in_different_folders_are_equal_byte_for_byte(library, mlp, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    weights = WeightSet.from_arrays(arrays(1))
    again = compiled(mlp.mlp(weights.specs, BATCH), weights)
    assert tmp_path in again.path.parents
    assert again.read_bytes() == library.read_bytes()
    for leak in (os.fsencode(tmp_path), b"program.mlir", b"cachec-", os.fsencode(Path.home()) + b"/"):
        assert leak not in again.read_bytes()


def test_the_file_says_what_it_is_and_goes_with_the_object(mlp):
    weights = WeightSet.from_arrays(arrays(0))
    file = compiled(mlp.mlp(weights.specs, BATCH), weights)
    assert (file.kind, file.name, file.manifest) == ("native:library", "program.so", weights.manifest)
    folder = file.path.parent
    assert folder.is_dir()
    del file
    gc.collect()
    assert not folder.exists()


def test_the_tools_and_what_they_load_are_in_the_trace(cache, mlp, monkeypatch, tmp_path):
    """Another build of a library that the tool loads is another tool: here a script in its place."""
    weights = WeightSet.from_arrays(arrays(0))
    program = cachec.Program(mlp.mlp(weights.specs, BATCH), format="mlir:text", manifest=weights.manifest)

    @cache.stage
    def lower(program: cachec.Program) -> cachec.Program:
        return native.to_llvm_dialect(program)

    assert cache.call(lower, program)[1].reason is Reason.FIRST_RUN
    assert cache.call(lower, program)[1].reason is Reason.HIT
    (tmp_path / "mlir-opt-19").write_text('#!/bin/sh\nexec /usr/bin/mlir-opt-19 "$@"\n')
    (tmp_path / "mlir-opt-19").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert cache.call(lower, program)[1].reason is Reason.DEPENDENCY_CHANGED


def test_names_are_not_kept_of_a_program_that_is_keyed_without_them(mlp):
    weights = WeightSet.from_arrays(arrays(0))
    text = mlp.mlp(weights.specs, BATCH)
    unnamed = cachec.Program(text, format="mlir:text", manifest=weights.manifest, canonical="0" * 64)
    for passes in (
        ["--mlir-print-debuginfo"],
        ["--emit-bytecode"],
        ["--mlir-use-nameloc-as-prefix"],
        ["--split-input-file"],
        ["--pass-pipeline=builtin.module(ensure-debug-info-scope-on-llvm-func)"],
    ):
        with pytest.raises(UsageError, match="keeps names"):
            native.to_llvm_dialect(unnamed, passes=passes)
    ir = cachec.Program("", format=native.LLVM_IR, manifest=weights.manifest, canonical="0" * 64)
    with pytest.raises(UsageError, match="-gline-tables-only keeps names"):
        native.to_library(ir, options=["-O2", "-gline-tables-only"])


DEBUGGED = """\
#file = #llvm.di_file<"a.c" in "/x">
#unit = #llvm.di_compile_unit<id = distinct[0]<>, sourceLanguage = DW_LANG_C, file = #file, isOptimized = true,
  emissionKind = LineTablesOnly>
#kind = #llvm.di_subroutine_type<callingConvention = DW_CC_normal>
#sub = #llvm.di_subprogram<id = distinct[1]<>, compileUnit = #unit, scope = #file, name = "f", file = #file,
  subprogramFlags = Definition, type = #kind>
llvm.func @f(%a: i32) -> i32 {
  llvm.return %a : i32 loc("a.c":3:4)
} loc(fused<#sub>["a.c":1:1])
"""


def test_debug_information_in_a_program_that_is_keyed_without_it():
    for text in (DEBUGGED, DEBUGGED.replace(":3:4", ":5:4")):
        with pytest.raises(UsageError, match=r"di_subprogram.*keeps names"):
            native.to_llvm_ir(cachec_mlir.program(text.encode(), to="undefined").program)
    lines = {}
    for line in (3, 5):
        text = DEBUGGED.replace(":3:4", f":{line}:4").encode()
        named = cachec_mlir.program(text, to="undefined", locations=True).program
        lines[named.topology] = native.to_llvm_ir(named).text
    assert sorted(re.findall(r"line: ([35])", "".join(lines.values()))) == ["3", "5"]


def test_names_of_values_and_locations_do_not_come_into_the_library(library, mlp):
    """What a key without them rests on."""
    weights = WeightSet.from_arrays(arrays(0))
    text = mlp.mlp(weights.specs, BATCH)
    renamed = text.replace("%h", "%other").replace("%positive", "%p").replace("  return", "\n  // a comment\n  return")
    assert renamed != text
    assert compiled(renamed, weights).read_bytes() == library.read_bytes()


@pytest.mark.long
def test_a_file_that_an_option_names_counts_by_content(cache, tmp_path):
    weights = WeightSet.from_arrays({"a": np.ones(3, "f4")})
    ir = "@a = external global [3 x float]\ndefine float @f() {\n  %x = load float, ptr @a\n  ret float %x\n}\n"
    program = cachec.Program(ir, format=native.LLVM_IR, manifest=weights.manifest)
    options = tmp_path / "options"

    @cache.stage
    def build(program: cachec.Program, options: list[str]) -> cachec.File:
        return native.to_library(program, options=options)

    with pytest.raises(subprocess.CalledProcessError):
        build(program, [f"@{options}"])
    made = []
    for text in ("-O2", "-O0"):
        options.write_text(text)
        file, outcome = cache.call(build, program, [f"@{options}"])
        assert outcome.reason.kind == "miss"
        assert cache.call(build, program, [f"@{options}"])[1].reason is Reason.HIT
        made.append(file.read_bytes())
    assert made[0] != made[1]


def test_which_files_options_name(tmp_path):
    there = tmp_path / "there"
    there.touch()
    for flag in ("{}", "--x={}", "-L{}", "@{}", "--import=scope={}", "-Wl,--script={},-z", "--path=a:{}:b"):
        assert named_files([flag.format(there)]) == ((str(there),), ()), flag
        assert named_files([flag.format("/no/such")]) == ((), ("/no/such",)), flag
    assert named_files(["--a=b/c", "b/c", "-O2", "--pass-pipeline=builtin.module(cse)"]) == ((), ())


@pytest.mark.long
def test_the_processor_counts_where_it_is_asked_for(cache, monkeypatch):
    """In a portable stage too. Naming a processor depends on none."""
    weights = WeightSet.from_arrays({"a": np.ones(3, "f4")})
    ir = "@a = external global [3 x float]\ndefine float @f() {\n  %x = load float, ptr @a\n  ret float %x\n}\n"
    program = cachec.Program(ir, format=native.LLVM_IR, manifest=weights.manifest)

    @cache.stage(portable=True)
    def build(program: cachec.Program, cpu: str, options: tuple[str, ...] = ()) -> cachec.File:
        return native.to_library(program, cpu=cpu, options=options)

    asking = [("host",), ("native",), ("x86-64-v2", ("-mtune=native",))]
    for given in (*asking, ("x86-64-v2",)):
        assert cache.call(build, program, *given)[1].reason.kind == "miss"
        assert cache.call(build, program, *given)[1].reason is Reason.HIT
    monkeypatch.setattr("cachec.key.trace_validation.processor_digest", lambda: "0" * 64)
    monkeypatch.setattr("cachec.commands.run.processor_digest", lambda: "0" * 64)
    assert cache.call(build, program, "x86-64-v2")[1].reason is Reason.HIT
    for given in asking:
        assert cache.call(build, program, *given)[1].reason is Reason.DEPENDENCY_CHANGED
        assert cache.call(build, program, *given)[1].reason is Reason.HIT


def test_the_tools_own_errors_come_through(mlp):
    weights = WeightSet.from_arrays(arrays(0))
    program = cachec.Program(mlp.mlp(weights.specs, BATCH), format="mlir:text", manifest=weights.manifest)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        native.to_llvm_dialect(program, passes=["--no-such-pass"])
    assert any("no-such-pass" in note for note in raised.value.__notes__)
    with pytest.raises(FileNotFoundError, match="mlir-opt-0"):
        native.to_llvm_dialect(program, tool="mlir-opt-0")
    ir = native.to_llvm_ir(native.to_llvm_dialect(program))
    with pytest.raises(PluginError, match="no-such-linker"):
        native.to_library(ir, linker="no-such-linker")
    with pytest.raises(FileNotFoundError, match=r"library\.so"):
        native.to_library(ir, libraries=["/no/such/library.so"])


def test_misuse_is_refused(mlp):
    weights = WeightSet.from_arrays(arrays(0))
    program = cachec.Program(mlp.mlp(weights.specs, BATCH), format="mlir:text", manifest=weights.manifest)
    with pytest.raises(PluginError, match="clang takes native:llvm-ir; this program is 'mlir:text'"):
        native.to_library(program)
    with pytest.raises(PluginError, match="mlir-opt takes mlir:text or mlir:bytecode"):
        native.to_llvm_dialect(cachec.Program("", format="jax:stablehlo", manifest=weights.manifest))
    with pytest.raises(UsageError, match="one string"):
        native.to_llvm_dialect(program, passes="--canonicalize")
    with pytest.raises(UsageError, match="one string"):
        native.to_library(cachec.Program("", format=native.LLVM_IR, manifest=weights.manifest), options="-O2")


def test_bytecode_is_taken_as_well(mlp):
    weights = WeightSet.from_arrays(arrays(0))
    text = mlp.mlp(weights.specs, BATCH)
    ir = subprocess.run(["mlir-opt-19", "--emit-bytecode"], input=text.encode(), capture_output=True, check=True).stdout
    program = cachec.Program(ir, format="mlir:bytecode", manifest=weights.manifest)
    library = native.to_library(native.to_llvm_ir(native.to_llvm_dialect(program)))
    found = call(cachec.link(library, weights))
    np.testing.assert_allclose(found, expected(arrays(0), X), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_the_example_runs(tmp_path, save):
    """Two weight files, then another level."""
    for seed in (0, 1):
        save(arrays(seed), f"{seed}.safetensors")

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, str(EXAMPLE / "run_mlp.py"), *arguments]
        environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def check(found: str, seed: int) -> None:
        total, _, copied = found.removeprefix("sum ").partition(", copied ")
        assert copied == "[]"
        assert float(total) == pytest.approx(expected(arrays(seed), np.ones((8, 16), "f4")).sum(), abs=0.01)

    first, second = str(tmp_path / "0.safetensors"), str(tmp_path / "1.safetensors")
    outcomes, found = run(first)
    assert outcomes == " ".join(["miss:first-run"] * 4)
    check(found, 0)
    outcomes, found = run(second)
    assert outcomes == "hit hit hit hit"
    check(found, 1)
    assert run(first, "3")[0] == "hit hit hit miss:option-changed"
