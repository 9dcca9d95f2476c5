"""The opened cache: puts the layers together, and makes stages."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from cachec import config
from cachec.base.tracer_hiding import unseen
from cachec.context import CacheContext
from cachec.errors import UnsupportedFunction, UsageError, WeightError
from cachec.model import Mode, Outcome, Reason

if TYPE_CHECKING:
    from cachec.base.distributions import Distributions
    from cachec.blob_cache import Foreign
    from cachec.key.code.run_reads import RunReads
    from cachec.stage.decorator import Stage
    from cachec.stage.engine import Engine
    from cachec.weights import WeightSet

P = ParamSpec("P")
R = TypeVar("R")

#: The default of ``stage``'s function: None is no function, and refused.
_NOT_GIVEN = object()


class Cache:
    """A cache in one folder, with its settings. Cheap to open: nothing is read or made before the first stage runs.

    Arguments are settings (see ``cachec config``) and win over the environment and the configuration file; one left at
    None is looked up there. Raises ConfigError for a malformed one.
    """

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,
        *,
        mode: Mode | str | None = None,
        namespace: str | None = None,
        max_size: int | str | None = None,
        lock_timeout: float | None = None,
        log: str | None = None,
        fsync: bool | None = None,
        record: str | None = None,
    ) -> None:
        given = {
            "dir": dir,
            "mode": mode,
            "namespace": namespace,
            "max_size": max_size,
            "lock_timeout": lock_timeout,
            "log": log,
            "fsync": fsync,
            "record": record,
        }
        self._open(config.load({key: value for key, value in given.items() if value is not None}))

    def _open(self, settings: config.Settings) -> None:
        self.settings = settings
        with unseen():  # where the store is, no result depends on
            self._opened = CacheContext(self.settings)
        self.events, self.store = self._opened.events, self._opened.store
        self._engines: list[Engine] = []
        # Digests that were learned are kept when the process ends: one that only hits writes nothing before.
        if self.has_store:
            weakref.finalize(self, self.store.close)

    @property
    def _engine(self) -> Engine:
        """What runs calls of stages: made for the first of them, and of two threads that make it one counts."""
        if not self._engines:
            with unseen():
                self._engines.append(_engine(self._opened))
        return self._engines[0]

    @property
    def dir(self) -> Path:
        """The folder of this cache. Raises NoStoreFolder where there is none."""
        return self.settings.dir

    @property
    def has_store(self) -> bool:
        """Whether there is a folder for the store. Without one, stages run uncached (``bypass:no-store-folder``)."""
        return self.settings.store_folder is not None

    def replaces(self, name: str) -> bool:
        """Return whether a plugin's ``install()`` puts this cache in the place of a library's own; ``name`` is listed.

        Without a store it does not: that is counted and told, and the library goes on with its own cache.
        """
        if not self.has_store:
            why = f"{self.settings.no_store}; {name} goes on with its own cache"
            self.events.emit(Outcome(reason=Reason.NO_STORE_FOLDER, stage=name, key="", detail=why))
        return self.has_store

    @overload
    def stage(self, function: Callable[P, R], /) -> Stage[P, R]: ...

    @overload
    def stage(
        self,
        /,
        *,
        name: str | None = None,
        version: str = "",
        ignore: Collection[str] = (),
        tools: Sequence[str | os.PathLike[str]] = (),
        env: Sequence[str] = (),
        depends: Sequence[object] = (),
        portable: bool = False,
        per_rank: bool = False,
        deterministic: bool = True,
        tags: Sequence[str] = (),
        mode: Mode | str | None = None,
        lock_timeout: float | None = None,
        isolated: bool | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
    ) -> Callable[[Callable[P, R]], Stage[P, R]]: ...

    def stage(
        self,
        function: Any = _NOT_GIVEN,
        /,
        *,
        name: str | None = None,
        version: str = "",
        ignore: Collection[str] = (),
        tools: Sequence[str | os.PathLike[str]] = (),
        env: Sequence[str] = (),
        depends: Sequence[object] = (),
        portable: bool = False,
        per_rank: bool = False,
        deterministic: bool = True,
        tags: Sequence[str] = (),
        mode: Mode | str | None = None,
        lock_timeout: float | None = None,
        isolated: bool | None = None,
        timeout: float | None = None,
        memory: int | str | None = None,
    ) -> Any:
        """Make a function a stage: ``@cache.stage`` or ``@cache.stage(tools=["jaxlib"])``.

        name: of the stage in keys and reports, by default ``module.qualname``. version: bump it to forget all results.
        ignore: parameters that leave the key. tools: distributions by name, executables by path. env: variables of the
        environment that the stage reads. depends: files and folders by path, and functions, classes and modules, that
        count beside what the code names; they stand for no other value. portable: leave the processor out of the key.
        per_rank: put the rank of sharded weights in it. deterministic: False where two runs may differ in bytes (mode
        ``verify`` then compares numerically). tags: for selecting entries later. mode, lock_timeout: as the settings,
        for this stage alone. isolated: run misses in a process of their own; by default as the setting. timeout:
        seconds that such a run may take. memory: bytes, or "8GB", that its process may take, with what it starts.

        Raises UnsupportedFunction for what is no function that was defined with def (a ``functools.partial``, a bound
        method, a class, a descriptor, ...) and for a generator, UsageError for an unknown name in ``ignore``.
        """

        from cachec.key.stage_options import StageOptions  # all of stages is slow to import: 80 ms
        from cachec.stage.decorator import Stage, plain_function

        def decorate(wrapped: Callable[..., Any]) -> Stage[..., Any]:
            plain_function(wrapped)
            for option, value in (
                ("ignore", ignore),
                ("tools", tools),
                ("env", env),
                ("depends", depends),
                ("tags", tags),
            ):
                if isinstance(value, str):
                    raise UsageError(f"{option}={value!r} is a str; give a list: {option}=[{value!r}]")
            _check_depends(depends)
            if name is not None:
                _check_name(name)
            elif not isinstance(wrapped.__module__, str):
                raise UnsupportedFunction(
                    f"{wrapped.__qualname__} says no module, as its globals have no __name__, so its "
                    "stage has no name; give one by name='...', or exec it with {'__name__': ...}"
                )
            own = Mode(mode) if isinstance(mode, str) else mode
            isolates = self._isolates(own) if isolated is None else isolated
            if not isolates and (timeout is not None or memory is not None):
                raise UsageError("timeout= and memory= are of stages that run in a process; give isolated=True, too")
            options = StageOptions(
                name=name or f"{wrapped.__module__}.{wrapped.__qualname__}",
                version=version,
                ignore=frozenset(ignore),
                tools=tuple(tools),
                env=tuple(env),
                depends=tuple(depends),
                portable=portable,
                per_rank=per_rank,
                deterministic=deterministic,
                tags=tuple(tags),
                isolated=isolates,
                timeout=_timeout(timeout),
                memory=_memory(memory),
            )
            return Stage(self._engine, wrapped, options, mode=own, lock_timeout=lock_timeout)

        return decorate if function is _NOT_GIVEN else decorate(function)

    def _isolates(self, mode: Mode | None) -> bool:
        """Whether stages are isolated that do not say so. mode: of the stage itself."""
        return self.settings.isolated or (mode or self.settings.mode) is Mode.BOTH

    def foreign(
        self,
        name: str,
        *,
        version: str = "1",
        tags: Sequence[str] = (),
        same: Callable[[bytes, bytes], bool] = operator.eq,
        selective: bool = False,
        shared: Literal["off", "signed", "all"] = "off",
    ) -> Foreign:
        """A cache of bytes whose keys are made elsewhere: ``get(key)`` and ``put(key, data)``, kept in this store.

        name: in reports, and in the key. version: bump it to forget what was stored. tags: for selecting entries later.
        same: whether two values of one key stand for one result, asked in mode ``verify``; by default equal bytes do.
        selective: not all that is asked for is put; a key without an entry then counts, and fails mode ``require``,
        only once something is put under it. shared: remotes that are asked for what is not here, and get what is put:
        those that believe only what is signed, for what runs code when it is read, or all of them. A key then counts
        for machines of this kind alone (processor features, system, Python).

        Raises UsageError for a name that no stage could have, and for a str as ``tags``.
        """
        from cachec.blob_cache import Foreign  # what only calls stages does without

        _check_name(name)
        if isinstance(tags, str):
            raise UsageError(f"tags={tags!r} is a str; give a list: tags=[{tags!r}]")
        return Foreign(
            self._opened, name, version=version, tags=tuple(tags), same=same, selective=selective, shared=shared
        )

    def weights(self, name: str) -> WeightSet:
        """The weights that the store has by that name, or by the first digits of a revision; else those that the first
        remote with that name has.

        Of a remote's, names, shapes and types are known at once. The bytes of a weight are fetched when they are first
        read, checked, and kept as ``gc`` keeps what nothing needs; ``cachec weights pull`` keeps them for good.

        Raises WeightError where nobody knows the name, or a remote fails (also at the first read of a weight),
        NoStoreFolder where there is no store, and UsageError within a stage, which is given weights as an argument.
        """
        from cachec.recording import current
        from cachec.weights.library.stored_weights import WeightStore

        recorder = current()
        if recorder is not None:
            raise UsageError(
                f"Cache.weights({name!r}) in stage {recorder.stage!r}: what the name stands for may change, and would "
                "be in no key; open the weights outside, and give them to the stage as an argument"
            )
        _ = self.settings.dir
        local, remotes = WeightStore(self.store), self._opened.remotes
        if remotes is None or local.find(name) is not None:
            return local.open(name)
        from cachec.remote.streaming import stream_weights

        found = stream_weights(remotes, name)
        if found is None:
            asked = ", ".join(remote.address.shown for remote in remotes.all if remote.address.is_read)
            raise WeightError(f"no weights are named {name!r}, neither here nor at {asked or 'a remote that is read'}")
        return found

    def call(self, stage: Stage[P, R], /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Outcome]:
        """Call a stage; returns its result and the outcome of the call."""
        return stage.call(*args, **kwargs)

    def map(self, stage: Callable[..., R], inputs: Iterable[Any], /, *, jobs: int | None = None) -> list[R]:
        """Call a stage with each of the inputs, its one argument; returns the results in that order.

        Hits are answered at once. Misses of an isolated stage run at the same time, up to ``jobs`` of them, by default
        one for each usable processor; equal inputs run once. Misses of another stage, and what can't be isolated, run
        one after another. stage: the stage, or a ``functools.partial`` of it that gives the other arguments.

        Where inputs raise, what the first of them raises is raised: once the runs that had begun have ended, and no
        other has begun. Ctrl-C ends them at once. Raises UsageError for an ``async def`` stage, and for no stage.
        """
        from cachec.stage.parallel_map import map_stage  # by whoever calls it

        return map_stage(stage, inputs, jobs)

    def close(self) -> None:
        """Close files and database connections. The cache opens them again when it is used again."""
        self.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """By its settings: a copy in another process opens the same store."""
        return _reopen, (self.settings,)

    def __repr__(self) -> str:
        return f"Cache({str(self.settings.store_folder)!r}, mode={self.settings.mode.value!r})"


def _reopen(settings: config.Settings) -> Cache:
    cache = Cache.__new__(Cache)
    cache._open(settings)
    return cache


def _check_depends(depends: Sequence[object]) -> None:
    """Raise UsageError for an item that would count by its own value where the user meant a file or code."""
    for number, item in enumerate(depends):
        if isinstance(item, bytes | bytearray | list | tuple | set | frozenset):
            raise UsageError(
                f"depends[{number}] is a {type(item).__name__}; give a path (str or Path), a function, a class or a "
                "module, each as an item of its own"
            )


def _timeout(given: float | None) -> float | None:
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and given > 0):
        return given
    raise UsageError(f"timeout={given!r} is not accepted; give a number of seconds above 0")


def _memory(given: int | str | None) -> int | None:
    """The limit in bytes. Raises UsageError for what is no size."""
    try:
        size = config.parse_size(given) if isinstance(given, str) else given
    except ValueError:
        size = 0
    if size is not None and size <= 0:
        raise UsageError(f"memory={given!r} is not accepted; give a number of bytes, or a size such as '8GB'")
    return size


def _check_name(name: str) -> None:
    if not (name.isprintable() and 0 < len(name) <= 255 and name == name.strip()):
        raise UsageError(f"name={name[:80]!r} is not accepted; give 1 to 255 printable characters")


def _engine(opened: CacheContext) -> Engine:
    from cachec.base.distributions import Distributions
    from cachec.key.arguments import GlobalKeys
    from cachec.key.code.fingerprint import CodeKeys
    from cachec.key.key_builder import KeyBuilder
    from cachec.key.tools.toolchain import ToolKeys
    from cachec.key.trace_validation import Dependencies
    from cachec.programs.registry import Plugins
    from cachec.stage.trace_builder import TraceBuilder

    settings, digests = opened.settings, opened.store.digests
    distributions = Distributions()
    plugins = Plugins(distributions, settings.store_folder)
    tools = ToolKeys(digests, distributions)
    recorded = settings.record == "auto"
    encode = GlobalKeys(digests, plugins).encode
    code = CodeKeys(_owner(distributions), encode, recorded=recorded, memory=digests.memory)
    requests = KeyBuilder(digests, code, tools, distributions, plugins, settings.key_parts)
    base_dir = None if settings.base_dir is None else os.fspath(settings.base_dir)

    def finish_reads() -> RunReads:
        from cachec.key.code.run_reads import RunReads  # on a miss, or for a read that few traces have

        return RunReads(code, tools.metadata, (os.fspath(opened.store.folder),), plugins.packages)

    return opened.engine(
        requests,
        plugins,
        Dependencies(tools, digests),
        lambda weights, name: weights[name].digest(digests),
        TraceBuilder(finish_reads, requests, base_dir=base_dir, on=recorded),
    )


def _owner(distributions: Distributions) -> Callable[[str], str | None]:
    def owner(path: str) -> str | None:
        distribution = distributions.owner(path)
        return None if distribution is None else distribution.name

    return owner
