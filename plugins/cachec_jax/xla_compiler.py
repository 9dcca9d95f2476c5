"""JAX functions compiled by XLA to files that take their weights by name, and such files linked to weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial, wraps
from types import MappingProxyType
from typing import Any

from cachec.errors import LinkError, PluginError, UnsupportedVersion, UsageError
from cachec.programs.artifact import File
from cachec.programs.supported_versions import GONE, step_aside
from cachec.weights import WeightSet
from cachec_jax.aligned_copies import aligned_copy
from cachec_jax.unstored_program import UnstoredFunction, UnstoredProgram

#: The kind of the files made here.
KIND = "jax:xla"

_NONE: Mapping[str, Any] = MappingProxyType({})


def compile_xla(
    fn: Callable[..., Any], weights: WeightSet, *inputs: Any, options: Mapping[str, Any] = _NONE, **named_inputs: Any
) -> File:
    """Compile ``fn(weights, *inputs)`` for the devices of this process to a ``File`` of kind ``jax:xla``.

    fn: its first argument is the tree of the weights, or a dict name -> array if they have no tree. weights: only the
    specs are read. inputs: examples for ``jax.jit`` (``jax.ShapeDtypeStruct``, arrays, trees of them). options: of
    ``jax.jit`` (``donate_argnums``, ``static_argnames``, ``out_shardings``, ``compiler_options``), by the positions and
    names of ``fn``.

    ``cachec.link`` returns a function of the inputs. The file is in a temporary folder, which is removed with the
    returned object. If this package can't store programs of the installed JAX, it warns, and the program is only in
    this process.

    Raises WeightReadError if ``fn`` reads the bytes of a weight outside of its argument; UsageError if the weights are
    donated, and if XLA_FLAGS changed after XLA read them; ProcessBoundProgram if ``fn`` has Python callbacks;
    PluginError for other programs that can't be stored, and for a weight of 64 bits without ``jax_enable_x64``. An
    error that ``fn`` raises passes through.
    """
    import jax

    from cachec_jax import lowering

    lowered = jax.jit(_fresh_function(fn), **options).lower(lowering.abstract(weights), *inputs, **named_inputs)
    if any(leaf.donated for leaf in jax.tree.leaves(lowered.args_info[0][0])):
        raise UsageError("the weights can't be donated: they are mapped from a file, and used again by the next call")
    try:
        return _compile_to_file(lowered, weights)
    except (*GONE, UnsupportedVersion) as error:
        reason = f"cachec_jax.compile_xla can't store what JAX {jax.__version__} compiles: {error}"
        step_aside(f"{reason}; it is compiled in each process", strict=False)
        return UnstoredProgram(lowered.compile(), reason, kind=KIND, weights=weights)


def _compile_to_file(lowered: Any, weights: WeightSet) -> File:
    import jax

    from cachec_jax import lowering, program_codec
    from cachec_jax.cache_bypass import bypass_jax_cache
    from cachec_jax.callbacks import refuse_lowered
    from cachec_jax.xla_target import check_flags, record_target
    from cachec_mlir.compilers import file_in_new_folder

    check_flags()
    refuse_lowered(lowered)
    with bypass_jax_cache():
        data = program_codec.encode_program(lowered.compile(), jax.tree.leaves(lowering.weight_names_tree(weights)))
    record_target()
    output = file_in_new_folder("program.xla", kind=KIND, manifest=weights.manifest)
    output.path.write_bytes(data)
    return output


def _fresh_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` as a new function for JAX, because programs of ``fn`` may come from JAX's compilation cache."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__name__ = _name(fn)
    return call


def _name(fn: Callable[..., Any]) -> str:
    """Return JAX's name for a function."""
    return _name(fn.func) if isinstance(fn, partial) else getattr(fn, "__name__", "<unnamed function>")


def link(file: File, weights: WeightSet) -> XlaFunction | UnstoredFunction:
    """Link a file of ``compile_xla``. Raises LinkError for another release of JAX or another kind of device."""
    if isinstance(file, UnstoredProgram):
        return UnstoredFunction(file.compiled, weights)
    try:
        return XlaFunction(file.read_bytes(), weights)
    except PluginError as error:
        raise LinkError(f"{file!r} can't be loaded: {error}") from error


