"""One audit: the runs, held against what the key covers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from cachec.audit.advice import advice_for
from cachec.audit.covering import Covered, is_of_the_system, is_shared_object
from cachec.audit.findings import Audit, Finding, WeightsCheck
from cachec.audit.runs import Again, Runner, Traced
from cachec.base.texts import number_of
from cachec.errors import UsageError
from cachec.key.tools.executables import which
from cachec.launcher.command import Command, PassThrough
from cachec.launcher.describing import describe_here
from cachec.launcher.places import leaked
from cachec.launcher.stage import Opened, looked_at
from cachec.launcher.stripping import StrippedInput, strip_inputs
from cachec.model import Reason
from cachec.weights.formats import WEIGHT_SUFFIXES


def audit(args: Sequence[str], overrides: Mapping[str, object] | None = None) -> Audit:
    """Run a command line (``[options] -- COMMAND``) twice, and once more for each file of weights; what that told.

    Raises UsageError for wrong use, for a command that reads its standard input and where strace is missing;
    CommandEnded where the command itself fails.
    """
    with looked_at(args, overrides, needs_store=False) as (opened, given, argv, program):
        outcome, detail = "described", ""
        try:
            command = describe_here(opened, given, argv, program)
        except PassThrough as way:
            if way.reason in {Reason.BUILD_HELPER, Reason.SIDE_EFFECT_FLAG} or way.told:
                raise UsageError(f"exec would not cache it ({way.reason.value}): {way.detail}") from None
            outcome, detail = way.reason.value, way.detail
            path = os.path.join(opened.places.cwd, program)
            command = Command(tuple(argv), path, opened.places.cwd, None, given)
        if command.stdin:
            raise UsageError("the command reads its standard input, which is there once; name its input as a file")
        with strip_inputs(command) as stripped:
            return _Look(opened, command, outcome, detail).audit(stripped)


class _Look:
    """One command line, looked at."""

    def __init__(self, opened: Opened, command: Command, outcome: str, detail: str) -> None:
        self._opened = opened
        self._command = command
        self._outcome = outcome
        self._detail = detail
        self._is_described = outcome == "described"
        self._problems: list[Finding] = []
        self._notes: list[Finding] = []
        self._files: dict[str, str] = {}
        self._outputs = {os.path.normpath(output.path): output for output in command.outputs}
        self._real_outputs = {os.path.realpath(path) for path in self._outputs}

    def audit(self, stripped: Sequence[StrippedInput]) -> Audit:
        """Run it, and judge. stripped: models that it gets without weights."""
        runner = Runner(self._opened, self._command, stripped, described=self._is_described)
        traced = runner.traced()
        again = runner.again(traced)
        distributions = self._opened.requests.distributions(self._command)
        covered = Covered(self._command, runner.environ, again.reads, self._opened.places, distributions)
        covered.add_imports(traced.accesses.read)
        self._programs(traced, covered, runner.environ)
        self._reads(traced, covered)
        self._searches(traced, covered, runner.environ)
        self._writes(traced)
        deterministic = self._differences(traced, again)
        self._leaks(traced, again)
        if again.kept_out is not None:
            reason, words = again.kept_out
            self._problem("kept-out", "", f"exec would not store the result ({reason.value}): {words}")
        if traced.strange:
            words = (
                f"{number_of(traced.strange, 'line')} of strace not understood, the first is {traced.first_strange!r}"
            )
            self._problem("strace", "", words, "report this with the version of strace")
        if traced.accesses.is_hidden:
            self._problem("strace", "", "it uses io_uring: what it opens that way is not seen")
        weights = tuple(self._weights(runner, traced, deterministic=deterministic))
        advice = advice_for(self._command, self._outcome, self._problems)
        return Audit(
            command=self._command.argv,
            stage=self._command.stage,
            outcome=self._outcome,
            detail=self._detail,
            problems=tuple(self._problems),
            notes=tuple(self._notes),
            covered=dict(sorted(self._files.items())),
            outputs=tuple(path for path in traced.digests if self._counts(path)),
            deterministic=deterministic,
            weights=weights,
            options=advice.options,
            adapter=advice.adapter,
            seconds={"traced": traced.seconds, "again": again.seconds},
        )

    def _problem(self, kind: str, path: str, words: str, fix: str = "") -> None:
        self._problems.append(Finding(kind, path, words, fix))  # type: ignore[arg-type]

    def _note(self, kind: str, path: str, words: str, fix: str = "") -> None:
        self._notes.append(Finding(kind, path, words, fix))  # type: ignore[arg-type]

    def _programs(self, traced: Traced, covered: Covered, environ: Mapping[str, str]) -> None:
        for path in traced.accesses.executed:
            if covered.file(path):
                continue
            self._problem(
                "program", path, "is started, and the key does not cover it", f"--tool {_tool(path, environ)}"
            )
            covered.add_program(path, environ)

    def _reads(self, traced: Traced, covered: Covered) -> None:
        imported: dict[str, int] = {}
        weights = {_inode(path): key for path, key in self._command.weights.items()}
        for path in traced.accesses.read:
            why = covered.file(path)
            key = weights.get(_inode(path))
            if key is not None:
                self._files[path] = "weights"
            if key == "name":
                words = "is keyed by its name, and was opened: its content counts all the same"
                self._note("weights-read", path, words, f"--weights {self._shown(path)}=opened")
            elif key is not None:
                continue  # it is watched under every name
            elif why:
                if why != "the system":
                    self._files[path] = why
            elif covered.owner(path):
                imported[covered.owner(path)] = imported.get(covered.owner(path), 0) + 1
            elif not os.path.isdir(path):  # one that was opened without O_DIRECTORY: what it holds is a listing
                self._read(path, covered)
        for name, count in imported.items():
            self._distribution(name, count)

    def _read(self, path: str, covered: Covered) -> None:
        if self._is_output(path):
            self._problem("own-output", path, "is an output, and was read before it was written")
        elif covered.has_interpreter() and is_shared_object(path):
            self._note("read", path, "is a library of the system that an extension module needs; it is in no key")
        else:
            option = "--weights" if os.path.splitext(path)[1] in WEIGHT_SUFFIXES else "--input"
            self._problem("read", path, "is read, and the key does not cover it", f"{option} {self._shown(path)}")

    def _distribution(self, name: str, count: int) -> None:
        are = "is" if count == 1 else "are"
        words = f"{number_of(count, 'file')} of this distribution {are} read, and the key does not cover it"
        if self._command.adapter is not None:
            self._note("distribution", name, words, f'also = ["{name}"] in the adapter, where they count')
        else:
            self._problem("distribution", name, words, f'also = ["{name}"] in an adapter')

    def _searches(self, traced: Traced, covered: Covered, environ: Mapping[str, str]) -> None:
        seen = traced.accesses
        for path in seen.listed:
            if covered.listing(path) or covered.owner(path):
                continue
            words = "its names are read, and the key does not cover them"
            if is_of_the_system(path) or (covered.has_interpreter() and path == self._command.cwd):
                self._note("listing", path, words)  # Python looks for modules in the folder of the script
            elif any(each.startswith(path.rstrip("/") + "/") for each in (*seen.written, *self._outputs)):
                self._problem("listing", path, f"{words}; the command writes there, so have it read another folder")
            else:
                self._problem("listing", path, words, f"--input {self._shown(path)}")
        commands = set(environ.get("PATH", "").split(":"))
        for path in seen.missed:
            if is_of_the_system(path) or os.path.dirname(path) in commands or path in self._outputs:
                continue
            if not covered.missed(path):
                self._note("missed", path, "is looked for, and would count if it were there")
        for address in seen.servers:
            self._problem("server", address, "is connected to: what it answers is in no key")

    def _writes(self, traced: Traced) -> None:
        seen = traced.accesses
        folders = [path for path in self._outputs if os.path.isdir(path)]
        for path in seen.written:
            if self._is_output(path) or path.startswith("/dev/") or not os.path.exists(path):
                continue
            if any(path.startswith(folder + "/") for folder in folders):
                continue
            if os.path.isdir(path) and any(each.startswith(path + "/") for each in self._outputs):
                continue  # it was made for an output in it
            if "/__pycache__/" in path or path.endswith("/__pycache__"):
                self._note("written", path, "is compiled by Python beside its source")
            else:
                fix = f"--output {self._shown(path)}"
                self._problem("written", path, "is written, and is no output: a hit does not write it", fix)
        for path in seen.removed:
            self._problem("removed", path, "was there, and is removed: a hit does not remove it")
        written = {os.path.realpath(path) for path in seen.written}
        for path, output in self._outputs.items():
            real = os.path.realpath(path)
            if path not in traced.digests:
                self._problem("not-written", path, f"is an output ({output.where}), and was not written")
            elif real not in written and not any(each.startswith(real + "/") for each in written):
                self._problem("not-written", path, f"is an output ({output.where}), and was left as it was")

    def _is_output(self, path: str) -> bool:
        """Whether a path is one of the outputs, or leads to one."""
        return path in self._outputs or os.path.realpath(path) in self._real_outputs

    def _differences(self, traced: Traced, again: Again) -> bool | None:
        files = [path for path in traced.digests if self._counts(path)]
        is_same = True
        for path in files:
            if traced.digests[path] != again.digests.get(path):
                is_same = False
                fix = "make it independent of time, addresses and threads (SOURCE_DATE_EPOCH, a seed)"
                self._problem("differs", path, "two runs wrote different bytes", fix)
        for name, one, other in zip(("stdout", "stderr"), traced.streams, again.streams, strict=True):
            if one != other:
                is_same = False
                self._problem("differs", name, "two runs printed different text")
        return is_same if files or any(again.streams) else None

    def _counts(self, path: str) -> bool:
        """Whether a file or folder that was written is part of the result, as far as that is known."""
        if self._is_described:
            return self._is_output(path)
        return not os.path.isdir(path) and "/__pycache__/" not in path

    def _leaks(self, traced: Traced, again: Again) -> None:
        cwd, base = self._command.cwd, self._opened.places.base
        folders = {"base_dir": base, "cwd": cwd}
        folders |= {f"input {each.text}": os.path.dirname(each.path) for each in self._command.inputs if each.main}
        wanted: dict[str, str] = {}
        for name, path in folders.items():
            if path and path != "/" and path not in wanted.values():
                wanted[name] = path
        files = list(self._written_files(traced))
        for name, where in leaked(wanted, files, again.streams).items():
            path = wanted[name]
            if name != "base_dir" and base is not None and path.startswith(base) and path != base:
                continue  # the base folder's path is in it, and was told
            adapter = self._command.adapter
            ways = [f"{flag} removes {what}" for flag, what in (adapter.normalises if adapter else {}).items()]
            if adapter is not None and adapter.relative and base is None:
                ways.insert(0, "CACHEC_BASE_DIR set to the checkout has the input named from the current folder")
            fix = "; ".join(ways)
            words = f"{path} ({name.partition(' ')[0]}) is in {where}: another checkout gets another result"
            self._problem("path", where, words, fix)

    def _written_files(self, traced: Traced) -> Iterator[str]:
        for path in traced.digests:
            if os.path.isfile(path):
                yield path
            elif path in self._outputs:
                for folder, _, names in os.walk(path):
                    yield from (os.path.join(folder, name) for name in names)

    def _weights(self, runner: Runner, traced: Traced, *, deterministic: bool | None) -> Iterator[WeightsCheck]:
        opened = {_inode(path) for path in traced.accesses.read}
        for path, key in self._command.weights.items():
            is_opened = _inode(path) in opened
            if deterministic is False:
                yield WeightsCheck(path, key, is_opened, None, "two runs on the same weights differ already")
                continue
            changes, words = runner.changes_with(path)
            yield WeightsCheck(path, key, is_opened, changes, words)
            if changes and not is_opened and key != "content":
                words = "was not seen to be opened, and the result changes with its bytes all the same"
                self._problem("weights-read", path, words, f"--weights {self._shown(path)}=content")
            if changes is False and key == "content":
                fix = f"--weights {self._shown(path)}={'opened' if not is_opened else 'name'}"
                words = "is keyed by content, and the result is the same with other bytes"
                if is_opened:
                    words += "; it was opened, so only you can say that it never counts"
                self._note("weights-unread", path, words, fix)

    def _shown(self, path: str) -> str:
        """A path as it would be written in the current folder."""
        below = self._command.cwd.rstrip("/") + "/"
        return "." if path == self._command.cwd else path[len(below) :] if path.startswith(below) else path


def _inode(path: str) -> tuple[int, int] | str:
    """What a path leads to, under whatever name; the path itself where it leads nowhere."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


def _tool(path: str, environ: Mapping[str, str]) -> str:
    name = os.path.basename(path)
    executable = which(name, environ)
    return name if executable is not None and os.path.realpath(executable) == os.path.realpath(path) else path
