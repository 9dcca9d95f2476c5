"""One run of a stage on a miss: guarded handles, a second look at the inputs, and publication."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from cachec import recording
from cachec.base import fsio
from cachec.base.cached_properties import filled_since
from cachec.base.hashing import digest_bytes
from cachec.codecs.encoder import encode
from cachec.codecs.files import files_size
from cachec.codecs.json_data import SCALARS
from cachec.errors import (
    CachecError,
    LinkError,
    StoreFault,
    Uncacheable,
    UnkeyableArgument,
    UnresolvedCode,
    UnstorableResult,
    UsageError,
)
from cachec.key import random_generators
from cachec.key.code.lru_cache_validity import memo_name
from cachec.key.describe import words_of
from cachec.key.key_builder import CacheKey
from cachec.key.stage_options import StageLike
from cachec.key.tools.environment import result_variables
from cachec.key.weight_guards import bare, callers_weights, replace_weights, short_texts, with_returned_manifests
from cachec.model import ArtifactRef, Fault, GeneratorState, KeyDescription, Node, PartKind, Read, Reason, Trace
from cachec.programs.plugin import Plugin
from cachec.programs.supported_versions import Asking, bypass_reason
from cachec.recording import ReadRecorder
from cachec.stage import inlined_weights
from cachec.stage.concurrent_runs import ConcurrentRuns
from cachec.stage.lookup import EngineServices, describe_change
from cachec.stage.lru_cache_use import MemoUse, RecordedFill, memos_named
from cachec.stage.run_hooks import Bracket
from cachec.store.artifacts import ArtifactSink
from cachec.store.store_size import BoundedSink
from cachec.weights import WeightSet


class FinishedRun(msgspec.Struct):
    """The outcome of one run."""

    #: The result, as the caller gets it.
    value: Any
    #: How long the run took.
    seconds: float
    #: Whether the result was stored.
    stored: bool = False
    #: Which input changed meanwhile, or what else keeps the result out of the store; empty where nothing does.
    changed: str = ""
    #: The reason that belongs to ``changed``.
    refusal_reason: Reason = Reason.INPUT_CHANGED
    fault: Fault | None = None
    detail: str = ""
    #: What was stored.
    trace: Trace | None = None


class Run:
    """The run of one stage for one cache key.

    Use ``arguments`` inside ``recording.recording(run.recorder)`` and ``bracket``, then ``finish`` or ``abandon``.
    """

    def __init__(
        self,
        tools: EngineServices,
        stage: StageLike,
        cache_key: CacheKey,
        arguments: Mapping[str, Any],
        *,
        watched: bool = False,
    ) -> None:
        """watched: observe the run even where nothing of it is recorded."""
        self._tools = tools
        self._stage = stage
        self._cache_key = cache_key
        self._given = arguments
        self._guarded: dict[str, WeightSet] = {}
        outer = recording.current()
        if outer is not None:
            outer.add_nested_stage(stage)
        is_observed = tools.observing is not None and not stage.options.isolated
        net = tools.observing.net(cache_key, always=watched) if is_observed and tools.observing is not None else None
        store = os.path.join(tools.store.folder, "")
        results = [path for path in cache_key.inventory.paths if os.path.abspath(path).startswith(store)]
        self.recorder = ReadRecorder(stage.options.name, outer, tools.digests, net, results)
        ignored = stage.options.ignore
        self.arguments = {
            name: value if name in ignored else replace_weights(value, name, self._guard)
            for name, value in arguments.items()
        }
        if cache_key.inventory.manifests:
            self.arguments = {name: bare(value) for name, value in self.arguments.items()}
        unguarded = cache_key.inventory.weights.keys() ^ self._guarded.keys()
        if unguarded:
            raise _unguardable(min(unguarded))
        self._observed_reads: frozenset[Read] = frozenset()
        self._sink: BoundedSink | None = None
        #: Modules that the key reads from source and that the run may import; none where nothing observes the run.
        self._unimported = frozenset[str]() if net is None else tools.key_builder.unimported_modules(cache_key)
        self._stale = tools.key_builder.stale_memos(cache_key)
        self._concurrent_runs = ConcurrentRuns(self.recorder, cache_key.inventory.memos, cache_key.inventory.unfilled)
        fills = tools.observing.fills if tools.observing is not None else {}
        self._memo_use = MemoUse(cache_key.inventory.memos, fills, _ambient(cache_key))
        #: The recorded fills of memos that answered in this run.
        self._fills: list[RecordedFill] = []
        #: What the next call will ask for, where this run filled cached properties.
        self._next: CacheKey | None = None
        #: The cache key as it is at the end.
        self._again: CacheKey | None = None
        around = []
        self._speaking = tools.key_builder.speaking(cache_key)
        for plugin in self._speaking:
            with Asking(plugin):
                around.append(plugin.running(cache_key.digest))
        self.bracket = Bracket(around)
        #: The states of random generators now; none for a command, which draws from no generator of this process.
        self._states = random_generators.snapshot(self._speaking) if tools.observing is not None else None
        self._moved: dict[str, GeneratorState] = {}
        self._started = time.perf_counter()

    def _guard(self, weights: WeightSet, path: str) -> WeightSet:
        if path in self._guarded:
            raise _unguardable(path)
        guarded = self._guarded[path] = weights.guard(
            path, self.recorder, self._tools.digests, per_rank=self._stage.options.per_rank
        )
        return guarded

    def abandon(self) -> None:
        """The run is over: close its handles, remove the scratch folders that are not kept."""
        self._close()
        self.recorder.drop_scratch()

    def finish(self, result: object, *, store: bool) -> FinishedRun:
        """Look at the inputs again, publish (where ``store``), and give the value that the caller gets.

        A result that no codec takes, and a fault of the store, cost the entry and not the result.
        """
        finished = FinishedRun(result, time.perf_counter() - self._started)
        self._count_generators()
        try:
            # Encoded first: weights that the stage derived are made now, and what they read counts too.
            node = self._encode(finished) if store else None
            filled_before = self._count_fills()
            if store and not self._collect_reads(finished):
                node = None
            refusal = self.recorder.storage_refusal()
            if self._stale:
                finished.refusal_reason, finished.changed = Reason.STALE_MEMO, _stale(self._stale)
            elif filled_before := filled_before or self._filled_unseen():
                finished.refusal_reason, finished.changed = Reason.STALE_MEMO, _filled_before(filled_before)
            elif taken := self._shared_with_others(self._cache_key):
                finished.refusal_reason, finished.changed = Reason.STALE_MEMO, taken
            elif refusal is not None:
                finished.refusal_reason, finished.changed = refusal
            elif not finished.changed:
                try:
                    finished.changed = self._changed_input()
                    if finished.changed and (stale := self._stale_fill()):
                        finished.refusal_reason, finished.changed = Reason.STALE_MEMO, stale
                    # A module that was imported meanwhile has memos that only the key of now tells of.
                    if (
                        not finished.changed
                        and self._again is not None
                        and (taken := self._shared_with_others(self._again))
                    ):
                        finished.refusal_reason, finished.changed = Reason.STALE_MEMO, taken
                except Uncacheable as error:  # the library was imported meanwhile
                    finished.refusal_reason, finished.changed = bypass_reason(error), str(error)
                except OSError as error:  # whether an input changed can't be told: the result is good, and kept out
                    fault = fsio.fault(error, "looking at the inputs again")
                    finished.fault, finished.detail, node = fault.fault, fault.detail, None
            if node is not None and not finished.changed:
                self._publish(finished, node)
            if finished.stored:
                self._record_fills()
            else:
                finished.value = self._return_value(result, node)
                self.recorder.keep_scratch()  # the result may be a file in there
        finally:
            if not finished.stored:
                self._discard(finished)
            self.abandon()
        return finished

    def _count_generators(self) -> None:
        """Count the states of the random generators of this process that the run moved, or asked for their state."""
        if self._states is None:
            return
        net = self.recorder.net
        asked = set() if net is None else random_generators.asked_states(list(net.observed.executed_code.values()))
        asked |= {read.where for read in self.recorder.reads() if read.kind == "generator"}  # by nested stages
        for each in random_generators.every(self._speaking):
            before, state = self._states.get(each.name), each.state()
            if state is None or not (random_generators.is_moved(each, before, state) or each.name in asked):
                continue
            if before is None:
                if each.is_seeded(state):
                    self.recorder.refuse_storage(Reason.VOLATILE_INPUT, _seeded(each.name))
                continue
            seeds = each.was_seeded(before, state)
            # Numbers of a generator without a seed are a documented limit: torch draws some for each new module.
            if not seeds and each.tells_seed and not each.is_seeded(before):
                continue
            read = Read("generator", each.name, "", random_generators.digest(each, before))
            self.recorder.set_generator(each.name, None if seeds else read)
            self._moved[each.name] = GeneratorState(seeds, state)

    def _count_fills(self) -> list[str]:
        """Count what earlier runs read while they filled the memos that answered in this one. Returns the names of
        memos that were filled in another way."""
        names, fills = self._memo_use.earlier_results()
        self._fills = fills
        for fill in fills:
            for stage in fill.stages:
                self.recorder.add_nested_stage(stage)
            for read in fill.reads:
                self.recorder.add_read(read)
        return names

    def _stale_fill(self) -> str:
        """Why a memo that answered is stale: an input of its recorded fill changed since. Empty where none is."""
        weights = self._cache_key.inventory.weights
        for fill in self._fills:
            for read in fill.reads:
                if self._tools.entry_finder.present(read, weights) != read.digest:
                    return (
                        f"{memo_name(fill.function)} may keep results of {read.kind} {read.name or read.where}, which "
                        "has changed since; empty it with cache_clear(), or start a new process"
                    )
        return ""

    def _filled_unseen(self) -> list[str]:
        """The names of memos that the key does not hold, that were there before the run, and that have answered."""
        net = self.recorder.net
        if net is None:
            return []
        reached = {id(memo.function) for memo in self._cache_key.inventory.memos}
        executed = [(each.code, each.namespace) for each in list(net.observed.executed_code.values())]
        return [
            name
            for name, function in memos_named(executed, self._tools.key_builder.is_project)
            if id(function) not in reached
            and function.__module__ in net.observed.modules
            and function.cache_info().hits
        ]

    def _record_fills(self) -> None:
        """Let later runs know what this one read while it filled memos."""
        net, memos = self.recorder.net, [] if self._again is None else self._again.inventory.memos
        if net is None or not memos or self._cache_key.inventory.paths:
            return
        reads = self.recorder.reads()
        if all(read.kind != "weight" for read in reads) and self._concurrent_runs.is_alone():
            self._memo_use.record(self._stage, reads, memos, net.observed.modules)

    def _shared_with_others(self, cache_key: CacheKey) -> str:
        """What may have given the run what another one filled it with, in words; empty where nothing has."""
        names: list[str] = []
        if cache_key.inventory.memos:
            names += self._concurrent_runs.shared_memos(cache_key.inventory.memos, self._tools.key_builder.is_project)
        if cache_key is self._cache_key and cache_key.inventory.unfilled:
            names += self._concurrent_runs.shared_properties(self._tools.key_builder.is_project)
        return _describe_shared(names) if names else ""

    def _return_value(self, result: object, node: Node | None) -> Any:
        """A result that is not stored, as the caller gets it. node: what was to be stored, if it came to that."""
        inventory = self._cache_key.inventory
        made = inlined_weights.made_in_value(result) if node is None else inlined_weights.made_in_node(node)
        with recording.recording(self.recorder), self.bracket:
            inside = inlined_weights.collect_inlined(
                self.recorder.reads(), inventory.weights, inventory.weights_by_value, made
            )
        value = callers_weights(result, inventory.weights)
        return with_returned_manifests(value, inventory.callers, inside) if inventory.callers or inside else value

    def encode(self, result: object, sink: ArtifactSink | None = None) -> Node:
        """The result as stored nodes; its artifacts are in the store, no row points at them yet."""
        sink = sink or self._tools.store.objects
        if type(result) in SCALARS and self.bracket.is_empty:  # by cachec's own code: there is nothing to record
            return encode(result, sink, self._plugin_for)
        with recording.recording(self.recorder), self.bracket:
            return encode(result, sink, self._plugin_for)

    def _plugin_for(self, cls: type) -> Plugin | None:
        """The plugin that stores objects of a class. Raises StoreFault where the system refuses to say."""
        with fsio.faults("looking for plugins"):
            return self._tools.plugins.for_type(cls)

    def _encode(self, finished: FinishedRun) -> Node | None:
        try:
            sink = self._sink = self._tools.store.sink()
            sink.expect(files_size(finished.value))
            return self.encode(finished.value, sink)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
        except Uncacheable as error:
            finished.refusal_reason, finished.changed = bypass_reason(error), str(error)
        except UnstorableResult as error:
            finished.refusal_reason, finished.changed = Reason.UNSTORABLE, str(error)
        return None

    def _discard(self, finished: FinishedRun) -> None:
        """The artifacts of a result that is not stored go again; where they can't, they wait for a ``gc``."""
        try:
            if self._sink is not None:
                self._tools.store.objects.discard(self._sink.refs)
        except StoreFault as fault:
            finished.fault, finished.detail = finished.fault or fault.fault, finished.detail or fault.detail

    def _collect_reads(self, finished: FinishedRun) -> bool:
        """Collect what the run was seen to use; whether that could be told."""
        try:
            if self._tools.observing is not None:
                with fsio.faults("looking at what the run used"):
                    if self.recorder.net is not None:
                        texts = [*short_texts(finished.value)]
                        for read in (
                            *self._tools.observing.named_folders(texts, self._cache_key),
                            *result_variables(texts, self.recorder.net.observed.copied or {}),
                        ):
                            self.recorder.add_read(read)
                    self._observed_reads = self._tools.observing.collect(self._cache_key, self.recorder)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
            return False
        except UnresolvedCode as error:  # of a value that the run itself put there
            finished.refusal_reason, finished.changed = Reason.UNRESOLVED_CODE, str(error)
            return False
        except CachecError:
            raise
        except Exception as error:  # noqa: BLE001 - code of the values that the run put there
            message = f"looking at what the run used raised {words_of(error)}"
            finished.refusal_reason, finished.changed = Reason.UNRESOLVED_CODE, message
            return False
        return True

    def _note_project_path(self, node: Node) -> None:
        """Let the project's folder count by its path where the result holds that."""
        key_builder, observing = self._tools.key_builder, self._tools.observing
        if observing is None:
            return
        from cachec.key.trace_validation import path_digest
        from cachec.stage.project_paths import holds_path  # on a miss only

        folder = observing.project_folder(self._cache_key)
        everywhere = self.recorder.has_project_paths or (
            self.recorder.net is None and key_builder.coverage(self._cache_key).has_project_paths
        )
        if folder is not None and holds_path(node, folder, self._tools.store.objects.path, everywhere=everywhere):
            self.recorder.add_read(Read("folder", folder, "", path_digest(folder)))

    def _publish(self, finished: FinishedRun, node: Node) -> None:
        try:
            with fsio.faults("publishing a result"):
                self._note_project_path(node)
                trace = self._store_run(finished, node)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
        else:
            finished.stored, finished.trace = True, trace

    def _store_run(self, finished: FinishedRun, node: Node) -> Trace:
        """Store the run; the value of ``finished`` is then what is stored. Raises StoreFault, OSError."""
        objects, options = self._tools.store.objects, self._stage.options
        recipe, artifacts = self._call_record()
        trace = Trace(
            reads=self._tools.entry_finder.portable_reads(self.recorder.reads(), self._cache_key),
            value=node,
            seconds=finished.seconds,
            created=time.time(),
            manifest=self._manifest(),
            explanations=artifacts,
            generators=self._final_generators(),
        )
        key_parts = self._cache_key.parts()
        parts = objects.add_bytes(msgspec.json.encode(KeyDescription(key_parts, msgspec.Raw(recipe))))
        self._tools.store.publish(
            self._cache_key.digest, options.name, options.tags, parts, trace, search_parts=key_parts
        )
        if self._next is not None:
            key_parts = self._next.parts()
            parts = objects.add_bytes(msgspec.json.encode(KeyDescription(key_parts, msgspec.Raw(recipe))))
            self._tools.store.publish(
                self._next.digest, options.name, options.tags, parts, trace, search_parts=key_parts
            )
        with fsio.faults("reading what is stored"):
            finished.value = self._tools.entry_finder.decode(self._cache_key, trace)
        return trace

    def _manifest(self) -> ArtifactRef | None:
        """What the files of this result are to be linked with: that of the programs given, else of the weight sets."""
        inventory = self._cache_key.inventory
        given = [program.manifest for program in inventory.programs.values()]
        given = given or [weights.manifest for weights in inventory.weights.values()]
        if not given:
            return None
        whole = given[0]
        try:
            for manifest in given[1:]:
                whole = whole.merge(manifest)
        except LinkError:
            return None  # ambiguous: the files of this stage link with nothing unless it says with what
        return self._tools.store.objects.add_bytes(whole.encode())

    def _final_generators(self) -> ArtifactRef | None:
        """The states that the run left random generators in."""
        return (
            self._tools.store.objects.add_bytes(msgspec.json.encode(self._moved, order="sorted"))
            if self._moved
            else None
        )

    def _call_record(self) -> tuple[bytes, tuple[ArtifactRef, ...]]:
        """How the stage was called, and what is stored beside: the stripped IR and the manifests that the parts refer
        to, by which a later miss is told, and the inputs that a reproducer needs.
        """
        from cachec.key.content_diff import MAX_STORED_BYTES, content_of
        from cachec.reproduce.recipe import recipe_of

        made = recipe_of(self._stage, self._given, self.recorder)
        contents = dict(made.contents)
        for program in self._cache_key.inventory.programs.values():
            contents.setdefault(program.ir_digest, program.ir)
            contents.setdefault(program.manifest.digest, program.manifest.encode())
        for weights in self._cache_key.inventory.weights.values():
            contents.setdefault(weights.manifest.digest, weights.manifest.encode())
        texts = self._cache_key.texts()
        if texts:
            contents[digest_bytes(texts)] = texts
        for digest, path in self._cache_key.inventory.files.items():
            data = None if digest in contents else content_of(path, digest, MAX_STORED_BYTES)
            if data is not None:
                contents[digest] = data
        objects = self._tools.store.objects
        return made.encoded, tuple(objects.add_bytes(data) for data in contents.values())

    def _changed_input(self) -> str:
        """Which input is no longer what the key and the reads say, in words; empty where all still hold."""
        if changed := self._changed_read():
            return changed
        self._tools.key_builder.note_run(self._cache_key)
        without = filled_since(self._cache_key.inventory.unfilled)
        try:
            again = self._tools.key_builder.build(self._stage, self._given, fresh=True, without=without)
            is_same = again.digest == self._cache_key.digest
            if not is_same and (imported := self._newly_imported()):
                # What a run does to the modules that it imports is no change of an input: it started without them.
                without_imports = self._tools.key_builder.build(
                    self._stage, self._given, fresh=True, without=without, text_alone=imported
                )
                if without_imports.digest == self._cache_key.digest:
                    self._again = again
                    return ""
        except (UsageError, OSError) as error:
            return f"an input can't be looked at again: {error}"
        if not is_same:
            from cachec.key.key_diff import first_difference  # rarely needed

            found = first_difference(self._cache_key.parts(), again.parts())
            # Code that was imported since is told in another way than by its text alone; a value changes by itself.
            words = [each.words for each in found.parts]
            added = [each for each in words if each.startswith("helper ") and each.endswith(" added")]
            if added and all(each.endswith(" added") for each in words if each.startswith("value ")):
                return f"{added[0]}, as the run set a name that leads to it (a lazy import): use that before the call"
            return next((each for each in words if each.startswith("value ")), found.detail)
        self._again = again
        if without:
            with contextlib.suppress(UsageError, OSError):  # then the next call is told
                self._next = self._tools.key_builder.with_filled_properties(
                    self._cache_key, self._given, without, self.recorder.reads()
                )
        return ""

    def _changed_read(self) -> str:
        """The same of what was read, and of weights."""
        for read in self.recorder.contradictions():
            return f"{read.kind} {read.name or read.where} was seen with two different contents"
        weights = self._cache_key.inventory.weights
        for where, weight in weights.items():
            replaced = weight.changed()
            if replaced is not None:
                return f"{where}: {replaced} was replaced or written to"
        for read in self.recorder.reads():
            if read in self._observed_reads or read in self.recorder.checked:
                continue
            if self._tools.entry_finder.present(read, weights) != read.digest:
                return describe_change(read)
        return ""

    def _newly_imported(self) -> frozenset[str]:
        """The names of the modules that the key reads from source, and that this run itself has imported."""
        net = self.recorder.net
        if net is None:
            return frozenset()
        files = {
            executed.code.co_filename
            for executed in list(net.observed.executed_code.values())
            if executed.code.co_name == "<module>"
        }
        modules = ((name, sys.modules.get(name)) for name in self._unimported)
        return frozenset(name for name, module in modules if getattr(module, "__file__", None) in files)

    def _close(self) -> None:
        self._concurrent_runs.end()
        for guarded in self._guarded.values():
            guarded.close_guard()
        if self.recorder.net is not None and self.recorder.net.native_reads is not None:
            self.recorder.net.native_reads.close()


