"""A command inside a stage: it runs under the tracer, and what it looked up becomes reads of the stage's trace.

Not recorded: what the run itself made (``scratch()``, temporary files of its own, what its commands made), files that
the key of a started program covers, and the folders on the way to where the command works.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from cachec.base import xdg
from cachec.base.distributions import Distributions
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.paths import absolute, entries, is_below
from cachec.commands.invocation import DeclaredFiles, Invocation
from cachec.commands.process import ProcessResult, run_process
from cachec.commands.traced_run import InputChanged, Reads, TracedRun, is_changed_in_place, run_traced_apart
from cachec.errors import CachecWarning, UsageError
from cachec.key.tools.elf_dependencies import DEFAULT_CACHE, default_folders
from cachec.key.tools.toolchain import ToolKeys
from cachec.key.trace_validation import ABSENT, listing_digest, search_environ
from cachec.model import Reason
from cachec.recording import ReadRecorder
from cachec.tracing.accesses import Change, Effect, Kind, TracedInput

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_READ = Kind.CONTENT | Kind.EXECUTED


def run_recorded(recorder: ReadRecorder, call: Invocation, declared: DeclaredFiles, search: str) -> ProcessResult:
    """Run a command, and record what it looked up. search: the variables that the stage fixed, see ``search_text``.

    Raises FileNotFoundError for an input or weights that are not there, UsageError for a tool, and as
    ``run_traced_apart``.
    """
    from cachec.commands.reproducer_files import FileCapture

    tools = _Tools(recorder, search, search_environ(search, call.environ))
    for tool in declared.tools:
        tools.record(tool)
    declarations = _Declarations(recorder, declared)
    if not os.path.isdir(call.cwd):
        declarations.absent(call.cwd)  # the command can't be run
    declarations.record()
    given = [path for path in (*declared.inputs, *declared.candidates) if os.path.exists(path)]
    witness = FileCapture(
        recorder,
        call.args,
        call.program,
        call.cwd,
        call.named_variables,
        inputs=given,
        outputs=declared.outputs,
        weights=declared.weights,
        stdin=call.stdin,
    )
    with recorder.pause():
        try:
            run = _run(recorder, call)
        except OSError:
            raise  # the program, which is recorded, can't be started
        except BaseException:
            recorder.refuse_storage(Reason.UNTRACED, f"{call.args[0]} was ended, so what it had looked at is not known")
            raise
        if declarations.check(run) and _check(recorder, call, run, declared):
            _record(recorder, call, run, declared, tools)
    recorder.add_products(change.path for change in run.accesses.changes if change.effect & Effect.CREATED)
    witness.record_end(run.ended.returncode, run.ended.stderr)
    return run.ended


def _run(recorder: ReadRecorder, call: Invocation) -> TracedRun:
    arguments = call.process_arguments()
    run = run_traced_apart(**arguments)
    accesses = run.accesses
    if run.ended.returncode and accesses.may_be_interrupted and not accesses.changes and not call.pass_fds:
        recorder.refuse_storage(
            Reason.UNTRACED, "a signal interrupted one of its look-ups, so it ran again without a tracer"
        )
        run = run._replace(ended=run_process(**arguments))
    return run


class _Declarations:
    """Records the declared reads of a command in the trace, and checks them again after the run."""

    def __init__(self, recorder: ReadRecorder, declared: DeclaredFiles) -> None:
        self._recorder = recorder
        self._declared = declared
        self._before: dict[str, Identity | None] = {}
        #: Folders that the command writes into: they count as it leaves them.
        self._written = {os.path.dirname(path) for path in declared.outputs}
        self._outputs = {path: identity_if_there(path) for path in declared.outputs}

    def record(self) -> None:
        """Raises OSError for an input or weights that are not there, UsageError for an input without content."""
        declared = self._declared
        for path in declared.inputs:
            self._tree(path, frozenset())
        for path in declared.candidates:
            if os.path.lexists(path):
                self._file(path, required=False)
            else:
                self.absent(path)
        for path in declared.search:
            if path not in self._written:
                self._listing(path)
        for path, rule in declared.weights.items():
            if rule == "content":
                self._file(path)
            else:
                self._stat(path)

    def check(self, run: TracedRun) -> bool:
        """Record what counts as the command left it. Whether no input changed, and the outputs were written."""
        for path in self._written.intersection(self._declared.search):
            self._listing(path)
        self._check_withheld(run)
        for path, before in self._before.items():
            if identity_if_there(path) != before:
                words = f"{path} was written to or replaced while the command ran"
                return self._keep_out(Reason.INPUT_CHANGED, words)
        written = {change.path for change in run.accesses.changes}
        for path in () if run.ended.returncode else self._declared.outputs:
            if not os.path.lexists(path):
                return self._keep_out(Reason.UNDESCRIBED, f"it ended well and did not write its output {path}")
            for each in _files(path) if recorded_as(self._recorder, path) else ():
                if os.path.realpath(each) not in written:
                    words = f"output {each} was there before, and the command did not write it"
                    return self._keep_out(Reason.UNDESCRIBED, words)
        return True

    def absent(self, path: str) -> None:
        """Looked for, and not there."""
        place = recorded_as(self._recorder, path)
        if place is not None:
            self._recorder.absent(place)

    def _tree(self, path: str, above: frozenset[tuple[int, int]]) -> None:
        """Record an input, with all below it where it is a folder."""
        status = self._stat(path)
        if stat.S_ISREG(status.st_mode):
            self._file(path)
        elif not stat.S_ISDIR(status.st_mode):
            raise UsageError(f"input {path!r} is neither a file nor a folder, so its content can't be recorded")
        elif (status.st_dev, status.st_ino) not in above:  # a symbolic link may lead back up
            self._listing(path)
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                if os.path.isfile(inner) or os.path.isdir(inner):
                    self._tree(inner, above | {(status.st_dev, status.st_ino)})

    def _stat(self, path: str) -> os.stat_result:
        if recorded_as(self._recorder, path) is not None:
            self._before[path] = identity_if_there(path)
        try:
            return os.stat(path)
        except OSError:
            self.absent(path)
            raise

    def _file(self, path: str, *, required: bool = True) -> None:
        """By content; as ``ABSENT`` where it can't be read, for which ``required`` raises OSError then."""
        place = recorded_as(self._recorder, path)
        if place is None:
            return
        self._before[path] = identity_if_there(path)
        try:
            digest = self._recorder.digests.of_path(path)
        except OSError:
            self._recorder.file(place, ABSENT)
            if required:
                raise
        else:
            self._recorder.file(place, digest)

    def _listing(self, path: str) -> None:
        """The names in a folder."""
        place = recorded_as(self._recorder, path)
        if place is None:
            return
        try:
            digest = listing_digest(entries(path))
        except OSError:
            digest = ABSENT
        self._recorder.listing(place, digest)

    def _check_withheld(self, run: TracedRun) -> None:
        opened = {(each.state.dev, each.state.ino) for each in run.accesses.inputs if each.state and each.kinds & _READ}
        for path, rule in self._declared.weights.items():
            now = identity_if_there(path)
            if rule == "withheld" and now is not None and (now.dev, now.ino) in opened:
                import warnings

                warnings.warn(
                    f"weight file {path!r} was to be withheld from the command, which opened it; its content counts "
                    "now (say opened where the command may open it)",
                    CachecWarning,
                    stacklevel=6,
                )

    def _keep_out(self, reason: Reason, words: str) -> Literal[False]:
        self._recorder.refuse_storage(reason, words)
        return False


