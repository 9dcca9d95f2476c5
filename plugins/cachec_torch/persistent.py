"""What plain ``torch.compile`` makes, kept in a cachec store: Inductor's and AOTAutograd's programs, and C++ libraries.

torch has remote caches, whose backend a class attribute overrides (``RemoteCache.backend_override_cls``). What torch
does around them stays torch's: keys, guards, and reading what it pickled. They hold no library that the C++ compiler
made, so its runs (``cpp_builder._run_compile_cmd``) are calls of a stage. So is what a new process asks of the
processor: whether it can load a small library, in a child process for each kind of vectors (``VecISA._probe_load``).

torch's keys hold the name of an operation alone. This module adds what the project has registered with torch where
torch makes its keys (``FxGraphHashDetails``), so torch's own folder is right too. Where no key can hold that, torch
stores nothing.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachec.base.distributions import Distributions
from cachec.commands.run import commands_alone, host_processor, run, scratch
from cachec.model import Reason
from cachec.programs.artifact import File
from cachec.programs.supported_versions import GONE, step_aside, why_unsupported

if TYPE_CHECKING:
    from cachec.blob_cache import Foreign
    from cachec.cache import Cache
    from cachec_torch.kernel_recorder import KernelRecorder
    from cachec_torch.operations import OperationsKey

#: The names under which what torch compiles is listed, by the class of torch's that keeps it elsewhere.
NAMES = {"RemoteFxGraphCache": "torch.inductor", "RemoteAOTAutogradCache": "torch.aotautograd"}

#: The same of what the C++ compiler made.
LIBRARIES = "torch.cxx"

#: The same of what the processor was asked.
PROBES = "torch.isa"

#: The end of a key that is random, because no key can hold what is registered.
_UNSTORABLE = "-unstorable"

_BUILDER = "torch._inductor.cpp_builder"


def install(cache: Cache | None = None, *, shared: bool = False, strict: bool = False) -> Cache:
    """Let ``torch.compile`` keep what it compiles in ``cache``, by default ``cachec.Cache()``; returns that.

    Imports torch, so variables that torch reads have to be set before. What was compiled already stays as it is.
    Operations of the project count with the files that register them. Call this before the import that registers them:
    torch does not give back a kernel that ``Library.impl`` was given before, and then nothing is stored.

    Called again, it changes what it is given. Headers are not compiled ahead any
    more (``cpp_cache_precompile_headers``), as no hit needs them.

    torch unpickles what is stored: a cache has to be as trusted as the code of the project.

    shared: whether remotes are asked too, and get what is compiled here. Only those count that believe nothing but what
    a trusted key has signed (``trust=`` in their URL): torch would run what anybody else put there.

    Where there is no folder for a store, torch goes on with its own caches (``bypass:no-store-folder``).

    Where torch is missing, of a release that this package can't use, or lacks what is replaced here, torch goes on with
    its own caches: a warning says why, and with ``strict`` UnsupportedVersion is raised.
    """
    there = getattr(sys.modules.get(_BUILDER), "_run_compile_cmd", None)
    if isinstance(there, _StoredCompiles):
        if (cache is None or cache is there.cache) and (there.shared or not shared):
            return there.cache
        cache = cache or there.cache
    if cache is None:
        from cachec.cache import Cache

        cache = Cache()
    from cachec_torch import plugin

    reason = why_unsupported(plugin, Distributions(), cache.settings.store_folder) or seam_reason()
    if reason:
        step_aside(f"cachec_torch.install: {reason}; torch keeps its own caches", strict=strict)
        return cache
    recorder = None
    if isinstance(there, _StoredCompiles):
        there.remove()
        recorder = there.recorder
    if cache.replaces("torch.inductor"):
        _StoredCompiles(cache, recorder).put(shared=shared)
    return cache


def uninstall() -> None:
    """Let torch keep what it compiles where it did before ``install``. Harmless otherwise."""
    there = getattr(sys.modules.get(_BUILDER), "_run_compile_cmd", None)
    if isinstance(there, _StoredCompiles):
        there.remove()


class _StoredCompiles:
    """What stands in torch in place of ``_run_compile_cmd``; it remembers what else was replaced, and by what."""

    def __init__(self, cache: Cache, recorder: KernelRecorder | None) -> None:
        """recorder: that of the one which stood there before; None for a new one."""
        from cachec_torch.kernel_recorder import KernelRecorder, installed_recorder

        self.cache = cache
        self.shared = False
        self.recorder = recorder or installed_recorder() or KernelRecorder()
        self._operations: OperationsKey | None = None
        self._foreign: dict[str, Foreign] = {}
        self._refused: set[str] = set()
        self._compiled = cache.stage(name=LIBRARIES, version="1")(_compiled)
        self._loaded = cache.stage(name=PROBES, version="1", ignore=["libraries"])(_loaded)
        self._run_by_torch: Callable[[str, str], None] | None = None
        self._before: list[tuple[Any, str, Any, Any]] = []  # (owner, name, before, ours)

    def __call__(self, cmd_line: str, cwd: str) -> None:
        """Raises torch's CppCompileError."""
        import torch

        command = _named(shlex.split(cmd_line), cwd)
        if command is None:
            assert self._run_by_torch is not None  # put was called
            self._run_by_torch(cmd_line, cwd)
            return
        words, sources, output = command
        made = self._compiled(words, sources, output.name, f"{torch.__version__} {torch.version.git_version}")
        _put(made.path, output)

    def loads(self, library: str) -> bool:
        """Whether this processor can load a library. What can't be loaded is tried anew each time."""
        import subprocess

        import torch

        version = f"{torch.__version__} {torch.version.git_version}"
        try:
            return self._loaded(Path(library).read_bytes(), str(Path(torch.__file__).parent / "lib"), version)
        except (OSError, subprocess.SubprocessError):
            return False

    def hash_details(self, original: Callable[..., None]) -> Callable[..., None]:
        """A constructor of what torch hashes to a key, with all operations that are not torch's, and what the keys of
        some releases lack."""
        from cachec_torch.compile_key import check_options, missing_settings
        from cachec_torch.project_modules import UnstorableOperation

        @functools.wraps(original)
        def initialise(details: Any, *arguments: Any, **others: Any) -> None:
            original(details, *arguments, **others)
            config = getattr(details, "aot_config", None)  # AOTAutograd's details have one
            details.cachec_settings = missing_settings(type(details))
            try:
                check_options(details)
                details.cachec_operations = self.operations().digest(getattr(config, "decompositions", None))
            except UnstorableOperation as error:
                name = NAMES["RemoteFxGraphCache" if config is None else "RemoteAOTAutogradCache"]
                is_first = str(error) not in self._refused
                self._refused.add(str(error))
                self._foreign[name].bypass(error.reason, str(error), is_reported=is_first)
                details.cachec_operations = f"{os.urandom(16).hex()}{_UNSTORABLE}"

        return initialise

    def operations(self) -> OperationsKey:
        """What makes the part of keys that holds the operations. Imports Inductor, so ``install`` does not call it.

        Raises UnstorableOperation where torch has moved what it reads.
        """
        if self._operations is None:
            from cachec_torch.project_modules import ProjectModules, UnstorableOperation, process_start

            try:
                from cachec_torch.operations import OperationsKey
            except GONE as error:
                raise UnstorableOperation(
                    Reason.UNSUPPORTED_VERSION, f"cachec_torch can't read what is registered with torch: {error}"
                ) from error
            self._operations = OperationsKey(self.recorder, ProjectModules(process_start()))
        return self._operations

    def put(self, *, shared: bool) -> None:
        """Stand in torch."""
        self.shared = shared
        from torch._functorch import config as autograd
        from torch._inductor import codecache, config, cpp_builder, cpu_vec_isa, remote_cache
        from torch.library import Library

        from cachec_torch import seams
        from cachec_torch.kernel_recorder import installed_recorder

        self._run_by_torch = cpp_builder._run_compile_cmd
        self._replace(cpp_builder, "_run_compile_cmd", self)
        details = codecache.FxGraphHashDetails
        self._replace(details, "__init__", self.hash_details(details.__init__))
        for name in seams.key_methods(codecache.FxGraphCachePickler):
            hashed = getattr(codecache.FxGraphCachePickler, name)
            self._replace(codecache.FxGraphCachePickler, name, _marking(hashed))
        if installed_recorder() is not self.recorder:
            self._replace(Library, "impl", self.recorder.impl(Library.impl))
            self._replace(Library, "define", self.recorder.define(Library.define))
            self._replace(Library, "fallback", self.recorder.fallback(Library.fallback))
        if (probes := seams.probe_owner(cpu_vec_isa)) is not None:
            self._replace(probes, "_probe_load", lambda _, library: self.loads(library))
        for kind, name in NAMES.items():
            self._foreign[name] = _foreign(self.cache, name, shared=shared)
            self._replace(getattr(remote_cache, kind), "backend_override_cls", _backend(self._foreign[name]))
        self._replace(config, "fx_graph_remote_cache", True)
        self._replace(autograd, "enable_remote_autograd_cache", True)
        for name, value in seams.known_options({"cpp_cache_precompile_headers": False}).items():
            self._replace(config, name, value)
        _forget()

    def remove(self) -> None:
        """Put back what stood there; what somebody has changed since is left to them."""
        for owner, name, before, ours in self._before:
            if getattr(owner, name) is ours:
                setattr(owner, name, before)
        _forget()

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        self._before.append((owner, name, getattr(owner, name), ours))
        setattr(owner, name, ours)


