"""Plain JAX with its persistent compilation cache in our store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

import cachec
import cachec_jax
from cachec.errors import CachecError, CachecWarning, UnsupportedVersion
from cachec.events import read_log
from cachec.model import Reason, artifacts
from cachec.testing.blob_caches import ForeignConformance
from cachec_jax.persistent_cache import NAME, jax_cache
from tests.plugins.jax_persistent_cache import FOLDER, SIDE_CACHES, entries, kept_as_it_was, reasons

ROOT = Path(__file__).parents[2]


@pytest.mark.long
class TestStoredPrograms(ForeignConformance):
    """The class that stands in JAX, with values as JAX makes them."""

    name = NAME
    selective = True

    def make(self, cache):
        return jax_cache(cache)

    def data(self, number, nbytes=1000):
        executable = np.random.default_rng(number).bytes(nbytes)  # which no compression makes smaller
        return value(executable, number)


@pytest.fixture
def cache(tmp_path):
    return cachec.Cache(tmp_path / "store", log="off", mode="on")


@pytest.fixture(autouse=True)
def _as_it_was():
    with kept_as_it_was():
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        yield


def compiled(number: float) -> float:
    """What a program gives that JAX compiles anew: what it has in memory is by function."""
    return float(jax.jit(lambda x: x * number + 1)(np.float32(2)))


# --- what it does


def test_a_program_is_compiled_once(cache):
    assert cachec_jax.install(cache) is cache
    assert [compiled(3), compiled(4), compiled(3)] == [7, 9, 7]
    assert reasons(cache) == ["miss:first-run", "miss:first-run", "hit"]
    assert [entry.stage for entry in entries(cache)] == [NAME] * 2
    (hit,) = (outcome for outcome in read_log(cache.dir) if outcome.hit)
    assert hit.saved > 0


def test_a_limit_of_its_own(cache):
    name = "jax_persistent_cache_min_compile_time_secs"
    jax.config.update(name, 3600.0)
    cachec_jax.install(cache)
    compiled(21)
    assert reasons(cache) == []
    cachec_jax.install(min_compile_time=0)
    assert [compiled(21), compiled(21)] == [43, 43]
    assert reasons(cache) == ["miss:first-run", "hit"]
    jax.config.update(name, 7.0)
    assert cachec_jax.install() is cache
    assert getattr(jax.config, name) == 7, "what the program has set since stays"
    jax.config.update(name, 0.0)
    cachec_jax.uninstall()
    assert getattr(jax.config, name) == 3600


def test_pmap_and_sharded_programs(cache):
    cachec_jax.install(cache)
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    for kind in ("miss:first-run", "hit"):
        before = len(reasons(cache))
        mapped = jax.pmap(lambda x: x * 5 - jax.lax.psum(x, "i"), axis_name="i")(np.ones((1, 3), "f4"))
        assert np.asarray(mapped).tolist() == [[4, 4, 4]]
        sharded = jax.jit(lambda x: x * 6, in_shardings=sharding, out_shardings=sharding)(np.ones(4, "f4"))
        assert np.asarray(sharded).tolist() == [6] * 4
        assert reasons(cache)[before:] == [kind] * 2


def test_what_jax_finds_not_worth_storing_is_not_stored(cache):
    cachec_jax.install(cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e6)
    compiled(1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 1 << 40)
    compiled(2)
    assert not entries(cache)
    assert not reasons(cache), "a program that JAX never stores is no miss"
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    compiled(3)
    assert len(entries(cache)) == 1
    assert reasons(cache) == ["miss:first-run"]


def test_mode_require_refuses_what_would_be_stored_alone(tmp_path):
    cache = cachec_jax.install(cachec.Cache(tmp_path, log="off", mode="require"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e6)
    assert compiled(3) == 7
    assert not reasons(cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with pytest.raises(cachec.CacheMissError, match="would miss in mode require"):
        compiled(4)
    assert reasons(cache) == ["error:required"]


def test_a_disabled_cache_stays_disabled(cache):
    jax.config.update("jax_enable_compilation_cache", False)
    cachec_jax.install(cache)
    assert compiled(3) == 7
    assert not reasons(cache)


def value(program: bytes, seconds: int = 1) -> bytes:
    """As JAX hands it to its cache."""
    return compilation_cache.compress_executable(compilation_cache.combine_executable_and_time(program, seconds))


@pytest.mark.skipif(not hasattr(compilation_cache, "CacheVerificationError"), reason="JAX verifies nothing before 0.10")
def test_jax_verifies_what_is_stored(cache):
    """``VerificationCache`` asks for what this process has not compiled yet to be compiled, and compares."""
    if not hasattr(compilation_cache, "VerificationCache"):
        pytest.skip("JAX before 0.9.1 has no VerificationCache")
    jax.config.update("jax_compilation_cache_check_contents", True)
    cachec_jax.install(cache)
    compiled(3)
    assert len(entries(cache)) == 1
    verifying = compilation_cache._cache
    assert isinstance(verifying, compilation_cache.VerificationCache)
    assert verifying._path == cache.dir
    jax_cache(cache).put("jit_f-0", value(b"program"))
    assert verifying.get("jit_f-0") is None
    verifying.put("jit_f-0", value(b"program", seconds=2))
    assert verifying.get("jit_f-0") == value(b"program", seconds=2)
    verifying.clear()
    with pytest.raises(compilation_cache.CacheVerificationError):
        verifying.put("jit_f-0", value(b"another"))


def test_mode_verify_compares_programs_without_the_time_they_took(tmp_path):
    for seconds, mode in ((1, "on"), (2, "verify")):
        cache = cachec.Cache(tmp_path, log="off", mode=mode)
        seam = jax_cache(cache)
        seam.get("jit_f-0")
        seam.put("jit_f-0", value(b"program", seconds))
    assert cache.events.counts[Reason.VERIFIED] == 1


def test_empty_keys_are_refused_as_jax_does(cache):
    seam = jax_cache(cache)
    for call in (lambda: seam.get(""), lambda: seam.put("", b"x")):
        with pytest.raises(ValueError, match="key cannot be empty"):
            call()


def test_why_names_what_jax_made_the_key_of(cache):
    cachec_jax.install(cache)
    compiled(3)
    (entry,) = entries(cache)
    parts = {part.name: part.value for part in cache.store.parts(entry)}
    assert parts["module"].rstrip("_") == "jit__lambda"
    assert parts["jax"] == jax.__version__
    assert parts["key"].startswith(f"{parts['module']}-")


@pytest.mark.parametrize("poison", ["altered", "another's", "no program"])
def test_a_poisoned_entry_is_never_loaded(cache, poison):
    cachec_jax.install(cache)
    assert [compiled(3), compiled(4)] == [7, 9]
    mine, other = sorted(entries(cache), key=lambda entry: entry.traces[0].created)
    if poison == "altered":
        (ref,) = artifacts(mine.traces[0].value)
        path = cache.store.objects.path(ref)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.unlink()
        path.write_bytes(data)
        expected = Reason.ARTIFACT_CORRUPT
    elif poison == "another's":
        from cachec.store.row_codec import pack

        cache.store.index.write(cache.store.entry_row(mine.key), pack(other), NAME)
        expected = Reason.ROW_FOREIGN
    else:  # what JAX itself can't read: its word is a warning, and it compiles
        jax.config.update("jax_raise_persistent_cache_errors", False)
        jax_cache(cache).put(cache.store.parts(mine)[-1].value, b"no program at all")
        with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
            assert compiled(3) == 7
        return
    before = len(reasons(cache))
    assert [compiled(3), compiled(3)] == [7, 7]
    assert reasons(cache)[before:] == [expected.value, "hit"]


# --- where it stands


def test_it_is_put_in_place_again_and_taken_away(cache, tmp_path):
    made = compilation_cache.get_file_cache
    for _ in range(2):
        cachec_jax.install(cache)
        assert getattr(jax.config, FOLDER) == str(cache.dir)
        assert getattr(jax.config, SIDE_CACHES) == "none"
    other = cachec.Cache(tmp_path / "other", log="off")
    assert cachec_jax.install(other) is other
    assert getattr(jax.config, FOLDER) == str(other.dir)
    compiled(3)
    assert (len(reasons(cache)), len(reasons(other))) == (0, 1)
    for _ in range(2):
        cachec_jax.uninstall()
        assert compilation_cache.get_file_cache is made
        assert not getattr(jax.config, FOLDER)
        assert getattr(jax.config, SIDE_CACHES) != "none"
    compiled(3)
    assert len(reasons(other)) == 1


def test_a_cache_that_jax_has_used_is_replaced_and_used_again(cache, tmp_path):
    own = tmp_path / "own"
    jax.config.update(FOLDER, str(own))
    compilation_cache.reset_cache()
    compiled(3)
    (kept,) = own.glob("*-cache")
    cachec_jax.install(cache)
    assert getattr(jax.config, FOLDER) == str(own), "a folder that was set stays: XLA's own caches are in it"
    compiled(3)
    compiled(4)
    assert reasons(cache) == ["miss:first-run"] * 2
    assert [*own.glob("*-cache")] == [kept]
    cachec_jax.uninstall()
    compiled(3)
    assert len(reasons(cache)) == 2
    assert getattr(jax.config, FOLDER) == str(own)


def test_a_setting_that_was_changed_since_stays(cache, tmp_path):
    cachec_jax.install(cache)
    jax.config.update(FOLDER, str(tmp_path / "later"))
    compiled(3)
    assert len(entries(cache)) == 1
    cachec_jax.uninstall()
    assert getattr(jax.config, FOLDER) == str(tmp_path / "later")


def test_without_an_argument_it_is_the_cache_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "mine"))
    cache = cachec_jax.install()
    assert cache.dir == tmp_path / "mine"
    made = compilation_cache.get_file_cache
    assert cachec_jax.install(cache) is cachec_jax.install() is cache
    assert compilation_cache.get_file_cache is made


def test_a_program_that_a_stage_compiles_is_no_read_of_it(cache):
    cachec_jax.install(cache)

    @cache.stage(name="stage", version="1")
    def stage(n: int) -> float:
        return float(jax.jit(lambda x: x * 9)(np.float32(n)))

    assert cache.call(stage, 2)[1].stored
    assert cache.call(stage, 2)[1].hit


# --- another JAX


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda patch: patch.setitem(sys.modules, "jax", None), "jax"),
        (lambda patch: patch.delattr(compilation_cache, "get_file_cache"), "get_file_cache"),
        (lambda patch: patch.delattr(compilation_cache, "_initialize_cache"), "_initialize_cache"),
        (lambda patch: patch.setattr(compilation_cache, "get_file_cache", lambda path, size: None), "'path', 'size'"),
        (lambda patch: patch.setattr(CacheInterface, "put", lambda self, key, value, seconds: None), "'seconds'"),
        (lambda patch: patch.setattr(CacheInterface, "__abstractmethods__", frozenset({"get", "put", "has"})), "'has'"),
    ],
)  # fmt: skip
def test_a_jax_that_has_moved_the_seam_keeps_its_own_cache(cache, monkeypatch, change, words):
    made = compilation_cache.get_file_cache
    with monkeypatch.context() as patch:
        change(patch)
        with pytest.warns(CachecWarning, match=f"JAX has changed.*{words}.*; JAX keeps its own cache"):
            assert cachec_jax.install(cache) is cache
        with pytest.raises(UnsupportedVersion, match=words) as raised:
            cachec_jax.install(cache, strict=True)
        assert isinstance(raised.value, CachecError)
    assert compilation_cache.get_file_cache is made
    assert not getattr(jax.config, FOLDER)
    assert compiled(3) == 7
    assert not reasons(cache)


def test_small_programs_are_stored_on_demand(cache):
    name = "jax_persistent_cache_min_compile_time_secs"
    jax.config.update(name, 60.0)
    cachec_jax.install(cache)
    compiled(3)
    assert not entries(cache)
    cachec_jax.install(min_compile_time=0)
    assert getattr(jax.config, name) == 0
    compiled(4)
    assert len(entries(cache)) == 1
    cachec_jax.uninstall()
    assert getattr(jax.config, name) == 60.0


# --- processes


_PROGRAM = """
    import sys, hashlib
    import numpy as np
    {before}
    import jax, jax.numpy as jnp
    {after}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    @jax.jit
    def f(w, x):
        return jnp.tanh(x @ w["a"]) @ w["b"]

    rng = np.random.default_rng(0)
    w = {{"a": rng.standard_normal((64, 64), "f4"), "b": rng.standard_normal((64, 8), "f4")}}
    y = np.asarray(f(w, rng.standard_normal((3, 64), "f4")))
    print(hashlib.sha256(y.tobytes()).hexdigest())
