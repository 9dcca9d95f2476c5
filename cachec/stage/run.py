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
from cachec.base.cached_properties import filled
from cachec.base.hashing import digest_bytes
from cachec.codecs.data import SCALARS
from cachec.codecs.encoder import encode
from cachec.codecs.files import files_size
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
from cachec.key import generators
from cachec.key.code.memos import memo_name
from cachec.key.guard import bare, callers_weights, replace_weights, returned, short_texts
from cachec.key.options import StageLike
from cachec.key.request import Request
from cachec.key.words import words_of
from cachec.model import ArtifactRef, Fault, KeyDescription, Node, PartKind, Read, Reason, Trace
from cachec.programs.plugin import Plugin
from cachec.programs.supported import Asking, bypass_reason
from cachec.recording import Recorder
from cachec.stage import folding
from cachec.stage.bracket import Bracket
from cachec.stage.look import Tools, describe_change
from cachec.stage.meanwhile import Meanwhile
from cachec.stage.memo_use import MemoUse, RecordedFill, memos_named
from cachec.store.artifacts import ArtifactSink
from cachec.store.size_limit import BoundedSink
from cachec.weights import WeightSet


class Finished(msgspec.Struct):
    """What came of a run. ``changed`` says which input changed meanwhile, or what else keeps it out (``kept_out`` is
    the reason then); nothing was stored."""

    value: Any
    seconds: float
    stored: bool = False
    changed: str = ""
    kept_out: Reason = Reason.INPUT_CHANGED
    fault: Fault | None = None
    detail: str = ""
    trace: Trace | None = None


