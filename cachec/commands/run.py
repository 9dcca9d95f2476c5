"""A command called inside a stage: it runs under the tracer, and what it looked up becomes part of the trace.

    cachec.run(["iree-compile", source, "-o", out], outputs=[out])

The command runs with its standard input empty, no descriptor of this process, and an environment of only the
variables named in ``env``, ``LD_LIBRARY_PATH`` (recorded, as it chooses libraries) and ``PASSED_ON``.

What the run itself made is not recorded: files in a ``scratch()`` folder, temporary files, products of other commands.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cachec import recording
from cachec.base import audit_events
from cachec.base.cache_bypass import is_uncached
from cachec.base.paths import absolute
from cachec.base.tracer_hiding import unseen
from cachec.commands.environment import command_environment
from cachec.commands.invocation import DeclaredFiles, Invocation, WeightRule
from cachec.errors import UsageError, printable
from cachec.key.tools.environment import LOCALE_NAME, environment_parts, variable_digest
from cachec.key.tools.platform import accelerators_digest, processor_digest
from cachec.key.trace_validation import ABSENT, search_text

AnyPath = str | os.PathLike[str]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_COMMANDS_ALONE = "__cachec_commands_alone__"

#: Bytes of a failing command's standard error that its exception shows.
_MAX_STDERR = 4000


class CompletedCommand(NamedTuple):
    """How a command ended."""

    args: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder whose files are products of the stage: reads there are not recorded.

    Inside a stage it lives until the result is stored, so that the result may be a file in it; where the stage runs
    without the cache, until the process ends. Elsewhere it is removed after the body.
    """
    import atexit
    import shutil
    import tempfile

    recorder = recording.current()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="cachec-"))
    if recorder is not None:
        recorder.add_scratch(folder)
    elif is_uncached():
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        yield Path(folder)
    finally:
        if recorder is None and not is_uncached():
            shutil.rmtree(folder)


def commands_alone(function: _Function) -> _Function:
    """Declare that a stage's function reads files only by Python and by ``run``.

    Then no folder is watched for reads by native code in this process, so reads of other processes do not count.
    """
    function.__dict__[_COMMANDS_ALONE] = True
    return function


def are_commands_alone(function: Callable[..., Any]) -> bool:
    """Whether a function is declared with ``commands_alone``."""
    return _COMMANDS_ALONE in getattr(function, "__dict__", ())


def host_processor() -> None:
    """Record in the running stage that its result depends on this machine's processor: what ``native`` and ``host``
    mean to a compiler. For stages with ``portable=True``, whose key leaves the processor out."""
    _record_machine("host", processor_digest)


def host_accelerators() -> None:
    """Record in the running stage that its result depends on this machine's accelerators and their drivers."""
    _record_machine("accelerators", accelerators_digest)


def _record_machine(which: str, digest: Callable[[], str]) -> None:
    recorder = recording.current()
    if recorder is None:
        sys.audit(audit_events.ASKS, f"what this machine has ({which})")
    else:
        recorder.processor(which, digest())


def run(
    command: Sequence[AnyPath],
    *,
    inputs: Sequence[AnyPath] = (),
    outputs: Sequence[AnyPath] = (),
    weights: Mapping[AnyPath, WeightRule] | Sequence[AnyPath] = (),
    candidates: Sequence[AnyPath] = (),
    search: Sequence[AnyPath] = (),
    env: Sequence[str] | Mapping[str, str | None] = (),
    tools: Sequence[AnyPath] = (),
    cwd: AnyPath | None = None,
    stdin: bytes | AnyPath | None = None,
    pass_fds: Sequence[int] = (),
    timeout: float | None = None,
    check: bool = True,
) -> CompletedCommand:
    """Run a command, and record in the running stage what its result depends on.

    What the command and all that it starts look up is recorded: see ``recorded``. The following count in any case.
    inputs: files, and folders with all that is below, by content. candidates: files by content, or as absent. search:
    folders, by the names there. tools: executables. outputs: files it writes, which must be there afterwards. env:
    variables it gets: a name takes today's value and records it, a mapping's value is given as it is (None: today's).
    Relative paths count from ``cwd``.

    weights: ``"content"`` (what a list means) records the file as an input. ``"opened"`` records it if the command
    opened it. ``"withheld"`` says that the command does not: naming the file in the arguments or the environment raises
    UsageError, and opening it is a warning.

    The stage's result is not stored where an input changed meanwhile, where the command did more than write its outputs
    and temporary files, and where it could not be traced. Outside a stage the command just runs.

    Raises FileNotFoundError where the program, an input or (afterwards) an output is missing, CalledProcessError where
    it fails and ``check`` is set, TimeoutExpired after ``timeout`` seconds: as subprocess does. Of a failure the notes
    say how its standard error ends.
    """
    if isinstance(command, str | bytes) or not command:
        raise UsageError(f"command={command!r} must be a list of a program and its arguments; no shell is run")
    with unseen():
        args = tuple(os.fspath(argument) for argument in command)
        base = absolute(os.fsdecode(cwd)) if cwd is not None else os.getcwd()
        from cachec.key.tools.executables import which  # where a command is run: plugins import this module for less

        environ, keyed, fixed = _environment(env)
        program = which(args[0], environ, base)
        recorder = recording.current()
        if program is None:
            if recorder is not None:
                recorder.tool(_tool_place(args[0], base), ABSENT, search_text(fixed))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])

        def places(paths: Sequence[AnyPath], option: str) -> tuple[str, ...]:
            if isinstance(paths, str | bytes | os.PathLike):
                raise UsageError(f"{option}={paths!r} is one path; give a list: {option}=[...]")
            return tuple(os.path.join(base, path) for path in paths)

        place = stdin if stdin is None or isinstance(stdin, bytes) else os.path.join(base, stdin)
        declared = DeclaredFiles(
            inputs=(*places(inputs, "inputs"), *((place,) if isinstance(place, str) else ()), *_behind(pass_fds)),
            candidates=places(candidates, "candidates"),
            search=places(search, "search"),
            outputs=places(outputs, "outputs"),
            weights={os.path.join(base, path): rule for path, rule in _rules(weights).items()},
            tools=tuple(_tool_place(os.fspath(tool), base) for tool in (args[0], *tools)),
        )
        _check_withheld(declared, args, environ)
        named = {name: environ.get(name) for name in (*keyed, *fixed) if name != LOCALE_NAME}
        call = Invocation(args, program, base, environ, place, tuple(pass_fds), timeout, named)
        if recorder is None:
            from cachec.commands.process import run_process

            for path in (*declared.inputs, *declared.weights):
                os.stat(path)  # what is not there is the same error in a stage and outside
            sys.audit(audit_events.ASKS, f"the command {args[0]}")
            ended = run_process(**call.process_arguments())
        else:
            from cachec.commands.stage_command import run_recorded

            for name in keyed:
                recorder.environment(name, variable_digest(name, os.environ))
            ended = run_recorded(recorder, call, declared, search_text(fixed))
        if check and ended.returncode:
            import subprocess

            failed = subprocess.CalledProcessError(ended.returncode, list(args), ended.stdout, ended.stderr)
            for line in ended.stderr[-_MAX_STDERR:].decode(errors="replace").splitlines():
                failed.add_note(printable(line))  # which a traceback shows: the error's own words have the status only
            raise failed
        for path in declared.outputs if not ended.returncode else ():
            if not os.path.lexists(path):
                raise FileNotFoundError(errno.ENOENT, f"{args[0]} ended well but did not write its output", path)
        return CompletedCommand(args, ended.returncode, ended.stdout, ended.stderr)


