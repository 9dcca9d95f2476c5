"""The worker: a process that runs one stage and reports its lookups. The tracer observes what is not Python."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import io
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.base.installed_folders import InstalledFolders
from cachec.base.paths import is_below
from cachec.base.tracer_hiding import unseen
from cachec.base.unsendable import ForbiddenUseError, stand_in
from cachec.codecs.encoder import encode
from cachec.errors import Uncacheable, UnstorableResult
from cachec.key import (
    library_patches,
    library_settings,
    library_state,
    lru_caches,
    module_globals,
    process_state,
)
from cachec.key.argument_binding import Binding
from cachec.key.describe import words_of
from cachec.key.plugin_forms import FormsWithPlugins
from cachec.key.weight_guards import bare, replace_weights
from cachec.model import Read
from cachec.programs.plugin import Plugin
from cachec.programs.registry import Plugins
from cachec.recording import ReadRecorder, recording
from cachec.store.store import Store
from cachec.weights import WeightSet
from cachec.worker.function_locator import FunctionPlace, find
from cachec.worker.generator_states import Generators
from cachec.worker.global_transfer import assign
from cachec.worker.import_recorder import ImportRecorder
from cachec.worker.main_replay import ReplayError, replay
from cachec.worker.messages import OutputText, PrepareReply, Setup, StageDone, StageRequest, WorkerFailure
from cachec.worker.mutations import Snapshot, change, snapshot
from cachec.worker.protocol import CannotSend, MessageChannel, PeerClosedError
from cachec.worker.untraced_lookups import VariableRecorder
from cachec.worker.value_transfer import WeightsRef, received_weights

#: What cachec itself has imported, and no result depends on.
_OWN = frozenset(
    {"_cffi_backend", "_distutils_hack", "blake3", "cloudpickle", "diskcache", "msgspec", "typing_extensions"}
)

#: Words of code that asks for more of a file than whether it is there, and as what.
_SIZES = re.compile(rb"\b(l?stat|fstat\w*|stat_result|st_\w*|ST_\w+|getsize|filecmp|scandir)\b")


def serve(channel: MessageChannel, common: Common) -> None:
    """Serve the caller at the other end, and end the process."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python has them
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        WorkerProcess(channel, common).serve()
    except PeerClosedError:
        pass  # the caller is gone, and nobody waits for the result
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:  # noqa: BLE001 - of cachec itself, or what the project has it do: told, and not a crash
        channel.send(WorkerFailure(f"its worker failed: {''.join(traceback.format_exception(error)[-2:])}"))
    finally:
        end()


class Common:
    """What a starter has ready for all of its workers."""

    def __init__(self) -> None:
        self.installed = InstalledFolders()
        self.plugins = Plugins(Distributions())
        self.forms = FormsWithPlugins(self.plugins)
        self.variables = VariableRecorder(self.installed.is_project)
        self.plugins.all()
        self.variables.install()


