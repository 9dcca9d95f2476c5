"""The lookup: does the store hold a result for a cache key, and if not, why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from cachec import recording
from cachec.base import file_ownership, fsio
from cachec.base.anchors import is_anchored
from cachec.base.display_text import clean
from cachec.base.hashing import EMPTY, FileDigests, digest_bytes
from cachec.base.paths import absolute
from cachec.base.tracer_hiding import unseen
from cachec.errors import ClassNotLoaded, ResultUnusableHere, StoreFault
from cachec.key.trace_validation import IN_PROCESS, Dependencies
from cachec.model import (
    MISS_OF_FAULT,
    Digest,
    Entry,
    Fault,
    GeneratorState,
    Part,
    PartKind,
    Read,
    Reason,
    Trace,
    artifacts,
    from_json,
)
from cachec.store.store import Store

if TYPE_CHECKING:  # of stages: a command is looked up without any of it
    from cachec.base.installed_folders import InstalledFolders
    from cachec.key.key_builder import CacheKey, KeyBuilder
    from cachec.programs.registry import Plugins
    from cachec.recording import ReadRecorder
    from cachec.stage.trace_builder import TraceBuilder
    from cachec.weights import WeightSet
    from cachec.weights.manifest import Folded
    from cachec.worker.caller import Starters

_CHANGED = {
    "weight": Reason.WEIGHT_CONTENT_CHANGED,
    "code": Reason.CODE_CHANGED,
    "source": Reason.CODE_CHANGED,
    "modules": Reason.CODE_CHANGED,
    "ambient": Reason.AMBIENT_CHANGED,
    "distribution": Reason.TOOL_CHANGED,
    "env": Reason.ENVIRONMENT_CHANGED,
}


#: Runs of an entry that a miss is compared with.
_COMPARED = 20

#: How a read of kind ``global`` differs that is of no one name, by its first character.
_OF_MODULES = {"*": "has other globals", "=": "is not the project's module"}


class LookupResult(msgspec.Struct):
    """What a lookup found."""

    reason: Reason
    #: The decoded value of a hit, where it was asked for.
    value: Any = None
    #: The trace that holds; None for a miss.
    trace: Trace | None = None
    detail: str = ""
    fault: Fault | None = None
    #: The key that a miss was compared with, where another one was.
    near: Digest | None = None
    #: The states that the run left random generators in.
    generators: Mapping[str, GeneratorState] = {}


class EntryFinder:
    """Looks cache keys up in one store."""

    def __init__(
        self,
        store: Store,
        plugins: Plugins,
        dependencies: Dependencies,
        digest_of: Callable[[WeightSet, str], Digest | None],
        observing: TraceBuilder | None = None,
    ) -> None:
        self._store = store
        self._plugins = plugins
        self._dependencies = dependencies
        self._digest_of = digest_of
        self._observing = observing

    def find(self, cache_key: CacheKey, *, decode: bool = True) -> LookupResult:
        """A hit with its value, or the reason of the miss as far as the entry alone tells it.

        decode: where False, the value is not made: it is only seen to that its artifacts are there and whole.
        """
        try:
            # An OSError is a fault too, no free descriptor, say: a codec opens what the store hands it.
            # In the worker of a stage around this one: what is read here, that is told.
            with unseen(), fsio.faults("reading what is stored"):
                entry = self._store.lookup(cache_key.digest)
                return LookupResult(Reason.FIRST_RUN) if entry is None else self._match(cache_key, entry, decode=decode)
        except ClassNotLoaded as missing:
            return LookupResult(Reason.CLASS_NOT_LOADED, detail=missing.detail)
        except ResultUnusableHere as unusable:
            return LookupResult(Reason.UNUSABLE_HERE, detail=unusable.detail)
        except StoreFault as fault:
            reason = MISS_OF_FAULT.get(fault.fault, Reason.STORE_UNAVAILABLE)
            return LookupResult(reason, detail=fault.detail, fault=fault.fault)

    def _match(self, cache_key: CacheKey, entry: Entry, *, decode: bool) -> LookupResult:
        weights = cache_key.inventory.weights
        known: dict[tuple[str, str, str], Digest | None] = {}
        changed: Read | None = None
        for trace in entry.traces:
            for read in trace.reads:
                place = (read.kind, read.where, read.name)
                if place not in known:
                    known[place] = self.present(self.resolve_read(read, cache_key), weights)
                if known[place] != read.digest:
                    changed = changed or read
                    break
            else:
                result = LookupResult(Reason.HIT, trace=trace)
                if decode:
                    result.value = self.decode(cache_key, trace)
                    result.generators = self._generators(trace)
                else:
                    for ref in (*artifacts(trace.value), *(() if trace.generators is None else (trace.generators,))):
                        self._store.objects.check(ref)
                self._pass_to_outer_run(trace, cache_key)
                return result
        if changed is None:
            return LookupResult(Reason.ENTRY_GONE, detail="the entry holds no trace")
        changed = self._nearest_change(entry, cache_key) or changed
        reason = _CHANGED.get(changed.kind, Reason.DEPENDENCY_CHANGED)
        if changed.kind == "source":
            from cachec.key.source_parts import explain  # on a miss only

            resolved = self.resolve_read(changed, cache_key)
            return LookupResult(reason, detail=explain(resolved, self._store.digests, changed.where))
        return LookupResult(
            reason, detail=describe_change(changed, cache_key.keeps_out, self._change(changed, entry, cache_key))
        )

    def _nearest_change(self, entry: Entry, cache_key: CacheKey) -> Read | None:
        """What differs first from the run that most is as it was for: of many runs, the others tell of old changes."""
        differing = []
        for trace in entry.traces[:_COMPARED]:
            found = [
                read
                for read in trace.reads
                if self.present(self.resolve_read(read, cache_key), cache_key.inventory.weights) != read.digest
            ]
            if found:
                differing.append(found)
        return min(differing, key=len)[0] if len(differing) > 1 else None

    def _change(self, read: Read, entry: Entry, cache_key: CacheKey) -> str:
        others = next((trace.reads for trace in entry.traces if read in trace.reads), ())
        return self._dependencies.change(self.resolve_read(read, cache_key), others)

    def decode(self, cache_key: CacheKey, trace: Trace) -> Any:
        """The result of a run, as this call gets it. Raises StoreFault, OSError."""
        from cachec import codecs  # a question decodes nothing

        inventory = cache_key.inventory
        folded: Folded = {}
        if trace.reads or inventory.manifests:
            from cachec.stage import inlined_weights

            made = inlined_weights.made_in_node(trace.value)
            folded = inlined_weights.collect_inlined(trace.reads, inventory.weights, inventory.weights_by_value, made)
        return codecs.decode(
            trace.value,
            self._store.objects,
            self._plugins.find,
            inventory.weights.__getitem__,
            trace.manifest,
            names=inventory.callers,
            folded=folded,
            importing=lambda module: self._import(module, cache_key, trace),
        )

    def _generators(self, trace: Trace) -> Mapping[str, GeneratorState]:
        """The states that a run left random generators in. Raises StoreFault, also for what is no such state."""
        if trace.generators is None:
            return {}
        from cachec.key import random_generators  # few runs have any

        data = self._store.objects.read(trace.generators)
        states = from_json(data, dict[str, GeneratorState], partial(StoreFault, Fault.ROW_CORRUPT), "random generators")
        for name, each in states.items():
            found = random_generators.find_generator(self._plugins, name)
            if found is None:
                raise ResultUnusableHere(
                    Fault.ROW_CORRUPT, f"no plugin that is installed has a generator {clean(name)}"
                )
            if not found.is_state(each.state):
                raise StoreFault(Fault.ROW_CORRUPT, f"what is stored is no state of the generator of {name}")
        return states

    def _import(self, module: str, cache_key: CacheKey, trace: Trace) -> None:
        """Import a module of a class in a result, as the run did: one of the project that the key or a read of code of
        the trace holds, and none else, whatever the row says. Raises ClassNotLoaded."""
        from importlib import import_module  # rarely needed

        what = f"the result is of a class of {clean(module[:200])}, which is not imported"
        remedy = "import it in the module of the stage"
        if self._observing is None or not self._observing.leads_to(module, cache_key, trace.reads):
            raise ClassNotLoaded(
                Fault.ROW_CORRUPT, f"{what}, and is no module of the project that the stage is known to reach; {remedy}"
            )
        try:
            import_module(module)
        except (Exception, SystemExit) as error:  # the project's code: whatever it raises, the stage can run
            raise ClassNotLoaded(
                Fault.ROW_CORRUPT, f"{what}: importing it raised {type(error).__name__}: {clean(str(error))}"
            ) from error

    def present(self, read: Read, weights: dict[str, WeightSet]) -> Digest | None:
        """The digest of what a trace read, as it is now; None where it is no longer there."""
        if read.kind != "weight":
            if self._observing is not None:
                return self._observing.present(read, self._dependencies)
            return self._dependencies.present(read)
        weight = weights.get(read.where)
        return self._digest_of(weight, read.name) if weight is not None and read.name in weight else None

    def present_of_other(self, place: tuple[str, str, str], cache_key: CacheKey) -> Digest | None:
        """The digest that a read of another machine has here; None where its place means nothing here, or where hours
        would go by until that is known.
        """
        read = self.resolve_read(Read(*place, EMPTY), cache_key)
        if self._observing is not None and read.where == place[1] and is_anchored(read.where):
            return None
        if file_ownership.is_hollow(read.where):
            return None
        return self.present(read, cache_key.inventory.weights)

    def resolve_read(self, read: Read, cache_key: CacheKey) -> Read:
        """A read of a trace with the path that it stands for here."""
        return read if self._observing is None else self._observing.resolve_read(read, cache_key)

    def portable_reads(self, reads: tuple[Read, ...], cache_key: CacheKey) -> tuple[Read, ...]:
        """Reads as a trace keeps them: paths from anchors, so that they mean the same place on another machine."""
        if self._observing is None:
            return reads
        return tuple(self._observing.portable_reads(reads, cache_key))

    def _pass_to_outer_run(self, trace: Trace, cache_key: CacheKey) -> None:
        outer = recording.current()
        if outer is not None:
            outer.add_nested_stage(cache_key.stage)
            for read in trace.reads:
                if read.kind != "weight":  # the handles of the outer stage have recorded those themselves
                    outer.add_read(self.resolve_read(read, cache_key))
            for path in cache_key.inventory.paths:
                self._record_argument(outer, absolute(path))

    def _record_argument(self, outer: ReadRecorder, path: str) -> None:
        """A file or a folder is an argument of a stage that the outer one called: its content counts there as well.

        What the outer stage made itself is none of its inputs, and what is in the store stays as it is.
        """
        made = None if outer.net is None else outer.net.observed
        if path.startswith(f"{self._store.folder}/") or (made is not None and made.counted_place(path) is None):
            return
        if not os.path.isdir(path):
            outer.file(path, self._dependencies.file(path))
            return
        outer.listing(path, self._dependencies.listing(path))
        for name in sorted(os.listdir(path)):
            self._record_argument(outer, os.path.join(path, name))

    def explain(self, cache_key: CacheKey, stage: str, lookup: LookupResult) -> tuple[Reason, str]:
        """Why ``find`` missed: for a key never seen, the first part that differs from the nearest entry's."""
        if lookup.reason is not Reason.FIRST_RUN:
            return lookup.reason, lookup.detail
        from cachec.key.key_diff import first_difference  # on a miss only

        mine = cache_key.parts()
        try:
            found = self._store.neighbours(stage, mine)
            if cache_key.digest in {near.key for near in found.nearest}:
                return Reason.ENTRY_GONE, "the entry was invalidated or evicted"
            other = self._store.nearest(found.nearest)
        except StoreFault as fault:
            return Reason.FIRST_RUN, f"no earlier entry can be read ({fault.detail})"
        if found.unknown:
            lookup.near = None if other is None else other[0]
            return Reason.NEW_INPUT, _new_in_words(found.unknown, mine, other)
        if other is None and found.nearest:
            return Reason.ENTRY_GONE, "what it could be compared with was evicted"
        if other is None:
            return Reason.FIRST_RUN, "no entry of this stage yet"
        lookup.near = other[0]
        difference = first_difference(other[1], mine, lambda digest: self.fetch(digest, cache_key))
        remedy = cache_key.remedy(difference.parts[0]) if difference.parts else ""
        return difference.reason, f"{difference.detail}; {remedy}" if remedy else difference.detail

    def last_time(self, cache_key: CacheKey, lookup: LookupResult) -> float | None:
        """Seconds of the newest run under the key, or under the nearest one; None where that is not known."""
        try:
            entry = self._store.lookup(lookup.near or cache_key.digest)
        except StoreFault:
            return None
        newest = max(entry.traces if entry else (), key=lambda trace: trace.created, default=None)
        return None if newest is None else newest.seconds

    def nearest(self, stage: str, parts: Sequence[Part]) -> tuple[Digest, tuple[Part, ...]] | None:
        """Key and parts of the entry of a stage that is nearest to ``parts``; None where there is none.

        Raises StoreFault where there are some, and no parts of any can be read.
        """
        return self._store.nearest(self._store.neighbours(stage, parts).nearest)

    def fetch(self, digest: Digest, cache_key: CacheKey) -> bytes | None:
        """Stripped IR, a manifest or a file by digest: of the arguments, which may not be stored yet, or stored."""
        for program in cache_key.inventory.programs.values():
            if program.ir_digest == digest:
                return program.ir
        manifests = [program.manifest for program in cache_key.inventory.programs.values()]
        manifests += [weights.manifest for weights in cache_key.inventory.weights.values()]
        for manifest in manifests:
            if manifest.digest == digest:
                return manifest.encode()
        texts = cache_key.texts()
        if digest_bytes(texts) == digest:
            return texts
        path = cache_key.inventory.files.get(digest)
        if path is None:
            return self._store.content(digest)
        from cachec.key.content_diff import MAX_BYTES, content_of  # on a miss only

        return content_of(path, digest, MAX_BYTES)


