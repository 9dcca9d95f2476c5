"""A command called inside a stage: what it is, what it was given and what it looked at become part of the trace.

    cachec.run(["iree-compile", source, "-o", out], inputs=[source], outputs=[out], weights={params: "opened"})

The command runs with its standard input empty, no descriptor of this process, and an environment of only the
variables named in ``env``, ``LD_LIBRARY_PATH`` (recorded, as it chooses libraries) and ``PASSED_ON``.

A file in a ``scratch()`` folder is a product of the stage itself and is not recorded. One in any other temporary
folder is, and its trace never matches again once the folder is gone: a miss each time, never a wrong hit.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, NamedTuple

from cachec import recording
from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.base.fsio import Identity
from cachec.base.hashing import EMPTY
from cachec.commands.witness import Witness
from cachec.errors import CachecWarning, UsageError
from cachec.key.dependencies import ABSENT, Dependencies, search_environ, search_text
from cachec.key.tools.environment import environment_parts, variable_digest
from cachec.key.tools.executables import which
from cachec.key.tools.platform import processor_digest
from cachec.key.tools.tools import ToolKeys
from cachec.recording import Recorder

#: Passed on to a command without being recorded: where it runs and how it speaks, not what it makes. (PATH chooses
#: executables, which are recorded by content; what a command starts by itself is named in ``tools=``.)
PASSED_ON = ("PATH", "HOME", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "TERM", "LANG", "LANGUAGE")
PASSED_ON_PREFIX = "LC_"

WeightRule = Literal["content", "opened", "withheld"]
AnyPath = str | os.PathLike[str]

#: File systems where every open on this machine passes the inode that inotify watches. A network file system or FUSE
#: serves others too, so there a weight counts as read.
WATCHED_FILESYSTEMS = fsio.TRACKED_FILESYSTEMS | {"tmpfs", "overlay"}

_scratch: ContextVar[tuple[str, ...]] = ContextVar("cachec_scratch", default=())


class Result(NamedTuple):
    """How a command ended."""

    args: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder whose files are products of the stage: reads there are not recorded.

    Inside a stage it lives until the result is stored, so that the result may be a file in it; elsewhere it is removed
    after the body.
    """
    import shutil
    import tempfile

    recorder = recording.current()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="cachec-"))
    if recorder is not None:
        recorder.add_scratch(folder)
    before = _scratch.get()
    _scratch.set((*before, folder))
    try:
        yield Path(folder)
    finally:
        _scratch.set(before)
        if recorder is None:
            shutil.rmtree(folder)


def host_processor() -> None:
    """Record in the running stage that its result depends on this machine's processor: what ``native`` and ``host``
    mean to a compiler. For stages with ``portable=True``, whose key leaves the processor out."""
    recorder = recording.current()
    if recorder is not None:
        recorder.processor(processor_digest())


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
) -> Result:
    """Run a command, and record in the running stage what its result depends on.

    inputs: files it reads, and folders it reads all of: recorded by content. candidates: files it looks for: recorded
    by content, or as absent. search: folders it looks in: the names there are recorded. outputs: files it writes,
    which must be there afterwards. env: variables it gets: a name takes today's value and records it, a mapping's
    value is given as it is (None: today's). tools: executables that it starts. Relative paths count from ``cwd``.

    weights: ``"content"`` (what a list means) records the file as an input. ``"withheld"`` promises that the command
    can't reach it: naming it in the arguments or the environment raises UsageError. ``"opened"`` records nothing if
    nobody opened the file's inode while the command ran. Both fall back to the content where that can't be known: a
    standard input or descriptor was given, a descendant outlived the command, the file is on a network or FUSE file
    system, its events were lost, or it was replaced.

    Everything is looked at again afterwards: what changed meanwhile keeps the stage's result out of the store. Outside
    a stage the command just runs.

    Raises FileNotFoundError where the program, an input or (afterwards) an output is missing, CalledProcessError where
    it fails and ``check`` is set, TimeoutExpired after ``timeout`` seconds: as subprocess does.
    """
    if isinstance(command, str | bytes) or not command:
        raise UsageError(f"command={command!r} must be a list of a program and its arguments; no shell is run")
    args = tuple(os.fspath(argument) for argument in command)
    base = os.path.abspath(cwd) if cwd is not None else os.getcwd()
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

    data: int | bytes | None = stdin if isinstance(stdin, bytes) else None
    stdin_path = None if stdin is None or isinstance(stdin, bytes) else os.path.join(base, stdin)
    declared = _Declared(
        inputs=(*places(inputs, "inputs"), *((stdin_path,) if stdin_path is not None else ()), *_behind(pass_fds)),
        candidates=places(candidates, "candidates"),
        search=places(search, "search"),
        outputs=places(outputs, "outputs"),
        weights={os.path.join(base, path): rule for path, rule in _rules(weights).items()},
        tools=tuple(_tool_place(os.fspath(tool), base) for tool in (args[0], *tools)),
    )
    _check_withheld(declared, args, environ)
    with ExitStack() as stack:
        watch = WeightWatch(declared.weights, stack) if recorder is not None else None
        facts = _Facts(recorder, declared, fixed, keyed, environ) if recorder is not None else None
        if facts is not None:
            facts.record()
        witness = _witness(recorder, args, program, base, environ, keyed, fixed, declared, stdin_path or stdin)
        if data is None:
            source = os.open(stdin_path or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, source)
            data = source
        from cachec.commands.process import run_process

        if watch is not None:
            watch.arm()
        is_certain = False
        try:
            ended = run_process(
                args,
                program,
                environ=environ,
                cwd=base,
                stdin=data,
                pass_fds=pass_fds,
                timeout=timeout,
                supervised=watch is not None and watch.is_armed,
            )
            is_certain = ended.survivors is False and stdin is None and not pass_fds
        finally:
            # In any case: a stage may catch a time-out and go on. Drained before files are looked at, which opens them.
            if watch is not None and facts is not None:
                facts.weights_read(watch.read(is_certain=is_certain))
        if facts is not None:
            facts.record(again=True)
        if witness is not None:
            witness.ended(ended.returncode, ended.stderr)
    if check and ended.returncode:
        import subprocess

        raise subprocess.CalledProcessError(ended.returncode, list(args), ended.stdout, ended.stderr)
    for path in declared.outputs if not ended.returncode else ():
        if not os.path.lexists(path):
            raise FileNotFoundError(errno.ENOENT, f"{args[0]} ended well but did not write its output", path)
    return Result(args, ended.returncode, ended.stdout, ended.stderr)


