"""JAX functions to what XLA makes of them, with the weights as arguments by name; and such files bound to weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from cachec.errors import LinkError, PluginError, UsageError
from cachec.programs.artifact import File
from cachec.weights import WeightSet

#: The kind of the files made here.
KIND = "jax:xla"

_NONE: Mapping[str, Any] = MappingProxyType({})


def compile_xla(
    fn: Callable[..., Any], weights: WeightSet, *inputs: Any, options: Mapping[str, Any] = _NONE, **named_inputs: Any
) -> File:
    """Compile ``fn(weights, *inputs)`` for the devices of this process to a ``File`` of kind ``jax:xla``.

    fn: gets the tree of the weights as its first argument, a dict name -> array where they hang in none. weights: only
    its specs are looked at. inputs: whatever ``jax.jit`` takes as an example (``jax.ShapeDtypeStruct``, arrays, trees
    of them). options: of ``jax.jit`` (``donate_argnums``, ``static_argnames``, ``out_shardings``,
    ``compiler_options``), by the positions and names that ``fn`` has.

    ``cachec.link`` gives a function of the inputs. The file is in a temporary folder that goes when the returned object
    does. Raises WeightReadError where ``fn`` asks for the bytes of a weight outside of its argument; what ``fn`` itself
    raises passes through; UsageError where the weights are donated, and where XLA_FLAGS are not what XLA has read;
    PluginError where the program can't be stored (callbacks), and for a weight of 64 bits without ``jax_enable_x64``.
    """
    import jax

    from cachec_jax import executables, lowering
    from cachec_jax.targets import check_flags, record_target
    from cachec_mlir.compilers import file_in_new_folder

    check_flags()
    names = jax.tree.leaves(lowering.names(weights))
    lowered = jax.jit(fn, **options).lower(lowering.abstract(weights), *inputs, **named_inputs)
    if any(leaf.donated for leaf in jax.tree.leaves(lowered.args_info[0][0])):
        raise UsageError("the weights can't be donated: they are mapped from a file, and used again by the next call")
    data = executables.dumped(lowered.compile(), names)
    record_target()
    output = file_in_new_folder("program.xla", kind=KIND, manifest=weights.manifest)
    output.path.write_bytes(data)
    return output


def linked(file: File, weights: WeightSet) -> XlaFunction:
    """See ``compile_xla``. Raises LinkError where the file is for another release of JAX or another kind of device."""
    from cachec_jax import executables

    try:
        form, data = executables.described(file.read_bytes())
        if form.kind != "compiled" or form.names is None:
            raise PluginError("it takes no weights by name")
        return XlaFunction(executables.restored(form, data), weights, form.names)
    except PluginError as error:
        raise LinkError(f"{file!r} can't be loaded: {error}") from error


class XlaFunction:
    """A compiled function bound to weights: called with the inputs, by the names that the function has for them.

    compiled: the ``jax.stages.Compiled``, which takes ``weights`` as its first argument.
    """

    def __init__(self, compiled: Any, weights: WeightSet, names: tuple[str, ...]) -> None:
        import jax

        self.compiled = compiled
        shapes, places = compiled.in_avals[0][0], compiled.input_shardings[0][0]
        arrays = jax.device_put([weights[name].read() for name in names], list(places))  # together: half the time
        for name, shape, array in zip(names, shapes, arrays, strict=True):
            if (array.shape, array.dtype) != (shape.shape, shape.dtype):
                raise LinkError(
                    f"weight {name!r} expected {shape.dtype}{list(shape.shape)}, found {array.dtype}"
                    f"{list(array.shape)}: jax_enable_x64 is not what it was when the program was compiled"
                )
        self.weights = tuple(arrays)

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """What the function returns. Raises TypeError for inputs of another tree, shape or dtype."""
        return self.compiled(self.weights, *inputs, **named_inputs)


def compare(fresh: File, stored: File) -> str | None:
    """None where two files are the same program, by XLA's own text of it."""
    from cachec_jax import executables
    from cachec_jax import stored as stored_programs

    programs = [executables.restored(*executables.described(file.read_bytes())) for file in (fresh, stored)]
    return stored_programs.compare(*programs)
