"""The stage object: what ``@cache.stage`` makes of a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from cachec.base.instances import attribute
from cachec.errors import UnsupportedFunction, UsageError
from cachec.key.argument_binding import Binding
from cachec.key.stage_options import StageOptions
from cachec.model import Mode, Outcome
from cachec.stage.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")

# inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR; inspect itself is slow to import
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


class Stage(Generic[P, R]):
    """A function whose results are cached. Called like the function; an ``async def`` stays one.

    ``__wrapped__`` is the function itself. On a method, ``self`` is an argument like any other.
    """

    __cachec_stage__ = True

    def __init__(
        self,
        engine: Engine,
        function: Callable[P, R],
        options: StageOptions,
        *,
        mode: Mode | None = None,
        lock_timeout: float | None = None,
    ) -> None:
        plain = plain_function(function)
        unknown = options.ignore - set(Binding(plain).parameters)
        if unknown:
            raise UsageError(f"ignore= names {sorted(unknown)}, which {plain.__qualname__} does not take")
        self.__wrapped__ = function
        functools.update_wrapper(self, function)
        self.options = options
        self.mode = mode
        self.lock_timeout = lock_timeout
        self.binding = Binding(plain)
        self.engine = engine
        if options.isolated:
            from cachec.key import random_generators  # noqa: F401 - a later state of ``random`` is compared with that of now
        self.is_asynchronous = bool(plain.__code__.co_flags & _COROUTINE)
        self._before: tuple[Any, ...] = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Stage[..., R]:
        if instance is None:
            return self
        bound = cast("Stage[..., R]", object.__new__(Stage))
        bound.__dict__.update(self.__dict__)
        bound._before = (instance,)
        return bound

    @property
    def bound_to(self) -> tuple[Any, ...]:
        """The object that a method was taken from, alone in a tuple; empty for a function."""
        return self._before

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result: from the cache where its key and what it read are unchanged."""
        if self.is_asynchronous:
            return cast("R", self._call_async(args, kwargs))
        result: R = self.engine.call(self, (*self._before, *args), kwargs).value
        return result

    async def _call_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (await self.engine.call_async(self, (*self._before, *args), kwargs)).value

    async def _both_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Outcome]:
        answer = await self.engine.call_async(self, (*self._before, *args), kwargs)
        return answer.value, answer.outcome

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Outcome]:
        """The result and how the call ended; for an ``async def`` stage an awaitable of both."""
        if self.is_asynchronous:
            return cast("tuple[R, Outcome]", self._both_async(args, kwargs))
        answer = self.engine.call(self, (*self._before, *args), kwargs)
        return answer.value, answer.outcome

    def check(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """What a call would end with here, without asking the remotes: its detail says so where there are any.

        Nothing is run, decoded, stored or counted; a call that can't be keyed ends with ``error:usage``. Raises
        TypeError for arguments that the function does not take."""
        return self.engine.check(self, (*self._before, *args), kwargs)

    def why(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """The same in words."""
        outcome = self.check(*args, **kwargs)
        return f"{outcome.reason.value}: {outcome.detail}" if outcome.detail else outcome.reason.value

    def key(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of a call: 64 hexadecimal characters."""
        digest: str = self._request(args, kwargs).digest
        return digest

    def invalidate(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget what is stored for a call; whether there was anything."""
        return self.engine.tools.store.invalidate(self._request(args, kwargs).digest)

    def uncached(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no key, no store, nothing counted."""
        return self.__wrapped__(*self._before, *args, **kwargs)

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self.binding.bind((*self._before, *args), kwargs)
        return self.engine.tools.key_builder.build(self, arguments)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name, as a function: so that a stage can be given to worker processes."""
        if self._before:
            return getattr, (self._before[0], self.__wrapped__.__name__)
        return self.__wrapped__.__qualname__

    def __repr__(self) -> str:
        return f"<cachec stage {self.options.name}>"


def plain_function(function: object) -> FunctionType:
    """The function itself, where it can be a stage. Raises UnsupportedFunction, naming it, for anything else."""
    if isinstance(function, staticmethod | classmethod):
        raise UnsupportedFunction(
            f"put @{type(function).__name__} above @cache.stage: a stage wraps the function, not the descriptor"
        )
    if not isinstance(function, FunctionType):
        raise UnsupportedFunction(
            f"a stage is a function that is defined with def, not {_describe_given(function)}; define a function that "
            "calls it, and make that function the stage"
        )
    if function.__code__.co_flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise UnsupportedFunction(
            f"{function.__qualname__} is a generator, whose results have no end to store; return a list or a tuple"
        )
    return function


def _describe_given(value: object) -> str:
    """What was given in place of a function, by its name or type."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, functools.partial | functools.partialmethod):
        return f"a {kind} of {_describe_given(value.func)}"
    name = attribute(value.__func__ if isinstance(value, MethodType) else value, "__qualname__")
    return f"{name} ({kind})" if isinstance(name, str) else f"an object of type {kind}"
