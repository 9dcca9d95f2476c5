"""The files of a project whose functions take part in what torch compiles, and the project files that they import.

A file counts whole, by its content. Modules of torch and of Python do not count here; modules of an installed
distribution count by the ``RECORD`` of that distribution.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

from cachec.base.distributions import Distribution, Distributions
from cachec.base.hashing import digest_bytes
from cachec.model import Reason
from cachec_torch.shim import torch_folder

#: Top-level packages of torch's distribution, and the part of this package that torch calls.
_TORCH = ("torch", "functorch", "torchgen", "cachec_torch")

#: Seconds within which the clock of the kernel's process table and that of its files may differ.
_CLOCK_TOLERANCE = 0.02


class UnstorableOperation(Exception):
    """An operation depends on something that no key can hold; the message names both, and the way out."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FileIdentity(NamedTuple):
    """What tells one state of a file from another without reading it."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def process_start() -> float:
    """The time at which this process started, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


class ProjectModules:
    """Resolves functions, classes and modules to the files that they were read from.

    A file that changed after ``started`` is refused: the process may have imported what stood there before.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._distributions = Distributions()
        self._torch = f"{torch_folder()}{os.sep}"
        self._python = tuple(
            f"{folder}{os.sep}" for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        )

    def is_torch_file(self, path: str) -> bool:
        """Whether a file is part of torch."""
        return path.startswith(self._torch)

    def distribution(self, path: str) -> Distribution | None:
        """The installed distribution that a file belongs to; None for a file of the project."""
        return self._distributions.owner(path)

    def module_of_function(self, function: FunctionType, label: str) -> str:
        """The name of the module that a function was read from, empty for torch and Python.

        Raises UnstorableOperation where the function was not read from the file of its module.
        """
        name = function.__globals__.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        where = f"{label}: the function {function.__qualname__}"
        if module is None or vars(module) is not function.__globals__:
            raise _unnamed(f"{where} was made by exec, or its module {name!r} is no longer imported")
        if not self.counts(module.__name__, where):
            return ""
        file, path = function.__code__.co_filename, getattr(module, "__file__", None)
        if path is None or (file != path and os.path.realpath(file) != os.path.realpath(path)):
            raise _unnamed(f"{where} comes from {file!r} and not from the file of its module {name!r}")
        return module.__name__

    def module_of_class(self, kind: type, label: str) -> str:
        """The name of the module that a class is in, empty for torch and Python. Raises UnstorableOperation where that
        module has no file."""
        return kind.__module__ if self.counts(kind.__module__, f"{label}: the class {kind.__qualname__}") else ""

    def counts(self, name: str, label: str) -> bool:
        """Whether a module is neither torch's nor Python's. Raises UnstorableOperation for a module without a file."""
        if name.partition(".")[0] in _TORCH:
            return False
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if path is None:
            if not _should_have_file(name, module):
                return False
            raise _unnamed(f"{label} is in the module {name!r}, which has no file")
        return not self._is_python(path)

    def _is_python(self, path: str) -> bool:
        return path.startswith(self._python) and "-packages" + os.sep not in path

    def parts(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Labels and digests of the files of these modules and of all project modules that they import, and of the
        distributions whose modules are reached. Raises UnstorableOperation for a file that changed since ``started``.
        """
        waiting = list(names)
        seen = set(waiting)
        distributions: dict[str, Distribution] = {}
        while waiting:
            name = waiting.pop()
            module = sys.modules.get(name)
            if not isinstance(module, ModuleType):
                continue  # some libraries leave other objects there
            path = module.__file__ if isinstance(getattr(module, "__file__", None), str) else None
            if path is None:
                self._check_unfiled(name, module)
                continue
            if self._is_python(path):
                continue
            owner = self.distribution(path)
            if owner is not None:
                distributions[owner.name] = owner
                continue
            identity = self._identity(name, path)
            yield f"module {name}", _content_digest(identity)
            for each in self._imported(name, module, identity):
                if each not in seen and each.partition(".")[0] not in _TORCH:
                    seen.add(each)
                    waiting.append(each)
        yield from map(self.distribution_part, distributions.values())

    def distribution_part(self, distribution: Distribution) -> tuple[str, str]:
        """The label and the digest of a distribution."""
        record = distribution.record_text()
        label = f"distribution {distribution.name} {distribution.version}"
        return label, digest_bytes(b"" if record is None else record[1])

    def _check_unfiled(self, name: str, module: ModuleType) -> None:
        """Raise UnstorableOperation for a module without a file that the project made while it ran."""
        top = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
        is_installed = isinstance(top, str) and (self._is_python(top) or self.distribution(top) is not None)
        if not is_installed and not hasattr(module, "__path__") and _should_have_file(name, module):
            raise _unnamed(f"the module {name!r}, which a registered function imports, has no file")

    def _identity(self, name: str, path: str) -> FileIdentity:
        try:
            state = os.stat(path)
        except OSError as error:
            raise _unnamed(f"the file {path} of the module {name!r} can't be read: {error}") from error
        if max(state.st_ctime, state.st_mtime) > self._started + _CLOCK_TOLERANCE:
            raise UnstorableOperation(
                Reason.INPUT_CHANGED,
                f"{path} changed after this process started, so the module {name!r} may hold an older text; "
                "start the process again",
            )
        return FileIdentity(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)

    def _imported(self, name: str, module: ModuleType, identity: FileIdentity) -> Iterator[str]:
        """The imported modules that a module names in an import statement, or holds something of."""
        package = module.__package__ or ""
        for word in _import_words(identity) if identity.path.endswith(".py") else ():
            try:
                found = importlib.util.resolve_name(word, package)
            except ImportError:  # a relative import that Python did not run: it would have failed in the same way
                continue
            while found:
                if found in sys.modules:
                    yield found
                found = found.rpartition(".")[0]
        yield from (parent for parent in _parents(name) if parent in sys.modules)
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                yield value.__name__
            elif isinstance(value, FunctionType | type) and isinstance(value.__module__, str):
                yield value.__module__


def _should_have_file(name: str, module: ModuleType | None) -> bool:
    """False for a module that is part of the interpreter."""
    return name not in sys.builtin_module_names and getattr(getattr(module, "__spec__", None), "origin", "") != "frozen"


def _unnamed(message: str) -> UnstorableOperation:
    return UnstorableOperation(
        Reason.UNNAMED_CODE, f"{message}; register operations in a module of the project that is imported from a file"
    )


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


@lru_cache(maxsize=4096)
def _content_digest(identity: FileIdentity) -> str:
    return digest_bytes(Path(identity.path).read_bytes())


@lru_cache(maxsize=4096)
def _import_words(identity: FileIdentity) -> tuple[str, ...]:
    """The names in a file's import statements, relative ones with their dots; of ``from a import b`` also ``a.b``."""
    words: dict[str, None] = {}
    for node in ast.walk(ast.parse(Path(identity.path).read_bytes())):
        if isinstance(node, ast.Import):
            words.update((each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            words[base] = None
            dot = "." if node.module else ""
            words.update((f"{base}{dot}{each.name}", None) for each in node.names)
    return tuple(words)