def _new_in_words(names: Sequence[str], mine: Sequence[Part], other: tuple[Digest, tuple[Part, ...]] | None) -> str:
    shown = ", ".join(map(clean, names))
    kinds = {part.kind for part in mine if part.subject in names}
    verb = "was never written" if kinds == {PartKind.ORDER} else "was never compiled"
    if kinds == {PartKind.ARGUMENT}:  # of a command that nothing more is known of
        return f"there was no run with {shown} yet"
    named = [] if other is None else [part for part in other[1] if part.subject and part.subject not in names]
    named.sort(key=lambda part: part.kind not in {PartKind.FILE, PartKind.PROGRAM})
    nearest = f"; the nearest is of {clean(named[0].subject)}" if named else ""
    return f"{shown} {verb}{nearest}"


def describe_change(read: Read, keeps_out: str = "", change: str = "") -> str:
    """Return in words how something differs from what a run read. keeps_out: what would keep a folder out of what a
    command writes. change: as of ``Dependencies.change``. Each is empty where that is not known."""
    if read.kind == "weight":
        return f"weight {read.name!r} of {read.where} has other bytes"
    if read.kind == "code":
        module, _, name = read.name.partition(":")
        what = f"{module}.{name}" if name else f"module {module}"
        if read.where in IN_PROCESS:
            return f"{what} is not what it was in the process that ran the stage"
        return f"{what} changed (it ran, though no name leads to it)"
    if read.kind == "module":
        return "other modules are imported" if read.where == "*" else f"module {read.where} is there now"
    if read.kind == "distribution":
        return f"distribution {read.where} changed (its code ran)"
    if read.kind == "stdin":
        changed = "is a terminal, or was one" if read.name else "is not what the command read from it"
        return f"standard input {changed}"
    if read.kind == "env" and change:
        return f"variables {change}"
    if read.kind == "umask":
        return "the mask of new files (umask) is another one"
    verb = {
        "source": "has other code in what ran",
        "modules": "has another module of a name that was looked for",
        "global": _OF_MODULES.get(read.name[:1]) or f"{read.name.partition('=')[0]} has another value",
        "path": "is at another place of sys.path",
        "memo": f"remembers another result of {read.name.partition(' ')[0]}",
        "library": f"has another {read.name.partition('=')[0]}",
        "unset": "has a global now that it had not",
        "imported": "modules of the project are imported",
        "ambient": "has other settings",
        "current": "is not the current folder",
        "process": "is in another state",
        "generator": "is in another state",
        "effects": "was made by other cells",
        "file": "has other content",
        "content": change or "has other content, or another mode",
        "lookup": "is not what the command found there",
        "names": "holds other names",
        "search": "is found elsewhere by PATH",
        "attributes": "has other extended attributes",
        "absent": "is there now",
        "there": "is gone, or something else",
        "listing": "lists other names, or other kinds of things",
        "links": "is reached by other links",
        "access": "may be read, written or run by others than before",
        "status": f"has another {read.name}",
        "state": "is another one",
        "cwd": "is not the current folder",
        "tool": "is another build",
        "env": "has another value",
        "processor": "has another processor",
        "same": "are one where they were several, or several where they were one",
        "folder": f"is another one, and its path {_place_of_path(read, keeps_out)}",
    }[read.kind]
    return f"{read.kind} {read.where} {verb}"


