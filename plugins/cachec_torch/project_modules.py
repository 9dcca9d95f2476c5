"""The files that count for operations of a project: all Python of the project, or the distribution that registers them.

Which functions a registered function reaches is not analysed, because imports, registries and computed names have no
end. Where project code registers anything with torch, all Python files of the project count by content.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

from cachec.base.distributions import Distribution, Distributions
from cachec.base.hashing import digest_bytes
from cachec.model import Reason
from cachec_torch.shim import torch_folder

#: Top-level packages of torch, of bindings to C++, and this package, whose functions torch calls.
TORCH = frozenset({"torch", "functorch", "torchgen", "pybind11_builtins", "cachec_torch"})

#: The largest package or folder of registering code that counts.
FILE_LIMIT, BYTE_LIMIT, ENTRY_LIMIT = 2_000, 64 << 20, 100_000

#: Folders that hold no code of the project, beside those whose name starts with a dot.
_SKIPPED = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})

#: Seconds within which the clock of the kernel's process table and that of its files may differ.
_CLOCK_TOLERANCE = 0.02


class UnstorableOperation(Exception):
    """An operation depends on something that no key can hold; the message names both, and the way out."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FileIdentity(NamedTuple):
    """What distinguishes one state of a file from another without reading it."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def file_identity(path: str) -> FileIdentity:
    """The identity of a file. Raises OSError."""
    state = os.stat(path)
    return FileIdentity(path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def process_start() -> float:
    """The time at which this process started, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