def _tool_place(tool: str, base: str) -> str:
    return os.path.join(base, tool) if "/" in tool else tool


def _behind(fds: Sequence[int]) -> tuple[str, ...]:
    """The files behind descriptors that are handed on: inputs. Raises UsageError for a pipe or a socket in a stage."""
    paths = []
    for fd in fds:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        elif recording.current() is not None:
            raise UsageError(
                f"pass_fds: descriptor {fd} is no regular file, so what comes through it can't be recorded"
            )
    return tuple(paths)


def _rules(weights: Mapping[AnyPath, WeightRule] | Sequence[AnyPath]) -> dict[AnyPath, WeightRule]:
    if isinstance(weights, str | bytes | os.PathLike):
        raise UsageError(f"weights={weights!r} is one path; give a list, or a mapping from path to rule")
    rules: dict[AnyPath, WeightRule] = (
        dict(weights) if isinstance(weights, Mapping) else dict.fromkeys(weights, "content")
    )
    for path, rule in rules.items():
        if rule not in ("content", "opened", "withheld"):
            raise UsageError(f'weights[{os.fspath(path)!r}] is {rule!r}; say "content", "opened" or "withheld"')
    return rules


def _environment(
    env: Sequence[str] | Mapping[str, str | None],
) -> tuple[dict[str, str], tuple[str, ...], dict[str, str]]:
    """(the command's environment, the variables to record, those that choose what is loaded and are not looked up)."""
    if isinstance(env, str):
        raise UsageError(f"env={env!r} is one str; give a list of names, or a mapping")
    given = dict(env) if isinstance(env, Mapping) else dict.fromkeys(env)
    environment_parts(given, {})  # raises for a name that no variable can have
    fixed = {name: value for name, value in given.items() if value is not None}
    keyed = sorted({name for name, value in given.items() if value is None} | ({"LD_LIBRARY_PATH"} - set(fixed)))
    environ = {**command_environment(os.environ, keyed), **fixed}
    # LD_PRELOAD is looked up with its value of now; that the value is the same later is a read of its own.
    pinned = {"LD_PRELOAD": environ["LD_PRELOAD"]} if "LD_PRELOAD" in environ else {}
    return environ, (*keyed, LOCALE_NAME), {**pinned, **fixed}


def _check_withheld(declared: DeclaredFiles, args: Sequence[str], environ: Mapping[str, str]) -> None:
    for path, rule in declared.weights.items():
        if rule != "withheld":
            continue
        names = {path, os.path.realpath(path)}
        for where, text in (*(("argument", arg) for arg in args), *environ.items()):
            if any(name in text for name in names) or os.path.basename(path) in _words(text):
                raise UsageError(
                    f'weight file {path!r} is "withheld", but {where} {text!r} names it; '
                    'say "opened", or "content" if the command reads it'
                )


def _words(text: str) -> set[str]:
    """The pieces of an argument that can be a file's name: ``--weights=dir/w.bin`` has ``w.bin``."""
    for separator in "=:,;@\"' \t\n":
        text = text.replace(separator, "/")
    return set(text.split("/"))