class _Declared(NamedTuple):
    """What ``run`` was told, as absolute paths (a tool may be a bare name, to be found in PATH)."""

    inputs: tuple[str, ...]
    candidates: tuple[str, ...]
    search: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, WeightRule]
    tools: tuple[str, ...]


class _Facts:
    """Puts what a command depends on into the trace, before it ran and again after it."""

    def __init__(
        self,
        recorder: Recorder,
        declared: _Declared,
        fixed: Mapping[str, str],
        keyed: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        self._recorder = recorder
        self._declared = declared
        self._keyed = keyed
        self._environ = environ
        self._search = search_text(fixed)
        self._digests = recorder.digests
        self._tools = ToolKeys(recorder.digests, Distributions())
        self._dependencies = Dependencies(self._tools, recorder.digests)

    def record(self, *, again: bool = False) -> None:
        """Record everything that was declared. ``again``: what differs from the first time contradicts it."""
        for name in self._keyed:
            self._recorder.environment(name, variable_digest(name, os.environ))
        self._record_tools(fresh=again)
        for path in self._declared.inputs:
            if again and not os.path.lexists(path):
                self._file(path, lambda _: ABSENT)
            else:
                self._tree(path, set())
        for path in self._declared.candidates:
            if os.path.lexists(path):
                self._file(path, self._dependencies.file)
            elif (place := _recorded_as(path)) is not None:
                self._recorder.absent(place)
        for path in self._declared.search:
            # A folder that the command writes into is as it left it.
            if again or not any(os.path.dirname(output) == path for output in self._declared.outputs):
                self._listing(path)
        for path, rule in self._declared.weights.items():
            if rule == "content":
                self._file(path, self._dependencies.file if again else self._digests.of_path)

    def weights_read(self, read: Mapping[str, bool]) -> None:
        """Record the content of weights that were read, or may have been. The value: whether it is still the same."""
        for path, is_same in read.items():
            if self._declared.weights[path] == "withheld":
                warnings.warn(
                    f"weight file {path!r} was to be withheld from {self._declared.tools[0]!r} and may have been read; "
                    'its content counts now (say "opened" where the command may open it)',
                    CachecWarning,
                    stacklevel=3,
                )
            self._file(path, self._dependencies.file)
            if not is_same:
                # What the command saw is gone: two different contents keep the result out of the store.
                self._file(path, lambda _: EMPTY)
                self._file(path, lambda _: ABSENT)

    def _record_tools(self, *, fresh: bool) -> None:
        environ = search_environ(self._search, self._environ)
        for tool in self._declared.tools:
            place = tool if "/" not in tool else _recorded_as(tool)
            if place is None:
                continue
            if fresh:
                digest = self._dependencies.tool(place, environ, fresh=True)
            else:
                digest = self._tools.executable(place, environ).digest
            self._recorder.tool(place, digest, self._search)

    def _tree(self, path: str, above: set[tuple[int, int]]) -> None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            if (place := _recorded_as(path)) is not None:
                self._recorder.absent(place)
            raise
        if stat.S_ISREG(found.st_mode):
            self._file(path, self._digests.of_path)
        elif not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"input {path!r} is neither a file nor a folder, so its content can't be recorded")
        elif (found.st_dev, found.st_ino) not in above:  # a symbolic link may lead back up
            self._listing(path)
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                if os.path.isfile(inner) or os.path.isdir(inner):
                    self._tree(inner, above | {(found.st_dev, found.st_ino)})

    def _file(self, path: str, digest: Callable[[str], str]) -> None:
        place = _recorded_as(path)
        if place is not None:
            self._recorder.file(place, digest(place))

    def _listing(self, path: str) -> None:
        place = _recorded_as(path)
        if place is not None:
            self._recorder.listing(place, self._dependencies.listing(place))


