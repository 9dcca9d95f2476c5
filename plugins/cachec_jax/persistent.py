"""JAX's persistent compilation cache, kept in a cachec store: for plain ``jax.jit``, ``pmap`` and ``pjit``.

JAX has no official setter. ``jax._src.compilation_cache.get_file_cache(path)`` makes the cache when the first program
is compiled; it is replaced here by one that makes ours. ``get_cache_key`` is replaced too: a program that refers to
objects of the process that traced it is neither looked for nor stored (``cachec_jax.bound``). What JAX does around it
stays JAX's: the key, the compression, ``VerificationCache``, which programs are worth storing
(``jax_persistent_cache_min_compile_time_secs``, ``jax_persistent_cache_min_entry_size_bytes``), that only one process
of several writes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachec.base.distributions import Distributions
from cachec.errors import UnsupportedVersion
from cachec.model import Reason
from cachec.programs.supported_versions import GONE, installed_releases, step_aside, why_unsupported

if TYPE_CHECKING:
    from cachec.cache import Cache

#: The name under which JAX's programs are listed.
NAME = "jax.xla"

#: How the key of a program begins that refers to objects of this process.
_BOUND = "process-bound-"

_FOLDER = "jax_compilation_cache_dir"
_MIN_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_SIDE_CACHES = "jax_persistent_cache_enable_xla_caches"


def install(
    cache: Cache | None = None,
    *,
    shared: bool = False,
    min_compile_time: float | None = None,
    strict: bool = False,
) -> Cache:
    """Let JAX keep what it compiles in ``cache``, by default ``cachec.Cache()``; returns that.

    Imports JAX, so variables that JAX reads have to be set before. It may have compiled already: what it compiled stays
    as it is, and what comes later is looked for in the store. Called again, it changes what it is given.

    shared: whether the cache's remotes are asked too, and get what is compiled here: each small program that JAX asks
    for is then a round trip. Machines with another processor get nothing of it. min_compile_time: seconds that a
    program takes to compile before it is stored, 0 for every program; None leaves JAX's setting, which is one second.

    Where no ``jax_compilation_cache_dir`` is set, it is set to the store's folder, because JAX has no cache without
    one; XLA's own side caches are then off, which would be written there. Everything else of JAX's settings stays.

    Where there is no folder for a store, JAX goes on with its own cache (``bypass:no-store-folder``).

    Where this package can't work with the installed JAX, it warns, and JAX goes on with its own cache; with ``strict``
    it raises UnsupportedVersion.
    """
    there = _installed()
    if there is not None:
        cache, shared = cache or there.cache, shared or there.shared
    elif cache is None:
        from cachec.cache import Cache

        cache = Cache()
    if there is None or there.cache is not cache or there.shared != shared:
        reason = why_unusable(lambda: cache.settings.store_folder)
        if reason:
            step_aside(f"cachec_jax.install: {reason}; JAX keeps its own cache", strict=strict)
            return cache
        if there is not None:
            there.remove()
            min_compile_time = there.min_compile_time if min_compile_time is None else min_compile_time
        if not cache.replaces(NAME):
            return cache
        there = _Installed(cache, shared=shared)
        there.put()
    if min_compile_time is not None:
        there.min_compile_time = min_compile_time
        there.change({_MIN_SECONDS: float(min_compile_time)})
    return cache


def ensure_installed() -> None:
    """``install()``, unless that was done."""
    if _installed() is None:
        install()


def why_unusable(store: Callable[[], Path | None]) -> str:
    """Why this package can't work with the installed JAX, in words; empty where it can.

    store: asked for a newer release: where the verdict of a self-test is remembered; None: it is used without.
    """
    from cachec_jax import plugin

    distributions = Distributions()
    folder = store() if installed_releases(plugin, distributions).newer else None
    return why_unsupported(plugin, distributions, folder) or _why_moved()


def store_folder() -> Path | None:
    """The folder of the store that JAX keeps its programs in, or would by ``install()``."""
    there = _installed()
    if there is None:
        from cachec.cache import Cache

        return Cache().settings.store_folder
    return there.cache.settings.store_folder


def uninstall() -> None:
    """Let JAX keep what it compiles where it did before ``install``, with the settings of then. Harmless otherwise."""
    there = _installed()
    if there is not None:
        there.remove()


def _installed() -> _Installed | None:
    there = getattr(sys.modules.get("jax._src.compilation_cache"), "get_file_cache", None)
    return there if isinstance(there, _Installed) else None


class _Installed:
    """What stands in JAX in place of ``get_file_cache``; it remembers what stood there."""

    def __init__(self, cache: Cache, *, shared: bool) -> None:
        from cachec_jax.internals import compilation_cache as seam

        self.cache = cache
        self.shared = shared
        self.min_compile_time: float | None = None
        self._seam = seam
        self._before = seam.get_file_cache
        self._key_before = seam.get_cache_key
        self._settings: dict[str, tuple[Any, Any]] = {}  # name -> (before, ours)
        self._refused: dict[str, str] = {}  # key of a program that is not stored -> why, until it is asked for

    def __call__(self, path: str) -> tuple[Any, str]:
        """The cache that JAX asks for, whatever folder it was told."""
        from cachec_jax.internals import config

        kept = jax_cache(self.cache, shared=self.shared, refused=self._refused)
        checked = getattr(config, "compilation_cache_check_contents", None)  # of JAX 0.9.1 on
        return (self._seam.VerificationCache(kept) if checked is not None and checked.value else kept), path

    def key(
        self, module: Any, devices: Any, compile_options: Any, backend: Any, *ignored: Any, **ignored_by_name: Any
    ) -> str:
        """JAX's key of a program. That of one that refers to objects of this process says so. Processes of one program
        exchange what they compile by such keys, so it is the same in all of them.

        ignored, ignored_by_name: which pointers JAX leaves out of the key, as each release has it.
        """
        from cachec_jax.bound import bound_calls, refusal

        made: str = self._key_before(module, devices, compile_options, backend, *ignored, **ignored_by_name)
        calls = bound_calls(module)
        if calls:
            made = _BOUND + made
            self._refused[made] = refusal(calls)
        return made

    def put(self) -> None:
        """Stand in JAX. A cache that it has opened is forgotten, so that the next look comes here."""
        import jax

        if not getattr(jax.config, _FOLDER):
            self.change({_FOLDER: str(self.cache.dir), _SIDE_CACHES: "none"})
        self._seam.get_file_cache = self
        self._seam.get_cache_key = self.key
        self._seam.reset_cache()

    def change(self, settings: Mapping[str, Any]) -> None:
        """Change settings of JAX until ``remove``."""
        import jax

        for name, value in settings.items():
            before = self._settings[name][0] if name in self._settings else getattr(jax.config, name)
            self._settings[name] = before, value
            jax.config.update(name, value)

    def remove(self) -> None:
        """Put back what stood here; a setting that somebody has changed since is left to them."""
        import jax

        for name, (before, ours) in self._settings.items():
            if getattr(jax.config, name) == ours:
                jax.config.update(name, before)
        self._seam.get_file_cache = self._before
        self._seam.get_cache_key = self._key_before
        self._seam.reset_cache()


def jax_cache(cache: Cache, *, shared: bool = False, refused: dict[str, str] | None = None) -> Any:
    """JAX's ``CacheInterface`` over the store of ``cache``. Imports JAX.

    refused: why programs are not stored, by their keys; each is taken out when it is counted.
    """
    said = {} if refused is None else refused
    from cachec_jax.internals import CacheInterface, compilation_cache

    def executable(value: bytes) -> bytes:
        """Without the time that it took, which JAX stores with it."""
        program, _ = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(value))
        return bytes(program)

    class StoredPrograms(CacheInterface):  # type: ignore[misc]
        """Both methods raise ValueError for an empty key, as JAX's own cache does; nothing where the store fails."""

        def __init__(self) -> None:
            self._path = Path(cache.dir)
            self._foreign = cache.foreign(
                NAME,
                same=lambda one, other: executable(one) == executable(other),
                selective=True,
                shared="all" if shared else "off",
            )

        def get(self, key: str) -> bytes | None:
            if key.startswith(_BOUND):
                self._foreign.bypass(Reason.PROCESS_BOUND, said.pop(key, ""))
                return None
            return self._foreign.get(_checked(key))

        def put(self, key: str, value: bytes) -> None:
            if key.startswith(_BOUND):
                return
            self._foreign.put(_checked(key), value, detail=_detail(key))

    return StoredPrograms()