def _forget() -> None:
    """torch remembers one of its remote caches."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    AOTAutogradCache.get_remote_cache.cache_clear()


def _foreign(cache: Cache, name: str, *, shared: bool = False) -> Foreign:
    return cache.foreign(name, selective=True, shared="signed" if shared else "off")


def _marking(original: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    """A method in place of one that hashes details to a key: a key that no program may be stored under says so."""

    @functools.wraps(original)
    def marked(pickler: Any, details: Any) -> str:
        key = original(pickler, details)
        operations = getattr(details, "cachec_operations", "")
        return f"{key}{_UNSTORABLE}" if isinstance(operations, str) and operations.endswith(_UNSTORABLE) else key

    return marked


def _backend(foreign: Foreign) -> Callable[[], Any]:
    """The class of a backend, as torch makes it."""
    from torch._inductor.remote_cache import RemoteCacheBackend

    class StoredBackend(RemoteCacheBackend):  # type: ignore[misc]
        def _get(self, key: str) -> bytes | None:
            return None if _UNSTORABLE in key else foreign.get(key)

        def _put(self, key: str, data: bytes) -> None:
            if _UNSTORABLE not in key:
                foreign.put(key, data)

    return StoredBackend


def _named(words: list[str], cwd: str) -> tuple[list[str], dict[str, bytes], Path] | None:
    """A command with names in place of the paths of Inductor's folder, the sources by name, and where the output goes.

    None where the folder shows in another way, which nothing could stand for: in an option, or in a source.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    root = cache_dir()
    named: list[str] = []
    searched: set[Path] = set()
    sources: dict[str, bytes] = {}
    output = None
    for before, word in zip(["", *words], words, strict=False):
        path = Path(word)
        if word.startswith("-I") and Path(word[2:]).is_relative_to(root):
            searched.add(Path(word[2:]))
            continue
        if not path.is_relative_to(root):
            if root in word or (not path.is_absolute() and os.path.lexists(os.path.join(cwd, word))):
                return None
            named.append(word)
            continue
        if before == "-o":
            output = path
        elif path.is_file() and path.name not in sources:
            sources[path.name] = path.read_bytes()
        else:
            return None
        named.append(path.name)
    if not searched <= _take_headers(sources, root):
        return None
    if output is None or output.name in sources or any(root.encode() in source for source in sources.values()):
        return None
    return named, sources, output


