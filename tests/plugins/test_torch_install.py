"""``cachec_torch.install``: what plain ``torch.compile`` makes, in the store."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._functorch import config as autograd
from torch._inductor import codecache, config, cpp_builder, cpu_vec_isa, exc, remote_cache
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.library import Library

import cachec
import cachec_torch
from cachec.errors import CachecWarning, UnsupportedVersion
from cachec.model import Reason
from cachec.testing.blob_caches import ForeignConformance
from cachec_torch.compile_key import check_options, missing_settings
from cachec_torch.persistent import NAMES, _backend, _foreign, _StoredCompiles
from cachec_torch.project_modules import UnstorableOperation

ROOT = Path(__file__).parents[2]

NEW_PROCESS = """
import json, sys
started = []
sys.addaudithook(lambda event, args: event == "subprocess.Popen" and started.append(list(map(str, args[1]))))
import torch
from torch import nn
import cachec, cachec_torch
cache = cachec_torch.install(cachec.Cache(sys.argv[1], log="off", mode="on"))
torch._inductor.config.cpp.vec_isa_ok = True  # nothing is compiled to try it
torch.manual_seed(int(sys.argv[2]))

def function(x, model=nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))):
    return model(x)

x = torch.randn(2, 8, requires_grad=True)
function(x).sum().backward()
expected, gradient, x.grad = function(x), x.grad, None
y = torch.compile(function)(x)
y.sum().backward()
error = max(float((y - expected).abs().max()), float((x.grad - gradient).abs().max()))
compiled = [words for words in started if "-o" in words or any("tracing.standalone" in each for each in words)]
print(json.dumps([error, len(compiled)]))
"""


def in_new_process(tmp_path: Path, seed: int) -> int:
    """How often the C++ compiler compiled. The folder of Inductor is empty, and another one each time."""
    folder = tmp_path / f"inductor-{len(list(tmp_path.iterdir()))}"
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", NEW_PROCESS, str(tmp_path / "store"), str(seed)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, compiled = json.loads(done.stdout.splitlines()[-1])
    assert error < 1e-5
    assert any(folder.rglob("*.so")), "the folder was another one"
    return compiled


@pytest.mark.long
def test_a_hit_in_a_new_process_compiles_nothing(tmp_path) -> None:
    """With other weights, forward and backward."""
    assert in_new_process(tmp_path, 0) > 0
    assert in_new_process(tmp_path, 1) == 0


@pytest.fixture
def installed(tmp_path):
    """The cache, and torch as it was afterwards."""
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    assert cachec_torch.install(cache) is cache
    yield cache
    cachec_torch.uninstall()


def seam() -> tuple[object, ...]:
    overrides = [getattr(remote_cache, name).backend_override_cls for name in NAMES]
    options = (
        config.fx_graph_remote_cache,
        autograd.enable_remote_autograd_cache,
        getattr(config, "cpp_cache_precompile_headers", None),
    )
    registry = (Library.impl, Library.fallback, codecache.FxGraphHashDetails.__init__)
    return (
        cpp_builder._run_compile_cmd,
        *overrides,
        *options,
        getattr(cpu_vec_isa.VecISA, "_probe_load", None),
        *registry,
    )


@pytest.mark.long
def test_torch_is_left_as_it_was(tmp_path) -> None:
    before, settings = seam(), cachec_torch.plugin.ambient()
    caches = [cachec.Cache(tmp_path / name, log="off") for name in "ab"]
    assert cachec_torch.install(caches[0]) is caches[0]
    first = seam()
    assert cachec_torch.plugin.ambient() == settings, "the keys of stages are those without it"
    assert cachec_torch.install() is caches[0]
    assert seam() == first
    assert cachec_torch.install(shared=True) is caches[0]
    assert seam()[0].shared
    assert cachec_torch.install(caches[1]) is caches[1]
    assert not set(map(id, seam()[:3])) & set(map(id, first[:3]))
    config.fx_graph_remote_cache = False
    cachec_torch.uninstall()
    assert seam() == (*before[:3], False, *before[4:]), "what somebody has changed since is theirs"
    config.fx_graph_remote_cache = before[3]
    cachec_torch.uninstall()


@pytest.mark.long
@pytest.mark.parametrize("gone", ["_run_compile_cmd", "RemoteFxGraphCache"])
def test_install_steps_aside_where_torch_has_moved_a_name(monkeypatch, tmp_path, gone) -> None:
    module = cpp_builder if hasattr(cpp_builder, gone) else remote_cache
    cache = cachec.Cache(tmp_path / "store", log="off")
    with monkeypatch.context() as patch:
        patch.delattr(module, gone)
        with pytest.warns(CachecWarning, match=rf"lacks .*{gone}.*torch keeps its own caches"):
            assert cachec_torch.install(cache) is cache
        with pytest.raises(UnsupportedVersion, match=gone):
            cachec_torch.install(cache, strict=True)
    assert not isinstance(cpp_builder._run_compile_cmd, _StoredCompiles)


def test_install_steps_aside_with_an_older_release(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(type(cachec_torch.plugin), "tried_releases", {"torch": ">=99,<100"})
    with pytest.warns(CachecWarning, match=r"needs torch>=99, found .*torch keeps its own caches"):
        cachec_torch.install(cachec.Cache(tmp_path / "store", log="off"))
    assert not isinstance(cpp_builder._run_compile_cmd, _StoredCompiles)


@pytest.mark.long
def test_a_newer_release_is_used_after_its_self_test(monkeypatch, tmp_path) -> None:
    """The real self-test, in a process of its own."""
    monkeypatch.setattr(type(cachec_torch.plugin), "tried_releases", {"torch": ">=2.0,<2.1"})
    cachec_torch.install(cachec.Cache(tmp_path / "store", log="off"), strict=True)
    assert isinstance(cpp_builder._run_compile_cmd, _StoredCompiles)
    cachec_torch.uninstall()


def test_a_newer_release_that_fails_its_self_test_is_left_alone(monkeypatch, tmp_path) -> None:
    kind = type(cachec_torch.plugin)
    monkeypatch.setattr(kind, "tried_releases", {"torch": ">=2.0,<2.1"})
    monkeypatch.setattr(kind, "self_test", "cachec_torch.self_test:is_gone")
    with pytest.warns(CachecWarning, match=r"is newer than .*is_gone.*torch keeps its own caches"):
        cachec_torch.install(cachec.Cache(tmp_path / "store", log="off"))
    assert not isinstance(cpp_builder._run_compile_cmd, _StoredCompiles)


def test_keys_hold_what_those_of_some_releases_lack(monkeypatch) -> None:
    """The default dtype, and the number of threads that kernels are made for."""
    before = missing_settings(object)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    assert ("threads", "77") in missing_settings(object)
    assert ("threads", "77") not in before


@pytest.mark.parametrize("is_known", [True, False])
def test_an_option_set_to_code_is_stored_only_where_torch_counts_the_code(is_known) -> None:
    details = SimpleNamespace(joint_custom_pre_pass=None) if is_known else SimpleNamespace()
    with config.patch(joint_custom_pre_pass=print):
        if is_known:
            check_options(details)
            return
        with pytest.raises(UnstorableOperation, match="joint_custom_pre_pass"):
            check_options(details)


SOURCE = 'extern "C" int answer() {{ return {}; }}\n'


def compiled(number: int, *flags: str, name: str = "", source: str = "") -> Path:
    """What torch does for one source, in a folder of its own below Inductor's."""
    folder = Path(cache_dir()) / f"x{number}{len(list(Path(cache_dir()).iterdir()))}"
    (folder / "build").mkdir(parents=True)
    (folder / "one.cpp").write_text(source or SOURCE.format(number))
    words = ["g++", f"{folder}/one.cpp", "-shared", "-fPIC", *flags, "-o", f"{folder}/one.so"]
    cpp_builder.run_compile_cmd(shlex.join(words), str(folder / "build"))
    return folder / "one.so"