def end() -> None:
    """End at once: libraries take long to take themselves apart, and nobody waits for that."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


class WorkerProcess:
    """Serves one call."""

    def __init__(self, channel: MessageChannel, common: Common) -> None:
        self._channel = channel
        self._installed, self._variables = common.installed, common.variables
        self._plugins, self._forms = common.plugins, common.forms
        self._imports = ImportRecorder(self._installed.is_project, unseen)
        self._now = self._forms.now()
        #: The globals that code has used although the caller could not send them, in words.
        self._unsent: list[str] = []
        self._omitted: set[tuple[str, str]] = set()

    def serve(self) -> None:
        """Make ready, run the stage, and send what came of it."""
        self._imports.install()  # before anything is received: values are of modules
        setup: Setup = self._channel.receive(self._load)[0]
        prepared = self._prepare(setup)
        self._channel.send(prepared)
        if isinstance(prepared, WorkerFailure):
            return
        try:
            call: StageRequest = self._channel.receive(self._load)[0]
        except PeerClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - a module that the project's values need, whatever it raises
            self._channel.send(WorkerFailure(f"its values can't be read in a worker: {words_of(error)}"))
            return
        answer = self._run(call)
        try:
            self._channel.send(answer)
        except CannotSend as error:
            self._channel.send(WorkerFailure(str(error)))

    def _load(self, value: Any) -> Any:
        """What stands for a value that refers to the caller's process."""
        if isinstance(value, WeightsRef):
            return received_weights(value, self._channel.ask)
        return value

    def _prepare(self, setup: Setup) -> PrepareReply | WorkerFailure:
        self._variables.asked_for_folder.clear()
        os.chdir(setup.folder)
        sys.path[:] = setup.path
        self._variables.watch_arguments(setup.argv)
        name = ""
        try:
            with _silent():
                for name in setup.modules:
                    importlib.import_module(name)
                name = "__main__"
                if setup.main is not None:
                    replay(setup.main, setup.values.__getitem__, self._imports)
        except BaseException as error:  # noqa: BLE001 - the project's code, whatever it raises
            words = str(error) if isinstance(error, ReplayError) else words_of(error)
            return WorkerFailure(f"{name} can't be imported in a worker: {words}")
        return PrepareReply(
            table=self._table(),
        )

    def _packages(self) -> dict[str, str]:
        """The installed packages that are imported, each with a file of it."""
        found: dict[str, str] = {}
        for name, module in list(sys.modules.items()):
            first = name.partition(".")[0]
            file = getattr(module, "__file__", None)
            if first not in found and first not in _OWN and isinstance(file, str) and self._installed.is_package(file):
                found[first] = file
        return found

    def _table(self) -> dict[str, dict[str, str]]:
        with unseen():  # where the project is
            return self._forms.table(self._modules())

    def _modules(self) -> dict[str, Any]:
        """The project's modules that this process has imported."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name == "__main__"
            # multiprocessing gives the script another name
            or (name != "__mp_main__" and self._imports.is_project(getattr(module, "__file__", None) or ""))
        }

    def _run(self, call: StageRequest) -> StageDone | WorkerFailure:
        with unseen():  # settings count by what they are
            self._store = Store(call.store.folder, call.store.namespace, fsync=call.store.fsync)
            process_state.apply(call.process)  # before globals: their forms tell of loggers, too
        failed = self._carry(call)
        if failed:
            return WorkerFailure(failed)
        for (module, name), why in call.missing.items():
            self._leave_out(module, name, why)
        with unseen():
            unset = library_settings.apply(self._plugins, call.ambient)
        if unset:
            return WorkerFailure(unset)
        for each in call.custom:
            if self._forms.now().digest(each.value) != each.digest:
                words = f"a {type(each.value).__qualname__} is pickled by code of its own, and is another in a worker"
                if not each.is_of_globals:
                    return WorkerFailure(words)
                self._leave_out_formless(call, words)
        function = find(call.function) if isinstance(call.function, FunctionPlace) else call.function
        recorder = ReadRecorder(call.stage, is_traced=True)
        digests = FileDigests()
        arguments = {name: _guard(value, name, recorder, digests, call) for name, value in call.arguments.items()}
        self._now = self._forms.now(has_fills=False)
        before, known = self._snapshots(call), self._modules().keys()
        with unseen():
            states = {each: library_state.describe(each, self._now) for each in call.targets}
            generators = Generators(self._plugins, call.generators)
        packages = self._packages().keys()
        self._imports.begin_run()
        self._unsent.clear()
        with self._streams(call.streams):
            started = time.perf_counter()
            try:
                with recording(recorder):
                    value = _call_function(function, arguments)
                    used_libraries = self._imports.used_libraries()  # before what cachec itself uses
                    node = self._encode(value)
                if self._unsent:  # though it went on
                    return WorkerFailure(self._unsent[0])
            except (UnstorableResult, Uncacheable) as error:
                return WorkerFailure(str(error))
            except BaseException as error:  # noqa: BLE001 - the stage's own: the caller's process raises it again
                return WorkerFailure(self._unsent[0] if self._unsent else words_of(error), raised=True)
            seconds = time.perf_counter() - started
        drawn, final = generators.outcome()
        scratch = recorder.scratch()
        recorder.drop_scratch()
        refusal = recorder.storage_refusal()
        return StageDone(
            node=msgspec.json.encode(node),
            seconds=seconds,
            reads=(*(read for read in recorder.reads() if not is_below(read.where, scratch)), *self._reads()),
            names=frozenset(self._imports.names()),
            main_names=self._main_names(),
            evaluates=self._imports.evaluates(),
            temporary=tuple(self._variables.temporary),
            has_project_paths=self._has_project_paths(),
            new_packages=tuple(self._packages().keys() - packages),
            drawn=drawn,
            generators=final,
            has_forked=self._imports.has_forked,
            packages=tuple(self._packages().values()),
            files=tuple(sorted(self._opened_files())),
            unsized=self._unsized_files(),
            imported={name: names for name, names in self._table().items() if name not in known},
            libraries=self._libraries(),
            library_states=states,
            used_libraries=used_libraries,
            documentation=self._documentation(),
            memos=lru_caches.recorded_contents(self._modules(), self._imports.names(), self._forms.now),
            changed=self._describe_changes(call, before, known),
            storage_refusal=None if refusal is None else (refusal[0].value, refusal[1]),
        )

    def _main_names(self) -> frozenset[str]:
        """The names that may be of globals of ``__main__``: what code of other modules names is elsewhere."""
        main = sys.modules["__main__"]
        file, names = getattr(main, "__file__", None), self._imports.names()
        if file is None or "__main__" in names:
            return frozenset(names)
        return frozenset(self._imports.main_names(file, module_globals.names_of(main)))

    def _reads(self) -> Iterator[Read]:
        with unseen():
            yield from self._imports.reads(self._store.digests.memory)
        yield from self._variables.reads()

    def _opened_files(self) -> set[str]:
        """The files of the project that count by their content, although no traced call opened them."""
        found = {path for path in self._variables.opened if not self._installed.holds(path)}
        # Of generated code the docstrings and annotations of what modules define are enough (``_documentation``).
        if not module_globals.READS_DOCUMENTATION.isdisjoint(self._imports.written_names()):
            found.update(each.path for each in self._imports.imported_files())
        return found

    def _unsized_files(self) -> tuple[str, ...]:
        """The files of the project's modules, where their code can't have asked for the size of one."""
        used = self._imports.imported_files()
        is_asked = any(_SIZES.search(each.text) for each in used) or _SIZES.search(
            " ".join(self._imports.names()).encode()
        )
        return () if is_asked or self._imports.has_forked else tuple({each.path for each in used})

    def _libraries(self) -> dict[str, dict[str, str]]:
        names, is_own = self._imports.names(), self._now.is_own_module
        return library_patches.table(library_patches.named_modules(self._modules(), names, is_own), names, is_own)

    def _documentation(self) -> dict[str, str]:
        """The docstrings and annotations of each module, where code reads any."""
        if module_globals.READS_DOCUMENTATION.isdisjoint(self._imports.names()):
            return {}
        return {name: module_globals.documentation_digest(module) for name, module in self._modules().items()}

    def _has_project_paths(self) -> bool:
        """Whether the code that ran may have taken a path of the project from a global."""
        names = self._imports.names()
        if any(self._variables.asked_for_folder.values()) or "__file__" in names or "__path__" in names:
            return True
        whole = self._forms.now()
        with unseen():
            for module in self._modules().values():
                from_project = self._forms.now(module)
                for name in names & set(module_globals.names_of(module)):
                    if whole.digest(vars(module)[name]) != from_project.digest(vars(module)[name]):
                        return True
        return False

    def _carry(self, call: StageRequest) -> str:
        """Give the globals that differ the values that the caller's have. Returns why not, empty where that is done."""
        for module, names in call.carried.items():
            module_object = sys.modules[module]
            for name, carried in names.items():
                try:
                    assign(module_object, name, carried.sent, self._forms.now(module_object))
                except Exception as error:  # noqa: BLE001 - setters of the project's, whatever they raise
                    return f"{name} of {module} can't be given to a worker: {words_of(error)}"
        table = self._table()
        different = [  # which did not arrive as they were
            (module, name)
            for module, names in call.carried.items()
            for name, carried in names.items()
            if table.get(module, {}).get(name, "") != carried.digest
        ]
        for module, name in different:
            kind = type(vars(sys.modules[module]).get(name)).__qualname__
            others = ", ".join(other for _, other in different if other != name)
            so = f"; so have {others}" if others else ""
            self._leave_out(module, name, f"has another value once it was sent (a {kind}{so})")
        return ""

    def _leave_out(self, module: str, name: str, why: str) -> None:
        """Leave a worker without a global: code that needs it fails, and runs in the caller's process."""
        vars(sys.modules[module])[name] = stand_in(f"it needs {name} of {module}, which {why}", self._unsent)
        self._omitted.add((module, name))

    def _leave_out_formless(self, call: StageRequest, words: str) -> None:
        """Leave a worker without the globals of which can't be told whether they arrived as they were."""
        for module, names in call.carried.items():
            for name, carried in names.items():
                if not carried.digest and name in vars(sys.modules[module]):
                    self._leave_out(module, name, f"may hold another value: {words}")

    def _encode(self, value: Any) -> Any:
        return encode(value, self._store.sink(), self._plugin_for)

    def _plugin_for(self, cls: type) -> Plugin | None:
        return self._plugins.for_type(cls)

    def _snapshots(self, call: StageRequest) -> dict[str, Snapshot]:
        """What the run is given, by what messages call it."""
        with unseen():
            found = {f"its argument {name}": snapshot(value, self._now) for name, value in call.arguments.items()}
            for module, live in self._modules().items():
                for name in module_globals.names_of(live):
                    if (module, name) not in self._omitted:
                        found[f"{name} of {module}"] = snapshot(vars(live)[name], self._now)
            return found

    def _describe_changes(self, call: StageRequest, before: Mapping[str, Snapshot], known: Collection[str]) -> str:
        """What the run has changed of the caller's, in words; empty for nothing. known: the modules before it."""
        self._now = self._forms.now(has_fills=False)
        after = self._snapshots(call)
        for name, was in before.items():
            if name not in after:
                return f"it deleted {name}"
            path, of, module = name.partition(" of ")
            if changed := change(was, after[name], path):
                return f"it changed {changed}{of}{module}"
        added = after.keys() - before.keys()
        for module in known:
            for name, value in vars(sys.modules[module]).items():
                if f"{name} of {module}" in added and not isinstance(value, ModuleType):  # a submodule was imported
                    return f"it set {name} of {module}"
        variables = self._variables.changed_names()
        if variables:
            return f"it set the variable {min(variables)}"
        return ""

    @contextlib.contextmanager
    def _streams(self, replaced: tuple[bool, bool]) -> Iterator[None]:
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin = _Input(self._unsent)
        for number, (name, is_replaced) in enumerate(zip(("stdout", "stderr"), replaced, strict=True)):
            if is_replaced:
                setattr(sys, name, _ForwardedStream(self._channel, number))
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdin, sys.stdout, sys.stderr = before