def _take_headers(sources: dict[str, bytes], root: str) -> set[Path]:
    """Sources that earlier releases of torch make include a header of its own by its path in Inductor's folder, where
    its name is a digest of its text: the header becomes a source, included by name. Returns the folders
    of these headers, in which the compiler need not search any more."""
    waiting, folders = list(sources), set()
    while waiting:
        name = waiting.pop()
        for line, path in set(re.findall(rb'^(#include "([^"\n]+)")$', sources[name], re.MULTILINE)):
            header = Path(os.fsdecode(path))
            if not header.is_relative_to(root) or not header.is_file():
                continue
            if header.name not in sources:
                sources[header.name] = header.read_bytes()
                waiting.append(header.name)
            sources[name] = sources[name].replace(line, b'#include "' + os.fsencode(header.name) + b'"')
            folders.add(header.parent)
    return folders


@commands_alone
def _compiled(words: list[str], sources: dict[str, bytes], output: str, torch: str) -> File:
    """The stage. torch: whose headers the sources include."""
    from cachec_torch.toolchain import run_compiler

    with scratch() as folder:
        for name, source in sources.items():
            (folder / name).write_bytes(source)
        run_compiler([*words, f"-ffile-prefix-map={folder}=."], str(folder))
        return File(folder / output)


@commands_alone
def _loaded(library: bytes, libraries: str, torch: str) -> bool:
    """The stage. libraries: the folder of torch's, which the library needs. Raises SubprocessError."""
    host_processor()
    code = "from ctypes import cdll; cdll.LoadLibrary('./probe.so')"
    with scratch() as folder:
        (folder / "probe.so").write_bytes(library)
        run([sys.executable, "-I", "-S", "-c", code], cwd=folder, env={"LD_LIBRARY_PATH": libraries}, timeout=60)
    return True


def _put(made: Path, output: Path) -> None:
    """All of it at once: other processes may look for it there."""
    import shutil  # every process that asks for a plugin imports this module
    import tempfile

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=output.name, delete=False) as file:
        try:
            with open(made, "rb") as stored:
                shutil.copyfileobj(stored, file)
            file.flush()
            os.chmod(file.name, 0o755)
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise


def seam_reason() -> str:
    """Why nothing can stand in this torch, in words: it can't be imported, or a name is gone. Empty where all can."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch can't be imported: {error}"
    try:
        from torch._functorch import config as autograd
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
        from torch._inductor import codecache, config, cpp_builder, cpu_vec_isa, remote_cache
        from torch._inductor.runtime.cache_dir_utils import cache_dir
        from torch.library import Library

        used = (
            *(codecache.FxGraphHashDetails.__init__, codecache.FxGraphCachePickler.get_hash, Library.fallback),
            *(Library.impl, Library.define, cpp_builder._run_compile_cmd, cpu_vec_isa.VecISA, cache_dir),
            AOTAutogradCache.get_remote_cache.cache_clear,
            *(getattr(remote_cache, kind).backend_override_cls for kind in NAMES),
            *(remote_cache.RemoteCacheBackend._get, remote_cache.RemoteCacheBackend._put),
            *(config.fx_graph_remote_cache, autograd.enable_remote_autograd_cache),
        )
        del used
    except GONE as error:
        return f"torch {torch.__version__} lacks what it would replace: {type(error).__name__}: {error}"
    return ""
