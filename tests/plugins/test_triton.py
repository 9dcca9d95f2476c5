"""cachec_triton: kernels compiled ahead of time for a GPU that is not there, and Triton's own cache in the store."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cachec
import cachec_triton
from cachec.errors import UnsupportedVersion
from cachec.model import Reason
from cachec.testing.blob_caches import ForeignConformance
from tests import pages
from tests.needs import Later

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs triton, 286 MB that neither `make test` nor CI installs: pip install 'cachec[triton]'",
    ),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]

triton = Later("triton")
knobs = Later("triton.knobs")
kernels = Later("tests.plugins.triton_kernels")


def made(cache: cachec.Cache) -> Any:
    @cache.stage(tools=["triton"])
    def build(kernel: Any, size: int, *, target: str = "cuda:90", warps: int = 4) -> cachec.Dir:
        signature = {"x": "*fp32", "w": "*fp32", "out": "*fp32", "n": "i32", "size": "constexpr"}
        return cachec_triton.compile(kernel, signature, {"size": size}, target=target, options={"num_warps": warps})

    return build


@pytest.fixture
def cache(tmp_path: Path) -> cachec.Cache:
    return cachec.Cache(tmp_path / "cache", log="off")


def test_a_kernel_is_compiled_once(cache: cachec.Cache) -> None:
    build, before = made(cache), dict(cachec_triton.plugin.ambient())
    cold, outcome = cache.call(build, kernels.weighted, 128)
    assert (outcome.reason.kind, outcome.stored) == ("miss", True)
    assert cachec_triton.plugin.ambient() == before
    warm, outcome = cache.call(build, kernels.weighted, 128)
    assert outcome.reason is Reason.HIT
    assert cachec_triton.plugin.compare(build.uncached(kernels.weighted, 128), warm) is None
    files = {each.name: each.read_bytes() for each in warm.path.iterdir()}
    assert files.keys() == {"weighted.cubin", "weighted.ptx", "weighted.json"}
    assert files["weighted.cubin"].startswith(b"\x7fELF")
    assert b".target sm_90a" in files["weighted.ptx"]
    assert json.loads(files["weighted.json"])["num_warps"] == 4
    here = (str(Path(__file__).parents[2]).encode(), os.path.expanduser("~").encode() + b"/", b"/tmp/")
    assert not [name for name, data in files.items() if any(place in data for place in here)]
    assert cold.path.name
    changed = cache.call(build, kernels.weighted, 256)[0]
    assert cachec_triton.plugin.compare(changed, warm)


def test_what_counts_of_a_kernel(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build = made(cache)
    build(kernels.weighted, 128)
    for arguments, options in (
        ((kernels.weighted, 256), {}),
        ((kernels.weighted, 128), {"target": "cuda:80"}),
        ((kernels.weighted, 128), {"warps": 8}),
        ((kernels.other, 128), {}),
    ):
        assert cache.call(build, *arguments, **options)[1].reason.kind == "miss"
    first = cache.call(build, kernels.weighted, 128)
    assert first[1].reason is Reason.HIT
    for name, value in (("FACTOR", triton.language.constexpr(4)), ("scaled", kernels.shifted)):
        with monkeypatch.context() as patch:
            patch.setitem(kernels.weighted.__globals__, name, value)
            found, outcome = cache.call(build, kernels.weighted, 128)
            assert outcome.reason.kind == "miss", f"{name}, which the kernel reaches, is another"
            assert cachec_triton.plugin.compare(found, first[0])
        assert cache.call(build, kernels.weighted, 128)[1].reason is Reason.HIT
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert cachec_triton.plugin.ambient()["DISABLE_PTXAS_OPT"] == "1"
    assert cache.call(build, kernels.weighted, 128)[1].reason.kind == "miss"


def test_nothing_is_stored_of_a_kernel_that_is_no_argument(cache: cachec.Cache) -> None:
    kernel = kernels.weighted

    @cache.stage(tools=["triton"])
    def build() -> cachec.Dir:
        return cachec_triton.compile(kernel, kernels.SIGNATURE, {"size": 128})

    for _ in range(2):
        _, outcome = cache.call(build)
        assert (outcome.reason, outcome.stored) == (Reason.UNNAMED_CODE, False)
        assert "no stable form" in outcome.detail


def test_what_is_refused() -> None:
    signature = dict(kernels.SIGNATURE)
    with pytest.raises(cachec.UsageError, match="found Autotuner; give the function that it tunes"):
        cachec_triton.compile(kernels.tuned, signature)
    with pytest.raises(cachec.UsageError, match=r"with @triton\.jit, found function"):
        cachec_triton.compile(lambda x: x, signature)
    for target in ("hip:gfx942", "cuda", "cuda:9.0"):
        with pytest.raises(cachec.UsageError, match="such as 'cuda:90'"):
            cachec_triton.compile(kernels.weighted, signature, {"size": 128}, target=target)
    del signature["n"]
    with pytest.raises(cachec.UsageError, match="a type of parameter 'n'"):
        cachec_triton.compile(kernels.weighted, signature, {"size": 128})


def test_the_plugin_imports_no_triton() -> None:
    program = "import sys, cachec_triton as c; c.plugin.ambient(); c.uninstall(); print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- Triton's own cache


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's settings as they were, afterwards."""
    with knobs.cache.scope():
        yield
    cachec_triton.uninstall()


