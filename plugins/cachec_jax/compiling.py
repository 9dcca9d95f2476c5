"""JAX functions to what XLA makes of them, with the weights as arguments by name; and such files bound to weights."""

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
from cachec_jax.copies import own_copy
from cachec_jax.unstored import UnstoredFunction, UnstoredProgram

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
    ProcessBoundProgram where ``fn`` calls Python back; PluginError where the program can't be stored otherwise, and for
    a weight of 64 bits without ``jax_enable_x64``. Where this package can't store what the installed JAX compiles, it
    warns, and the program is in this process alone.
    """
    import jax

    from cachec_jax import lowering

    lowered = jax.jit(_anew(fn), **options).lower(lowering.abstract(weights), *inputs, **named_inputs)
    if any(leaf.donated for leaf in jax.tree.leaves(lowered.args_info[0][0])):
        raise UsageError("the weights can't be donated: they are mapped from a file, and used again by the next call")
    try:
        return _stored(lowered, weights)
    except (*GONE, UnsupportedVersion) as error:
        reason = f"cachec_jax.compile_xla can't store what JAX {jax.__version__} compiles: {error}"
        step_aside(f"{reason}; it is compiled in each process", strict=False)
        return UnstoredProgram(lowered.compile(), reason, kind=KIND, weights=weights)


def _stored(lowered: Any, weights: WeightSet) -> File:
    import jax

    from cachec_jax import executables, lowering
    from cachec_jax.afresh import afresh
    from cachec_jax.bound import refuse_lowered
    from cachec_jax.targets import check_flags, record_target
    from cachec_mlir.compilers import file_in_new_folder

    check_flags()
    refuse_lowered(lowered)
    with afresh():
        data = executables.dumped(lowered.compile(), jax.tree.leaves(lowering.names(weights)))
    record_target()
    output = file_in_new_folder("program.xla", kind=KIND, manifest=weights.manifest)
    output.path.write_bytes(data)
    return output


def _anew(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` as one that JAX has not met: what it has compiled of ``fn`` may come from its compilation cache."""

    @wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    called.__name__ = _name(fn)
    return called


def _name(fn: Callable[..., Any]) -> str:
    """What JAX calls a function."""
    return _name(fn.func) if isinstance(fn, partial) else getattr(fn, "__name__", "<unnamed function>")


def linked(file: File, weights: WeightSet) -> XlaFunction | UnstoredFunction:
    """See ``compile_xla``. Raises LinkError where the file is for another release of JAX or another kind of device."""
    if isinstance(file, UnstoredProgram):
        return UnstoredFunction(file.compiled, weights)
    try:
        return XlaFunction(file.read_bytes(), weights)
    except PluginError as error:
        raise LinkError(f"{file!r} can't be loaded: {error}") from error


class XlaFunction:
    """A compiled function bound to weights: called with the inputs, by the names that the function has for them.

    JAX is not imported before it has to be: ``numpy`` needs none where the program is for one CPU, and its arguments
    and results are arrays in dicts, lists and tuples.
    """

    def __init__(self, content: bytes, weights: WeightSet) -> None:
        """content: of the file. Raises PluginError where it can't be loaded here, LinkError where a weight has another
        type."""
        from cachec_jax import direct
        from cachec_jax.forms import described

        form, data = described(content)
        if form.kind != "compiled" or form.names is None:
            raise PluginError("it takes no weights by name")
        self._content, self._names = content, form.names
        given = [weights[name] for name in form.names]
        self._arrays = [each.read() if each.extent() else own_copy(each.read()) for each in given]  # memory may change
        self._direct = None
        if "jax" not in sys.modules and direct.is_direct(form, data):
            for name, aval, array in zip(form.names, form.arguments, self._arrays, strict=False):
                _check(name, aval.dtype, aval.shape, array)
            with suppress(PluginError):  # where JAX has to register a function; JAX says what else is wrong
                self._direct = direct.DirectProgram(form, data, self._arrays)
        if self._direct is None:
            _ = self._bound  # what fails is to fail here

    @property
    def compiled(self) -> Any:
        """The ``jax.stages.Compiled``, which takes ``weights`` as its first argument."""
        return self._bound[0]

    @property
    def weights(self) -> tuple[Any, ...]:
        """As arrays of JAX's, where the program has them."""
        return self._bound[1]

    @cached_property
    def _bound(self) -> tuple[Any, tuple[Any, ...]]:
        import jax

        compiled = _compiled(self._content)
        shapes, places = compiled.in_avals[0][0], compiled.input_shardings[0][0]
        arrays = jax.device_put(self._arrays, list(places))  # together: half the time
        for name, shape, array in zip(self._names, shapes, arrays, strict=True):
            _check(name, shape.dtype, shape.shape, array)
        return compiled, tuple(arrays)

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """What the function returns. Raises TypeError for inputs of another tree, shape or dtype."""
        return self.compiled(self.weights, *inputs, **named_inputs)

    def numpy(self, *inputs: Any, **named_inputs: Any) -> Any:
        """The same as NumPy's arrays, which can't be written; without JAX where it is not imported. Takes as much, but
        for arrays of another dtype, which ``jax_enable_x64`` may have JAX convert: TypeError."""
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
def _compiled(content: bytes) -> Any:
    """Once for a file: to load a program takes longer than to give it other weights."""
    from cachec_jax import executables, forms

    return executables.restored(*forms.described(content))


def _check(name: str, dtype: Any, shape: Sequence[int], array: Any) -> None:
    if (array.shape, str(array.dtype)) != (tuple(shape), str(dtype)):
        raise LinkError(
            f"weight {name!r} expected {dtype}{list(shape)}, found {array.dtype}{list(array.shape)}: "
            "jax_enable_x64 is not what it was when the program was compiled"
        )


def compare(fresh: File, stored: File) -> str | None:
    """None where two files are the same program, by XLA's own text of it."""
    from cachec_jax import executables, forms
    from cachec_jax import stored as stored_programs

    programs = [executables.restored(*forms.described(file.read_bytes())) for file in (fresh, stored)]
    return stored_programs.compare(*programs)
