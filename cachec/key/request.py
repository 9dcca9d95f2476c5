"""One call of a stage as a key: the parts of the stage itself and those of its arguments, put together."""

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
from cachec.errors import UsageError
from cachec.key.arguments import Annotation, ArgumentKeys, Payload
from cachec.key.code.fingerprint import CodeKey, CodeKeys
from cachec.key.code.graph import reading_text_alone
from cachec.key.code.kept import KeptResults
from cachec.key.companions import Companions
from cachec.key.inventory import Inventory
from cachec.key.options import StageLike, StageOptions, text_part
from cachec.key.tools.environment import environment_parts, variable_digest
from cachec.key.tools.platform import platform_part
from cachec.key.tools.tools import ToolKeys
from cachec.model import Digest, Part, PartKind, Read, part_label
from cachec.programs.registry import Plugins

if TYPE_CHECKING:  # not of most hits
    from cachec.key import folders
    from cachec.key.code.coverage import Coverage
    from cachec.key.compare import PartDifference
    from cachec.key.described import FormsWithPlugins
    from cachec.key.isolated import IsolatedArguments
    from cachec.key.library_state import LibraryStates
    from cachec.programs import supported
    from cachec.programs.plugin import Plugin
else:
    folders, supported = later("cachec.key.folders"), later("cachec.programs.supported")

_DOMAIN = frame("domain", b"key")

#: Bytes of the arguments of a call up to which its key is remembered.
_SHORT = 4096

#: Sets of code of which the texts are remembered.
_TOLD = 64

#: Stages of which the parts of the last call are remembered.
_KEPT = 1024


class _Parts(msgspec.Struct, frozen=True):
    """The parts of a stage that do not come from arguments, and their framed bytes. code: what they all follow from,
    None where something else takes part too."""

    parts: tuple[Part, ...]
    prefix: bytes
    code: CodeKey | None = None

    @classmethod
    def of(cls, parts: tuple[Part, ...], code: CodeKey | None = None) -> _Parts:
        return cls(parts, b"".join(frame(part.label, part.digest.encode()) for part in parts), code)


class _ToldCode(msgspec.Struct, frozen=True):
    """The texts of code, with the names of the parts that they are of, and their digest."""

    codes: tuple[CodeKey, ...]
    texts: bytes
    names: frozenset[str]
    refs: tuple[Digest]

    @classmethod
    def of(cls, codes: tuple[CodeKey, ...]) -> _ToldCode:
        from cachec.key.contents import code_texts  # on a miss only

        texts = code_texts(codes)
        return cls(codes, texts, frozenset(name for code in codes for name in code.texts), (digest_bytes(texts),))

    def referred(self, part: Part) -> Part:
        """A part with a reference to its text, where that is known."""
        is_told = part.kind is PartKind.CODE and part.name in self.names
        return msgspec.structs.replace(part, refs=self.refs) if is_told else part


class Request:
    """The key of one call, and what was found in its arguments."""

    __slots__ = ("_parts", "_payloads", "_said", "_told", "codes", "digest", "inventory", "stage")

    def __init__(
        self,
        stage: StageLike,
        parts: _Parts,
        payloads: Sequence[Payload],
        inventory: Inventory,
        told: Callable[[Request], _ToldCode] | None = None,
    ) -> None:
        """told: the texts of the code that a request reaches."""
        self.stage = stage
        #: The keys of the code that it reaches, once they were asked for.
        self.codes: tuple[CodeKey, ...] = ()
        self._told = told
        self._said: tuple[Part, ...] | None = None
        said = tuple([(payload.kind, payload.name, payload.data) for payload in payloads])
        is_short = sum([len(data) for _, _, data in said]) <= _SHORT
        self.digest = (_digest_known if is_short else _digest)(parts.prefix, said)
        self.inventory = inventory
        self._parts = parts
        self._payloads = payloads

    def parts(self) -> tuple[Part, ...]:
        """Every named part, with its detail: built only when somebody is to be told.

        The code of callable arguments is spelled out function by function here; in the key it is one digest each. Where
        its text is known it refers to ``texts``.
        """
        if self._said is None:
            told = None if self._told is None else self._told(self)
            parts = (*self._parts.parts, *self.inventory.code, *(payload.part() for payload in self._payloads))
            self._said = parts if told is None else tuple(map(told.referred, parts))
        return self._said

    def texts(self) -> bytes:
        """The text of the code that this reaches, as ``CodeTexts`` in JSON; it tells a later miss what changed."""
        return b"" if self._told is None else self._told(self).texts

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


