"""The key of a command: the compiler by content, its variables, the machine, its arguments, and what it reads."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Container, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests, Hasher, digest_bytes, frame
from cachec.base.lookups import umask
from cachec.key.argument_info import ArgumentInfo
from cachec.key.path_digests import path_digest
from cachec.key.tools.command_variables import Rule, list_unmatched
from cachec.key.tools.environment import LOCALE, environment_parts
from cachec.key.tools.platform import CPUINFO, cpu_features
from cachec.key.tools.toolchain import ToolKeys
from cachec.launcher.adapters import AdapterEnvironment
from cachec.launcher.command import CommandSpec, Options, PassThrough
from cachec.launcher.depth import increase_depth
from cachec.launcher.path_map import PathMap
from cachec.launcher.source_scan import EPOCH, reports_time
from cachec.model import Part, PartKind, Reason

if TYPE_CHECKING:
    from cachec.key.key_diff import PartDifference
    from cachec.launcher.weight_stripping import StrippedInput
    from cachec.programs.program import Program

#: Bump it when the meaning of a command's key changes: every older entry is then a miss.
KEY_VERSION = "9"

_DOMAIN = frame("domain", b"command")

_FOLDERS = re.compile(r"/\S*/")

#: The label of a command's first argument that is no flag, and how much of that is shown.
_SCRIPT, _SHOWN_WORDS = "argument 1", 60

#: Always keyed: the loader and the C library obey them in every program.
_ALWAYS = ("LD_LIBRARY_PATH", "LD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "TZ", "TZDIR")


class CommandKey:
    """The key of one command, with the part of ``key.key_builder.CacheKey`` that the stage layer uses."""

    def __init__(
        self,
        parts: tuple[Part, ...],
        programs: Mapping[str, Program],
        files: Mapping[str, str] = MappingProxyType({}),
        keeps_out: str = "",
        *,
        has_base: bool,
    ) -> None:
        """files: digest -> path of inputs. keeps_out: what keeps folders out of the result. has_base: whether there is
        a folder that paths count from.
        """
        self._parts = parts
        self._has_base = has_base
        self.keeps_out = keeps_out
        framed = b"".join(frame(part.label, part.digest.encode()) for part in parts)
        self.digest = digest_bytes(_DOMAIN + framed)
        self.inventory = ArgumentInfo()
        self.inventory.programs.update(programs)
        self.inventory.files.update(files)

    def parts(self) -> tuple[Part, ...]:
        """Every named part, with its detail."""
        return self._parts

    def texts(self) -> bytes:
        """A command reaches no code of ours."""
        return b""

    def remedy(self, difference: PartDifference) -> str:
        """See ``key.key_builder.CacheKey.remedy``."""
        part, old, new = difference.part, difference.old, difference.new
        if part.kind is PartKind.PLATFORM:
            return "where the result does not depend on the processor, say --portable"
        if part.kind is PartKind.ENVIRONMENT:
            return f"set {part.name} as it was, or say --ignore-env {part.name}"
        if part.kind is not PartKind.ARGUMENT or not (old and new and _differ_in_folder(old.value, new.value)):
            return ""
        if self._has_base:
            return "only a folder differs: use the same one below base_dir"
        return "only a folder differs: set base_dir (CACHEC_BASE_DIR) to the checkout"


class CommandKeyBuilder:
    """Assembles the keys of commands, as ``key.key_builder.KeyBuilder`` does for functions."""

    def __init__(
        self, digests: FileDigests, places: PathMap, environ: Mapping[str, str], key_parts: tuple[str, ...]
    ) -> None:
        """environ: what the launcher itself was given; the command gets what ``environment`` leaves of it.
        key_parts: the setting of that name."""
        self._digests = digests
        self._places = places
        self._environ = environ
        self._key_parts = key_parts
        self._distributions: Distributions | None = None
        self._tools: ToolKeys | None = None
        self._host = cache(host_part)  # the machine stays the same while a command runs

    def anchor(self, places: PathMap) -> None:
        """Have paths of the key count from these places, which are known once the command is."""
        self._places = places

    def build(
        self, stage: object, arguments: Mapping[str, Any], *, fresh: bool = False, without: object = None
    ) -> CommandKey:
        """The key of ``arguments["command"]``. Raises UsageError or PassThrough where there can be none.

        without: nothing; no cached property of an object of this process takes part.
        """
        del without
        try:
            return self._request(stage, arguments, fresh=fresh)
        except OSError as error:  # something can't be read: the command says it better
            raise PassThrough(Reason.NOT_UNDERSTOOD, str(error), is_reported=True) from error

    def _request(self, stage: object, arguments: Mapping[str, Any], *, fresh: bool) -> CommandKey:
        command: CommandSpec = arguments["command"]
        del stage  # what it is called follows from the command
        stripped: Sequence[StrippedInput] = arguments["stripped"]
        parts = (
            self._stage_part(command),
            *self._tool_parts(command, fresh=fresh),
            *self._environment_parts(command),
            *([] if command.options.portable else [self._host()]),
            *self._argument_parts(command, {each.number for each in stripped}),
            *self._content_parts(command, stripped, arguments["stdin"]),
            *self._extra_parts(),
        )
        paths = {_name(self._places.remove_base(text)): path for path, text in _inputs(command)}
        files = {part.digest: paths[part.name] for part in parts if part.kind is PartKind.FILE and part.name in paths}
        programs = {each.path: each.program for each in stripped}
        flags = {} if command.adapter is None else command.adapter.normalises
        keeps_out = ", ".join(f"{flag} keeps out {what}" for flag, what in flags.items())
        return CommandKey(parts, programs, files, keeps_out, has_base=self._places.base is not None)

    def _extra_parts(self) -> list[Part]:
        if not self._key_parts:
            return []
        from cachec.key.extra_parts import extra_parts  # of few users

        return extra_parts(self._key_parts)

    def stale_memos(self, request: CommandKey) -> list[str]:
        """None: a command has no memo of this process's."""
        del request
        return []

    def note_run(self, request: CommandKey) -> None:
        """Nothing to note: as above."""
        del request

    def speaking(self, request: CommandKey) -> tuple[()]:
        """No plugin: what a command works with is in another process."""
        del request
        return ()

    def tool_keys(self, command: CommandSpec) -> ToolKeys:
        """What keys the compiler: with the distributions of its own environment, where it is in another one."""
        if self._tools is None:
            self._tools = ToolKeys(self._digests, self.distributions(command.program))
        return self._tools

    def distributions(self, program: str) -> Distributions:
        """The installed distributions, those of the compiler's environment first. There is one command to a launcher,
        and looking for the owner of a file reads all of them."""
        if self._distributions is None:
            self._distributions = distributions_of(program)
        return self._distributions

    def _stage_part(self, command: CommandSpec) -> Part:
        adapter = command.adapter
        hasher = Hasher("command-stage")
        hasher.part("version", KEY_VERSION.encode())
        hasher.part("adapter", b"" if adapter is None else adapter.digest().encode())
        shown = "no adapter" if adapter is None else f"adapter {adapter.name} {adapter.digest()[:8]}"
        return Part(PartKind.STAGE, command.stage, hasher.digest(), shown)

    def _environment_parts(self, command: CommandSpec) -> tuple[Part, ...]:
        """One part for each variable that counts. The base folder leaves their values, as it leaves arguments."""
        values = {name: self._places.remove_base(value) for name, value in self._environ.items()}
        names = keyed_variables(command, self._environ)
        return environment_parts(names, values, sealed=sealed_variables(command, names))

    def _tool_parts(self, command: CommandSpec, *, fresh: bool) -> Iterator[Part]:
        """The program by its place, as the trace tells what is started; what else counts by name, by content."""
        program = self._places.to_anchored(command.program)
        yield _argument("program", digest_bytes(os.fsencode(program)), command.program)
        for name in command.options.tools:
            yield self.tool_keys(command).executable(name, environment(self._environ), fresh=fresh)
        if command.adapter is not None and command.adapter.distribution:
            yield self.tool_keys(command).distribution(command.adapter.distribution, fresh=fresh)

    def _argument_parts(self, command: CommandSpec, stripped: Container[int]) -> Iterator[Part]:
        """One part a flag, over its words in order; then the order of the flags. For a stripped model counts the dash
        that the command gets in place of its name."""
        by_label: dict[str, list[str]] = {}
        for number, piece in enumerate(command.pieces):
            text = "-" if number in stripped else self._places.remove_base(piece.text)
            by_label.setdefault(piece.label, []).append(text)
        for label, texts in by_label.items():
            hasher = Hasher("argument")
            for text in texts:
                hasher.part("text", os.fsencode(text))
            # Commands without an adapter are compared with those of the same script: a file, or the text behind -c.
            is_script = command.adapter is None and label == _SCRIPT
            subject = _text(_name(texts[0]).strip().partition("\n")[0][:_SHOWN_WORDS]) if is_script else ""
            yield _argument(label, hasher.digest(), _display(texts), subject)
        for path, key in command.weights.items():
            text = self._places.to_anchored(path)
            yield _argument(f"weights {text}", digest_bytes(key.encode()), key)
        order = Hasher("order")
        for piece in command.pieces:
            order.part("label", piece.label.encode("utf-8", "surrogateescape"))
        labels = _display([piece.label for piece in command.pieces])
        outputs = " ".join(
            _name(self._places.remove_base(_below(output.path, command.cwd))) for output in command.outputs
        )
        yield Part(PartKind.ORDER, "order of arguments", order.digest(), labels, subject=_text(outputs))
        folder = self._places.remove_base(self._places.cwd)
        yield _argument("current folder", digest_bytes(os.fsencode(folder)), _display([folder]))
        yield from map(self._option_part, _refinements(command.options))

    def _option_part(self, text: str) -> Part:
        portable = self._places.remove_base(text)
        return _argument(_text(_name(portable)), digest_bytes(os.fsencode(portable)), "(set)")

    def _content_parts(
        self, command: CommandSpec, stripped: Sequence[StrippedInput], stdin: str | None
    ) -> Iterator[Part]:
        for each in stripped:
            name, program = _name(self._places.remove_base(command.argv[each.number + 1])), each.program
            hasher = Hasher("program")
            hasher.part("topology", program.topology.encode())
            hasher.part("manifest", program.manifest.digest.encode())
            yield Part(
                PartKind.PROGRAM,
                "input",  # the command does not get its name
                hasher.digest(),
                program.format,
                refs=(program.ir_digest, program.manifest.digest),
                version=program.format,
                value=os.path.basename(name),
                subject=name,
            )
        given = {each.path for each in stripped}
        for path, text in _inputs(command):
            name = _name(self._places.remove_base(text))
            if path not in given:
                subject = name if path in command.models.values() else ""
                yield _file(name, name, path_digest(path, self._digests), subject)
        for path, key in command.weights.items():
            if key == "content":
                digest = self._digests.of_path(path)
                yield _file(f"weights {self._places.to_anchored(path)}", path, digest)
        if stdin is not None:
            digest = self._digests.of_path(stdin)
            yield Part(PartKind.FILE, "standard input", digest, digest[:12])
        mask = f"{umask():03o}"
        yield _argument("umask", digest_bytes(mask.encode()), mask)


