"""Turns the observations of a run into the reads of its trace, with paths relative to anchors."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import msgspec

from cachec.base.anchors import (
    ARGUMENT,
    MODULE,
    PROJECT,
    Anchors,
    anchored_path,
    anchors_of,
    is_anchored,
    project_of,
)
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.hashing import EMPTY
from cachec.base.instances import is_instance
from cachec.base.paths import absolute, current_folder, links_on, relative_to
from cachec.key.code.module_sources import is_cell
from cachec.key.key_builder import CacheKey, KeyBuilder
from cachec.key.tools.environment import EVERY_NAME, environment_reads, neutral_words, variable_digest
from cachec.key.tools.process_queries import ENVIRONMENT, PACKAGES, SEARCH_PATH, queried_states, state_digest
from cachec.key.trace_validation import (
    ABSENT,
    FOLDER,
    IN_PROCESS,
    PRESENT,
    STATUS_NAMES,
    Dependencies,
    allowed_digest,
    links_digest,
    listing_digest,
    path_digest,
    status_digest,
)
from cachec.model import Read, Reason

if TYPE_CHECKING:  # on a miss only, or for a read that few traces have
    from cachec.key.code.run_reads import RunReads
    from cachec.recording import ReadRecorder
    from cachec.recording.observations import Observations
    from cachec.recording.run_observer import Net
    from cachec.stage.lru_cache_use import RecordedFill
    from cachec.stage.watched_folders import Below

#: Reads whose ``where`` is a path.
_PATHS = frozenset(
    {"file", "absent", "there", "listing", "links", "access", "status", "tool", "code", "cwd", "folder"}
    | {"content", "lookup", "names", "attributes", "source", "modules", "current", "path"}
)
#: Those of them that tell what is there whole.
_WHOLE = frozenset({"file", "absent", "listing", "tool", "code", "content"})

_WRITTEN = "was written to meanwhile"

#: Names by which code asks for the current folder: functions of C, which no event tells of.
_GETCWD = frozenset({"getcwd", "getcwdb"})


class TraceBuilder:
    """Observes runs of stages in one opened cache, where the setting ``record`` has it so, and keeps their paths."""

    def __init__(
        self, make_run_reads: Callable[[], RunReads], key_builder: KeyBuilder, *, base_dir: str | None, on: bool
    ) -> None:
        """make_run_reads: makes the reads of code that ran, on demand. base_dir: the setting, an anchor."""
        self._make_run_reads = make_run_reads
        self._key_builder = key_builder
        self._base_dir = base_dir
        self.on = on
        #: How the runs so far filled memos, by the ``id`` of the function.
        self.fills: dict[int, RecordedFill] = {}
        self._warned: set[str] = set()

    @cached_property
    def _run_reads(self) -> RunReads:
        return self._make_run_reads()

    @cached_property
    def _below(self) -> Below:
        from cachec.stage.watched_folders import Below

        return Below()

    # --- a run

    def net(self, cache_key: CacheKey, *, always: bool = False) -> Net | None:
        """The net for a run that is about to begin; None where nothing is recorded, unless it is wanted ``always``."""
        if not self.on and not always:
            return None
        from cachec.commands.run import are_commands_alone
        from cachec.key.tools.stdlib_registries import TABLES, tables_of
        from cachec.recording.run_observer import Net
        from cachec.stage.watched_folders import PlacesWatch, WatchedFolders, texts_of

        if are_commands_alone(cache_key.stage.__wrapped__):
            return Net(self._key_builder.is_project)
        current = current_folder()  # where that is gone, nothing can be opened in it
        anchored_path = {os.path.dirname(absolute(path)) for path in cache_key.inventory.paths if os.path.isfile(path)}
        places = WatchedFolders(anchored_path, current, self._run_reads.is_elsewhere, self._below)
        places.add_named(texts_of(cache_key.stage.__wrapped__, self._key_builder.is_project))
        places.add_below([current, project_of(_source(cache_key))])
        return Net(self._key_builder.is_project, PlacesWatch(places), {state: tables_of(state) for state in TABLES})

    def collect(self, cache_key: CacheKey, recorder: ReadRecorder) -> frozenset[Read]:
        """Make reads of what the net of a run caught; keep the result out where that can't be done.

        Returns those that are of the time of the look, and not of now: what a run looked at, it may change itself.
        """
        net = recorder.net
        if net is None:
            return frozenset()
        observed = net.observed
        from cachec.recording.library_lookups import check_again
        from cachec.recording.observations import STANDARD_INPUT, ExecutedCode
        from cachec.recording.os_calls import reads_standard_input, unobserved_names

        for executed in list(observed.executed_code.values()):
            if reads_standard_input(executed.code, executed.namespace):
                observed.nondeterministic = observed.nondeterministic or STANDARD_INPUT
            for taken in unobserved_names(executed.code, executed.namespace):
                if taken not in _GETCWD:
                    recorder.refuse_storage(
                        Reason.UNNAMED_CODE,
                        f"{executed.code.co_qualname} calls {taken} as taken from os, which is not seen: "
                        f"call os.{taken}",
                    )
                observed.asked_cwd = observed.asked_cwd or taken in _GETCWD
        if observed.incomplete:
            recorder.refuse_storage(Reason.UNNAMED_CODE, observed.incomplete)
        self._note_missing_data(observed, net)
        check_again(observed)
        if observed.inconsistent:
            recorder.refuse_storage(Reason.INPUT_CHANGED, observed.inconsistent)
        if observed.nondeterministic:
            recorder.refuse_storage(Reason.VOLATILE_INPUT, observed.nondeterministic)
        self._programs(observed, cache_key, recorder)
        name = cache_key.stage.options.name
        if observed.unrepeatable and self._is_first(f"unrepeatable {name}"):
            from cachec.stage.argument_warnings import warn_unrepeatable

            warn_unrepeatable(name, observed.unrepeatable)
        coverage = self._key_builder.coverage(cache_key)
        for stage in observed.stages.values():
            if not coverage.holds_stage(stage):
                for read in self._key_builder.stage_reads(stage):
                    recorder.add_read(read)
                function = stage.__wrapped__
                observed.executed_code.setdefault(
                    id(function.__code__), ExecutedCode(function.__code__, function.__globals__)
                )
        code_reads = self._run_reads.code(observed, coverage, self.anchors(cache_key))
        if code_reads.storage_refusal is not None:
            recorder.refuse_storage(*code_reads.storage_refusal)
        path_reads = frozenset(self.resolve_read(read, cache_key) for read in code_reads.reads)
        path_reads |= frozenset(self._path_reads(cache_key, recorder, observed))
        states = (
            queried_states([(executed.code, executed.namespace) for executed in observed.executed_code.copy().values()])
            | cache_key.inventory.states
        )
        if coverage.has_project_paths:
            recorder.has_project_paths = True
        if observed.sought and any(
            "origin" in executed.code.co_names for executed in list(observed.executed_code.values())
        ):
            states.add(ENVIRONMENT)  # ``find_spec(name).origin``
        if coverage.has_decimals:
            states.add(PACKAGES["decimal"])
        path_reads |= frozenset(self._libraries(observed))
        # Tables count as the run found them: it may have filled them itself.
        found = {**net.tables, SEARCH_PATH: [*observed.path]}
        path_reads |= {Read("state", state, "", state_digest(state, found.get(state))) for state in states}
        for read in path_reads:
            recorder.add_read(read)
        self._files(cache_key, recorder, net)
        if coverage.is_as_written:
            self._run_reads.note_imports(observed, coverage.derived, recorder.reads())
        return path_reads

    def _libraries(self, observed: Observations) -> Iterator[Read]:
        """What code that ran took of libraries that it imports itself: anybody may have set that."""
        from cachec.key import library_patches

        codes = [executed.code for executed in list(observed.executed_code.values())]
        found, words = library_patches.imported_inside(codes, self._key_builder.is_own_module)
        for module, attributes in found.items():
            for name, digest in attributes.items():
                if digest:  # what the project has put there is in the key
                    yield library_patches.read_of(module, name, digest)
            unset = {
                word for word in words - attributes.keys() if not library_patches.may_make(sys.modules[module], word)
            }
            if unset:
                yield Read("unset", module, " ".join(sorted(unset)), PRESENT)

    def _programs(self, observed: Observations, cache_key: CacheKey, recorder: ReadRecorder) -> None:
        """Keep out a result in which a program took part that nobody answers for; say so once a stage."""
        for program, starter in list(observed.undeclared.items()):
            if self._key_builder.declares_programs(starter.module):
                continue
            from cachec.stage.argument_warnings import undeclared_program, warn_undeclared_program

            program_name = undeclared_program(program, starter.module, starter.place)
            recorder.refuse_storage(Reason.UNDECLARED_PROGRAM, program_name)
            if self._is_first(f"program {cache_key.stage.options.name}"):
                warn_undeclared_program(cache_key.stage.options.name, program_name)
            break

    def _is_first(self, program_name: str) -> bool:
        """Whether a warning is the first of its kind of a stage."""
        is_first = program_name not in self._warned
        self._warned.add(program_name)
        return is_first

    def _note_missing_data(self, observed: Observations, net: Net) -> None:
        """Data that the stage's code names, and that was not there: native code may have looked for it in vain."""
        for named in net.native_reads.missing if net.native_reads is not None else ():
            path = observed.note_path(named)
            if path is not None and not os.path.lexists(path):
                observed.absent.setdefault(path)
            elif path is not None and not observed.own(path) and path not in observed.written:
                observed.differs(path, True)

    def _path_reads(self, cache_key: CacheKey, recorder: ReadRecorder, observed: Observations) -> Iterator[Read]:
        known = _known_paths(cache_key, recorder)
        # What stays is the run's own result.
        for path in [each for each in observed.new if each in observed.removed or not os.path.lexists(each)]:
            observed.absent.setdefault(path)
            observed.links.setdefault(path, links_on(path))
        for path in list(observed.absent):
            if path not in known and not self._run_reads.is_keyed(path):
                yield from _as_given(observed, Read("absent", path, "", EMPTY))
        for path, names in list(observed.listed.items()):
            if path not in known and not self._run_reads.is_keyed(os.path.join(path, "")):
                own = ""
                if path in observed.filled:
                    own, names = f"/{'/'.join(sorted(map(_name, names)))}", ()
                names = tuple(each for each in names if not _is_scratch(observed, path, each))
                yield from _as_given(observed, Read("listing", path, own, listing_digest(list(names))))
        for path, is_folder in list(observed.there.items()):
            more = path in known or path in observed.opened or path in observed.listed
            if not more and not self._run_reads.is_keyed(os.path.join(path, "")):
                yield from _as_given(observed, Read("there", path, "", FOLDER if is_folder else PRESENT))
        for path, target in list(observed.links.items()):
            if not self._run_reads.is_keyed(path):
                yield from _as_given(observed, Read("links", path, "", links_digest(target)))
        for path, letters in list(observed.allowed.items()):
            if not self._run_reads.is_keyed(path):
                yield from _as_given(observed, Read("access", path, "", allowed_digest(letters)))
        codes = [executed.code for executed in list(observed.executed_code.values())]
        if observed.copied is not None and not observed.started and not recorder.commands():
            yield from environment_reads(EVERY_NAME, observed.copied, neutral_words(_texts_of(codes)))
        called = {name for code in codes for name in code.co_names}
        called |= {*_under_other_names(observed), *observed.asked}
        fields = ",".join(sorted({STATUS_NAMES[name] for name in called & STATUS_NAMES.keys()}))
        if not called.isdisjoint({"stat", "inode"}):
            for path, (opened, status) in list(observed.scanned.items()):
                if not stat.S_ISDIR(status.st_mode):
                    observed.opened.setdefault(path, opened)
                observed.stated.setdefault(path, status)
        for path, status in list(observed.stated.items()) if fields else ():
            if not self._run_reads.is_keyed(path):
                yield from _as_given(observed, Read("status", path, fields, status_digest(status, fields)))
        named = not called.isdisjoint(_GETCWD)
        if observed.cwd and (observed.asked_cwd or named):
            yield Read("cwd", observed.cwd, "", path_digest(observed.cwd))
        for name, value in list(observed.variables.items()):
            yield Read("env", name, "", variable_digest(name, {} if value is None else {name: value}))

    def _files(self, cache_key: CacheKey, recorder: ReadRecorder, net: Net) -> None:
        observed = net.observed
        # Code by its syntax says less than the file that it is in: what Python opens to import a module is told apart.
        # What is gone by the next look was there all the same when it was opened.
        known = _known_paths(cache_key, recorder, _WHOLE - {"code", "absent"})
        paths = [absolute(path) for path in cache_key.inventory.paths]
        folders = tuple(os.path.join(path, "") for path in paths if os.path.isdir(path))
        opened: dict[str, Identity | None] = {**dict.fromkeys(_native_reads(net)[0]), **observed.opened}
        for path, before in opened.items():
            if path in known or path.startswith(folders) or self._run_reads.is_keyed(path):
                continue
            now = identity_if_there(path)
            if before is not None and before != now:
                # What came to be meanwhile may go again: scratch of the run's, made by native code or a program.
                if now is not None or not observed.is_since(path, before):
                    what = "is gone by now" if now is None else _WRITTEN
                    recorder.refuse_storage(Reason.INPUT_CHANGED, f"file {path} was opened, and {what}")
            elif now is not None:
                try:
                    digest = recorder.digests.of_path(path)
                except OSError as error:
                    recorder.refuse_storage(Reason.INPUT_CHANGED, f"file {path} was opened: {error.strerror}")
                    continue
                if identity_if_there(path) != now:
                    recorder.refuse_storage(Reason.INPUT_CHANGED, f"file {path} was opened, and {_WRITTEN}")
                for read in _as_given(observed, Read("file", path, "", digest)):
                    recorder.add_read(read)
        # Asked once more now that the digests are taken.
        for path in _native_reads(net)[1]:
            if not (path in known or path.startswith(folders) or self._run_reads.is_keyed(path)):
                recorder.refuse_storage(Reason.INPUT_CHANGED, f"file {path} was opened, and {_WRITTEN}")
        if net.native_reads is not None and net.native_reads.overflowed:
            recorder.refuse_storage(
                Reason.UNNAMED_CODE, "more files were opened at once than the kernel tells of (inotify)"
            )

    def project_folder(self, cache_key: CacheKey) -> str | None:
        """The folder of a stage's project."""
        return self.anchors(cache_key).folder(PROJECT)

    def named_folders(self, texts: Iterable[str], cache_key: CacheKey) -> Iterator[Read]:
        """Reads of the folders that move with a project, an environment or a user and that a result names in its text.

        A path below such a folder counts from its anchor as long as it leads to files: where the result holds it, the
        folder itself counts.
        """
        patterns = {
            folder: re.compile(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])")
            for folder in self.anchors(cache_key).folders()
            if len(folder) > 1
        }
        for text in texts:
            for folder in [each for each, pattern in patterns.items() if pattern.search(text)]:
                del patterns[folder]
                yield Read("folder", folder, "", path_digest(folder))

    # --- paths of reads

    def anchors(self, cache_key: CacheKey) -> Anchors:
        """What the anchors of a stage's reads stand for here and now."""
        return anchors_of(_source(cache_key), self._base_dir, os.environ.get("HOME"))

    def portable_reads(self, reads: Sequence[Read], cache_key: CacheKey) -> Iterator[Read]:
        """Reads as a trace keeps them. A path that the run may have had from an argument, or from the place of a module
        outside of the project, is kept from there too: where these are elsewhere, the run would look elsewhere."""
        anchors = self.anchors(cache_key)
        moving: dict[str, str] | None = None
        for read in reads:
            if read.kind not in _PATHS or read.where in IN_PROCESS:
                yield read
                continue
            yield msgspec.structs.replace(read, where=anchors.keep(read.where))
            place = absolute(read.where)
            if read.kind not in {"tool", "code", "cwd", "folder", "path"}:
                moving = self._moving(cache_key, anchors) if moving is None else moving
                for name, folder in moving.items():
                    if os.path.join(place, "").startswith(os.path.join(folder, "")):
                        yield msgspec.structs.replace(read, where=anchored_path(name, folder, place))

    def _moving(self, cache_key: CacheKey, anchors: Anchors) -> dict[str, str]:
        """Folders that are elsewhere with other arguments, and those of modules outside of the project, by anchor."""
        moving = {
            name: folder
            for name, folder in _arguments(cache_key)
            if not (name.endswith("/..") and anchors.hold(folder))  # it would be beside most that the project reads
        }
        for name, file in self._key_builder.coverage(cache_key).modules():
            if not is_anchored(anchors.keep(file)):
                moving[f"{MODULE}{name}"] = project_of(file)
        return moving

    def resolve_read(self, read: Read, cache_key: CacheKey) -> Read:
        """A kept read with the path that it stands for here; as it is where its anchor is no folder here."""
        if read.kind not in _PATHS or read.where in IN_PROCESS:
            return read
        path = self._resolve(read.where, cache_key)
        return read if path is None or path == read.where else msgspec.structs.replace(read, where=path)

    def _resolve(self, portable: str, cache_key: CacheKey) -> str | None:
        name, _, rest = portable.partition(":")
        if not name.startswith((ARGUMENT, MODULE)):
            return self.anchors(cache_key).resolve(portable)
        if name.startswith(ARGUMENT):
            folder = dict(_arguments(cache_key)).get(name)
        else:
            file = self._run_reads.file_of(name.removeprefix(MODULE))
            folder = project_of(file) if file else None
        return None if folder is None else absolute(os.path.join(folder, rest))

    def leads_to(self, module: str, cache_key: CacheKey, reads: Sequence[Read]) -> bool:
        """Whether a module is the project's, and its text in the key of the call or in reads just checked."""
        if cache_key.stage.options.isolated:
            from importlib.util import find_spec

            files = {self.resolve_read(read, cache_key).where for read in reads if read.kind == "source"}
            found = find_spec(module)
            return found is not None and found.origin in files
        resolved = [self.resolve_read(read, cache_key) for read in reads if read.kind == "code"]
        return self._run_reads.leads_to(module, self._key_builder.coverage(cache_key), resolved)

    def present(self, read: Read, dependencies: Dependencies) -> str:
        """The digest that a resolved read has now."""
        if read.kind == "global":
            name, _, made = read.name.partition("=")
            now = self._key_builder.global_digest(read.where, name) if read.where in sys.modules else None
            if not made:
                return now or ""
            return PRESENT if now in {None, made} else ABSENT  # the text of the module makes it what it is
        if read.kind == "unset":
            return PRESENT if self._key_builder.is_unset(read.where, read.name.split()) else ABSENT
        if read.kind == "path":
            return PRESENT if (read.where, read.name) in self._key_builder.module_path() else ABSENT
        if read.kind == "memo":
            return PRESENT if self._key_builder.memo_agrees(read) else ABSENT
        if read.kind == "library":
            return PRESENT if self._key_builder.library_agrees(read) else ABSENT
        if read.kind == "imported":
            return self._key_builder.imported_digest()
        if read.kind == "ambient":
            return self._key_builder.ambient_digest(read.where)
        if read.kind == "generator":
            return self._key_builder.generator_digest(read.where)
        if read.kind == "effects":
            return _effects()
        if read.kind == "process":
            from cachec.key import process_state  # of isolated stages

            return process_state.digest(read.where) if read.where in process_state.COUNTED else ABSENT
        if read.kind in {"code", "module", "distribution"}:
            return self._run_reads.present(read, read.where)
        if read.kind == "state":
            return state_digest(read.where)
        if read.kind == "cwd":
            return path_digest(current_folder())  # wherever the project is
        if read.kind == "current":
            return PRESENT if current_folder() == read.where else ABSENT
        if read.kind == "folder":
            return path_digest(read.where)
        return dependencies.present(read)