class Requests:
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
        self._last: BoundedDict[tuple[StageOptions, _Parts]] = BoundedDict(_KEPT)
        self._told: BoundedDict[_ToldCode] = BoundedDict(_TOLD)
        self._kept = KeptResults(code.of_value)

    @cached_property
    def forms(self) -> FormsWithPlugins:
        """Values as bytes that two processes compare."""
        from cachec.key.described import FormsWithPlugins  # of isolated stages

        return FormsWithPlugins(self._plugins)

    @cached_property
    def _isolated(self) -> IsolatedArguments:
        from cachec.key.isolated import IsolatedArguments

        return IsolatedArguments(self._digests, self._plugins, self.forms)

    def request(
        self,
        stage: StageLike,
        arguments: Mapping[str, Any],
        *,
        fresh: bool = False,
        without: cached_properties.Without = cached_properties.NOTHING,
        text_alone: frozenset[str] = frozenset(),
    ) -> Request:
        """The key of a call with these arguments (defaults filled in). Raises UsageError where there can be none.

        fresh: look at every file of every tool now, and trust no look of the last second. without: attributes that do
        not count. text_alone: modules that count as if they were not imported.
        """
        if text_alone:
            with reading_text_alone(text_alone):
                return self.request(stage, arguments, fresh=fresh, without=without)
        options = stage.options
        if options.ignore:
            arguments = {name: value for name, value in arguments.items() if name not in options.ignore}
        if options.isolated:
            return self._isolated_request(stage, arguments, fresh=fresh)
        inventory = Inventory()
        with cached_properties.meeting(without) as met:
            payloads = self._arguments.payloads(arguments, per_rank=options.per_rank, inventory=inventory)
            parts = self._stage_parts(stage, inventory, fresh=fresh)
            inventory.held = self._kept.held(inventory.memos)
            payloads += self._kept_payloads(inventory)
        inventory.unfilled += met.unfilled
        return Request(stage, parts, payloads, inventory, self._told_code)

    def _kept_payloads(self, inventory: Inventory) -> Iterator[Payload]:
        names = {id(memo.function): memo.name for memo in inventory.memos}
        changed = self._kept.changed(inventory.held)
        for function, digests in self._kept.counted(inventory.held).items():
            if function in changed:
                inventory.stale.append(names[function])
                digests.append(os.urandom(16).hex())  # no call is known to be like this one
            said = partial(Annotation, f"{len(digests)} results that it keeps")
            yield Payload(PartKind.CODE, f"{names[function]}.<kept>", "".join(digests).encode(), said)

    def ran(self, request: Request) -> None:
        """Note what a run of a request put into memos."""
        before = request.inventory.held
        if request.inventory.memos and not self._kept.counted(before):
            with cached_properties.meeting():
                self._kept.made(before, self._kept.held(request.inventory.memos))

    def is_project(self, path: str) -> bool:
        """Whether a file, by the name that its code has, is the project's."""
        return self._code.is_project(path)

    def coverage(self, request: Request) -> Coverage:
        """What the key of a request holds of code."""
        from cachec.key.code.coverage import Coverage  # for a run

        coverage = Coverage()
        if request.stage.options.isolated:
            return coverage  # all of its code is in its trace
        coverage.distributions |= request.inventory.distributions
        coverage.is_charged = bool(request.stage.options.version)
        stages = self._stages(request)
        for each, _ in stages:
            coverage.stages.append(each)
            coverage.distributions.update(tool for tool in each.options.tools if isinstance(tool, str))
        for code in (*(code for _, code in stages), *request.inventory.callables):
            coverage.add(code)
        return coverage

    def _stages(self, request: Request) -> list[tuple[Any, CodeKey]]:
        """The stage of a request and those that it reaches, each with the key that its code has now."""
        pending: list[Any] = [request.stage, *request.inventory.stages]
        found = []
        for each in pending:
            code = self.code_of(each)
            found.append((each, code))
            pending += [one for one in code.stages if not any(one is known for known in pending)]
        return found

    def _all_reached(self, request: Request) -> tuple[CodeKey, ...]:
        if request.stage.options.isolated:
            return ()
        if not request.codes:
            request.codes = (*(code for _, code in self._stages(request)), *request.inventory.callables)
        return request.codes

    def _told_code(self, request: Request) -> _ToldCode:
        codes = self._all_reached(request)
        name = tuple(map(id, codes))
        told = self._told.get(name)
        if told is None or not all(map(is_, told.codes, codes)):
            told = _ToldCode.of(codes)
            self._told.put(name, told)
        return told

    def _isolated_request(self, stage: StageLike, arguments: Mapping[str, Any], *, fresh: bool) -> Request:
        """The same of a stage that runs in a process of its own: what that looks up is in its trace."""
        inventory = Inventory()
        per_rank = stage.options.per_rank
        payloads = self._isolated.payloads(arguments, per_rank=per_rank, inventory=inventory)
        parts = _Parts.of((*self._declared_parts(stage, fresh=fresh), self._isolated.function_part(stage)))
        return Request(stage, parts, payloads, inventory)

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
        from cachec.key import state  # of isolated stages
        from cachec.key.dependencies import ABSENT, PRESENT

        if module != "__main__" and not self.forms.is_project_module(module):
            return ABSENT
        held = sys.modules[module]
        if not name:
            return PRESENT
        if name == "*":
            return state.names_digest(state.names_of(held))
        if name == state.DOCUMENTATION:
            return state.documentation_digest(held)
        return self.forms.now(held).digest(vars(held)[name]) if name in vars(held) else ABSENT

    def is_unset(self, module: str, names: Iterable[str]) -> bool:
        """Whether a module has no globals of these names, or is not imported."""
        from cachec.key import libraries  # of isolated stages

        if libraries.is_replaced(module):
            return False
        return module not in sys.modules or vars(sys.modules[module]).keys().isdisjoint(names)

    def module_path(self) -> list[tuple[str, str]]:
        """The project's folders on ``sys.path``, each with its place among them."""
        return self.forms.module_path()

    def memo_agrees(self, read: Read) -> bool:
        """Whether a memo of the project remembers nothing else than a run had."""
        from cachec.key import memos  # of isolated stages

        path, _, text = read.name.partition(" ")
        return memos.agrees(read.where, path, text, self.forms.now)

    def library_agrees(self, read: Read) -> bool:
        """Whether a library's module has an attribute that a run has found, or is not imported."""
        from cachec.key import libraries, library_state  # of isolated stages

        if read.name.startswith(library_state.STATE):
            return library_state.read_of(read.where.split(), self.library_states()).name == read.name
        if libraries.is_replaced(read.where):
            return False
        live, name = sys.modules.get(read.where), read.name.partition("=")[0]
        if live is None or name not in vars(live):
            return True
        found = libraries.digest(live, name, self.forms.now().is_own_module)
        return libraries.read_of(read.where, name, found).name == read.name

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
        from cachec.key import ambient  # of isolated stages
        from cachec.key.dependencies import ABSENT

        found = [each for each in self._plugins.all() if each.name == plugin]
        return ambient.digest(found[0]) if found else ABSENT

    def generator_digest(self, name: str) -> str:
        """What stands for the state of a random generator of the process; ``ABSENT`` where it is not here."""
        from cachec.key import generators  # of isolated stages
        from cachec.key.dependencies import ABSENT

        found = generators.named(self._plugins, name)
        state = None if found is None else found.state()
        return ABSENT if found is None or state is None else generators.digest(found, state)

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

    def unimported(self, request: Request) -> frozenset[str]:
        """The names of modules that the key of a request reads from source, and that are not imported."""
        names = frozenset[str]().union(*(code.unimported for code in self._all_reached(request)))
        return names - sys.modules.keys()

    def stale_memos(self, request: Request) -> list[str]:
        """The names of functions with a memo that may answer for code which has changed since it was filled."""
        return [*self._code.stale(request.inventory.memos), *request.inventory.stale]

    def filled(
        self, before: Request, arguments: Mapping[str, Any], without: cached_properties.Without, reads: Iterable[Read]
    ) -> Request | None:
        """The request of now, after a run filled cached properties (``without``) and changed nothing else, where a run
        of it would go as the one of ``before`` went; None where that can't be told.

        Raises UsageError where what they hold has no stable form. reads: of the run.
        """
        now = self.request(before.stage, arguments)
        self._code.filled(before.inventory.memos, now.inventory.memos)
        reached = self._all_reached(now)
        if any(read.kind in {"code", "module"} for read in reads) or any(code.codes for code in reached):
            return None
        from cachec.key.code.assigns import may_tell  # rarely needed

        names = frozenset[str]().union(*without.values())
        for code in reached:
            for version, spans in code.spans.items():
                source = self._code.source(version[0])
                if source is None or source.version != version or may_tell(source, spans, names):
                    return None
        return now

    def speaking(self, request: Request) -> tuple[Plugin, ...]:
        """The plugins that speak for what a call works with, by name: those whose ambient state is in its key."""
        return self._speaking(request.inventory)

    def declares_programs(self, module: str) -> bool:
        """Whether a plugin answers for the programs that a module starts."""
        return self._plugins.declares_programs(module)

    def code_of(self, stage: StageLike) -> CodeKey:
        """The code that a stage reaches."""
        options = stage.options
        return self._code.of(stage.__wrapped__, depends=options.depends_on_code, has_version=bool(options.version))

    def _stage_parts(self, stage: StageLike, inventory: Inventory, *, fresh: bool) -> _Parts:
        options = stage.options
        at = id(options), sys.get_int_max_str_digits()  # which anybody may set, and no code tells of
        known = self._last.get(at)
        last = known[1] if known is not None and known[0] is options else None
        if last is not None and last.code is not None and not inventory.reaches_more:
            code = self.code_of(stage)
            if code is last.code:
                inventory.memos += code.memos
                inventory.unfilled += code.unfilled
                return last
        parts = tuple(self._fingerprints(stage, inventory, fresh=fresh))
        # Fingerprints that did not change are the same objects as before, and then so are their framed bytes.
        if last is not None and _same(last.parts, parts):
            return last
        made = _Parts.of(parts, self._all_code(stage, inventory))
        self._last.put(at, (options, made))
        return made

    def _all_code(self, stage: StageLike, inventory: Inventory) -> CodeKey | None:
        """The code of a stage, where nothing else of this process can change its parts."""
        options = stage.options
        is_alone = not (self._key_parts or options.tools or options.env or options.depends or inventory.reaches_more)
        code = self.code_of(stage) if is_alone else None
        return None if code is None or code.stages or code.distributions else code

    def _fingerprints(self, stage: StageLike, inventory: Inventory, *, fresh: bool) -> list[Part]:
        parts: list[Part] = []
        distributions = inventory.distributions
        seen: set[int] = set()
        platform = False
        pending: list[Any] = [stage, *inventory.stages]
        while pending:
            each = pending.pop(0)
            if id(each) in seen:
                continue
            seen.add(id(each))
            code = self.code_of(each)
            pending += code.stages
            inventory.memos += code.memos
            inventory.unfilled += code.unfilled
            distributions |= code.distributions
            self._tools.renew((*each.options.tools, *distributions))
            parts += self._own_parts(each.options, code.parts, distributions, fresh=fresh)
            platform = platform or not each.options.portable
        parts += [self._tools.distribution(name, fresh=fresh) for name in sorted(distributions)]
        if distributions:
            parts += self._tools.required(distributions, fresh=fresh)
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
            digest = Companions(self._digests).whole(place, folders.path_digest(place, self._digests))
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

    def _ambient(self, inventory: Inventory) -> Iterable[Part]:
        for plugin in self._speaking(inventory):
            with supported.Asking(plugin):
                settings = plugin.ambient()
            for setting, value in sorted(settings.items()):
                yield text_part(PartKind.AMBIENT, f"{plugin.name}/{setting}", value, value)

    def _speaking(self, inventory: Inventory) -> tuple[Plugin, ...]:
        if not inventory.distributions and not inventory.plugins:
            return ()
        speaking = {plugin.name: plugin for plugin in self._plugins.for_distributions(inventory.distributions)}
        speaking.update((name, self._plugins.named(name)) for name in inventory.plugins)
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