class ProjectModules:
    """Resolves functions, classes and modules to their files, and digests the files of the project.

    A file that changed after ``started`` is refused: the process may have imported its earlier content.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._distributions = Distributions()
        self._torch = (f"{torch_folder()}{os.sep}", os.path.dirname(os.path.abspath(__file__)) + os.sep)
        self._python = tuple(
            f"{folder}{os.sep}" for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        )
        self._owners: dict[str, Distribution | None] = {}
        self._identities: dict[str, FileIdentity] = {}

    def is_torch_file(self, path: str) -> bool:
        """Whether a file is part of torch."""
        return path.startswith(self._torch)

    def is_library_file(self, path: str) -> bool:
        """Whether a file is part of torch or of Python."""
        return self.is_torch_file(path) or (path.startswith(self._python) and f"-packages{os.sep}" not in path)

    def distribution(self, path: str) -> Distribution | None:
        """The installed distribution that a file belongs to; None for a file of the project."""
        if path not in self._owners:
            self._owners[path] = self._distributions.owner(path)
        return self._owners[path]

    def file_of_function(self, function: FunctionType, label: str) -> str:
        """The file that a function was read from, empty for torch and Python. Raises UnstorableOperation for none."""
        code, name = function.__code__.co_filename, str(function.__globals__.get("__name__", ""))
        if self.is_library_file(code) or (not os.path.isfile(code) and name.partition(".")[0] in TORCH):
            return ""
        module = sys.modules.get(name)
        path = _module_file(module)
        if path and vars(module) is function.__globals__ and os.path.basename(path) == os.path.basename(code):
            return path  # a script's functions have the path of the command line, which may be relative
        if not os.path.isfile(code):
            raise _unnamed_code(f"{label}: the function {function.__qualname__} comes from {code!r}, which is no file")
        return os.path.abspath(code)

    def file_of_module(self, name: str, label: str) -> str:
        """The file of a module, empty for torch and Python. Raises UnstorableOperation for a module without a file."""
        module = sys.modules.get(name)
        origin = getattr(getattr(module, "__spec__", None), "origin", "")
        if name.partition(".")[0] in TORCH or name in sys.builtin_module_names or origin == "frozen":
            return ""
        path = _module_file(module)
        if not path:
            raise _unnamed_code(f"{label} is in the module {name!r}, which has no file")
        return "" if self.is_library_file(path) else path

    def distribution_part(self, distribution: Distribution) -> tuple[str, str]:
        """The label and the digest of a distribution, without its scripts, which hold the path of the environment."""
        label = f"distribution {distribution.name} {distribution.version}"
        try:
            return label, _record_digest(file_identity(distribution.record_path))
        except FileNotFoundError:
            return label, ""

    def project_parts(self, registering: set[str], skipped: str) -> Iterator[tuple[str, str]]:
        """Labels and digests of all Python of the project, and of all installed distributions.

        registering: files of the project that register something. skipped: a folder of generated code.
        Raises UnstorableOperation for a file that changed, and OSError.
        """
        labels: dict[str, str] = {}
        for path in sorted(registering):
            root, base = self._root(path)
            labels |= {file: os.path.relpath(file, base) for file in self._python_files(root, skipped)}
            labels.setdefault(path, os.path.relpath(path, base))
        for name, module in sorted(sys.modules.items()):
            path = _module_file(module)
            if path and name.partition(".")[0] not in TORCH and not self.is_library_file(path):
                path = os.path.abspath(path)
                if path in labels or self.distribution(path) is not None:
                    continue
                if not os.path.realpath(path).startswith(f"{skipped}{os.sep}"):
                    labels[path] = f"module {name}"
        links: dict[str, bool] = {}
        for path, label in labels.items():
            yield f"file {label}", content_digest(self._check_identity(path, links))
        yield from self._main_part()
        for each in self._distributions:  # setuptools puts its own copies in the path when it is imported
            if not each.is_vendored:
                yield self.distribution_part(each)

    def _root(self, path: str) -> tuple[str, str]:
        """The folder whose Python counts with a file, and the folder that names are relative to."""
        for name, module in list(sys.modules.items()):
            if _module_file(module) == path and "." in name.removeprefix("__main__"):
                top = name.partition(".")[0]
                for folder in list(getattr(sys.modules.get(top), "__path__", ())):
                    if path.startswith(f"{folder}{os.sep}"):
                        return folder, os.path.dirname(folder)
        folder = os.path.dirname(path)
        while os.path.isfile(os.path.join(folder, "__init__.py")):  # a script in a package, or one without a module
            folder, path = os.path.dirname(folder), folder
        return (path, folder) if os.path.isdir(path) else (folder, folder)

    def _python_files(self, root: str, skipped: str) -> Iterator[str]:
        files = size = entries = 0
        visited: set[tuple[int, int]] = set()
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            state = os.stat(folder)
            if (state.st_dev, state.st_ino) in visited or os.path.realpath(folder) == skipped:
                continue
            visited.add((state.st_dev, state.st_ino))
            with os.scandir(folder) as found:
                listed = list(found)
            if folder != root and any(each.name == "pyvenv.cfg" for each in listed):
                continue
            entries += len(listed)
            for each in listed:
                if each.is_dir():
                    if not each.name.startswith(".") and each.name not in _SKIPPED:
                        waiting.append(each.path)
                elif each.name.endswith(".py") and each.is_file():
                    files, size = files + 1, size + each.stat().st_size
                    yield each.path
                if files > FILE_LIMIT or size > BYTE_LIMIT or entries > ENTRY_LIMIT:
                    raise UnstorableOperation(
                        Reason.UNNAMED_CODE,
                        f"the folder {root}, where project code registers operations, holds too much to count: over "
                        f"{FILE_LIMIT} Python files, {BYTE_LIMIT >> 20} MB of them, or {ENTRY_LIMIT} entries; put the "
                        "operations into a package of their own",
                    )

    def _check_identity(self, path: str, links: dict[str, bool]) -> FileIdentity:
        """The identity of a file. Raises UnstorableOperation where it changed after the process started.

        The time of its last change of status counts, which no program can set. links: folders whose path was checked.
        """
        identity = file_identity(path)
        changed = identity.ctime_ns / 1e9 > self._started + _CLOCK_TOLERANCE
        if changed or self._is_link_newer(path, links) or self._identities.setdefault(path, identity) != identity:
            raise UnstorableOperation(
                Reason.INPUT_CHANGED,
                f"{path}, or a link in its path, changed after this process started, so the process may hold an older "
                "text; start the process again",
            )
        return identity

    def _is_link_newer(self, path: str, links: dict[str, bool]) -> bool:
        if path not in links:
            state = os.lstat(path)
            is_link = os.path.islink(path)
            newer = is_link and state.st_ctime > self._started + _CLOCK_TOLERANCE
            links[path] = newer or (is_link and self._is_link_newer(_target(path), links))
            parent = os.path.dirname(path)
            links[path] = links[path] or (parent != path and self._is_link_newer(parent, links))
        return links[path]

    def _main_part(self) -> Iterator[tuple[str, str]]:
        if _module_file(sys.modules.get("__main__")):
            return
        if "-c" not in sys.orig_argv:
            raise _unnamed_code(
                "the module '__main__' has no file (a notebook, a prompt), so its code can't be compared"
            )
        yield "command", "\0".join(sys.orig_argv[1:])


def _target(link: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))


def _module_file(module: object) -> str:
    path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return path if isinstance(path, str) else ""


def _unnamed_code(message: str) -> UnstorableOperation:
    return UnstorableOperation(
        Reason.UNNAMED_CODE, f"{message}; register operations in a module of the project that a script imports"
    )


@lru_cache(maxsize=8192)
def content_digest(identity: FileIdentity) -> str:
    """The digest of a file by its content."""
    return digest_bytes(Path(identity.path).read_bytes())


@lru_cache(maxsize=4096)
def _record_digest(identity: FileIdentity) -> str:
    rows = Path(identity.path).read_bytes().splitlines()
    return digest_bytes(b"\n".join(row for row in rows if not row.startswith(b"../")))