class Run:
    """The run of one stage for one request.

    Use ``arguments`` inside ``recording.recording(run.recorder)`` and ``bracket``, then ``finish`` or ``abandon``.
    """

    def __init__(
        self,
        tools: Tools,
        stage: StageLike,
        request: Request,
        arguments: Mapping[str, Any],
        *,
        watched: bool = False,
    ) -> None:
        """watched: observe the run even where nothing of it is recorded."""
        self._tools = tools
        self._stage = stage
        self._request = request
        self._given = arguments
        self._guarded: dict[str, WeightSet] = {}
        outer = recording.current()
        if outer is not None:
            outer.nested(stage)
        is_observed = tools.observing is not None and not stage.options.isolated
        net = tools.observing.net(request, always=watched) if is_observed and tools.observing is not None else None
        store = os.path.join(tools.store.folder, "")
        results = [path for path in request.inventory.paths if os.path.abspath(path).startswith(store)]
        self.recorder = Recorder(stage.options.name, outer, tools.digests, net, results)
        ignored = stage.options.ignore
        self.arguments = {
            name: value if name in ignored else replace_weights(value, name, self._guard)
            for name, value in arguments.items()
        }
        if request.inventory.manifests:
            self.arguments = {name: bare(value) for name, value in self.arguments.items()}
        unguarded = request.inventory.weights.keys() ^ self._guarded.keys()
        if unguarded:
            raise _unguardable(min(unguarded))
        self._seen: frozenset[Read] = frozenset()
        self._sink: BoundedSink | None = None
        #: Modules that the key reads from source and that the run may import; none where nothing observes the run.
        self._unimported = frozenset[str]() if net is None else tools.requests.unimported(request)
        self._stale = tools.requests.stale_memos(request)
        self._meanwhile = Meanwhile(self.recorder, request.inventory.memos, request.inventory.unfilled)
        fills = tools.observing.fills if tools.observing is not None else {}
        self._memo_use = MemoUse(request.inventory.memos, fills, _ambient(request))
        #: The recorded fills of memos that answered in this run.
        self._fills: list[RecordedFill] = []
        #: What the next call will ask for, where this run filled cached properties.
        self._next: Request | None = None
        #: The request as it is at the end.
        self._again: Request | None = None
        around = []
        self._speaking = tools.requests.speaking(request)
        for plugin in self._speaking:
            with Asking(plugin):
                around.append(plugin.running(request.digest))
        self.bracket = Bracket(around)
        self._states = generators.snapshot(self._speaking)
        self._started = time.perf_counter()

    def _guard(self, weights: WeightSet, path: str) -> WeightSet:
        if path in self._guarded:
            raise _unguardable(path)
        guarded = self._guarded[path] = weights.guarded(
            path, self.recorder, self._tools.digests, per_rank=self._stage.options.per_rank
        )
        return guarded

    def abandon(self) -> None:
        """The run is over: close its handles, remove the scratch folders that are not kept."""
        self._close()
        self.recorder.drop_scratch()

    def finish(self, result: Any, *, store: bool) -> Finished:
        """Look at the inputs again, publish (where ``store``), and give the value that the caller gets.

        A result that no codec takes, and a fault of the store, cost the entry and not the result.
        """
        finished = Finished(result, time.perf_counter() - self._started)
        if used := self._used_generator():
            self.recorder.keep_out(Reason.VOLATILE_INPUT, _drawn(used))
        try:
            # Encoded first: weights that the stage derived are made now, and what they read counts too.
            node = self._encoded(finished) if store else None
            filled_before = self._count_fills()
            if store and not self._collected(finished):
                node = None
            if node is not None:
                self._note_project_path(node)
            kept_out = self.recorder.kept_out()
            if self._stale:
                finished.kept_out, finished.changed = Reason.STALE_MEMO, _stale(self._stale)
            elif filled_before := filled_before or self._filled_unseen():
                finished.kept_out, finished.changed = Reason.STALE_MEMO, _filled_before(filled_before)
            elif taken := self._taken(self._request):
                finished.kept_out, finished.changed = Reason.STALE_MEMO, taken
            elif kept_out is not None:
                finished.kept_out, finished.changed = kept_out
            elif not finished.changed:
                try:
                    finished.changed = self._changed()
                    if finished.changed and (stale := self._stale_fill()):
                        finished.kept_out, finished.changed = Reason.STALE_MEMO, stale
                    # A module that was imported meanwhile has memos that only the key of now tells of.
                    if not finished.changed and self._again is not None and (taken := self._taken(self._again)):
                        finished.kept_out, finished.changed = Reason.STALE_MEMO, taken
                except Uncacheable as error:  # the library was imported meanwhile
                    finished.kept_out, finished.changed = bypass_reason(error), str(error)
                except OSError as error:  # whether an input changed can't be told: the result is good, and kept out
                    fault = fsio.fault(error, "looking at the inputs again")
                    finished.fault, finished.detail, node = fault.fault, fault.detail, None
            if node is not None and not finished.changed:
                self._publish(finished, node)
            if finished.stored:
                self._record_fills()
            else:
                finished.value = self._returned(result, node)
                self.recorder.keep_scratch()  # the result may be a file in there
        finally:
            if not finished.stored:
                self._discard(finished)
            self.abandon()
        return finished

    def _used_generator(self) -> str:
        """The name of a random generator of this process that the run moved, or asked for its state; empty for none."""
        net = self.recorder.net
        codes = [] if net is None else [each.code for each in list(net.observed.ran.values())]
        asked = {name for code in codes for name in code.co_names if name in generators.STATES}
        return generators.moved(self._speaking, self._states) or min(
            map(generators.STATES.__getitem__, asked), default=""
        )

    def _count_fills(self) -> list[str]:
        """Count what earlier runs read while they filled the memos that answered in this one. Returns the names of
        memos that were filled in another way."""
        names, fills = self._memo_use.answered()
        self._fills = fills
        for fill in fills:
            for stage in fill.stages:
                self.recorder.nested(stage)
            for read in fill.reads:
                self.recorder.seen(read)
        return names

    def _stale_fill(self) -> str:
        """Why a memo that answered is stale: an input of its recorded fill changed since. Empty where none is."""
        weights = self._request.inventory.weights
        for fill in self._fills:
            for read in fill.reads:
                if self._tools.looker.present(read, weights) != read.digest:
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
        reached = {id(memo.function) for memo in self._request.inventory.memos}
        ran = [(each.code, each.namespace) for each in list(net.observed.ran.values())]
        return [
            name
            for name, function in memos_named(ran, self._tools.requests.is_project)
            if id(function) not in reached
            and function.__module__ in net.observed.modules
            and function.cache_info().hits
        ]

    def _record_fills(self) -> None:
        """Let later runs know what this one read while it filled memos."""
        net, reads, inventory = self.recorder.net, self.recorder.reads(), self._request.inventory
        is_seen = net is not None and not inventory.paths and all(read.kind != "weight" for read in reads)
        if net is not None and is_seen and self._again is not None and self._meanwhile.is_alone():
            memos = self._again.inventory.memos
            self._memo_use.record(self._stage, reads, memos, net.observed.modules)

    def _taken(self, request: Request) -> str:
        """What may have given the run what another one filled it with, in words; empty where nothing has."""
        names: list[str] = []
        if request.inventory.memos:
            names += self._meanwhile.answered(request.inventory.memos, self._tools.requests.is_project)
        if request is self._request and request.inventory.unfilled:
            names += self._meanwhile.filled(self._tools.requests.is_project)
        return _filled_meanwhile(names) if names else ""

    def _returned(self, result: Any, node: Node | None) -> Any:
        """A result that is not stored, as the caller gets it. node: what was to be stored, if it came to that."""
        inventory = self._request.inventory
        made = folding.made_in_value(result) if node is None else folding.made_in_node(node)
        with recording.recording(self.recorder), self.bracket:
            inside = folding.folded(self.recorder.reads(), inventory.weights, inventory.folded, made)
        value = callers_weights(result, inventory.weights)
        return returned(value, inventory.callers, inside) if inventory.callers or inside else value

    def encode(self, result: Any, sink: ArtifactSink | None = None) -> Node:
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

    def _encoded(self, finished: Finished) -> Node | None:
        try:
            sink = self._sink = self._tools.store.sink()
            sink.expect(files_size(finished.value))
            return self.encode(finished.value, sink)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
        except Uncacheable as error:
            finished.kept_out, finished.changed = bypass_reason(error), str(error)
        except UnstorableResult as error:
            finished.kept_out, finished.changed = Reason.UNSTORABLE, str(error)
        return None

    def _discard(self, finished: Finished) -> None:
        """The artifacts of a result that is not stored go again; where they can't, they wait for a ``gc``."""
        try:
            if self._sink is not None:
                self._tools.store.objects.discard(self._sink.refs)
        except StoreFault as fault:
            finished.fault, finished.detail = finished.fault or fault.fault, finished.detail or fault.detail

    def _collected(self, finished: Finished) -> bool:
        """Collect what the run was seen to use; whether that could be told."""
        try:
            if self._tools.observing is not None:
                with fsio.faults("looking at what the run used"):
                    if self.recorder.net is not None:
                        texts = short_texts(finished.value)
                        for read in self._tools.observing.named_folders(texts, self._request):
                            self.recorder.seen(read)
                    self._seen = self._tools.observing.collect(self._request, self.recorder)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
            return False
        except UnresolvedCode as error:  # of a value that the run itself put there
            finished.kept_out, finished.changed = Reason.UNRESOLVED_CODE, str(error)
            return False
        except CachecError:
            raise
        except Exception as error:  # noqa: BLE001 - code of the values that the run put there
            said = f"looking at what the run used raised {words_of(error)}"
            finished.kept_out, finished.changed = Reason.UNRESOLVED_CODE, said
            return False
        return True

    def _note_project_path(self, node: Node) -> None:
        """Let the project's folder count by its path where the result holds that, and values that count from that
        folder may have brought it there."""
        requests, observing = self._tools.requests, self._tools.observing
        if observing is None or not (
            self.recorder.has_project_paths or requests.coverage(self._request).has_project_paths
        ):
            return
        from cachec.key.dependencies import path_digest
        from cachec.stage.project_paths import holds_path  # few stages have such values

        folder = observing.project_folder(self._request)
        if folder is not None and holds_path(node, folder, self._tools.store.objects.path):
            self.recorder.seen(Read("folder", folder, "", path_digest(folder)))

    def _publish(self, finished: Finished, node: Node) -> None:
        try:
            with fsio.faults("publishing a result"):
                trace = self._published(finished, node)
        except StoreFault as fault:
            finished.fault, finished.detail = fault.fault, fault.detail
        else:
            finished.stored, finished.trace = True, trace

    def _published(self, finished: Finished, node: Node) -> Trace:
        """Store the run; the value of ``finished`` is then what is stored. Raises StoreFault, OSError."""
        objects, options = self._tools.store.objects, self._stage.options
        recipe, kept = self._told()
        trace = Trace(
            reads=self._tools.looker.kept(self.recorder.reads(), self._request),
            value=node,
            seconds=finished.seconds,
            created=time.time(),
            manifest=self._manifest(),
            kept=kept,
            generators=self._left_generators(),
        )
        said = self._request.parts()
        parts = objects.add_bytes(msgspec.json.encode(KeyDescription(said, msgspec.Raw(recipe))))
        self._tools.store.publish(self._request.digest, options.name, options.tags, parts, trace, said=said)
        if self._next is not None:
            said = self._next.parts()
            parts = objects.add_bytes(msgspec.json.encode(KeyDescription(said, msgspec.Raw(recipe))))
            self._tools.store.publish(self._next.digest, options.name, options.tags, parts, trace, said=said)
        with fsio.faults("reading what is stored"):
            finished.value = self._tools.looker.decode(self._request, trace)
        return trace

    def _manifest(self) -> ArtifactRef | None:
        """What the files of this result are to be linked with: that of the programs given, else of the weight sets."""
        inventory = self._request.inventory
        given = [program.manifest for program in inventory.programs.values()]
        given = given or [weights.manifest for weights in inventory.weights.values()]
        if not given:
            return None
        whole = given[0]
        try:
            for manifest in given[1:]:
                whole = whole.merged(manifest)
        except LinkError:
            return None  # ambiguous: the files of this stage link with nothing unless it says with what
        return self._tools.store.objects.add_bytes(whole.encoded())

    def _left_generators(self) -> ArtifactRef | None:
        """The states that the run left random generators in; here it has moved those of the caller itself."""
        return None

    def _told(self) -> tuple[bytes, tuple[ArtifactRef, ...]]:
        """How the stage was called, and what is stored beside: the stripped IR and the manifests that the parts refer
        to, by which a later miss is told, and the inputs that a reproducer needs.
        """
        from cachec.key.contents import MAX_KEPT, content_of
        from cachec.reproduce.recipe import recipe_of

        made = recipe_of(self._stage, self._given, self.recorder)
        contents = dict(made.contents)
        for program in self._request.inventory.programs.values():
            contents.setdefault(program.ir_digest, program.ir)
            contents.setdefault(program.manifest.digest, program.manifest.encoded())
        for weights in self._request.inventory.weights.values():
            contents.setdefault(weights.manifest.digest, weights.manifest.encoded())
        texts = self._request.texts()
        if texts:
            contents[digest_bytes(texts)] = texts
        for digest, path in self._request.inventory.files.items():
            data = None if digest in contents else content_of(path, digest, MAX_KEPT)
            if data is not None:
                contents[digest] = data
        objects = self._tools.store.objects
        return made.encoded, tuple(objects.add_bytes(data) for data in contents.values())

    def _changed(self) -> str:
        """Which input is no longer what the key and the reads say, in words; empty where all still hold."""
        if changed := self._changed_read():
            return changed
        self._tools.requests.ran(self._request)
        without = filled(self._request.inventory.unfilled)
        try:
            again = self._tools.requests.request(self._stage, self._given, fresh=True, without=without)
            is_same = again.digest == self._request.digest
            if not is_same and (brought := self._brought()):
                # What a run does to the modules that it imports is no change of an input: it started without them.
                without_imports = self._tools.requests.request(
                    self._stage, self._given, fresh=True, without=without, text_alone=brought
                )
                if without_imports.digest == self._request.digest:
                    self._again = again
                    return ""
        except (UsageError, OSError) as error:
            return f"an input can't be looked at again: {error}"
        if not is_same:
            from cachec.key.compare import first_difference  # rarely needed

            found = first_difference(self._request.parts(), again.parts())
            # Code that was imported since is told in another way than by its text alone; a value changes by itself.
            return next((each.words for each in found.parts if each.words.startswith("value ")), found.detail)
        self._again = again
        if without:
            with contextlib.suppress(UsageError, OSError):  # then the next call is told
                self._next = self._tools.requests.filled(self._request, self._given, without, self.recorder.reads())
        return ""

    def _changed_read(self) -> str:
        """The same of what was read, and of weights."""
        for read in self.recorder.contradictions():
            return f"{read.kind} {read.name or read.where} was seen with two different contents"
        weights = self._request.inventory.weights
        for where, held in weights.items():
            replaced = held.changed()
            if replaced is not None:
                return f"{where}: {replaced} was replaced or written to"
        for read in self.recorder.reads():
            if read in self._seen or read in self.recorder.checked:
                continue
            if self._tools.looker.present(read, weights) != read.digest:
                return describe_change(read)
        return ""

    def _brought(self) -> frozenset[str]:
        """The names of the modules that the key reads from source, and that this run itself has imported."""
        net = self.recorder.net
        if net is None:
            return frozenset()
        files = {ran.code.co_filename for ran in list(net.observed.ran.values()) if ran.code.co_name == "<module>"}
        held = ((name, sys.modules.get(name)) for name in self._unimported)
        return frozenset(name for name, module in held if getattr(module, "__file__", None) in files)

    def _close(self) -> None:
        self._meanwhile.end()
        for guarded in self._guarded.values():
            guarded.close_guard()
        if self.recorder.net is not None and self.recorder.net.beside is not None:
            self.recorder.net.beside.close()


def _drawn(name: str) -> str:
    return (
        f"it drew from the generator of {name} that the whole process shares, set its seed or asked for its state; use "
        "a generator of its own, such as random.Random(seed) or numpy.random.default_rng(seed), or isolated=True"
    )


def _ambient(request: Request) -> dict[str, str]:
    """The live state of libraries in a key; of one without memos nobody asks."""
    if not request.inventory.memos:
        return {}
    return {part.name: part.digest for part in request.parts() if part.kind is PartKind.AMBIENT}


def _filled_before(names: list[str]) -> str:
    return (
        f"the memo of {names[0]} was filled before this run, so the run did not see the files and variables that it "
        f"was made of; call {names[0].rpartition('.')[2]}.cache_clear() before the stage, call it first inside of the "
        "stage, or pass what it returns as an argument"
    )


def _filled_meanwhile(names: list[str]) -> str:
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