def _seeded(name: str) -> str:
    return (
        f"it imported {name} and set the seed of the generator that the whole process shares; import it before, or use "
        "a generator of its own, such as random.Random(seed) or numpy.random.default_rng(seed)"
    )


def _ambient(cache_key: CacheKey) -> dict[str, str]:
    """The live state of libraries in a key; of one without memos nobody asks."""
    if not cache_key.inventory.memos:
        return {}
    return {part.name: part.digest for part in cache_key.parts() if part.kind is PartKind.AMBIENT}


def _filled_before(names: list[str]) -> str:
    return (
        f"the memo of {names[0]} was filled before this run, so the run did not see the files and variables that it "
        f"was made of; call {names[0].rpartition('.')[2]}.cache_clear() before the stage, call it first inside of the "
        "stage, or pass what it returns as an argument"
    )


def _describe_shared(names: list[str]) -> str:
    return (
        f"{names[0]} was filled meanwhile by another run, which looked at files, variables and the like for it; this "
        "one did not: give the stage what it returns as an argument"
    )


def _stale(names: list[str]) -> str:
    return (
        f"{', '.join(names)} may keep results of code or values that have changed since; empty it with cache_clear(), "
        "or start a new process"
    )


def _unguardable(path: str) -> UsageError:
    return UnkeyableArgument(
        f"argument {path} is a WeightSet in a place where its reads can't be recorded; pass it as an argument of its "
        "own, or in a tuple, list, dict with plain keys, or dataclass"
    )
