"""``--strip``: one compile for all weights; the weights of each model come out beside its output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.weights import WeightSet
from tests.launcher.conftest import Launcher, need, wait_for_clock, write
from tests.plugins.mlir.test_inline_constants import CONSTANTS, modules

_IREE = os.path.join(os.path.dirname(sys.executable), "iree-compile")
_FLAGS = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]


def _model(seed: int, *, bias: str = "1.5", operation: str = "stablehlo.add") -> str:
    """A matrix of 4x32 from ``seed`` and a scalar, both inline."""
    data = np.random.default_rng(seed).standard_normal((4, 32)).astype("f4").tobytes().hex().upper()
    return (
        "func.func @main(%x: tensor<2x4xf32>) -> tensor<2x32xf32> {\n"
        f'  %w = stablehlo.constant dense<"0x{data}"> : tensor<4x32xf32>\n'
        f"  %b = stablehlo.constant dense<{bias}> : tensor<2x32xf32>\n"
        "  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] "
        ": (tensor<2x4xf32>, tensor<4x32xf32>) -> tensor<2x32xf32>\n"
        f"  %1 = {operation} %0, %b : tensor<2x32xf32>\n"
        "  return %1 : tensor<2x32xf32>\n}\n"
    )


def _weights(path: str) -> np.ndarray:
    (weight,) = cachec.open_weights(path).values()
    return np.frombuffer(weight.raw(), "f4").reshape(4, 32)


def _expected(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 32)).astype("f4")


def _compile(launcher: Launcher, name: str, *options: str) -> str:
    ran = launcher.run(_IREE, name, "-o", "m.vmfb", "--iree-input-type=stablehlo", *_FLAGS, options=options)
    assert ran.code == 0, ran.stderr
    return launcher.last().reason.value


@pytest.mark.skipif(not os.path.exists(_IREE), reason="not installed: iree-compile")
class TestIree:
    def test_a_fine_tuned_model_is_a_hit(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        here = os.getpid()
        save = WeightSet.save

        def elsewhere(self: WeightSet, *args: Any, **how: Any) -> None:
            assert os.getpid() != here  # while the compiler runs, another process writes all of them
            save(self, *args, **how)

        monkeypatch.setattr(WeightSet, "save", elsewhere)
        write("m.mlir", _model(1))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:new-input"
        made = Path("m.vmfb").read_bytes()
        assert np.array_equal(_weights("m.vmfb.irpa"), _expected(1))
        write("m.mlir", _model(2))
        os.unlink("m.vmfb")
        assert _compile(launcher, "m.mlir", "--strip") == "hit"
        assert Path("m.vmfb").read_bytes() == made
        assert np.array_equal(_weights("m.vmfb.irpa"), _expected(2))

    def test_the_module_runs_with_the_weights_beside_it(self, launcher: Launcher) -> None:
        runtime = pytest.importorskip("iree.runtime")
        write("m.mlir", _model(1))
        _compile(launcher, "m.mlir", "--strip")
        write("m.mlir", _model(2))
        assert _compile(launcher, "m.mlir", "--strip") == "hit"
        index = runtime.ParameterIndex()
        index.load("m.vmfb.irpa")
        config = runtime.Config("local-sync")
        modules = [
            runtime.create_io_parameters_module(config.vm_instance, index.create_provider("model")),
            runtime.VmModule.mmap(config.vm_instance, "m.vmfb"),
        ]
        *_, module = runtime.load_vm_modules(
            runtime.create_hal_module(config.vm_instance, config.device), *modules, config=config
        )
        x = np.random.default_rng(9).standard_normal((2, 4)).astype("f4")
        assert np.allclose(module.main(x).to_host(), x @ _expected(2) + 1.5, atol=1e-5)

    @pytest.mark.long
    def test_the_name_of_the_model_does_not_count(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        write("m.mlir", _model(1))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:new-input"
        for name in ("tuned.mlir", "./other/x.mlir", os.fspath(tmp_path / "away" / "y.mlir")):
            write(name, _model(2))
            assert _compile(launcher, name, "--strip") == "hit"
            assert np.array_equal(_weights("m.vmfb.irpa"), _expected(2))
        monkeypatch.setenv("CACHEC_MODE", "verify")  # the compiler runs: the same module, to the byte
        assert _compile(launcher, name, "--strip") == "miss:verified"

    @pytest.mark.long
    def test_without_strip_the_content_counts(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        _compile(launcher, "m.mlir")
        assert not os.path.exists("m.vmfb.irpa")
        write("m.mlir", _model(2))
        assert _compile(launcher, "m.mlir") == "miss:file-changed"

    @pytest.mark.long
    def test_what_stays_in_the_module_counts(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        _compile(launcher, "m.mlir", "--strip")
        write("m.mlir", _model(1, bias="2.5"))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:topology-changed"

    @pytest.mark.long
    def test_why_names_the_operation(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        _compile(launcher, "m.mlir", "--strip")
        write("m.mlir", _model(3, operation="stablehlo.multiply"))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:topology-changed"
        assert "stablehlo.multiply" in launcher.last().detail

    @pytest.mark.long
    def test_the_same_weights_are_new_unless_restat_is_said(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        _compile(launcher, "m.mlir", "--strip")
        for options in (["--strip", "--restat"], ["--strip"]):
            os.utime("m.vmfb.irpa", (5, 5))
            _compile(launcher, "m.mlir", *options)
            assert (os.stat("m.vmfb.irpa").st_mtime == 5) == (len(options) == 2)
        assert sorted(os.listdir()) == ["m.mlir", "m.vmfb", "m.vmfb.irpa"]

    def test_a_malformed_model(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1).replace('dense<"0x', 'dense<"0xzz'))
        ran = launcher.run(_IREE, "m.mlir", "-o", "m.vmfb", *_FLAGS, options=["--strip"])
        assert ran.code == 2
        assert "m.mlir: byte" in ran.stderr

    def test_weights_that_cannot_be_written(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        os.mkdir("m.vmfb.irpa")
        ran = launcher.run(_IREE, "m.mlir", "-o", "m.vmfb", "--iree-input-type=stablehlo", *_FLAGS, options=["--strip"])
        assert ran.code == 2
        assert "the weights can't be written beside the output" in ran.stderr
        assert sorted(os.listdir()) == ["m.mlir", "m.vmfb", "m.vmfb.irpa"]

    def test_a_failing_compile_leaves_no_weights(self, launcher: Launcher) -> None:
        write("m.mlir", _model(1))
        ran = launcher.run(_IREE, "m.mlir", "-o", "m.vmfb", "--no-such-flag", options=["--strip"])
        assert ran.code == 1
        assert "no-such-flag" in ran.stderr
        assert os.listdir() == ["m.mlir"]

    def test_a_writer_that_is_killed_is_made_up_for(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        fork = os.fork

        def killed() -> int:
            monkeypatch.setattr(os, "fork", fork)  # the compiler starts by another one
            child = fork()
            if child == 0:
                os.kill(os.getpid(), 9)
            return child

        monkeypatch.setattr(os, "fork", killed)
        write("m.mlir", _model(1))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:new-input"
        assert np.array_equal(_weights("m.vmfb.irpa"), _expected(1))
        assert sorted(os.listdir()) == ["m.mlir", "m.vmfb", "m.vmfb.irpa"]

    @pytest.mark.long
    def test_digits_that_are_met_when_they_are_written(self, launcher: Launcher) -> None:
        text = _model(1).replace("4x32", "4x8192").replace("2x32", "2x8192")
        digits = text[text.index('"0x') + 3 : text.index('">')]
        write("m.mlir", text.replace(digits, digits * 256))
        assert _compile(launcher, "m.mlir", "--strip") == "miss:new-input"
        made = {name: Path(name).read_bytes() for name in ("m.vmfb", "m.vmfb.irpa")}
        write("m.mlir", text.replace(digits, digits * 255 + "zz" + digits[2:]))
        ran = launcher.run(_IREE, "m.mlir", "-o", "m.vmfb", "--iree-input-type=stablehlo", *_FLAGS, options=["--strip"])
        assert ran.code == 2
        assert "m.mlir: constant at byte" in ran.stderr
        assert "expected hexadecimal digits" in ran.stderr
        assert {name: Path(name).read_bytes() for name in made} == made
        assert sorted(os.listdir()) == ["m.mlir", *made]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ((_IREE, "m.mlir"), "name one with -o"),
            ((_IREE, "@line", "-o", "x"), "the model has to be one file on the command line"),
            (("fakecc", "m.mlir", "-o", "x"), "no adapter says how 'fakecc' takes a model without weights"),
        ],
    )
    def test_what_cannot_be_stripped(self, launcher: Launcher, line: tuple[str, ...], words: str) -> None:
        write("m.mlir", _model(1))
        write("line", "m.mlir")
        ran = launcher.run(*line, options=["--strip"])
        assert ran.code == 2
        assert words in ran.stderr


_MLIR_OPT = next((name for name in ("mlir-opt-19", "mlir-opt") if shutil.which(name)), "mlir-opt")


@need(_MLIR_OPT)
def test_an_adapter_that_always_strips(launcher: Launcher) -> None:
    (launcher.folder.parent / "cachec.toml").write_text(
        '[adapters.opt]\nmatch = ["mlir-opt*"]\nformat = "mlir"\nstrip = true\nstrip_as = "resource"\n'
        'flags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    )
    text = '%w = "arith.constant"() <{value = dense<"0xDATA"> : tensor<64xf32>}> : () -> tensor<64xf32>\n'
    for seed, reason in ((1, "miss:new-input"), (2, "hit")):
        data = np.random.default_rng(seed).standard_normal(64).astype("f4").tobytes().hex().upper()
        write("m.mlir", f"module {{\n  {text.replace('DATA', data)}}}\n")
        ran = launcher.run(_MLIR_OPT, "m.mlir", "-o", "out.mlir")
        assert ran.code == 0, ran.stderr
        assert launcher.last().reason.value == reason


@need(_MLIR_OPT)
def test_no_location_tells_the_name(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    (launcher.folder.parent / "cachec.toml").write_text(
        '[adapters.opt]\nmatch = ["mlir-opt*"]\nformat = "mlir"\nstrip_as = "resource"\n'
        'flags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    )
    line = ("-o", "out.mlir", "--mlir-print-debuginfo")
    told = set()
    for mode, name in (("on", "m.mlir"), ("verify", "sub/n.mlir"), ("on", "m.mlir")):
        monkeypatch.setenv("CACHEC_MODE", mode)
        write(
            name,
            'module {\n  %w = "arith.constant"() <{value = dense<1.5> : tensor<64xf32>}> : () -> tensor<64xf32>\n}\n',
        )
        ran = launcher.run(_MLIR_OPT, name, *line, options=["--strip"])
        assert ran.code == 0, ran.stderr
        told.add(Path("out.mlir").read_text())
    assert launcher.reasons() == ["miss:new-input", "miss:verified", "hit"]
    (text,) = told
    assert 'loc("<stdin>"' in text
    assert ".mlir" not in text


@pytest.mark.parametrize("path", ["m.mlir", "./m.mlir"])
def test_a_flag_that_names_the_model_too(launcher: Launcher, path: str) -> None:
    """What the flag names is read whole, so that all of it counts."""
    (launcher.folder.parent / "cachec.toml").write_text(
        '[adapters.fakecc]\nmatch = ["fakecc"]\nformat = "mlir"\nstrip_as = "resource"\nflags = [\n'
        '  { names = ["-o"], takes = ["next"], is = "output" },\n'
        '  { names = ["-l"], takes = ["next"], is = "value" },\n'
        ']\n[adapters.fakecc.environment]\npassed = ["RUNS"]\n'
    )
    text = '%w = "arith.constant"() <{value = dense<"0xDATA"> : tensor<64xf32>}> : () -> tensor<64xf32>\n'
    for seed, reason in ((1, "miss:new-input"), (2, "miss:dependency-changed")):
        data = np.random.default_rng(seed).standard_normal(64).astype("f4").tobytes().hex().upper()
        write("m.mlir", f"module {{\n  {text.replace('DATA', data)}}}\n")
        wait_for_clock()
        ran = launcher.run("fakecc", "m.mlir", "-l", path, "-o", "out", options=["--strip"])
        assert ran.code == 0, ran.stderr
        assert launcher.last().reason.value == reason


@need(_MLIR_OPT)
@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.sampled
def test_a_constant_that_stays_inline_is_in_the_key(launcher: Launcher, name: str) -> None:
    """In each form: the second look at each of two modules is a hit, and gives what the tool itself gives."""
    (launcher.folder.parent / "cachec.toml").write_text(
        '[adapters.opt]\nmatch = ["mlir-opt*"]\nformat = "mlir"\nstrip = true\nstrip_as = "resource"\n'
        'flags = [\n  { names = ["-o"], takes = ["next"], is = "output" },\n]\n'
    )
    for turn in range(2):
        for text in modules(name):
            write("m.mlir", text)
            ran = launcher.run(_MLIR_OPT, "m.mlir", "-o", "out.mlir", "--canonicalize")
            assert ran.code == 0, ran.stderr
            assert (launcher.last().reason.value == "hit") == (turn == 1)
            alone = subprocess.run([_MLIR_OPT, "--canonicalize", "m.mlir"], capture_output=True, check=True)
            assert Path("out.mlir").read_bytes() == alone.stdout
