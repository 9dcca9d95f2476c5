"""The run of a stage in a worker process: what the caller sends, and how the worker's lookups become reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import msgspec

from cachec.base.paths import is_below
from cachec.base.tracer_hiding import unseen
from cachec.base.wait_strategy import Waiter
from cachec.codecs import decode
from cachec.commands.traced_run import InputChanged, Reads
from cachec.errors import StageCrashed, StageOutOfMemory, StageTimedOut, Uncacheable
from cachec.key import (
    library_patches,
    library_settings,
    library_state,
    lru_caches,
    module_globals,
    process_state,
    random_generators,
    source_parts,
)
from cachec.key.canonical_forms import Forms
from cachec.key.describe import describe
from cachec.key.option_encoding import SCALARS
from cachec.key.tools.environment import OBEYED_NAME, environment_reads
from cachec.key.tools.process_queries import asked_of_machine, state_digest
from cachec.key.trace_validation import ABSENT, PRESENT
from cachec.model import ArtifactRef, Node, Read, Reason
from cachec.stage.isolated_inputs import InputFilter, home_caches
from cachec.stage.lookup import LookupResult
from cachec.stage.run import FinishedRun, Run
from cachec.stage.run_hooks import Bracket
from cachec.stage.verify_mode import difference
from cachec.tracing.accesses import Effect, Kind
from cachec.worker import caller
from cachec.worker.function_locator import place_of
from cachec.worker.global_transfer import DeletedGlobal, UnsendableError, is_stateful, to_send
from cachec.worker.main_replay import MainModule, ReplayError, effects_of, main_of
from cachec.worker.messages import GlobalValue, PrepareReply, Setup, StageDone, StageRequest, StoreOptions
from cachec.worker.protocol import CannotSend, encode
from cachec.worker.value_transfer import ValueTransfer

_DECODE = msgspec.json.Decoder(Node).decode
#: Kinds of reads that tell of a process. Those of a stage within a stage are of the worker that called it.
_OF_PROCESS = frozenset({"global", "unset", "library", "memo", "imported", "process", "ambient"})
#: What asks for times of files.
_TIMES = frozenset(
    {"getmtime", "getctime", "getatime"} | {f"st_{each}time{end}" for each in "amc" for end in ("", "_ns")}
)
#: What tells whether two paths lead to one file.
_IDENTITY = frozenset({"samefile", "sameopenfile", "samestat", "st_ino", "st_dev"})


class _Unseen(AbstractContextManager[None]):
    """``unseen``, to be entered again for each step of a coroutine."""

    def __enter__(self) -> None:
        self._entered = unseen()
        self._entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(*raised)


class Fallback(Exception):
    """The stage has to run in the caller's process; the message says why."""