class XlaFunction:
    """A compiled function linked to weights. Call it with the inputs, by the function's own names.

    It imports JAX as late as possible. ``numpy`` needs no JAX if the program is for one CPU, and if its arguments and
    results are arrays in dicts, lists and tuples.
    """

    def __init__(self, content: bytes, weights: WeightSet) -> None:
        """Load the ``content`` of a file.

        Raises PluginError if it can't be loaded here, and LinkError for a weight of another type.
        """
        from cachec_jax import jaxlib_runner
        from cachec_jax.program_format import parse_program

        form, data = parse_program(content)
        if form.kind != "compiled" or form.names is None:
            raise PluginError("it takes no weights by name")
        self._content, self._names = content, form.names
        given = [weights[name] for name in form.names]
        # Files are mapped. Memory is copied, as it may change.
        self._arrays = [each.read() if each.extent() else aligned_copy(each.read()) for each in given]
        self._direct = None
        if "jax" not in sys.modules and jaxlib_runner.runs_without_jax(form, data):
            for name, aval, array in zip(form.names, form.arguments, self._arrays, strict=False):
                _check(name, aval.dtype, aval.shape, array)
            with suppress(PluginError):  # JAX must register a function, or reports the error below
                self._direct = jaxlib_runner.JaxlibProgram(form, data, self._arrays)
        if self._direct is None:
            _ = self._loaded  # so that an error is raised here

    @property
    def compiled(self) -> Any:
        """The ``jax.stages.Compiled``, which takes ``weights`` as its first argument."""
        return self._loaded[0]

    @property
    def weights(self) -> tuple[Any, ...]:
        """The weights as arrays of JAX, placed for the program."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Any, tuple[Any, ...]]:
        import jax

        compiled = _load_compiled(self._content)
        shapes, places = compiled.in_avals[0][0], compiled.input_shardings[0][0]
        arrays = jax.device_put(self._arrays, list(places))  # together: half the time
        for name, shape, array in zip(self._names, shapes, arrays, strict=True):
            _check(name, shape.dtype, shape.shape, array)
        return compiled, tuple(arrays)

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Run the function. Raises TypeError for inputs of another tree, shape or dtype."""
        return self.compiled(self.weights, *inputs, **named_inputs)

    def numpy(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Run the function with NumPy arrays as results, which are read-only. If possible, this does not import JAX.

        Raises TypeError for arrays of another dtype, which JAX converts in a call if ``jax_enable_x64`` allows it.
        """
        if self._direct is not None:
            return self._direct(inputs, named_inputs)
        import jax
        import numpy as np

        for each in jax.tree.leaves((inputs, named_inputs)):  # after a first call JAX takes them as they are
            if isinstance(each, np.ndarray) and (isinstance(each, np.ma.MaskedArray) or not each.dtype.isnative):
                found = f"a {type(each).__name__} of {each.dtype}"
                raise TypeError(f"expected an array of the program's dtype, found {found}")
        return jax.tree.map(np.asarray, self(*inputs, **named_inputs))


@lru_cache(maxsize=8)
def _load_compiled(content: bytes) -> Any:
    """Load a file once: loading a program takes longer than linking it to other weights."""
    from cachec_jax import program_codec, program_format

    return program_codec.decode_program(*program_format.parse_program(content))


def _check(name: str, dtype: Any, shape: Sequence[int], array: Any) -> None:
    if (array.shape, str(array.dtype)) != (tuple(shape), str(dtype)):
        raise LinkError(
            f"weight {name!r} expected {dtype}{list(shape)}, found {array.dtype}{list(array.shape)}: "
            "jax_enable_x64 is not what it was when the program was compiled"
        )


def compare(fresh: File, stored: File) -> str | None:
    """Return None if two files are the same program, by XLA's text of it."""
    from cachec_jax import program_codec, program_format
    from cachec_jax import program_values as stored_programs

    programs = [
        program_codec.decode_program(*program_format.parse_program(file.read_bytes())) for file in (fresh, stored)
    ]
    return stored_programs.compare(*programs)
