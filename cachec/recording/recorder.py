"""Records what the current stage run has read: the trace in the making."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from cachec.base.display_text import is_text
from cachec.base.hashing import EMPTY, FileDigests
from cachec.base.paths import absolute
from cachec.model import Read, Reason
from cachec.recording import thread_owner

if TYPE_CHECKING:
    from cachec.recording.observations import Observations
    from cachec.recording.run_observer import Net  # on a miss only


class FileState(msgspec.Struct, frozen=True):
    """A file as a command found or left it."""

    #: Absolute, empty for bytes on stdin.
    path: str
    digest: str
    nbytes: int
    #: The folder of their copies.
    data: bytes | None = None


class CommandRun(msgspec.Struct):
    """A command that a stage ran, as a reproducer needs it."""

    args: tuple[str, ...]
    #: The executable that args[0] led to.
    program: str
    cwd: str
    #: The variables that it was given by name, None where one was not set.
    environ: Mapping[str, str | None]
    #: Path -> rule.
    weights: Mapping[str, str]
    inputs: tuple[FileState, ...] = ()
    outputs: tuple[FileState, ...] = ()
    stdin: FileState | None = None
    #: None where it did not come to its end.
    returncode: int | None = None
    stderr: bytes = b""


class ReadRecorder:
    """Collects the reads of one run of a stage. Safe to use from the threads that the stage starts.

    A read inside a nested stage is a read of the outer one too: the inner result came into it. Weight handles see to
    that by themselves (an inner handle wraps the outer one); for everything else a recorder passes on to its parent.
    """

    def __init__(
        self,
        stage: str,
        parent: ReadRecorder | None = None,
        digests: FileDigests | None = None,
        net: Net | None = None,
        results: Iterable[str] = (),
        *,
        is_traced: bool = False,
    ) -> None:
        """is_traced: the run has a process of its own, of which the tracer sees all.

        digests: where the digests of files are remembered for this run (the cache's own, in a stage). net: observes
        what nothing else records, while the recorder is the current one. results: paths of results of other stages that
        are arguments. They are in the key, and what they were made of is read by whoever called those stages."""
        self.stage = stage
        self.digests = digests if digests is not None else FileDigests()
        self.net = net
        self.parent = parent
        self.is_traced = is_traced
        #: Whether the run goes on.
        self.is_on = False
        #: Whether paths below the project's folder are among the values that the run may have used.
        self.has_project_paths = False
        #: Who observes the run: its own net, and those of the runs around it.
        self.observers: tuple[Observations, ...] = (
            *(() if net is None else (net.observed,)),
            *(() if parent is None else parent.observers),
        )
        self._lock = threading.Lock()
        self._reads: dict[tuple[str, str, str], Read] = {}
        self._contradictions: list[Read] = []
        self._scratch: list[str] = []
        self._products: set[str] = set()
        self._results = frozenset(each for path in results for each in (absolute(path), os.path.realpath(path)))
        self._refusal: tuple[Reason, str] | None = None
        self._commands: list[CommandRun] = []
        #: Reads that are known to be valid until the end of the run.
        self.checked: set[Read] = set()
        self._checks: list[Callable[[], None]] = []

    def weight(self, where: str, name: str, digest: str) -> None:
        """The bytes of weight ``name`` of the argument at path ``where`` were exposed."""
        self._add(Read("weight", where, name, digest))

    def file(self, path: str, digest: str) -> None:
        """A file was read whole."""
        self._pass_on(Read("file", path, "", digest))

    def absent(self, path: str) -> None:
        """A file was looked for and not found."""
        self._pass_on(Read("absent", path, "", EMPTY))

    def listing(self, path: str, digest: str) -> None:
        """Record a listing of a folder; ``digest`` is over the sorted names."""
        self._pass_on(Read("listing", path, "", digest))

    def tool(self, path: str, digest: str, search: str = "") -> None:
        """An executable was run; ``digest`` is its identity.

        search: the variables that the stage itself fixed and that choose what is loaded, as ``NAME=value`` lines.
        """
        self._pass_on(Read("tool", path, search, digest))

    def environment(self, variable: str, digest: str) -> None:
        """A variable of the environment was passed to a command."""
        self._pass_on(Read("env", variable, "", digest))

    def command(self, run: CommandRun) -> None:
        """A command is run. It is no read, and is not passed on: what the outer stage would run again is its own."""
        with self._lock:
            self._commands.append(run)

    def commands(self) -> tuple[CommandRun, ...]:
        """The commands that this stage itself has run, in order."""
        with self._lock:
            return tuple(self._commands)

    def processor(self, which: str, digest: str) -> None:
        """The processor of this machine was asked for (``host``), by a stage that may be portable; ``accelerators``."""
        self._pass_on(Read("processor", which, "", digest))

    def add_read(self, read: Read) -> None:
        """Record a read of the run itself, or of the run with the stored result that it uses."""
        self._pass_on(read)

    def set_generator(self, name: str, read: Read | None) -> None:
        """The state that a random generator had when the run began, in place of what nested runs began with; None where
        no earlier state counts."""
        with self._lock:
            self._reads.pop(("generator", name, ""), None)
            others = (each for each in self._contradictions if (each.kind, each.where) != ("generator", name))
            self._contradictions = [*others]
            if read is not None:
                self._reads[read.kind, read.where, read.name] = read
                self.checked.add(read)  # the run itself has moved it since
        if self.parent is not None and read is not None:
            self.parent.add_read(read)

    def add_traced_read(self, read: Read) -> None:
        """Record a lookup of a command. Only that command has changed it since, so it needs no second check."""
        if self.is_traced:
            return  # the tracer of the run sees it too, and knows what the run itself has made
        if not self._results or self._results.isdisjoint(_with_folders_above(read.where)):
            self.checked.add(read)
            self._add(read)
        if self.parent is not None:
            self.parent.add_traced_read(read)

    def add_nested_stage(self, stage: object) -> None:
        """The run called another stage: whatever is in the key of that counts, whether it ran or not."""
        if self.net is not None:
            self.net.observed.stages.setdefault(id(stage), stage)
        if self.parent is not None:
            self.parent.add_nested_stage(stage)

    def refuse_storage(self, reason: Reason, detail: str) -> None:
        """What this run made must not be stored, nor what a stage around it makes of that; the first reason counts."""
        detail = detail.encode("utf-8", "backslashreplace").decode()  # it may name any file
        with self._lock:
            self._refusal = self._refusal or (reason, detail)
        if self.parent is not None:
            self.parent.refuse_storage(reason, detail)

    def check_before_storing(self, check: Callable[[], None]) -> None:
        """Have ``check`` called once all files of the result are in the store; it may still keep the result out."""
        with self._lock:
            self._checks.append(check)

    def storage_refusal(self) -> tuple[Reason, str] | None:
        """Return why the result must not be stored, or None. Call this after its files are stored."""
        with self._lock:
            checks, self._checks = self._checks, []
        for check in checks:
            check()
        with self._lock:
            return self._refusal

    def add_scratch(self, folder: str) -> None:
        """``folder`` was made for this run; its files may be results, so it lives until they are stored."""
        with self._lock:
            self._scratch.append(folder)

    def scratch(self) -> tuple[str, ...]:
        """These folders, and those of the runs around this one."""
        with self._lock:
            return (*self._scratch, *(() if self.parent is None else self.parent.scratch()))

    def add_products(self, paths: Iterable[str]) -> None:
        """A command of this run, or of one inside of it, made what is at these real paths."""
        paths = tuple(paths)
        with self._lock:
            self._products.update(paths)
        if self.parent is not None:
            self.parent.add_products(paths)

    def has_made(self, path: str) -> bool:
        """Whether a command of this run, or of one around it, made what is at a real path, or a folder above it."""
        with self._lock:
            if self._products and not self._products.isdisjoint(_with_folders_above(path)):
                return True
        return self.parent is not None and self.parent.has_made(path)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause the watch for unseen opens while a traced command runs: opens then are of the command, or of another
        process. This has no effect if the run has other threads, which may open files."""
        if self.parent is not None:
            with self.parent.pause(), self._pause_observers():
                yield
        else:
            with self._pause_observers():
                yield

    @contextmanager
    def _pause_observers(self) -> Iterator[None]:
        if self.net is None or self.net.native_reads is None or thread_owner.has_threads(self):
            yield
        else:
            with self.net.native_reads.pause():
                yield

    def drop_scratch(self) -> None:
        """The results are stored, or there are none: remove the scratch folders."""
        if not self._scratch:
            return
        import shutil  # on a miss only

        for folder in self._scratch:
            shutil.rmtree(folder, ignore_errors=True)
        self._scratch.clear()

    def keep_scratch(self) -> None:
        """Keep scratch folders until the process ends: the caller gets the fresh result, which may be in one."""
        if not self._scratch:
            return
        import atexit
        import shutil

        for folder in self._scratch:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._scratch.clear()

    def reads(self) -> tuple[Read, ...]:
        """All reads so far, in a stable order."""
        with self._lock:
            return tuple(self._reads[place] for place in sorted(self._reads))

    def contradictions(self) -> tuple[Read, ...]:
        """Things that were seen with two different contents in one run: such a run can't be stored."""
        with self._lock:
            return tuple(self._contradictions)

    def _pass_on(self, read: Read) -> None:
        self._add(read)
        if self.parent is not None:
            self.parent._pass_on(read)

    def _add(self, read: Read) -> None:
        for text in (read.where, read.name):
            if not is_text(text):
                self.refuse_storage(Reason.NOT_UNDERSTOOD, f"{text!a} is not UTF-8")
                return
        place = (read.kind, read.where, read.name)
        with self._lock:
            first = self._reads.setdefault(place, read)
            if first.digest != read.digest:
                self._contradictions.append(read)


@contextmanager
def recording(recorder: ReadRecorder) -> Iterator[ReadRecorder]:
    """Make ``recorder`` the current one while the body runs."""
    token = thread_owner.here.set(recorder)
    recorder.is_on = True
    thread_owner.runs()
    try:
        with nullcontext() if recorder.net is None else recorder.net.spread():
            yield recorder
    finally:
        recorder.is_on = False
        thread_owner.here.reset(token)
        thread_owner.ends()


def _with_folders_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
