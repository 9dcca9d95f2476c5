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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachec.errors import UnsupportedVersion
from cachec.model import Reason
from cachec.programs.supported import GONE, compare
from cachec_jax.versions import TRIED_RELEASES

if TYPE_CHECKING:
    from cachec.cache import Cache

#: The name under which JAX's programs are listed.
NAME = "jax.xla"

#: How the key of a program begins that refers to objects of this process.
_BOUND = "process-bound-"

_FOLDER = "jax_compilation_cache_dir"
_SIDE_CACHES = "jax_persistent_cache_enable_xla_caches"


def install(cache: Cache | None = None, *, shared: bool = False) -> Cache:
    """Let JAX keep what it compiles in ``cache``, by default ``cachec.Cache()``; returns that.

    Imports JAX, so variables that JAX reads have to be set before. It may have compiled already: what it compiled stays
    as it is, and what comes later is looked for in the store. Called again, it does nothing, or changes to another
    cache that it is given.

    shared: whether the cache's remotes are asked too, and get what is compiled here: each small program that JAX asks
    for is then a round trip. Machines with another processor get nothing of it.

    Where no ``jax_compilation_cache_dir`` is set, it is set to the store's folder, because JAX has no cache without
    one; XLA's own side caches are then off, which would be written there. Everything else of JAX's settings stays.

    Where there is no folder for a store, JAX goes on with its own cache (``bypass:no-store-folder``).

    Raises UnsupportedVersion where JAX is of another release than this package knows, or has moved what is replaced
    here; JAX goes on with its own cache then.
    """
    seam = checked_seam()
    there = seam.get_file_cache
    if isinstance(there, _Installed):
        if cache is None or cache is there.cache:
            return there.cache
        there.remove(seam)
    if cache is None:
        from cachec.cache import Cache

        cache = Cache()
    if cache.replaces(NAME):
        _Installed(cache, seam, shared=shared).put()
    return cache


def ensure_installed() -> None:
    """``install()``, unless that was done. Raises UnsupportedVersion as it does."""
    import sys

    if not isinstance(getattr(sys.modules.get("jax._src.compilation_cache"), "get_file_cache", None), _Installed):
        install()


def uninstall() -> None:
    """Let JAX keep what it compiles where it did before ``install``, with the settings of then. Harmless otherwise."""
    import sys

    seam = sys.modules.get("jax._src.compilation_cache")
    there = getattr(seam, "get_file_cache", None)
    if isinstance(there, _Installed):
        there.remove(seam)


class _Installed:
    """What stands in JAX in place of ``get_file_cache``; it remembers what stood there."""

    def __init__(self, cache: Cache, seam: Any, *, shared: bool) -> None:
        self.cache = cache
        self._shared = shared
        self._seam = seam
        self._before = seam.get_file_cache
        self._key_before = seam.get_cache_key
        self._settings: dict[str, tuple[Any, Any]] = {}  # name -> (before, ours)
        self._refused: dict[str, str] = {}  # key of a program that is not stored -> why, until it is asked for

    def __call__(self, path: str) -> tuple[Any, str]:
        """The cache that JAX asks for, whatever folder it was told."""
        from jax._src import config

        kept = jax_cache(self.cache, shared=self._shared, refused=self._refused)
        return (self._seam.VerificationCache(kept) if config.compilation_cache_check_contents.value else kept), path

    def key(self, module: Any, devices: Any, compile_options: Any, backend: Any, ignore_callbacks: Any = None) -> str:
        """JAX's key of a program. That of one that refers to objects of this process says so. Processes of one program
        exchange what they compile by such keys, so it is the same in all of them."""
        from cachec_jax.bound import bound_calls, refusal

        more = () if ignore_callbacks is None else (ignore_callbacks,)
        made: str = self._key_before(module, devices, compile_options, backend, *more)
        calls = bound_calls(module)
        if calls:
            made = _BOUND + made
            self._refused[made] = refusal(calls)
        return made

    def put(self) -> None:
        """Stand in JAX. A cache that it has opened is forgotten, so that the next look comes here."""
        import jax

        if not getattr(jax.config, _FOLDER):
            for name, value in ((_FOLDER, str(self.cache.dir)), (_SIDE_CACHES, "none")):
                self._settings[name] = getattr(jax.config, name), value
                jax.config.update(name, value)
        self._seam.get_file_cache = self
        self._seam.get_cache_key = self.key
        self._seam.reset_cache()

    def remove(self, seam: Any) -> None:
        """Put back what stood here; a setting that somebody has changed since is left to them."""
        import jax

        for name, (before, ours) in self._settings.items():
            if getattr(jax.config, name) == ours:
                jax.config.update(name, before)
        seam.get_file_cache = self._before
        seam.get_cache_key = self._key_before
        seam.reset_cache()


def jax_cache(cache: Cache, *, shared: bool = False, refused: dict[str, str] | None = None) -> Any:
    """JAX's ``CacheInterface`` over the store of ``cache``. Imports JAX.

    refused: why programs are not stored, by their keys; each is taken out when it is counted.
    """
    said = {} if refused is None else refused
    from jax._src import compilation_cache
    from jax._src.compilation_cache_interface import CacheInterface

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


def checked_seam() -> Any:
    """The module of JAX that is changed, in which everything is as it is known. Raises UnsupportedVersion."""
    known = ", ".join(name + versions for name, versions in TRIED_RELEASES.items())
    try:
        import jax
        import jaxlib
    except ImportError as error:
        raise UnsupportedVersion(f"cachec_jax.install needs {known}, found none: {error}") from error
    found = f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"
    for module, versions in zip((jax, jaxlib), TRIED_RELEASES.values(), strict=True):
        if compare(module.__version__, versions):
            raise UnsupportedVersion(f"cachec_jax.install needs {known}, found {found}; JAX keeps its own cache")
    try:
        from jax._src import compilation_cache, config
        from jax._src.compilation_cache_interface import CacheInterface

        asked = {
            "get_file_cache": compilation_cache.get_file_cache,
            "get_cache_key": compilation_cache.get_cache_key,
            "get": CacheInterface.get,
            "put": CacheInterface.put,
        }
        shapes = {name: [*inspect.signature(each).parameters] for name, each in asked.items()}
        used = (
            *(compilation_cache.reset_cache, compilation_cache.VerificationCache, compilation_cache._initialize_cache),
            *(compilation_cache.decompress_executable, compilation_cache.extract_executable_and_time),
            *(config.compilation_cache_check_contents.value, getattr(jax.config, _SIDE_CACHES)),
        )
        del used
    except GONE as error:
        raise UnsupportedVersion(
            f"cachec_jax.install knows {known}, and met in {found} {type(error).__name__}: {error}; "
            "JAX keeps its own cache"
        ) from error
    asked_of_key = ["module", "devices", "compile_options", "backend", "ignore_callbacks"]
    expected = {
        "get_file_cache": ["path"],
        "get_cache_key": asked_of_key,
        "get": ["self", "key"],
        "put": ["self", "key", "value"],
    }
    if shapes != expected or CacheInterface.__abstractmethods__ != {"get", "put"}:
        raise UnsupportedVersion(
            f"cachec_jax.install knows {known}, whose cache has {expected}; {found} has {shapes} and "
            f"{sorted(CacheInterface.__abstractmethods__)}; JAX keeps its own cache"
        )
    return compilation_cache
