"""The C++ compiler that Inductor starts, recorded in the running stage; and Inductor's folders. Imports torch.

Inductor compiles in a folder whose name ends up in what it makes (``__FILE__``, debug information); the compiler is
told another name for it, and for the folder that torch is in, so that equal programs give equal bytes.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import torch
from torch._inductor import cpp_builder, exc

from cachec.commands.run import host_processor, run

#: Variables by which a C++ compiler finds headers, libraries and its own parts; it gets these and no others.
_VARIABLES = ("COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH")

#: One build at a time: what is replaced below is the process's.
_BUILDING = threading.Lock()

#: Where Inductor and Triton keep what they make.
_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Another value for an attribute, which has to be there. One thread at a time: inside ``recorded_compiler``."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def recorded_compiler(folder: Path, before_each: Callable[[], None]) -> Iterator[None]:
    """While this holds, Inductor works in ``folder`` and each run of its C++ compiler is a read of the running stage.

    So is this machine's processor, for which it compiles (``-march=native``). before_each: called before each run.
    """
    context, names = copy_context(), {str(folder): ".", str(Path(torch.__file__).parent): "torch"}
    host_processor()

    def compile_(cmd_line: str, cwd: str) -> None:
        before_each()
        words = shlex.split(cmd_line)
        # Folders of sources have a name of Inductor's in between. The last one that fits counts.
        folders = {os.path.dirname(word): "." for word in words if word.startswith(f"{folder}/")}
        renaming = [f"-ffile-prefix-map={there}={name}" for there, name in (names | folders).items()]
        # Inductor may ask from a thread of its own; a context can be entered once at a time.
        context.copy().run(run_compiler, [*words, *renaming], cwd)

    with _BUILDING, replaced(cpp_builder, "_run_compile_cmd", compile_):
        before = {name: os.environ.get(name) for name in _FOLDERS}
        os.environ.update(dict(zip(_FOLDERS, (str(folder / "inductor"), str(folder / "triton")), strict=True)))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def run_compiler(command: list[str], cwd: str) -> None:
    """Raises torch's CppCompileError, as the function that it stands for."""
    ended = run(command, cwd=cwd, env=_VARIABLES, check=False)
    if ended.returncode:
        raise exc.CppCompileError(command, (ended.stdout + ended.stderr).decode(errors="replace"))
