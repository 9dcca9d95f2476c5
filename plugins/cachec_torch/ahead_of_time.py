"""``aot``: a module or function compiled by AOTInductor, and found in the store by other processes. Imports torch.

A hit imports neither Dynamo nor Inductor: it makes a key, loads the library and binds the weights of the live module.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from cachec.errors import CachecError, CacheMissError, PluginError, UsageError, clip
from cachec.programs.artifact import File
from cachec.programs.supported_versions import step_aside
from cachec.weights import WeightSet
from cachec_torch.live_library import LiveLibrary
from cachec_torch.module_state import ModuleState, has_global_hooks
from cachec_torch.seams import GlobalState, is_transformed
from cachec_torch.tensors import from_torch

if TYPE_CHECKING:
    from cachec.cache import Cache

#: For so many kinds of inputs a function is compiled, where no example says which.
MAX_PROGRAMS = 8

_NONE: Mapping[str, Any] = MappingProxyType({})


class _Source(NamedTuple):
    """What is compiled. module: None for a function alone. name: of the method."""

    function: Callable[..., Any]
    module: torch.nn.Module | None
    name: str = "forward"

    @property
    def alone(self) -> Callable[..., Any] | None:
        """The function, where no module stands for it."""
        return self.function if self.module is None else None

    @property
    def code(self) -> tuple[Any, ...]:
        """The classes of the module and its parts, and the function without a module."""
        return tuple(dict.fromkeys(map(type, self.module.modules() if self.module is not None else ()))), self.alone


def aot(
    function: Any = None,
    example_inputs: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    example_kwargs: Mapping[str, Any] = _NONE,
    options: Mapping[str, Any] = _NONE,
    cache: Cache | None = None,
) -> Any:
    """``torch.compile`` ahead of time: a module, a method of one, or a function, for inference on the CPU.

    A hit in a new process traces nothing. Weights are those of the live module, wherever they lie at each call. What
    else the module holds, its code with the globals that it names, what a function closes over, and torch's switches
    are compared at each call with what they were.

    example_inputs, example_kwargs: by their types, shapes and dtypes; other values count. Without them, the function is
    compiled at the first call, and for up to ``MAX_PROGRAMS`` kinds of inputs. dynamic_shapes: as
    ``torch.export.export`` takes them; ``("batch", 2, 64)`` stands for a ``Dim``, which imports sympy. options:
    Inductor's. cache: by default ``cachec.Cache()``.

    Without a function it returns a decorator. What can't be exported, and a call with other inputs, in another state,
    or with gradients, is what ``torch.compile`` makes of it: one warning says why.
    """
    if function is None:
        return functools.partial(
            aot,
            example_inputs=example_inputs,
            dynamic_shapes=dynamic_shapes,
            example_kwargs=example_kwargs,
            options=options,
            cache=cache,
        )
    if cache is None:
        from cachec.cache import Cache

        cache = Cache()
    made = AotFunction(function, cache, dynamic_shapes, options, is_by_example=example_inputs is not None)
    if example_inputs is not None:
        made.compile(tuple(example_inputs), dict(example_kwargs))
    return made


class AotFunction:
    """What ``aot`` returns. ``__wrapped__`` is the module or function itself."""

    def __init__(
        self, function: Any, cache: Cache, shapes: Any, options: Mapping[str, Any], *, is_by_example: bool
    ) -> None:
        if isinstance(function, AotFunction):
            function = function.__wrapped__
        if not callable(function):
            raise UsageError(f"aot expected a module or a function, found {type(function).__name__}")
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__: Any = function
        self._source = _source(function)
        self.stage = cache.stage(name="torch.aot", tools=["torch"], ignore=["source"], isolated=False)(_build)
        self._code = cache.stage(name="torch.aot.code", isolated=False)(_stand_for_code)
        self._code_key = ""
        self._shapes, self._options = shapes, dict(options)
        self._is_by_example = is_by_example
        self._libraries: list[LiveLibrary] = []
        self._state: ModuleState | None = None
        self._global_state: GlobalState | None = None
        self._obstacle = ""  # why the last try compiled nothing
        self._fallback: Callable[..., Any] | None = None
        #: What makes the function that runs all other calls.
        self.compiler: Callable[[Any], Callable[..., Any]] = torch.compile

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results as ``torch.compile`` gives them. Raises what the function raises."""
        if torch.compiler.is_compiling():
            return self.__wrapped__(*args, **kwargs)
        reason = self._obstacle_now()
        if not reason:
            for library in self._libraries:
                try:
                    inputs = library.inputs(args, kwargs)
                except UsageError as error:
                    reason = str(error)
                else:
                    return library.run(inputs)
            if not self._is_by_example and not self._obstacle and len(self._libraries) < MAX_PROGRAMS:
                self.compile(args, kwargs)
                if not self._obstacle:
                    library = self._libraries[-1]
                    return library.run(library.inputs(args, kwargs))
            reason = self._obstacle or reason
        return self._by_torch_compile(reason)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The method itself, for a copy of a module that has this in its place."""
        return copy.deepcopy(self.__wrapped__, memo)

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile for inputs such as these, or find out why that can't be done."""
        try:
            self._libraries.append(self._library(args, kwargs))
        except CacheMissError:
            raise
        except Exception as error:  # noqa: BLE001 - torch raises anything; torch.compile raises it again
            self._obstacle = f"{type(error).__name__}: {error}"

    def _library(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LiveLibrary:
        obstacle = _obstacle_around()
        if obstacle:
            raise PluginError(obstacle)
        with torch.inference_mode(False), torch.no_grad():
            state = self._state or ModuleState(self._source.module, self._source.alone)
            made = self.stage(*self.arguments(state, args, kwargs))
            if isinstance(made, str):
                raise PluginError(made)
            library = LiveLibrary(made, state.weights)
            self._code_key = self._code_key or self._code.key(*self._source.code)
            self._state, self._global_state = state, self._global_state or GlobalState()
        return library

    def arguments(self, state: ModuleState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What the stage takes: all but the last counts."""
        inputs, tree = _described_inputs(args, kwargs)
        return (
            state.structure,
            self._source.alone,
            self._source.name,
            WeightSet.from_arrays(state.weights, tied=state.ties),
            inputs,
            tree,
            _described_shapes(self._shapes),
            self._options,
            torch.get_num_threads(),
            (self._source, self._shapes),
        )

    def _obstacle_now(self) -> str:
        """Why no compiled program is right for a call with any inputs, in words; empty where one may be."""
        module, state = self._source.module, self._state
        if torch.is_grad_enabled() and module is not None and any(each.requires_grad for each in module.parameters()):
            return "parameters of the module take part in gradients; call it under torch.no_grad()"
        obstacle = _obstacle_around()
        if obstacle or state is None or self._global_state is None:
            return obstacle
        changed = self._global_state.change() or state.change() or self._code_change()
        if changed:
            return changed
        is_moved, misfit = state.refresh()
        if is_moved:
            for library in self._libraries:
                library.bind(state.weights)
        return misfit

    def _code_change(self) -> str:
        """In words, that code, a global that it names or a setting of torch is not as it was; empty where all is."""
        try:
            with torch.inference_mode(False), torch.no_grad():  # as when it was compiled
                if self._code.key(*self._source.code) == self._code_key:
                    return ""
        except CachecError as error:
            return f"its code has no key any more: {error}"
        return "the code of the module or function changed, a global that it names, or a setting of torch"

    def _by_torch_compile(self, reason: str) -> Callable[..., Any]:
        if self._fallback is None:
            step_aside(f"cachec_torch.aot: {clip(reason, 400)}; torch.compile runs such calls", strict=False)
            self._fallback = self.compiler(self.__wrapped__)
        return self._fallback


def _source(function: Any) -> _Source:
    if isinstance(function, torch.nn.Module):
        return _Source(function, function)
    if type(function) is MethodType and isinstance(function.__self__, torch.nn.Module):
        return _Source(function, function.__self__, function.__name__)
    return _Source(function, None)


def _obstacle_around() -> str:
    if is_transformed():
        return "a mode or a transform of torch is on (autocast, torch.device, torch.func)"
    return "a hook runs with every module" if has_global_hooks() else ""


def _described_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], str]:
    """The leaves of inputs, as they count in a key, and their tree. Raises UsageError for what can't be exported."""
    leaves, spec = pytree.tree_flatten((args, dict(sorted(kwargs.items()))))
    return [_described_leaf(leaf, number) for number, leaf in enumerate(leaves)], pytree.treespec_dumps(spec)


def _described_leaf(leaf: Any, number: int) -> Any:
    if not isinstance(leaf, torch.Tensor):
        if type(leaf) in {type(None), bool, int, float, str}:
            return leaf
        raise UsageError(f"input {number} is a {type(leaf).__qualname__}; programs take tensors and plain values")
    block = from_torch(leaf, (), number)
    if leaf.requires_grad and torch.is_grad_enabled():
        raise UsageError(f"input {number} takes part in gradients; detach it, or call under torch.no_grad()")
    order = sorted(range(leaf.dim()), key=lambda axis: -leaf.stride(axis))
    return block.dtype, block.shape, tuple(order)


def _example_of(leaf: Any) -> Any:
    if not isinstance(leaf, tuple):
        return leaf
    dtype, shape, order = leaf
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.zeros([shape[axis] for axis in order], dtype=getattr(torch, dtype)).permute(back)


def _described_shapes(shapes: Any) -> Any:
    """Dynamic shapes as they count in a key. Raises UsageError for those of a kind that is not known."""
    if shapes is None or type(shapes) is int:
        return shapes
    if _is_plain_dimension(shapes):
        return "dimension", *shapes
    if isinstance(shapes, Mapping):
        return {key: _described_shapes(each) for key, each in shapes.items()}
    if isinstance(shapes, list | tuple):
        return [_described_shapes(each) for each in shapes]
    kind = type(shapes).__qualname__
    if kind == "_DimHint":
        return kind, repr(shapes)
    if not hasattr(shapes, "__name__"):
        raise UsageError(f"dynamic_shapes has a {kind}; give dictionaries, lists and tuples of torch.export.Dim")
    root = getattr(shapes, "root", None)
    own = (str(shapes.min), str(shapes.max)) if root is None else _described_shapes(root)
    return kind, shapes.__name__, own


def _is_plain_dimension(shapes: Any) -> bool:
    return isinstance(shapes, tuple) and list(map(type, shapes)) == [str, int, int]


def _torch_shapes(shapes: Any, dimensions: dict[tuple[str, int, int], Any]) -> Any:
    """Dynamic shapes as torch takes them. dimensions: made before, by name and range."""
    if _is_plain_dimension(shapes):
        name, least, most = shapes
        return dimensions.setdefault(shapes, torch.export.Dim(name, min=least, max=most))
    if isinstance(shapes, Mapping):
        return {key: _torch_shapes(each, dimensions) for key, each in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_torch_shapes(each, dimensions) for each in shapes)
    return shapes


def _stand_for_code(classes: tuple[type, ...], function: Callable[..., Any] | None) -> None:
    """Is not called: the key of this stage says what code is, with all that it names."""


def _build(
    structure: Any,
    function: Any,
    method: str,
    weights: WeightSet,
    inputs: list[Any],
    tree: str,
    shapes: Any,
    options: dict[str, Any],
    threads: int,
    source: tuple[_Source, Any],
) -> File | str:
    """The library; why there can be none, which is kept too.

    source: the live module or function, which the other arguments stand for in the key, and the dynamic shapes.
    """
    del structure, shapes, threads  # they count
    from cachec_torch.aoti import compiled
    from cachec_torch.exporting import exported

    module = source[0].module
    args, kwargs = pytree.tree_unflatten(list(map(_example_of, inputs)), pytree.treespec_loads(tree))
    try:
        program = exported(
            _module_of(function) if module is None else module,
            weights,
            args,
            kwargs,
            _torch_shapes(source[1], {}),
            training=None,
            strict=False,
            method=method,
        )
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what a module raises under torch's export; the caller says it
        return f"it can't be exported: {type(error).__name__}: {error}"
    try:
        return compiled(program, options)
    except PluginError as error:
        return str(error)


def _module_of(function: Callable[..., Any]) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        module = torch.nn.Module()
        module.forward = function
        return module

    return make