def _files(path: str) -> Iterator[str]:
    """The file, or every file below the folder."""
    if not os.path.isdir(path):
        yield path
    for where, _, names in os.walk(path):
        for name in names:
            yield os.path.join(where, name)


class _Tools:
    """Records executables by the keys of ``ToolKeys``, and knows the files that these cover."""

    def __init__(self, recorder: ReadRecorder, search: str, environ: Mapping[str, str]) -> None:
        self._recorder = recorder
        self._search = search
        self._environ = environ
        self._distributions = Distributions()
        self._keys = ToolKeys(recorder.digests, self._distributions)
        self._files: set[str] = set()
        self._owners: set[str] = set()
        self._sites: set[str] = set()

    def record(self, tool: str) -> None:
        """Record a tool: a path, or a name in PATH. Raises UsageError for a missing tool, which is recorded, too."""
        place = tool if "/" not in tool else recorded_as(self._recorder, tool)
        if place is None:
            return
        try:
            program = self._keys.program(tool, self._environ)
            digest = self._keys.executable(tool, self._environ).digest
        except UsageError:
            self._recorder.tool(place, ABSENT, self._search)
            raise
        self._recorder.tool(place, digest, self._search)
        self._files.update(os.path.realpath(path) for _, path in program.files)
        for script, name in program.distributions:
            self._owners.add(name)
            distribution = self._distributions.find(name)
            if distribution is not None:
                folders = [
                    distribution.root,
                    *_added_by_site(distribution.root),
                    *([os.path.dirname(script)] * bool(script)),
                ]
                self._sites.update(_real_paths(folders))

    def record_started(self, path: str) -> None:
        """A program that the command started. One that is no executable any more counts by its content."""
        if not self.covers(path):
            try:
                self.record(path)
            except (UsageError, OSError):
                return

    def covers(self, path: str) -> bool:
        """Whether the key of a recorded program holds the content of a file."""
        if os.path.realpath(path) in self._files:
            return True
        owner = self._distributions.owner(path) if self._owners else None
        return owner is not None and owner.name in self._owners

    def is_site(self, folder: str | None) -> bool:
        """Whether Python looks for modules of a recorded distribution in a folder, given by its real path. What else is
        there does not count."""
        return folder in self._sites