def _effects() -> str:
    """What stands for the statements of a notebook that change something outside of it."""
    from cachec.worker.main_replay import ReplayError, effects_of, main_of  # of notebooks

    try:
        main = main_of(lambda _path: True)
    except ReplayError:
        return ABSENT
    return ABSENT if main is None else effects_of(main)


def _source(cache_key: CacheKey) -> str:
    """The file that a stage is in; of one that was typed in, where that would be."""
    code = getattr(cache_key.stage.__wrapped__, "__code__", None)
    source: str = code.co_filename if code is not None else "<unknown>"
    if source.startswith("<") or is_cell(source):
        source = os.path.join(current_folder() or "/", "typed")
    return source


def _texts_of(constants: Iterable[object]) -> Iterator[str]:
    """The texts among the constants of code."""
    for each in constants:
        if isinstance(each, CodeType):
            yield from _texts_of(each.co_consts)
        elif isinstance(each, tuple | frozenset):
            yield from _texts_of(each)
        elif isinstance(each, str | bytes):
            yield os.fsdecode(each)


def _under_other_names(observed: Observations) -> Iterator[str]:
    """The own names of functions that code which ran has under another (``from os.path import getmtime as gm``)."""
    for executed in list(observed.executed_code.values()):
        for name in executed.code.co_names:
            value = executed.namespace.get(name)
            if is_instance(value, FunctionType):
                yield value.__name__