class IsolatedRun(Run):
    """The run of one stage for one cache key, in a process of its own.

    Use ``execute``, then ``finish_isolated`` or ``abandon``.
    """

    async def execute(self, waiter: Waiter, limits: caller.Limits) -> StageDone:
        """Run the stage, and record what it looked up.

        Raises Fallback, StageCrashed, StageTimedOut, StageOutOfMemory, OSError.
        """
        known = self._tools.fallbacks.get(self._cache_key.digest)
        if known is not None:
            raise Fallback(f"at an earlier call: {known}")
        try:
            done: StageDone = await Bracket((_Unseen(),)).steps(self._execute(waiter, limits))
        except Fallback as fallback:
            self._tools.fallbacks[self._cache_key.digest] = str(fallback)
            raise
        return done

    async def _execute(self, waiter: Waiter, limits: caller.Limits) -> StageDone:
        self._installed = self._tools.installed_folders()
        self._modules = self._project_modules()
        # Before the starter: what a plugin imports for it may set variables of the environment.
        self._table = self._tools.key_builder.forms.table(self._modules)
        try:
            self._ambient = library_settings.snapshot(self._tools.plugins)
        except Uncacheable as error:
            raise Fallback(str(error)) from error
        self._process = process_state.snapshot()
        self._library_states = self._tools.key_builder.library_states()
        try:
            self._main = main = main_of(self._installed.is_project)
        except ReplayError as error:
            raise Fallback(str(error)) from error
        setup = Setup(
            folder=os.getcwd(),
            path=[os.path.abspath(path) if path else os.getcwd() for path in sys.path],
            argv=list(sys.argv),
            modules=[name for name in self._modules if name != "__main__"],
            main=main,
            values={} if main is None else self._needed_globals(main),
        )
        try:
            result = await self._run_worker(setup, waiter, limits)
            if result.done is not None and result.done.drawn and result.done.new_packages:
                # Importing a package may draw random numbers: seen once it is imported before.
                result = await self._run_worker(setup, waiter, limits, result.done.new_packages)
        except caller.TimedOut as error:
            raise StageTimedOut(self._stage.options.name, limits.seconds or 0.0) from error
        except caller.OutOfMemory as error:
            raise StageOutOfMemory(self._stage.options.name, limits.memory or 0, error.resident) from error
        except OSError as error:
            raise Fallback(f"no process can be started: {error}") from error
        if result.failed:
            raise Fallback(result.failed)
        if result.done is None:
            raise StageCrashed(self._stage.options.name, result.traced.ended.returncode, result.tail)
        if result.done.changed:
            raise Fallback(result.done.changed)
        self._record(result)
        return result.done

    async def _run_worker(
        self, setup: Setup, waiter: Waiter, limits: caller.Limits, packages: Sequence[str] = ()
    ) -> caller.RunResult:
        self._values = ValueTransfer(self._tools.plugins, self._tools.key_builder.forms.now())
        run = self._tools.starters.run
        return await run(setup, self._call, self._values, waiter=waiter, limits=limits, packages=packages)

    # --- what the worker is given

    def _project_modules(self) -> dict[str, ModuleType]:
        """The project's modules that this process has imported, in that order.

        A relative ``__file__`` is none of the import system's: objects of libraries that pose as modules have such."""
        found = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
            if name == "__main__":
                is_project = file is None or self._is_project(file)
            else:
                is_project = isinstance(file, str) and self._installed.is_project(file) and name != "__mp_main__"
            if is_project:
                found[name] = module
        return found

    def _is_project(self, file: str) -> bool:
        return self._installed.is_project(file if file.startswith("/") else os.path.abspath(file))

    def _needed_globals(self, main: MainModule) -> dict[str, Any]:
        """The globals of ``__main__`` that its definitions need when they are made."""
        namespace = vars(sys.modules["__main__"])
        needed = {name: namespace[name] for name in main.needed if name in namespace}
        return {name: value for name, value in needed.items() if not self._obstacle(value)}

    def _obstacle(self, value: Any, forms: Forms | None = None) -> str:
        """Why a value can't be sent; empty where it can. forms: once it is known what the worker has."""
        values = ValueTransfer(self._tools.plugins, forms)
        values.replayed = None if forms is None else self._values.replayed
        try:
            os.close(encode(value, values))
        except CannotSend as error:
            return str(error)
        return ""

    def _call(self, prepared: PrepareReply) -> StageRequest:
        """What is to be run, once it is known what the worker has imported."""
        forms = self._tools.key_builder.forms
        table, self._prepared = self._table, prepared
        carried: dict[str, dict[str, GlobalValue]] = {}
        missing: dict[tuple[str, str], str] = {}
        replayed = set()
        for module, names in table.items():
            theirs = prepared.table.get(module, {})
            namespace = vars(self._modules[module])
            for name, digest in names.items():
                if theirs.get(name) == digest and (digest or not is_stateful(namespace[name])):
                    replayed.add((module, name))
                elif not digest:
                    missing[module, name] = f"can't be compared: {forms.now().obstacle(namespace[name])}"
                elif module == "__main__" and name not in theirs:
                    carried.setdefault(module, {})[name] = GlobalValue(digest, namespace[name])
                else:
                    try:
                        sent = to_send(namespace[name], forms.now(self._modules[module]))
                    except UnsendableError as error:
                        missing[module, name] = f"can't be sent: {error}"
                    else:
                        carried.setdefault(module, {})[name] = GlobalValue(digest, sent)
            for name in theirs.keys() - names.keys():
                carried.setdefault(module, {})[name] = GlobalValue("", DeletedGlobal())
        self._values.custom.clear()  # those of ``Setup``: what is carried is compared once it has arrived
        self._values.replayed = replayed
        self._drop_what_cannot_be_sent(carried, missing)
        self._missing = frozenset(missing)
        self._generators = random_generators.snapshot(self._tools.plugins.all())
        self._carried = {(module, name) for module, names in carried.items() for name in names}
        function = self._stage.__wrapped__
        options = self._stage.options
        store = self._tools.store
        return StageRequest(
            stage=options.name,
            function=self._by_name(function),
            arguments=dict(self._given),
            carried=carried,
            missing=missing,
            targets=tuple(self._library_states),
            process=self._process,
            ambient=self._ambient,
            generators=self._generators,
            streams=(_is_replaced("stdout"), _is_replaced("stderr")),
            store=StoreOptions(os.fspath(store.folder), store.namespace, store.fsync),
            per_rank=options.per_rank,
            custom=self._values.custom,
        )

    def _by_name(self, function: Any) -> Any:
        """Where a function is that the worker has too; else itself."""
        is_replayed = ("__main__", function.__qualname__.partition(".")[0]) in (self._values.replayed or ())
        place = place_of(function) if function.__module__ != "__main__" or is_replayed else None
        return function if place is None else place

    def _drop_what_cannot_be_sent(
        self, carried: dict[str, dict[str, GlobalValue]], missing: dict[tuple[str, str], str]
    ) -> None:
        forms = self._tools.key_builder.forms.now()
        if not self._obstacle(carried, forms):
            return
        for module, names in carried.items():
            for name, value in list(names.items()):
                if obstacle := self._obstacle(value, forms):
                    del names[name]
                    missing[module, name] = f"can't be sent: {obstacle}"

    # --- what it looked up

    def _record(self, result: caller.RunResult) -> None:
        done, traced = result.done, result.traced
        assert done is not None
        self._done = done
        for reason, words in traced.problems():
            self.recorder.refuse_storage(reason, words)
        if not _TIMES.isdisjoint(done.names):
            self.recorder.refuse_storage(
                Reason.VOLATILE_INPUT, "it asks when a file was changed, which counts for nothing"
            )
        if not _IDENTITY.isdisjoint(done.names):
            self.recorder.refuse_storage(
                Reason.VOLATILE_INPUT, "it asks which file a path leads to, which counts for nothing"
            )
        for asked in asked_of_machine(done.names):
            self.recorder.add_read(Read("state", asked, "", state_digest(asked)))
        if "__subclasses__" in done.names:
            raise Fallback("it asks a class for its subclasses, which may be others in a worker")
        if done.storage_refusal is not None:
            self.recorder.refuse_storage(Reason(done.storage_refusal[0]), done.storage_refusal[1])
        self.recorder.has_project_paths = done.has_project_paths
        made = {change.path for change in traced.accesses.changes if change.effect & Effect.CREATED}
        temporary = [*done.temporary, *map(os.path.realpath, done.temporary)]
        for read in self._generator_reads(done):
            self.recorder.add_read(read)
            self.recorder.checked.add(read)  # in mode ``both`` the stage draws here, too
        for read in done.reads:
            if read.kind == "generator":
                continue
            if read.kind in _OF_PROCESS and self._tools.entry_finder.present(read, {}) != read.digest:
                raise Fallback(f"a stage within it read {read.name or read.kind} of {read.where}, which differs here")
            is_own = os.path.realpath(read.where) in made or is_below(read.where, temporary)
            if not is_own:
                self.recorder.add_read(read)
        if self._main is not None and not self._main.path:
            self.recorder.add_read(Read("effects", "__main__", "", effects_of(self._main)))
        for path in done.files:
            self.recorder.add_read(
                Read("content", path, "", self._tools.entry_finder.present(Read("content", path, "", ""), {}) or "")
            )
        paths = [os.path.abspath(path) for path in self._cache_key.inventory.paths]
        passed = InputFilter(done, paths, self._installed, self._is_cache)
        is_cache = partial(is_below, folders=(os.fspath(self._tools.store.folder), *home_caches()))
        has_programs = any(each.kinds & Kind.EXECUTED for each in traced.accesses.inputs)
        unsized = {same for path in done.unsized for same in (path, os.path.realpath(path)) if not has_programs}
        is_unsized = unsized.__contains__
        reads = Reads(
            traced, self.recorder.digests, os.getcwd(), is_cache=is_cache, passes=passed, is_unsized=is_unsized
        )
        try:
            for read in reads.all():
                if not is_below(read.where, temporary):
                    self.recorder.add_traced_read(read)
        except (InputChanged, OSError) as error:
            self.recorder.refuse_storage(Reason.INPUT_CHANGED, str(error))
        if any(path != sys.executable for path in reads.started_programs()):
            for read in environment_reads(OBEYED_NAME, os.environ):
                self.recorder.add_read(read)
        key_builder = self._tools.key_builder
        for name in passed.owners:
            self.recorder.add_read(Read("distribution", name, "", key_builder.metadata(name)))
        for read in self._globals(done):
            self.recorder.add_read(read)
        for path, place in key_builder.module_path():
            self.recorder.add_read(Read("path", path, place, PRESENT))
        if {"sys", "modules"} <= done.names:
            self.recorder.add_read(Read("imported", "", "", key_builder.imported_digest()))
        self.recorder.add_read(self._library_state(done))
        for read in (*self._libraries(done), *self._memos(done), *self._documentation(done)):
            self.recorder.add_read(read)
        for plugin in self._tools.plugins.for_distributions(passed.owners):
            self.recorder.add_read(Read("ambient", plugin.name, "", library_settings.digest(plugin)))
        for name in _counted_states(passed.owners):
            self.recorder.add_read(Read("process", name, "", process_state.digest(name)))

    def _globals(self, done: StageDone) -> Iterator[Read]:
        """The globals that the code which ran names, and those that arguments are or are made of.

        A name with a digest: the module's text makes this value."""
        replaced = [name for name in (*self._prepared.table, *done.imported) if self._is_replaced(name)]
        if replaced:
            raise Fallback(f"sys.modules has another object in place of the project's module {replaced[0]}")
        given: dict[str, set[str]] = {}
        for each in self._cache_key.inventory.callables:
            module, _, name = each.name.partition(":")  # type: ignore[attr-defined] # those of isolated stages
            given.setdefault(module, set()).add(name.partition(".")[0])
        for module, names in {**done.imported, **self._table}.items():
            theirs = self._prepared.table.get(module, done.imported.get(module, {}))
            named = (done.main_names if module == "__main__" else done.names) | {"__getattr__"}  # Python asks for it
            of_values = {name for where, name in self._values.named if where == module}
            namespace = vars(sys.modules[module]) if module in sys.modules else names
            counted = named | of_values | given.get(module, set())
            if module != "__main__":
                yield Read("global", module, f"={PRESENT}", PRESENT)
            if _finds_globals(done, module):
                counted |= names.keys()
                known = module_globals.names_digest(names)
                is_ours = names.keys() != theirs.keys()
                yield Read("global", module, "*", known) if is_ours else Read("global", module, f"*={known}", PRESENT)
            elif module != "__main__" and not done.names.isdisjoint(source_parts.WITH_DATA):
                counted |= {name for name, value in namespace.items() if type(value) in SCALARS}
            for name in counted & names.keys():
                digest = names[name]
                if digest and (module, name) not in self._missing:
                    if theirs.get(name) == digest and (module, name) not in self._carried:
                        yield Read("global", module, f"{name}={digest}", PRESENT)
                    else:
                        yield Read("global", module, name, digest)
            for name in named & theirs.keys() - names.keys():  # which the caller has deleted
                yield Read("global", module, name, ABSENT)
            unset = " ".join(sorted(named - namespace.keys() - theirs.keys() - _ordinary_names()))
            if unset:
                yield Read("unset", module, unset, PRESENT)

    def _is_replaced(self, module: str) -> bool:
        """Whether the program has put another object in the place of a module of the project."""
        is_there = module in sys.modules and module != "__main__"
        return is_there and not self._tools.key_builder.forms.is_project_module(module)

    def _generator_reads(self, done: StageDone) -> Iterator[Read]:
        """The random generators whose state the run has used. Raises Fallback where no other process can have it again,
        and where it is no longer what the run began with."""
        asked = {random_generators.STATES[name] for name in done.names & random_generators.STATES.keys()}
        nested = {read.where: read.digest for read in done.reads if read.kind == "generator"}
        for name in {*done.drawn, *asked} - self._generators.keys():
            raise Fallback(_unseeded_name(name, is_drawn=name in done.drawn))
        for each in random_generators.every(self._tools.plugins.all()):
            before, final = self._generators.get(each.name), done.generators.get(each.name)
            if before is None:
                continue
            digest = random_generators.digest(each, before)
            is_drawn = each.name in done.drawn or nested.get(each.name) == digest
            if done.has_forked and each.is_inherited and not (final and final.seeds):  # a child may have drawn
                is_drawn = is_drawn or each.is_seeded(before)
            if is_drawn or each.name in asked:
                if not each.is_seeded(before):
                    raise Fallback(_unseeded_name(each.name, is_drawn=is_drawn))
                if each.state() != before:
                    raise Fallback(f"the generator of {each.name} was moved by something else meanwhile")
                yield Read("generator", each.name, "", digest)

    def _memos(self, done: StageDone) -> Iterator[Read]:
        """What memos remember. Raises Fallback where one of this process remembers another result."""
        for module, contents in done.memos.items():
            for path, text in contents.items():
                if not lru_caches.agrees(module, path, text, self._tools.key_builder.forms.now):
                    raise Fallback(f"{path} of {module} remembers another result")
                yield Read("memo", module, f"{path} {text}", PRESENT)

    def _library_state(self, done: StageDone) -> Read:
        """What the program sets in libraries that the run has used. Raises Fallback where a worker has it not."""
        mine, used = self._library_states, done.used_libraries
        for target, digest in mine.items():
            if library_state.top(target) in used and done.library_states[target] != digest:
                raise Fallback(f"the program sets {target}, which has another state in a worker")
        return library_state.read_of(used, mine)

    def _documentation(self, done: StageDone) -> Iterator[Read]:
        """Docstrings and annotations that code may have read. Raises Fallback where the program has set others."""
        for module, digest in done.documentation.items():
            if module in sys.modules and module_globals.documentation_digest(sys.modules[module]) != digest:
                raise Fallback(f"it reads docstrings or annotations, and the program has set some of {module}")
            yield Read("global", module, f"{module_globals.DOCUMENTATION}={digest}", PRESENT)

    def _libraries(self, done: StageDone) -> Iterator[Read]:
        """What the code that ran names of libraries. Raises Fallback where this process has something else there."""
        is_own = self._tools.key_builder.forms.now().is_own_module
        for name, theirs in done.libraries.items():
            if library_patches.is_replaced(name):
                raise Fallback(f"sys.modules has another object in place of the module {name}")
            live = sys.modules.get(name)
            # One that is not imported here would be as the worker's.
            mine = theirs if live is None else library_patches.table({name: live}, done.names, is_own)[name]
            for attribute in mine.keys() | theirs.keys():
                if not library_patches.agree(mine.get(attribute), theirs.get(attribute)):
                    raise Fallback(f"{attribute} of {name} may be another one in a worker")
            for attribute, digest in theirs.items():
                yield library_patches.read_of(name, attribute, digest)
            unset = " ".join(sorted(done.names - theirs.keys() - mine.keys() - _ordinary_names()))
            if unset:
                yield Read("unset", name, unset, PRESENT)

    def _is_cache(self, path: str) -> bool:
        return os.path.join(path, "").startswith(os.path.join(os.fspath(self._tools.store.folder), ""))

    # --- the end

    def differs_from(self, done: StageDone, lookup: LookupResult) -> str | None:
        """What differs between the value of the worker and the stored one, in words; None for nothing."""
        assert lookup.trace is not None
        node = _DECODE(done.node)
        if node == lookup.trace.value:
            moved = [name for name, state in done.generators.items() if lookup.generators.get(name) != state]
            return f"it leaves the generator of {moved[0]} in another state" if moved else None
        return difference(self, self._tools, self._stage.options, self._decode(node), lookup)

    def check_process(self) -> None:
        """See that this process is as the run found it. What the stage changes when it runs here afterwards, as in mode
        ``both``, is no change of an input: it imports modules, and fills what it remembers."""
        with unseen():
            for read in self.recorder.reads():
                self._check(read)

    def _check(self, read: Read) -> None:
        if read.kind in _OF_PROCESS and self._tools.entry_finder.present(read, {}) == read.digest:
            self.recorder.checked.add(read)

    def difference(self, done: StageDone, value: Any) -> str:
        """What differs between the value of the worker and that of this process, in words; empty for nothing."""
        theirs = _DECODE(done.node)
        if self.encode(value) == theirs:
            return self._generators_differ(done)
        states = [f"{module}.{name}" for module, name in sorted(self._carried | self._missing)]
        settings = f"; the caller's process had set {', '.join(states[:5])}" if states else ""
        one, other = describe(self._decode(theirs)), describe(value)
        same = " with other content" if one == other else ""
        return f"a process of its own gives {one}, this one {other}{same}{settings}"

    def _generators_differ(self, done: StageDone) -> str:
        for each in random_generators.every(self._tools.plugins.all()):
            final, here = done.generators.get(each.name), each.state()
            if final is not None and here is not None and each.counted(here) != each.counted(final.state):
                return f"a process of its own leaves the generator of {each.name} in another state than this one"
        return ""

    def put_generators(self, done: StageDone) -> None:
        """Leave the random generators of this process as the run has left those of the worker."""
        random_generators.put(self._tools.plugins, done.generators)

    def finish_isolated(self, done: StageDone, *, store: bool) -> FinishedRun:
        """``finish``, of what the worker sent."""
        with unseen():
            return self._finish(done, store=store)

    def _finish(self, done: StageDone, *, store: bool) -> FinishedRun:
        finished = FinishedRun(None, done.seconds)
        try:
            node = _DECODE(done.node)
            refusal = self.recorder.storage_refusal()
            if refusal is not None:
                finished.refusal_reason, finished.changed = refusal
            else:
                finished.changed = self._changed_input()
            if store and not finished.changed:
                self._publish(finished, node)
            if not finished.stored:
                finished.value = self._decode(node)
        finally:
            self.abandon()
        return finished

    def _final_generators(self) -> ArtifactRef | None:
        states = self._done.generators
        return self._tools.store.objects.add_bytes(msgspec.json.encode(states, order="sorted")) if states else None

    def _decode(self, node: Node) -> Any:
        weights = self._cache_key.inventory.weights
        return decode(node, self._tools.store.objects, self._tools.plugins.find, weights.__getitem__)

    def _changed_input(self) -> str:
        """Which input is no longer what the run found, in words; empty where all still hold."""
        if changed := self._changed_read():
            return changed
        again = self._tools.key_builder.build(self._stage, self._given, fresh=True)
        if again.digest != self._cache_key.digest:
            from cachec.key.key_diff import first_difference  # rarely needed

            return first_difference(self._cache_key.parts(), again.parts()).detail
        return ""


