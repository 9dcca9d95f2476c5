"""``aot``: a function compiled once for the shapes of its inputs. Other processes find it in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachec.errors import Uncacheable
from cachec.programs.artifact import File
from cachec.programs.supported_versions import step_aside
from cachec.weights import WeightSet

if TYPE_CHECKING:
    from cachec.cache import Cache

_NONE: Mapping[str, Any] = MappingProxyType({})


def aot(
    function: Callable[..., Any],
    /,
    *inputs: Any,
    cache: Cache | None = None,
    options: Mapping[str, Any] = _NONE,
    **named_inputs: Any,
) -> Callable[..., Any]:
    """``jax.jit(function, **options)``, compiled for inputs such as these: a hit neither traces nor compiles.

    inputs: examples for ``jax.jit`` (``jax.ShapeDtypeStruct``, arrays, trees of them). With a symbolic shape
    (``jax.export.symbolic_shape``), the program is stored as ``jax.export`` writes it: a hit does not trace, and XLA
    compiles for each shape of a call. cache: by default ``cachec.Cache()``.

    Values that ``function`` closes over count by their content. The returned function accepts inputs of these types
    only. For a function that can't be stored (it has Python callbacks), this warns and returns the result of
    ``jax.jit``.
    """
    import jax

    if cache is None:
        from cachec.cache import Cache

        cache = Cache()
    inputs, named_inputs = jax.tree.map(_spec, (inputs, named_inputs))
    build = _export if _is_symbolic((inputs, named_inputs)) else _compile
    try:
        made = cache.stage(tools=["jax", "jaxlib"])(build)(function, dict(options), inputs, named_inputs)
    except Uncacheable as error:
        step_aside(f"cachec_jax.aot: {error}; the function is what jax.jit gives", strict=False)
        run: Callable[..., Any] = jax.jit(function, **options)
        return run
    if isinstance(made, File):
        from cachec.programs.linker import link

        run = link(made, _no_weights())
    else:
        run = jax.jit(made.call)
    return run


def _compile(
    function: Callable[..., Any], options: dict[str, Any], inputs: tuple[Any, ...], named_inputs: dict[str, Any]
) -> File:
    from cachec_jax.xla_compiler import compile_xla

    def alone(_: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return compile_xla(alone, _no_weights(), *inputs, options=options, **named_inputs)


def _export(
    function: Callable[..., Any], options: dict[str, Any], inputs: tuple[Any, ...], named_inputs: dict[str, Any]
) -> Any:
    import jax.export

    return jax.export.export(jax.jit(function, **options))(*inputs, **named_inputs)


def _no_weights() -> WeightSet:
    return WeightSet.from_arrays({})


def _spec(value: Any) -> Any:
    """Return the type of an array, and any other value as it is."""
    import jax

    if isinstance(value, jax.ShapeDtypeStruct) or not hasattr(value, "shape"):
        return value
    sharding = value.sharding if getattr(value, "committed", False) else None
    weak_type = getattr(value, "weak_type", False)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding, weak_type=weak_type)


def _is_symbolic(tree: Any) -> bool:
    import jax

    shapes = (getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(tree))
    return any(not isinstance(dimension, int) for shape in shapes for dimension in shape)