def is_traced(words: list[str]) -> bool:
    """Whether this starts a command of ``cachec.run`` under the tracer."""
    return any("cachec.tracing.standalone" in str(each) for each in words)


def test_what_another_process_reads_meanwhile_makes_no_compile_a_miss(installed, tmp_path, monkeypatch) -> None:
    """A log in the current folder that is looked at while the compiler runs, and grows."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "train.log"
    log.write_text("1\n")
    with subprocess.Popen(["sh", "-c", "while cat train.log; do :; done"], stdout=subprocess.DEVNULL) as reader:
        compiled(1)
        reader.kill()
    log.write_text("1\n2\n")
    compiled(1)
    assert installed.events.counts == {Reason.FIRST_RUN: 1, Reason.HIT: 1}


@pytest.mark.long
def test_runs_of_the_compiler(installed, tmp_path, monkeypatch) -> None:
    import ctypes

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    started = []  # told by an audit hook: what stood in the place of a method of Popen would be in the key

    def noted(event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            started.append(args[1])

    sys.addaudithook(noted)

    def runs(*arguments, **others) -> tuple[bool, bytes]:
        started.clear()
        path = compiled(*arguments, **others)
        assert ctypes.CDLL(str(path)).answer() == arguments[0]
        assert os.access(path, os.X_OK)
        return any("-o" in map(str, words) or is_traced(words) for words in started), path.read_bytes()

    ran, first = runs(1)
    assert ran
    assert runs(1) == (False, first)
    assert runs(2)[0], "another source"
    assert runs(1, "-O1")[0], "another option"
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    assert runs(1)[0], "another variable"
    monkeypatch.delenv("CPLUS_INCLUDE_PATH")
    assert runs(1) == (False, first)
    other = tmp_path / "g++"
    other.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    other.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert runs(1)[0], "another compiler"
    # What names the folder in a way of its own is compiled each time, by torch.
    for how in ({"source": f"// {cache_dir()}\n{SOURCE.format(1)}"}, {}):
        flags = () if how else (f"-I{cache_dir()}",)
        assert runs(1, *flags, **how)[0]
        assert runs(1, *flags, **how)[0]
    with pytest.raises(exc.CppCompileError, match="nonsense"):
        compiled(3, source="nonsense")
    with pytest.raises(exc.CppCompileError):
        compiled(3, source="nonsense")


@pytest.mark.long
class TestStoredBackend(ForeignConformance):
    """The class that stands in torch."""

    name = "torch.inductor"
    selective = True

    def make(self, cache):
        return _backend(_foreign(cache, self.name))()


@pytest.mark.long
@pytest.mark.skipif(not hasattr(cpu_vec_isa.VecISA, "_probe_load"), reason="this torch has no method for it")
def test_what_the_processor_can_load_is_asked_once(installed, tmp_path) -> None:
    isa = cpu_vec_isa.VecAVX2()
    library = compiled(1)
    broken = tmp_path / "broken.so"
    broken.write_bytes(library.read_bytes()[:200])
    started = []
    sys.addaudithook(lambda event, args: started.append(args[0]) if event == "subprocess.Popen" else None)
    for path, expected, asked in (
        (library, True, True),
        (library, True, False),
        (broken, False, True),
        (broken, False, True),
    ):
        started.clear()
        assert isa._probe_load(str(path)) is expected
        assert bool(started) is asked