"""
_INSTALL = "import cachec, cachec_jax; cachec_jax.install(cachec.Cache(sys.argv[1], log='off', mode='on'))"


def _script(folder: Path, before: str = "", after: str = "") -> list[str]:
    path = folder / f"{len(before)}-{len(after)}.py"
    path.write_text(textwrap.dedent(_PROGRAM).format(before=before, after=after))
    return [sys.executable, str(path), str(folder / "store")]


@pytest.mark.long
def test_processes_share_what_they_compile_and_the_numbers_are_jax_s_own(tmp_path):
    plain = _script(tmp_path)
    ways = [_script(tmp_path, before=_INSTALL), _script(tmp_path, after=_INSTALL)]
    ways.append(_script(tmp_path, after=f"jax.jit(lambda x: x + 1)(1); {_INSTALL}"))
    numbers = {subprocess.run(each, check=True, capture_output=True, text=True).stdout for each in (plain, *ways)}
    assert len(numbers) == 1
    stored = cachec.Cache(tmp_path / "store", log="off")
    assert "hit" in reasons(stored)
    modules = [part.value for entry in entries(stored) for part in stored.store.parts(entry)
               if part.name == "module"]  # fmt: skip
    assert modules.count("jit_f") == 1


@pytest.mark.long
def test_several_processes_at_once(tmp_path):
    command = _script(tmp_path, before=_INSTALL)
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({child.communicate()[0] for child in children}) == 1
    assert {child.returncode for child in children} == {0}
    stored = cachec.Cache(tmp_path / "store", log="off")
    log = read_log(stored.dir)
    assert {outcome.reason for outcome in log} <= {Reason.FIRST_RUN, Reason.HIT}
    assert not log.faults


def test_what_only_installs_imports_nothing_of_stages(tmp_path):
    """A process that hits pays for what it uses: nothing that makes keys or runs stages."""
    code = f"{_INSTALL}\nprint(sorted(name for name in sys.modules if name.startswith(('cachec.key', 'cachec.stage'))))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", str(tmp_path / "store")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.long
def test_jax_s_own_tests_of_its_cache_pass_over_the_store():
    """JAX_CHECKOUT: a checkout of JAX at the installed version; its tests are in no wheel."""
    checkout = os.environ.get("JAX_CHECKOUT", "")
    if not checkout:
        pytest.skip("JAX_CHECKOUT names no checkout of JAX, whose tests are in no wheel")
    pytest.importorskip("absl", reason="JAX's tests need absl-py")
    own = Path(checkout) / "tests" / "compilation_cache_test.py"
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugins.jax_suite", str(own)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Ran [1-9]\d+ tests", done.stderr, re.MULTILINE)
