"""JAX's persistent compilation cache in a cachec store, for plain ``jax.jit``, ``pmap`` and ``pjit``.

JAX has no official setter. ``jax._src.compilation_cache.get_file_cache(path)`` makes the cache when JAX compiles the
first program. ``install`` replaces this function by one that makes a cache over the store. It also replaces
``get_cache_key``: a program with callbacks is neither looked up nor stored (``cachec_jax.callbacks``). JAX still makes
the key, compresses, checks (``VerificationCache``), and writes from one process only. JAX also decides which programs
are worth storing (``jax_persistent_cache_min_compile_time_secs``, ``jax_persistent_cache_min_entry_size_bytes``).
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

#: The name of JAX's programs in lists.
NAME = "jax.xla"

#: The prefix of a key for a program that refers to objects of this process.
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
    """Store JAX's compiled programs in ``cache``, by default ``cachec.Cache()``, and return the cache.

    This imports JAX, so set JAX's variables before. Programs that JAX compiled before stay as they are; later ones are
    looked up in the store. A second call changes the arguments that it gets.

    shared: whether to read from and write to the cache's remotes, with a round trip for each small program. Machines
    with another processor share no programs. min_compile_time: store programs that take at least so many seconds to
    compile, 0 for all; None leaves JAX's setting, which is one second.

    If ``jax_compilation_cache_dir`` is not set, this sets it to the store's folder, because JAX needs one. It then
    switches off XLA's own side caches, which XLA would write there. All other settings of JAX stay.

    Without a folder for a store, JAX uses its own cache (``bypass:no-store-folder``).

    If this package can't work with the installed JAX, it warns, and JAX uses its own cache; with ``strict`` it raises
    UnsupportedVersion.
    """
    hook = _installed_hook()
    if hook is not None:
        cache, shared = cache or hook.cache, shared or hook.shared
    elif cache is None:
        from cachec.cache import Cache

        cache = Cache()
    if hook is None or hook.cache is not cache or hook.shared != shared:
        reason = why_unusable(lambda: cache.settings.store_folder)
        if reason:
            step_aside(f"cachec_jax.install: {reason}; JAX keeps its own cache", strict=strict)
            return cache
        if hook is not None:
            hook.remove()
            min_compile_time = hook.min_compile_time if min_compile_time is None else min_compile_time
        if not cache.replaces(NAME):
            return cache
        hook = _CacheHook(cache, shared=shared)
        hook.put()
    if min_compile_time is not None:
        hook.min_compile_time = min_compile_time
        hook.change({_MIN_SECONDS: float(min_compile_time)})
    return cache


def ensure_installed() -> None:
    """Call ``install()``, unless that was done."""
    if _installed_hook() is None:
        install()


def why_unusable(store: Callable[[], Path | None]) -> str:
    """Return the reason why this package can't work with the installed JAX; empty if it can.

    store: returns the folder for the verdict of a self-test, which only a newer release needs; None for no self-test.
    """
    from cachec_jax import plugin

    distributions = Distributions()
    folder = store() if installed_releases(plugin, distributions).newer else None
    return why_unsupported(plugin, distributions, folder) or _why_incompatible()


def store_folder() -> Path | None:
    """Return the folder of the store for JAX's programs, as ``install()`` sets it or would set it."""
    hook = _installed_hook()
    if hook is None:
        from cachec.cache import Cache

        return Cache().settings.store_folder
    return hook.cache.settings.store_folder


def uninstall() -> None:
    """Undo ``install``: JAX gets its own cache and its former settings back. Without ``install`` this does nothing."""
    hook = _installed_hook()
    if hook is not None:
        hook.remove()


def _installed_hook() -> _CacheHook | None:
    hook = getattr(sys.modules.get("jax._src.compilation_cache"), "get_file_cache", None)
    return hook if isinstance(hook, _CacheHook) else None


class _CacheHook:
    """The replacement of JAX's ``get_file_cache`` and ``get_cache_key``, which it can put back."""

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
        """Return the cache for JAX, whatever ``path`` is."""
        from cachec_jax.internals import config

        cache = jax_cache(self.cache, shared=self.shared, refused=self._refused)
        checked = getattr(config, "compilation_cache_check_contents", None)  # of JAX 0.9.1 on
        return (self._seam.VerificationCache(cache) if checked is not None and checked.value else cache), path

    def key(
        self, module: Any, devices: Any, compile_options: Any, backend: Any, *ignored: Any, **ignored_by_name: Any
    ) -> str:
        """Return JAX's key of a program, with a prefix if the program refers to objects of this process.

        Processes of one program exchange programs by such keys, so the key is the same in all of them. ignored,
        ignored_by_name: the pointers that JAX leaves out of the key, in the form of each release.
        """
        from cachec_jax.callbacks import callback_calls, refusal_message

        made: str = self._key_before(module, devices, compile_options, backend, *ignored, **ignored_by_name)
        calls = callback_calls(module)
        if calls:
            made = _BOUND + made
            self._refused[made] = refusal_message(calls)
        return made

    def put(self) -> None:
        """Replace JAX's functions, and drop the cache that JAX has opened, so that the next lookup comes here."""
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
        """Put JAX's functions and settings back. A setting that was changed since keeps its value."""
        import jax

        for name, (before, ours) in self._settings.items():
            if getattr(jax.config, name) == ours:
                jax.config.update(name, before)
        self._seam.get_file_cache = self._before
        self._seam.get_cache_key = self._key_before
        self._seam.reset_cache()


def jax_cache(cache: Cache, *, shared: bool = False, refused: dict[str, str] | None = None) -> Any:
    """Return JAX's ``CacheInterface`` over the store of ``cache``. Imports JAX.

    refused: key -> the reason why a program is not stored. A reason is removed when it is counted.
    """
    reasons = {} if refused is None else refused
    from cachec_jax.internals import CacheInterface, compilation_cache

    def executable(value: bytes) -> bytes:
        """Return the executable without its compile time, which JAX stores with it."""
        program, _ = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(value))
        return bytes(program)

    class StoredPrograms(CacheInterface):  # type: ignore[misc]
        """Both methods raise ValueError for an empty key, as JAX's own cache does, and nothing if the store fails."""

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
                self._foreign.bypass(Reason.PROCESS_BOUND, reasons.pop(key, ""))
                return None
            return self._foreign.get(_check_key(key))

        def put(self, key: str, value: bytes) -> None:
            if key.startswith(_BOUND):
                return
            self._foreign.put(_check_key(key), value, detail=_detail(key))

    return StoredPrograms()


def _check_key(key: str) -> str:
    if not key:
        raise ValueError("key cannot be empty")
    return key


def _detail(key: str) -> str:
    """Return the known parts of a key of JAX as lines. Keys are ``jit_NAME-HASH``."""
    import jax
    import jaxlib

    from cachec_jax.key_settings import read_settings

    parts = {"module": key.rpartition("-")[0], "jax": jax.__version__, "jaxlib": jaxlib.__version__, **read_settings()}
    return "\n".join(f"{name}: {' '.join(value.split())}" for name, value in parts.items())


def _why_incompatible() -> str:
    """Return which function that ``install`` replaces is missing or different in this JAX; empty if none."""
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