def _added_by_site(site: str) -> Iterator[str]:
    """Folders that Python's ``site`` adds to the path: lines of ``.pth`` files."""
    with suppress(OSError):
        for name in os.listdir(site):
            if name.endswith(".pth"):
                with open(os.path.join(site, name), encoding="utf-8", errors="replace") as file:
                    yield from (line.strip() for line in file if line.startswith("/"))


class _CommandInputFilter:
    """Says which of a command's look-ups are no inputs."""

    def __init__(
        self, recorder: ReadRecorder, call: Invocation, run: TracedRun, declared: DeclaredFiles, tools: _Tools
    ) -> None:
        self._recorder = recorder
        self._tools = tools
        self._changed = {change.path for change in run.accesses.changes}
        self._temporary = frozenset(_real_paths(_temporary(call.environ)))
        self._above = _folders_above([call.cwd, *_temporary(call.environ), os.path.expanduser("~"), *declared.inputs])
        self._needs_library_cache = self._is_library_cache_needed(run.accesses.inputs)

    def __call__(self, full: str, each: TracedInput) -> bool:
        is_folder = each.state is not None and stat.S_ISDIR(each.state.mode)
        if is_folder and each.target in self._above and each.kinds == Kind.STATUS:
            return True
        if is_folder and self._tools.is_site(each.target) and not each.kinds & ~(Kind.STATUS | Kind.LISTING):
            return True
        if each.state is not None and not is_folder and each.kinds & _READ:
            if full == DEFAULT_CACHE and not self._needs_library_cache:
                return True
            if self._tools.covers(full):
                return True
        real = _real_path(full, follow=each.follow)
        if each.effect & Effect.CREATED and each.effect & Effect.REMOVED and os.path.dirname(real) in self._temporary:
            return True  # a name that was made up
        if real in self._changed:  # all such are in places where it may write
            return not each.kinds & (_READ | Kind.LISTING)
        return is_product(self._recorder, full, real)

    def _is_library_cache_needed(self, inputs: Iterable[TracedInput]) -> bool:
        """Whether there is a library beyond those of recorded programs that ld.so.cache led to, or may lead to."""
        folders = default_folders()
        for each in inputs:
            folder, name = os.path.split(each.place)
            is_library = ".so" in name and os.path.join(folder, name) != DEFAULT_CACHE
            if is_library and os.path.realpath(folder) in folders:
                was_read = each.kinds & _READ and not self._tools.covers(os.path.join(folder, name))
                if each.state is None or was_read:
                    return True
        return False