def _place_of_path(read: Read, keeps_out: str) -> str:
    """Where the path of a folder is, and what keeps it out of there."""
    if is_anchored(read.where):
        return "is in the result"
    if read.name:
        return f"is in {clean(read.name)}" + (f"; {keeps_out}" if keeps_out else "")
    return (
        "may be in what the command wrote; " + (f"{keeps_out}, or " if keeps_out else "") + "say --relocatable if not"
    )


class EngineServices(msgspec.Struct, frozen=True, dict=True):
    """What a run works with: the parts of one opened cache."""

    store: Store
    digests: FileDigests
    key_builder: KeyBuilder
    plugins: Plugins
    entry_finder: EntryFinder
    observing: TraceBuilder | None = None

    @cached_property
    def fallbacks(self) -> dict[str, str]:
        """The keys of isolated stages that had to run in this process, each with the reason."""
        return {}

    def installed_folders(self) -> InstalledFolders:
        """What is installed where ``sys.path`` leads."""
        from cachec.base.installed_folders import InstalledFolders  # on a miss of one

        path = tuple(sys.path)
        known = self._folders_of_path.get(path)
        if known is None:
            self._folders_of_path.clear()
            known = self._folders_of_path[path] = InstalledFolders()
        return known

    @cached_property
    def _folders_of_path(self) -> dict[tuple[str, ...], InstalledFolders]:
        return {}

    @cached_property
    def starters(self) -> Starters:
        """What starts the processes of isolated stages."""
        from cachec.worker.caller import Starters  # on a miss of one

        return Starters()