def _refinements(options: Options) -> Iterator[str]:
    """What options and settings say of what is stored, and when."""
    yield from (f"--outputs {pattern}" for pattern in options.patterns)
    yield from (f"cache folder {folder}" for folder in options.cache_folders)
    if options.network:
        yield f"--network {options.network}"
    if options.relocatable:
        yield "--relocatable"


def _described_environment(command: CommandSpec) -> AdapterEnvironment:
    adapter = command.adapter
    return AdapterEnvironment() if adapter is None or not command.is_known else adapter.environment


def variable_rule(command: CommandSpec) -> Rule:
    """Return which variables are in the key of a command, in addition to the locale."""
    described = _described_environment(command)
    keyed = (*described.keyed, *command.options.env, *_ALWAYS)
    excluded = (*_ignored_variables(command), *variables_of_run(command))
    keyed = tuple(name for name in keyed if name not in excluded)
    return Rule(keyed, (*described.passed, *LOCALE, *excluded), others=not described.complete)


def _ignored_variables(command: CommandSpec) -> tuple[str, ...]:
    """The variables that are to be ignored. One that an option names counts, whatever the settings say."""
    return tuple(name for name in command.options.ignore_env if name not in command.options.env)


def variables_of_run(command: CommandSpec) -> tuple[str, ...]:
    """The variables that count only where a run shows that it used them: of a compiler that tells of the time."""
    return (EPOCH, *LOCALE) if reports_time(command) else ()