def _checked(key: str) -> str:
    if not key:
        raise ValueError("key cannot be empty")
    return key


def _detail(key: str) -> str:
    """What JAX made a key of, as far as it can be told here: keys are ``jit_NAME-HASH``."""
    import jax
    import jaxlib

    from cachec_jax.ambient import settings

    said = {"module": key.rpartition("-")[0], "jax": jax.__version__, "jaxlib": jaxlib.__version__, **settings()}
    return "\n".join(f"{name}: {' '.join(value.split())}" for name, value in said.items())


def _why_moved() -> str:
    """What JAX does not have where it is changed, or has in another form, in words; empty for nothing."""
    try:
        import jax

        from cachec_jax.internals import CacheInterface, compilation_cache

        asked = {
            "get_file_cache": compilation_cache.get_file_cache,
            "get_cache_key": compilation_cache.get_cache_key,
            "get": CacheInterface.get,
            "put": CacheInterface.put,
        }
        shapes = {name: [*inspect.signature(each).parameters] for name, each in asked.items()}
        del shapes["get_cache_key"][4:]  # which pointers JAX leaves out: releases differ in how they ask
        used = (
            *(compilation_cache.reset_cache, compilation_cache._initialize_cache),
            *(compilation_cache.decompress_executable, compilation_cache.extract_executable_and_time),
            getattr(jax.config, _SIDE_CACHES),
        )
        del used
    except (*GONE, UnsupportedVersion) as error:
        return f"JAX has changed where its cache is replaced: {type(error).__name__}: {error}"
    expected = {
        "get_file_cache": ["path"],
        "get_cache_key": ["module", "devices", "compile_options", "backend"],
        "get": ["self", "key"],
        "put": ["self", "key", "value"],
    }
    if shapes != expected or CacheInterface.__abstractmethods__ != {"get", "put"}:
        return (
            f"JAX has changed where its cache is replaced: expected {expected}, found {shapes} and "
            f"{sorted(CacheInterface.__abstractmethods__)}"
        )
    return ""