def compiled() -> Any:
    source = triton.compiler.ASTSource(kernels.weighted, kernels.SIGNATURE, {(4,): 128})
    return triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32))


def test_what_triton_keeps_is_in_the_store(cache: cachec.Cache, tmp_path: Path, manager: None) -> None:
    before = knobs.cache.manager_class
    assert cachec_triton.install(cache) is cache
    assert cachec_triton.install() is cache
    knobs.cache.dir = str(tmp_path / "one")
    first = compiled()
    assert dict(cache.events.counts) == {Reason.FIRST_RUN: 1}
    assert len(list(cache.store.entries())) == 1
    knobs.cache.dir = str(tmp_path / "two")
    second = compiled()
    assert dict(cache.events.counts) == {Reason.FIRST_RUN: 1, Reason.HIT: 1}
    assert dict(second.asm) == dict(first.asm)
    assert second.metadata == first.metadata
    assert all(Path(place).is_relative_to(tmp_path / "two") for place in second.metadata_group.values())
    elsewhere = cachec.Cache(tmp_path / "elsewhere", log="off")
    assert cachec_triton.install(elsewhere) is elsewhere
    compiled()
    assert not elsewhere.events.counts, "Triton's folder has it, so nothing was compiled"
    cachec_triton.uninstall()
    assert knobs.cache.manager_class is before


def test_the_variable_is_enough(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.plugins.test_triton import compiled; compiled(); "
        "import cachec_triton; print(dict(cachec_triton.install().events.counts))"
    )
    for number, word in enumerate(("FIRST_RUN", "HIT")):
        variables = os.environ | {
            "TRITON_CACHE_MANAGER": "cachec_triton.cache_manager:StoredKernels",
            "TRITON_CACHE_DIR": str(tmp_path / str(number)),
            "CACHEC_DIR": str(tmp_path / "store"),
            "CACHEC_LOG": "off",
        }
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=root, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"Reason.{word}" in done.stdout, done.stdout


def test_another_triton_keeps_its_cache(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(cachec_triton.plugin), "tried_releases", {"triton": ">=99,<100"})
    before = knobs.cache.manager_class
    words = rf"needs triton>=99, found {re.escape(triton.__version__)}; triton keeps its own cache"
    with pytest.warns(cachec.CachecWarning, match=words):
        assert cachec_triton.install(cache) is cache
    with pytest.raises(UnsupportedVersion, match=words):
        cachec_triton.install(cache, strict=True)
    assert knobs.cache.manager_class is before


def test_a_triton_in_which_something_moved(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert knobs.env
    monkeypatch.delattr(sys.modules["triton.knobs"], "env")
    with pytest.warns(cachec.CachecWarning, match="AttributeError.*'env'; triton keeps its own cache"):
        cachec_triton.install(cache)


class _Groups:
    """The manager as a cache of bytes, in a folder of Triton's that is another one each time."""

    def __init__(self, cache: cachec.Cache, folder: Path) -> None:
        from cachec_triton.cache_manager import manager_for

        self._kind, self._folder = manager_for(cache), folder

    def _manager(self, key: str) -> Any:
        knobs.cache.dir = tempfile.mkdtemp(dir=self._folder)
        return self._kind(key)

    def get(self, key: str) -> bytes | None:
        found = self._manager(key).get_group("k.json")
        return None if found is None else Path(found["k.json"]).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        manager = self._manager(key)
        manager.put_group("k.json", {"k.json": manager.put(data, "k.json")})


class TestGroups(ForeignConformance):
    name = "triton"
    selective = True

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory, manager: None) -> None:
        self.folder = tmp_path_factory.mktemp("triton")

    def make(self, cache: cachec.Cache) -> Any:
        return _Groups(cache, self.folder)


def test_a_file_that_is_asked_for_by_itself(cache: cachec.Cache, tmp_path: Path, manager: None) -> None:
    """Launchers, and what tuning found."""
    from cachec_triton.cache_manager import manager_for

    for folder in ("one", "two"):
        knobs.cache.dir = str(tmp_path / folder)
        kept = manager_for(cache)("key")
        if kept.get_file("launcher.so") is None:
            kept.put(b"\x7fELF", "launcher.so")
        assert Path(kept.get_file("launcher.so")).read_bytes() == b"\x7fELF"
    assert cache.events.counts[Reason.FIRST_RUN] == 1
    assert Path(kept.get_file("launcher.so")).is_relative_to(tmp_path / "two")
    dumped = manager_for(cache)("key", dump=True)
    assert dumped._foreign is None, "what somebody dumps to look at is no result"


def test_a_group_with_names_of_other_folders_is_none(cache: cachec.Cache, tmp_path: Path, manager: None) -> None:
    from cachec_triton.cache_manager import manager_for

    knobs.cache.dir = str(tmp_path / "one")
    foreign = cache.foreign("triton", selective=True)
    for data in (b"x", msgspec.msgpack.encode({"k.json": b"", "../up": b""}), msgspec.msgpack.encode({"k": b""})):
        foreign.put("key/k.json and others", data)
        assert manager_for(cache)("key").get_group("k.json") is None


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    pages.scripts("reference/frameworks.md", tmp_path, "## Triton")
    first, second, stats = pages.outputs(pages.commands("reference/frameworks.md", "## Triton"), tmp_path)
    assert first == second == "['scale.cubin', 'scale.json', 'scale.ptx']\n"
    assert re.search(r"build .*50", stats), stats