def keyed_variables(command: CommandSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that are in the key: those that are named, set or not, and of the others those that are set."""
    rule = variable_rule(command)
    locale = {name for name in LOCALE if name in environ} - {*variables_of_run(command), *_ignored_variables(command)}
    return tuple(sorted({*rule.names, *rule.matching(environ), *locale}))


def sealed_variables(command: CommandSpec, names: Iterable[str]) -> frozenset[str]:
    """Return the variables with values that are stored as digests: those that the adapter does not name.

    Such a variable may hold a secret, whatever it is called.
    """
    described = _described_environment(command)
    shown = (*described.keyed, *_ALWAYS, *LOCALE)
    return frozenset(list_unmatched(names, shown))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a command gets: the whole environment of the launcher."""
    return {**environ, **increase_depth(dict(environ))}


def files_in_key(command: CommandSpec) -> set[str]:
    """The files of a command's distribution, which its key holds by RECORD, and what an environment says of itself."""
    if command.adapter is None or not command.adapter.distribution:
        return set()
    found = {command.program, os.path.join(os.path.dirname(os.path.dirname(command.program)), "pyvenv.cfg")}
    distribution = distributions_of(command.program).find(command.adapter.distribution)
    record = None if distribution is None else distribution.record()
    if distribution is not None and record is not None:
        found |= {os.path.normpath(os.path.join(distribution.root, row.path)) for row in record.rows}
    return found


def distributions_of(program: str) -> Distributions:
    """Return the installed distributions: those of a script's environment, before those of this Python."""
    import sys

    sites = glob.glob(
        os.path.join(glob.escape(os.path.dirname(os.path.dirname(program))), "lib/python3*/site-packages")
    )
    return Distributions([*sorted(sites), *(path for path in sys.path if path not in sites)])


def host_part() -> Part:
    """The machine as a compiler sees it: ``platform`` without this Python, which the command does not use."""
    with open(CPUINFO, encoding="utf-8", errors="replace") as file:
        text = file.read()
    first = text.partition("\n\n")[0]
    # On x86 all processors of a machine are alike, and their list is long.
    features, model = cpu_features(first if "\nflags" in first else text)
    machine = os.uname()
    hasher = Hasher("host")
    for name, value in (("machine", machine.machine), ("system", machine.sysname), ("cpu", " ".join(features))):
        hasher.part(name, value.encode())
    shown = f"{machine.machine} {machine.sysname}; {model or 'unknown processor'}: {' '.join(features)}"
    return Part(PartKind.PLATFORM, "", hasher.digest(), shown)


def _differ_in_folder(old: str, new: str) -> bool:
    """Whether two texts with paths are equal once the folders of these are left out."""
    shortened = [_FOLDERS.sub("/", text) for text in (old, new)]
    return "/" in old and shortened[0] == shortened[1]


def _argument(name: str, digest: str, shown: str, subject: str = "") -> Part:
    return Part(PartKind.ARGUMENT, name, digest, shown, value="" if shown.endswith("…") else shown, subject=subject)


def _inputs(command: CommandSpec) -> ItemsView[str, str]:
    """Return the files with their content in the key: their paths, and their names."""
    return {**{path: command.argv[number + 1] for number, path in command.models.items()}, **command.inputs}.items()


def _file(name: str, path: str, digest: str, subject: str = "") -> Part:
    base = os.path.basename(path)
    return Part(PartKind.FILE, name, digest, digest[:12], (digest,), value=base, subject=_text(subject))


def _below(path: str, folder: str) -> str:
    """A path as it is called from a folder that it is below."""
    return path.removeprefix(os.path.join(folder, ""))


def _text(name: str) -> str:
    """A path that JSON can hold."""
    return name.encode("utf-8", "backslashreplace").decode()


def _name(text: str) -> str:
    return text.replace("\0", "{base_dir}")


def _display(texts: list[str]) -> str:
    shown = " ".join(_name(text) or "(set)" for text in texts)
    return shown.encode("utf-8", "backslashreplace").decode() if len(shown) < 400 else shown[:400] + "…"