def _check(recorder: ReadRecorder, call: Invocation, run: TracedRun, declared: DeclaredFiles) -> bool:
    """Whether the trace says all, and the command did no more than a stage's command may."""
    is_good = True
    for reason, words in run.problems():
        recorder.refuse_storage(reason, f"{call.args[0]}: {words}")
        is_good = False
    words = _side_effect(recorder, call, run.accesses.changes, declared)
    if words:
        recorder.refuse_storage(Reason.UNDESCRIBED, f"{call.args[0]}: {words}")
    return is_good and not words


def _side_effect(recorder: ReadRecorder, call: Invocation, changes: Iterable[Change], declared: DeclaredFiles) -> str:
    """What a command did that its call does not say, in words; empty for nothing."""
    outputs, temporary = _real_paths(declared.outputs), _real_paths(_temporary(call.environ))
    caches = _real_paths(xdg.home_caches(call.environ))
    for change in changes:
        path = change.path
        if is_product(recorder, path, path):
            continue
        if is_below(path, outputs):
            if change.after is not None and stat.S_ISREG(change.after.mode) and is_changed_in_place(change):
                return f"it changed {path} in place, so the result depends on what that held before"
            continue
        if any(name in xdg.CACHE_NAMES for name in path.split("/")) or is_below(path, caches):
            continue
        if change.after is None:
            return f"it removed {path}, which was there before"
        if not is_below(path, temporary):
            return f"it wrote {path}, which is none of its outputs"
        if change.before is not None and not change.effect & Effect.CREATED:
            return f"it changed {path} in place"
    return ""


def _record(recorder: ReadRecorder, call: Invocation, run: TracedRun, declared: DeclaredFiles, tools: _Tools) -> None:
    for each in run.accesses.inputs:
        if each.kinds & Kind.EXECUTED and each.state is not None and not each.effect:
            tools.record_started(each.place)
    real_cwd = os.path.realpath(call.cwd)
    passes = _CommandInputFilter(recorder, call, run, declared, tools)
    reads = Reads(run, recorder.digests, call.cwd, passes=passes, made_before=partial(_is_made_by_run, recorder))
    try:
        for read in reads.all():
            path = os.path.join(call.cwd, read.where)
            if path.startswith(f"{real_cwd}/"):
                path = call.cwd + path[len(real_cwd) :]
            place = recorded_as(recorder, path)
            if place is not None:
                recorder.add_traced_read(msgspec.structs.replace(read, where=place))
    except (InputChanged, OSError) as error:
        recorder.refuse_storage(Reason.INPUT_CHANGED, str(error))


def recorded_as(recorder: ReadRecorder, path: str) -> str | None:
    """The path that a read is recorded under; None for a file in a scratch folder.

    A link in a scratch folder that leads out of it is recorded under what it leads to.
    """
    folders = recorder.scratch()
    if not folders:
        return absolute(path)
    real = os.path.realpath(path)
    if is_below(real, folders):
        return None
    place = absolute(path)
    return real if is_below(place, folders) else place


def is_product(recorder: ReadRecorder, path: str, real: str) -> bool:
    """Whether the run itself made what is at a path, be it the stage's Python code or a command before."""
    if is_below(real, recorder.scratch()) or recorder.has_made(real):
        return True
    return any(each.own(path) or (path != real and each.own(real)) for each in recorder.observers)


def _is_made_by_run(recorder: ReadRecorder, path: str) -> bool:
    return is_product(recorder, path, os.path.realpath(path))


def _real_path(path: str, *, follow: bool) -> str:
    if follow:
        return os.path.realpath(path)
    folder, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(folder), name)


def _real_paths(paths: Iterable[str]) -> list[str]:
    return [os.path.realpath(path) for path in paths]


def _temporary(environ: Mapping[str, str]) -> list[str]:
    """Folders for temporary files."""
    given = [environ.get(name, "") for name in ("TMPDIR", "TMP", "TEMP")]
    return [*_TEMPORARY, *(path for path in given if path.startswith("/"))]


def _folders_above(paths: Iterable[str]) -> frozenset[str]:
    """These folders and all above them, by their real paths."""
    found = {"/"}
    for path in _real_paths(paths):
        while path not in found:
            found.add(path)
            path = os.path.dirname(path)
    return frozenset(found)
