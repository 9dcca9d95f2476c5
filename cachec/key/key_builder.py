"""Builds the cache key of one call from the parts of the stage and of its arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from operator import is_
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.base import cached_properties, fsio
from cachec.base.bounded_dict import BoundedDict
from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests, digest_bytes, frame
from cachec.base.lazy import later
from cachec.errors import Uncacheable, UsageError
from cachec.key.argument_info import ArgumentInfo
from cachec.key.arguments import Annotation, ArgumentKeys, Payload
from cachec.key.code.fingerprint import CodeKey, CodeKeys
from cachec.key.code.lru_cache_contents import LruCacheContents
from cachec.key.code.part_graph import reading_text_alone
from cachec.key.external_data import Companions
from cachec.key.stage_options import StageLike, StageOptions, text_part
from cachec.key.tools.environment import environment_parts, variable_digest
from cachec.key.tools.platform import platform_part
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import Digest, Part, PartKind, Read, part_label
from cachec.programs.registry import Plugins

if TYPE_CHECKING:  # not of most hits
    from cachec.key import path_digests
    from cachec.key.code.key_coverage import Coverage
    from cachec.key.isolated_key import IsolatedArguments
    from cachec.key.key_diff import PartDifference
    from cachec.key.library_state import LibraryStates
    from cachec.key.plugin_forms import FormsWithPlugins
    from cachec.programs import supported_versions
    from cachec.programs.plugin import Plugin
else:
    path_digests, supported_versions = later("cachec.key.path_digests"), later("cachec.programs.supported_versions")

_DOMAIN = frame("domain", b"key")

#: Bytes of the arguments of a call up to which its key is remembered.
_SHORT = 4096

#: Sets of code of which the texts are remembered.
_MAX_TEXTS = 64

#: Stages of which the parts of the last call are remembered.
_MAX_CACHED = 1024


class _KeyParts(msgspec.Struct, frozen=True):
    """The parts of a stage that do not come from arguments, and their framed bytes."""

    parts: tuple[Part, ...]
    prefix: bytes
    #: What they all follow from, None where something else takes part too.
    code: CodeKey | None = None

    @classmethod
    def of(cls, parts: tuple[Part, ...], code: CodeKey | None = None) -> _KeyParts:
        return cls(parts, b"".join(frame(part.label, part.digest.encode()) for part in parts), code)


class _CodeTexts(msgspec.Struct, frozen=True):
    """The texts of code, with the names of the parts that they are of, and their digest."""

    codes: tuple[CodeKey, ...]
    texts: bytes
    names: frozenset[str]
    refs: tuple[Digest]

    @classmethod
    def of(cls, codes: tuple[CodeKey, ...]) -> _CodeTexts:
        from cachec.key.content_diff import code_texts  # on a miss only

        texts = code_texts(codes)
        return cls(codes, texts, frozenset(name for code in codes for name in code.texts), (digest_bytes(texts),))

    def refer(self, part: Part) -> Part:
        """A part with a reference to its text, where that is known."""
        is_known = part.kind is PartKind.CODE and part.name in self.names
        return msgspec.structs.replace(part, refs=self.refs) if is_known else part


class CacheKey:
    """The key of one call, and what was found in its arguments."""

    __slots__ = ("_described_parts", "_find_texts", "_parts", "_payloads", "digest", "inventory", "stage")

    def __init__(
        self,
        stage: StageLike,
        parts: _KeyParts,
        payloads: Sequence[Payload],
        inventory: ArgumentInfo,
        find_texts: Callable[[CacheKey], _CodeTexts] | None = None,
    ) -> None:
        """find_texts: the texts of the code that a key reaches."""
        self.stage = stage
        self._find_texts = find_texts
        self._described_parts: tuple[Part, ...] | None = None
        payload_data = tuple([(payload.kind, payload.name, payload.data) for payload in payloads])
        is_short = sum([len(data) for _, _, data in payload_data]) <= _SHORT
        self.digest = (_digest_known if is_short else _digest)(parts.prefix, payload_data)
        self.inventory = inventory
        self._parts = parts
        self._payloads = payloads

    def parts(self) -> tuple[Part, ...]:
        """Every named part, with its detail: built only when somebody is to be told.

        The code of callable arguments is spelled out function by function here; in the key it is one digest each. Where
        its text is known it refers to ``texts``.
        """
        if self._described_parts is None:
            texts = None if self._find_texts is None else self._find_texts(self)
            parts = (*self._parts.parts, *self.inventory.code, *(payload.part() for payload in self._payloads))
            self._described_parts = parts if texts is None else tuple(map(texts.refer, parts))
        return self._described_parts

    def texts(self) -> bytes:
        """The text of the code that this reaches, as ``CodeTexts`` in JSON; it tells a later miss what changed."""
        return b"" if self._find_texts is None else self._find_texts(self).texts

    @property
    def keeps_out(self) -> str:
        """What keeps folders out of a result: of a command."""
        return ""

    def remedy(self, difference: PartDifference) -> str:
        """What would make a hit of a miss by this difference, where its words do not say it; else empty."""
        del difference
        return ""


def _digest(prefix: bytes, payloads: tuple[tuple[PartKind, str, bytes], ...]) -> Digest:
    framed = [frame(part_label(kind, name), data) for kind, name, data in payloads]
    return digest_bytes(b"".join([_DOMAIN, prefix, *framed]))


#: What was hashed before need not be again: it takes five times as long as to find it.
_digest_known = lru_cache(maxsize=1024)(_digest)


class KeyBuilder:
    """Assembles keys. One an opened cache; remembers fingerprints between calls."""

    def __init__(
        self,
        digests: FileDigests,
        code: CodeKeys,
        tools: ToolKeys,
        distributions: Distributions,
        plugins: Plugins,
        key_parts: tuple[str, ...] = (),
    ) -> None:
        """key_parts: the setting of that name."""
        self._digests = digests
        self._code = code
        self._tools = tools
        self._distributions = distributions
        self._plugins = plugins
        self._key_parts = key_parts
        self._arguments = ArgumentKeys(digests, code, plugins)
        # By options: a method is another stage object each time that it is taken from its instance.
        self._last: BoundedDict[tuple[StageOptions, _KeyParts]] = BoundedDict(_MAX_CACHED)
        self._known_texts: BoundedDict[_CodeTexts] = BoundedDict(_MAX_TEXTS)
        self._lru_cache_contents = LruCacheContents(code.of_value)

    @cached_property
    def forms(self) -> FormsWithPlugins:
        """Values as bytes that two processes compare."""
        from cachec.key.plugin_forms import FormsWithPlugins  # of isolated stages

        return FormsWithPlugins(self._plugins)

    @cached_property
    def _isolated_arguments(self) -> IsolatedArguments:
        from cachec.key.isolated_key import IsolatedArguments

        return IsolatedArguments(self._digests, self._plugins, self.forms)

    def build(
        self,
        stage: StageLike,
        arguments: Mapping[str, Any],
        *,
        fresh: bool = False,
        without: cached_properties.Without = cached_properties.NOTHING,
        text_alone: frozenset[str] = frozenset(),
    ) -> CacheKey:
        """The key of a call with these arguments (defaults filled in). Raises UsageError where there can be none.

        fresh: look at every file of every tool now, and trust no look of the last second. without: attributes that do
        not count. text_alone: modules that count as if they were not imported.
        """
        if text_alone:
            with reading_text_alone(text_alone):
                return self.build(stage, arguments, fresh=fresh, without=without)
        options = stage.options
        if options.ignore:
            arguments = {name: value for name, value in arguments.items() if name not in options.ignore}
        if options.isolated:
            return self._isolated_request(stage, arguments, fresh=fresh)
        inventory = ArgumentInfo()
        with cached_properties.collect_encountered(without) as encountered:
            payloads = self._arguments.payloads(arguments, per_rank=options.per_rank, inventory=inventory)
            parts = self._stage_parts(stage, inventory, fresh=fresh)
            if inventory.memos:
                payloads += self._memo_payloads(inventory)
        inventory.unfilled += encountered.unfilled
        return CacheKey(stage, parts, payloads, inventory, self._code_texts)

    def _memo_payloads(self, inventory: ArgumentInfo) -> Iterator[Payload]:
        inventory.memo_entries = self._lru_cache_contents.snapshot(inventory.memos)
        names = {id(memo.function): memo.name for memo in inventory.memos}
        changed = self._lru_cache_contents.changed_functions(inventory.memo_entries)
        for function, digests in self._lru_cache_contents.digests(inventory.memo_entries).items():
            if function in changed:
                inventory.stale.append(names[function])
                digests.append(os.urandom(16).hex())  # no call is known to be like this one
            description = partial(Annotation, f"{len(digests)} results that it keeps")
            yield Payload(PartKind.CODE, f"{names[function]}.<kept>", "".join(digests).encode(), description)

    def note_run(self, cache_key: CacheKey) -> None:
        """Note what the run of a key put into memos."""
        before = cache_key.inventory.memo_entries
        if cache_key.inventory.memos and not self._lru_cache_contents.digests(before):
            with cached_properties.collect_encountered():
                self._lru_cache_contents.note_run(before, self._lru_cache_contents.snapshot(cache_key.inventory.memos))

    def is_project(self, path: str) -> bool:
        """Whether a file, by the name that its code has, is the project's."""
        return self._code.is_project(path)

    def coverage(self, cache_key: CacheKey) -> Coverage:
        """What the key of a call holds of code."""
        from cachec.key.code.key_coverage import Coverage  # for a run

        coverage = Coverage()
        if cache_key.stage.options.isolated:
            return coverage  # all of its code is in its trace
        coverage.distributions |= cache_key.inventory.distributions
        coverage.is_charged = bool(cache_key.stage.options.version)
        for each, _ in cache_key.inventory.reached:
            coverage.stages.append(each)
            coverage.distributions.update(tool for tool in each.options.tools if isinstance(tool, str))
        for code in self._all_reached(cache_key):
            coverage.add(code)
        for _, code in self._find_stages(cache_key.stage, cache_key.inventory):  # each as it is now
            coverage.add_values(code)
        return coverage

    def _find_stages(self, stage: StageLike, inventory: ArgumentInfo) -> Iterator[tuple[Any, CodeKey]]:
        """The stage of a call and those that it reaches, each with the key of its code."""
        visited: set[int] = set()
        pending: list[Any] = [stage, *inventory.stages]
        for each in pending:
            if id(each) not in visited:
                visited.add(id(each))
                code = self.code_of(each)
                pending += code.stages
                yield each, code

    def _all_reached(self, cache_key: CacheKey) -> tuple[CodeKey, ...]:
        if cache_key.stage.options.isolated:
            return ()
        return (*(code for _, code in cache_key.inventory.reached), *cache_key.inventory.callables)

    def _code_texts(self, cache_key: CacheKey) -> _CodeTexts:
        codes = self._all_reached(cache_key)
        name = tuple(map(id, codes))
        texts = self._known_texts.get(name)
        if texts is None or not all(map(is_, texts.codes, codes)):
            texts = _CodeTexts.of(codes)
            self._known_texts.put(name, texts)
        return texts

    def _isolated_request(self, stage: StageLike, arguments: Mapping[str, Any], *, fresh: bool) -> CacheKey:
        """The same of a stage that runs in a process of its own: what that looks up is in its trace."""
        inventory = ArgumentInfo()
        per_rank = stage.options.per_rank
        payloads = self._isolated_arguments.payloads(arguments, per_rank=per_rank, inventory=inventory)
        parts = _KeyParts.of((*self._declared_parts(stage, fresh=fresh), self._isolated_arguments.function_part(stage)))
        return CacheKey(stage, parts, payloads, inventory)

    def _declared_parts(self, stage: StageLike, *, fresh: bool) -> list[Part]:
        """What a stage declares: its name and version, tools, variables and files; and the platform."""
        options, distributions = stage.options, set[str]()
        self._tools.renew(options.tools)
        parts = list(self._own_parts(options, (), distributions, fresh=fresh))
        parts += [self._tools.distribution(name, fresh=fresh) for name in sorted(distributions)]
        parts.append(platform_part(portable=options.portable))
        return [*parts, *self._extra_parts()]

    def global_digest(self, module: str, name: str) -> str:
        """What stands for a global of a module that is imported; for ``*``, for the names of all of them.

        Without a name: whether it is a module of the project, and no other object in its place."""
        from cachec.key import module_globals  # of isolated stages
        from cachec.key.trace_validation import ABSENT, PRESENT

        if module != "__main__" and not self.forms.is_project_module(module):
            return ABSENT
        namespace = sys.modules[module]
        if not name:
            return PRESENT
        if name == "*":
            return module_globals.names_digest(module_globals.names_of(namespace))
        if name == module_globals.DOCUMENTATION:
            return module_globals.documentation_digest(namespace)
        return self.forms.now(namespace).digest(vars(namespace)[name]) if name in vars(namespace) else ABSENT

    def is_unset(self, module: str, names: Iterable[str]) -> bool:
        """Whether a module has no globals of these names, or is not imported."""
        from cachec.key import library_patches  # of isolated stages

        if library_patches.is_replaced(module):
            return False
        return module not in sys.modules or vars(sys.modules[module]).keys().isdisjoint(names)

    def module_path(self) -> list[tuple[str, str]]:
        """The project's folders on ``sys.path``, each with its place among them."""
        return self.forms.module_path()

    def memo_agrees(self, read: Read) -> bool:
        """Whether a memo of the project remembers nothing else than a run had."""
        from cachec.key import lru_caches  # of isolated stages

        path, _, text = read.name.partition(" ")
        return lru_caches.agrees(read.where, path, text, self.forms.now)

    def library_agrees(self, read: Read) -> bool:
        """Whether a library's module has an attribute that a run has found, or is not imported."""
        from cachec.key import library_patches, library_state  # of isolated stages

        if read.name.startswith(library_state.STATE):
            return library_state.read_of(read.where.split(), self.library_states()).name == read.name
        if library_patches.is_replaced(read.where):
            return False
        live, name = sys.modules.get(read.where), read.name.partition("=")[0]
        if live is None or name not in vars(live):
            return live is None or library_patches.may_make(live, name)
        found = library_patches.digest(live, name, self.forms.now().is_own_module)
        return library_patches.read_of(read.where, name, found).name == read.name

    def is_own_module(self, name: str) -> bool:
        """Whether a module that is imported is the project's, or one that no file is known of."""
        return self.forms.now().is_own_module(name)

    def library_states(self) -> dict[str, str]:
        """What the program's code sets in libraries that are imported, each with its state now."""
        return self._library_states.now(self.forms.now())

    @cached_property
    def _library_states(self) -> LibraryStates:
        from cachec.key.library_state import LibraryStates  # of isolated stages

        return LibraryStates(self._digests.memory)

    def imported_digest(self) -> str:
        """What stands for the names of the project's modules that are imported."""
        is_own = self.forms.now().is_own_module
        return digest_bytes("\0".join(sorted(name for name in list(sys.modules) if is_own(name))).encode())

    def ambient_digest(self, plugin: str) -> str:
        """What stands for the live settings of the library of a plugin; ``ABSENT`` where the plugin is not here."""
        from cachec.key import library_settings  # of isolated stages
        from cachec.key.trace_validation import ABSENT

        found = [each for each in self._plugins.all() if each.name == plugin]
        try:
            return library_settings.digest(found[0]) if found else ABSENT
        except Uncacheable:  # a mode that no text describes: no run was in it
            return ABSENT

    def generator_digest(self, name: str) -> str:
        """What stands for the state of a random generator of the process; ``ABSENT`` where it is not here."""
        from cachec.key import random_generators  # of isolated stages
        from cachec.key.trace_validation import ABSENT

        found = random_generators.find_generator(self._plugins, name)
        state = None if found is None else found.state()
        return ABSENT if found is None or state is None else random_generators.digest(found, state)

    def metadata(self, name: str) -> str:
        """What stands for an installed distribution as it is now."""
        return self._tools.metadata(name)

    def stage_reads(self, stage: StageLike) -> Iterator[Read]:
        """What the key of a stage holds beside its code, as reads of another that called it."""
        options = stage.options
        for name in sorted(self.code_of(stage).distributions):
            yield Read("distribution", name, "", self._tools.metadata(name))
        for tool in options.tools:
            if isinstance(tool, str) and self._distributions.find(tool) is not None:
                yield Read("distribution", tool, "", self._tools.metadata(tool))
            else:
                yield Read("tool", os.fspath(tool), "", self._tools.executable(tool).digest)
        for name in options.env:
            yield Read("env", name, "", variable_digest(name, os.environ))
        for item in options.depends:
            if isinstance(item, str | os.PathLike):
                for path in _files_in(os.path.abspath(item)):
                    yield Read("file", path, "", self._digests.of_path(path))

    def unimported_modules(self, cache_key: CacheKey) -> frozenset[str]:
        """The names of modules that the key of a call reads from source, and that are not imported."""
        names = frozenset[str]().union(*(code.unimported for code in self._all_reached(cache_key)))
        return names - sys.modules.keys()

    def stale_memos(self, cache_key: CacheKey) -> list[str]:
        """The names of functions with a memo that may answer for code which has changed since it was filled."""
        inventory = cache_key.inventory
        return [*self._code.stale(inventory.memos), *inventory.stale] if inventory.memos else []

    def with_filled_properties(
        self, before: CacheKey, arguments: Mapping[str, Any], without: cached_properties.Without, reads: Iterable[Read]
    ) -> CacheKey | None:
        """The key of now, after a run filled cached properties (``without``) and changed nothing else, where a run
        of it would go as the one of ``before`` went; None where that can't be told.

        Raises UsageError where what they hold has no stable form. reads: of the run.
        """
        now = self.build(before.stage, arguments)
        self._code.note_fill(before.inventory.memos, now.inventory.memos)
        reached = self._all_reached(now)
        if any(read.kind in {"code", "module"} for read in reads) or any(code.codes for code in reached):
            return None
        from cachec.key.code.mutation_analysis import may_tell  # rarely needed

        names = frozenset[str]().union(*without.values())
        for code in reached:
            for version, spans in code.spans.items():
                source = self._code.source(version[0])
                if source is None or source.version != version or may_tell(source, spans, names):
                    return None
        return now

    def speaking(self, cache_key: CacheKey) -> tuple[Plugin, ...]:
        """The plugins that speak for what a call works with, by name: those whose ambient state is in its key."""
        return self._speaking(cache_key.inventory)

    def declares_programs(self, module: str) -> bool:
        """Whether a plugin answers for the programs that a module starts."""
        return self._plugins.declares_programs(module)

    def code_of(self, stage: StageLike) -> CodeKey:
        """The code that a stage reaches."""
        options = stage.options
        return self._code.of(stage.__wrapped__, depends=options.depends_on_code, has_version=bool(options.version))

    def _stage_parts(self, stage: StageLike, inventory: ArgumentInfo, *, fresh: bool) -> _KeyParts:
        options = stage.options
        at = id(options), sys.get_int_max_str_digits()  # which anybody may set, and no code tells of
        known = self._last.get(at)
        last = known[1] if known is not None and known[0] is options else None
        if last is not None and last.code is not None and not inventory.reaches_more:
            code = self.code_of(stage)
            if code is last.code:
                inventory.memos += code.memos
                inventory.unfilled += code.unfilled
                inventory.reached = [(stage, code)]
                return last
        parts = tuple(self._fingerprints(stage, inventory, fresh=fresh))
        # Fingerprints that did not change are the same objects as before, and then so are their framed bytes.
        if last is not None and _same(last.parts, parts):
            return last
        made = _KeyParts.of(parts, self._all_code(stage, inventory))
        self._last.put(at, (options, made))
        return made

    def _all_code(self, stage: StageLike, inventory: ArgumentInfo) -> CodeKey | None:
        """The code of a stage, where nothing else of this process can change its parts."""
        options = stage.options
        is_alone = not (self._key_parts or options.tools or options.env or options.depends or inventory.reaches_more)
        code = self.code_of(stage) if is_alone else None
        return None if code is None or code.stages or code.distributions else code

    def _fingerprints(self, stage: StageLike, inventory: ArgumentInfo, *, fresh: bool) -> list[Part]:
        parts: list[Part] = []
        distributions = inventory.distributions
        platform = False
        for each, code in self._find_stages(stage, inventory):
            inventory.reached.append((each, code))
            inventory.memos += code.memos
            inventory.unfilled += code.unfilled
            distributions |= code.distributions
            self._tools.renew((*each.options.tools, *distributions))
            parts += self._own_parts(each.options, code.parts, distributions, fresh=fresh)
            platform = platform or not each.options.portable
        parts += [self._tools.distribution(name, fresh=fresh) for name in sorted(distributions)]
        if distributions:
            parts += self._tools.requirement_parts(distributions, fresh=fresh)
        parts += self._ambient(inventory)
        parts += self._extra_parts()
        parts.append(platform_part(portable=not platform))
        if not self._code.recorded:  # such a run depends on more than its trace says
            parts.append(text_part(PartKind.STAGE, "record", "off", "runs record nothing"))
        return parts

    def _own_parts(
        self, options: StageOptions, code: Sequence[Part], distributions: set[str], *, fresh: bool
    ) -> Iterable[Part]:
        yield options.part
        yield from code
        for tool in options.tools:
            if isinstance(tool, str) and self._tools.is_distribution(tool):
                distributions.add(tool)
            elif isinstance(tool, str) and "/" not in tool and _which(tool) is None:
                distributions.add(tool)  # neither: the message names the distribution
            else:
                yield self._tools.executable(tool, fresh=fresh)
        yield from environment_parts(options.env, os.environ)
        for item in options.depends:
            if isinstance(item, str | os.PathLike):
                yield self._depends(item)

    def _depends(self, path: str | os.PathLike[str]) -> Part:
        place = os.fspath(path)
        try:
            digest = Companions(self._digests).whole(place, path_digests.path_digest(place, self._digests))
        except OSError as error:
            if fsio.is_exhausted(error):
                raise
            raise UsageError(f"depends={place!r} can't be read: {error.strerror}; name an existing file") from error
        base = os.path.basename(place)
        return Part(PartKind.FILE, f"depends/{base}", digest, digest[:12], value=base)

    def _extra_parts(self) -> list[Part]:
        if not self._key_parts:
            return []
        from cachec.key.extra_parts import extra_parts  # of few users

        return extra_parts(self._key_parts)

    def _ambient(self, inventory: ArgumentInfo) -> Iterable[Part]:
        for plugin in self._speaking(inventory):
            with supported_versions.Asking(plugin):
                settings = plugin.ambient()
            for setting, value in sorted(settings.items()):
                yield text_part(PartKind.AMBIENT, f"{plugin.name}/{setting}", value, value)

    def _speaking(self, inventory: ArgumentInfo) -> tuple[Plugin, ...]:
        if not inventory.distributions and not inventory.plugins:
            return ()
        speaking = {plugin.name: plugin for plugin in self._plugins.for_distributions(inventory.distributions)}
        speaking.update((name, self._plugins.find(name)) for name in inventory.plugins)
        return tuple(speaking[name] for name in sorted(speaking))


def _files_in(place: str) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
    for folder, _, names in os.walk(place):
        yield from (os.path.join(folder, name) for name in names)


def _same(old: Sequence[Part], new: Sequence[Part]) -> bool:
    return len(old) == len(new) and all(map(is_, old, new))


def _which(name: str) -> str | None:
    import shutil  # slow to import, and only needed for a tool that is an executable given by name

    return shutil.which(name)