def _finds_globals(done: StageDone, module: str) -> bool:
    """Whether the code that ran may have read any global of a module by a name that is not in the code."""
    found = done.names & source_parts.DYNAMIC
    if module == "__main__" and "__main__" not in done.names:
        found -= source_parts.OF_OBJECTS
    return bool(found) or done.evaluates


@cache
def _ordinary_names() -> frozenset[str]:
    """Names of attributes that all values of Python's own types have: no program gives a module one of them later."""
    kinds = (str, bytes, list, dict, set, tuple, int, float, property, FunctionType, ModuleType, Exception)
    return frozenset(name for kind in kinds for name in dir(kind))


def _counted_states(distributions: set[str]) -> Iterator[str]:
    """The settings of the process that a run may have obeyed. The mask of new files and the
    arguments are reads of their own."""
    for name in process_state.COUNTED:
        if name not in {"arguments", "umask"} and ("numpy" in distributions or not name.startswith("numpy")):
            yield name


def _unseeded_name(name: str, *, is_drawn: bool) -> str:
    if not is_drawn:
        return "it asks for the state of a random generator, and no seed was set"
    return (
        f"it drew from the generator of {name} without setting a seed; nor did the program since its stage was defined"
    )


def _is_replaced(name: str) -> bool:
    """Whether ``sys.stdout`` or ``sys.stderr`` is not the stream that Python began with."""
    return getattr(sys, name) is not getattr(sys, f"__{name}__")