class _Input(io.TextIOBase):
    """The caller's standard input, which a worker can't read. used: see ``base.unsendable``."""

    def __init__(self, used: list[str]) -> None:
        self._used = used

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        words = "it reads standard input, which can't be given to a worker"
        self._used.append(words)
        raise ForbiddenUseError(words)

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return self.read(size)


class _ForwardedStream(io.TextIOBase):
    """A stream whose text goes to the caller."""

    def __init__(self, channel: MessageChannel, number: int) -> None:
        self._channel = channel
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._channel.send(OutputText(self._number, text))
        return len(text)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """What modules print when they are imported, the caller has printed already."""
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        yield


def _guard(value: Any, path: str, recorder: ReadRecorder, digests: FileDigests, call: StageRequest) -> Any:
    def guard(weights: WeightSet, where: str) -> WeightSet:
        return weights.guard(where, recorder, digests, per_rank=call.per_rank)

    return bare(replace_weights(value, path, guard))


def _call_function(function: Any, arguments: Mapping[str, Any]) -> Any:
    result = Binding(function).call(function, arguments)
    if not inspect.isawaitable(result):
        return result
    import asyncio  # slow to import, and of few stages

    return asyncio.run(_run_awaitable(result))


async def _run_awaitable(awaitable: Any) -> Any:
    return await awaitable