class WeightWatch:
    """Watches the weight files that the command is not to read."""

    def __init__(self, weights: Mapping[str, WeightRule], stack: ExitStack) -> None:
        """weights: absolute path -> rule. stack: what ends the watch."""
        self._paths = tuple(path for path, rule in weights.items() if rule != "content")
        self._stack = stack
        self._before: dict[str, Identity] = {path: fsio.identity(path) for path in self._paths}
        self._unwatched: frozenset[str] = frozenset()
        self._touched: Callable[[], frozenset[str]] | None = None

    @property
    def is_armed(self) -> bool:
        return self._touched is not None

    def arm(self) -> None:
        """Start watching, just before the command starts."""
        if not self._paths:
            return
        mounts = fsio.Mounts()
        self._unwatched = frozenset(path for path in self._paths if mounts.kind(path) not in WATCHED_FILESYSTEMS)
        if len(self._unwatched) == len(self._paths):
            return
        from cachec.commands.opens import OpenWatch

        try:
            watch = OpenWatch(path for path in self._paths if path not in self._unwatched)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES):
                raise
            warnings.warn(
                f"the kernel gives no watch ({error.strerror}), so weight files count by content; "
                "see fs.inotify.max_user_watches and max_user_instances",
                CachecWarning,
                stacklevel=4,
            )
            return
        self._stack.enter_context(watch)
        self._touched = watch.touched

    def read(self, *, is_certain: bool) -> dict[str, bool]:
        """The weights that were read or may have been, and whether each is still the file that it was before."""
        touched = self._touched() if self._touched is not None else frozenset(self._paths)
        found: dict[str, bool] = {}
        for path in self._paths:
            try:
                is_same = fsio.identity(path) == self._before[path]
            except OSError:
                is_same = False
            if not is_certain or path in touched or path in self._unwatched or not is_same:
                found[path] = is_same
        return found


def _witness(
    recorder: Recorder | None,
    args: Sequence[str],
    program: str,
    base: str,
    environ: Mapping[str, str],
    keyed: Sequence[str],
    fixed: Mapping[str, str],
    declared: _Declared,
    stdin: bytes | AnyPath | None,
) -> Witness | None:
    """For a reproducer; it looks at files before the watch on weights is armed, and after it was drained."""
    if recorder is None:
        return None
    return Witness(
        recorder,
        args,
        program,
        base,
        {name: environ.get(name) for name in (*keyed, *fixed)},
        inputs=[path for path in (*declared.inputs, *declared.candidates) if os.path.exists(path)],
        outputs=declared.outputs,
        weights=declared.weights,
        stdin=stdin if stdin is None or isinstance(stdin, bytes) else os.fspath(stdin),
    )


def _recorded_as(path: str) -> str | None:
    """The path that a read is recorded under; None for a product of the stage.

    A link in a scratch folder that leads out of it is recorded under what it leads to.
    """
    folders = _scratch.get()
    if not folders:
        return os.path.abspath(path)
    real = os.path.realpath(path)
    if _is_under(real, folders):
        return None
    place = os.path.abspath(path)
    return real if _is_under(place, folders) else place


def _is_under(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _tool_place(tool: str, base: str) -> str:
    return os.path.join(base, tool) if "/" in tool else tool


def _behind(fds: Sequence[int]) -> tuple[str, ...]:
    """The files behind descriptors that are handed on: inputs. Raises UsageError for a pipe or a socket in a stage."""
    found = []
    for fd in fds:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        elif recording.current() is not None:
            raise UsageError(
                f"pass_fds: descriptor {fd} is no regular file, so what comes through it can't be recorded"
            )
    return tuple(found)


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
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.startswith(PASSED_ON_PREFIX) or name in keyed
    }
    environ.update(fixed)
    # LD_PRELOAD is looked up with its value of now; that the value is the same later is a read of its own.
    pinned = {"LD_PRELOAD": environ["LD_PRELOAD"]} if "LD_PRELOAD" in environ else {}
    return environ, tuple(keyed), {**pinned, **fixed}


def _check_withheld(declared: _Declared, args: Sequence[str], environ: Mapping[str, str]) -> None:
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