def _is_scratch(observed: Observations, folder: str, entry: str) -> bool:
    """Whether what was listed was made by the run itself, and is gone."""
    path = os.path.join(folder, _name(entry))
    return path in observed.scratch and not os.path.lexists(path)


def _name(entry: str) -> str:
    """Of what ``paths.entries`` says of a thing."""
    return entry.partition("/")[0]


def _as_given(observed: Observations, read: Read) -> Iterator[Read]:
    """A read of an absolute path, in the forms in which the run gave it. Native code may have used either."""
    relative = observed.relative.get(read.where)
    is_native = relative is None and read.where not in observed.absolute
    if is_native and observed.cwd and read.where.startswith(os.path.join(observed.cwd, "")):
        relative = relative_to(read.where, observed.cwd)
    if relative is not None:
        yield msgspec.structs.replace(read, where=relative)
    if relative is None or is_native or read.where in observed.absolute:
        yield read


def _arguments(cache_key: CacheKey) -> Iterator[tuple[str, str]]:
    """The folders that files of path arguments are in, each with its anchor, and the folders above these."""
    for number, path in enumerate(cache_key.inventory.paths):
        place = absolute(path)
        folder = place if os.path.isdir(place) else os.path.dirname(place)
        yield f"{ARGUMENT}{number}", folder
        yield f"{ARGUMENT}{number}/..", os.path.dirname(folder)


def _known_paths(cache_key: CacheKey, recorder: ReadRecorder, kinds: frozenset[str] = _WHOLE) -> set[str]:
    """Paths whose content is read, by one of these kinds of reads, or keyed otherwise."""
    known = {read.where for read in recorder.reads() if read.kind in kinds}
    return known | {absolute(path) for path in cache_key.inventory.paths}


def _native_reads(net: Net) -> tuple[list[str], list[str]]:
    """What native code read in the watched folders: what counts there, less what Python did and what the run made; and
    what of it was written to, replaced or removed after that."""
    observed = net.observed
    if net.native_reads is None:
        return [], []
    read, inconsistent, begun = net.native_reads.drain()
    own = {path for path in begun if observed.own(path)}
    reported = observed.passed.keys() | own
    known = observed.sources.keys() | observed.opened.keys()  # how these were, Python's events told
    counting = net.native_reads.counting
    opened = [path for each in sorted(read - reported - known) for path in counting(each) if path not in known]
    others = [path for each in sorted(inconsistent - reported) for path in counting(each)]
    others += [path for path in opened if not os.path.lexists(path)]
    return [path for path in opened if os.path.isfile(path) and not path.endswith(".pyc")], others
