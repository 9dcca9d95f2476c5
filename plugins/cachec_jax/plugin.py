"""The plugin object for JAX. It does not import JAX before it gets a value of JAX's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cachec.errors import PluginError, UnstorableValue, UnsupportedVersion
from cachec.programs.artifact import File
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_jax.unstored_program import UnstoredProgram
from cachec_jax.versions import TRIED_RELEASES
from cachec_mlir.plugin import MlirFormats

#: The classes of a concrete jax.Array. Older releases have the second name, here and below.
_ARRAYS = ("jaxlib._jax.ArrayImpl", "jaxlib.xla_extension.ArrayImpl")

#: Devices, and objects that name devices. They are in keys by their form, and never in a result.
_PLACES = (
    "jaxlib._jax.Device",
    "jaxlib.xla_extension.Device",
    "jax._src.mesh.Mesh",
    "jax._src.mesh.AbstractMesh",
    "jax.sharding.NamedSharding",
    "jax.sharding.SingleDeviceSharding",
)


class JaxPlugin(MlirFormats):
    """Arrays, abstract values and programs (``Lowered``, ``Compiled``, ``Exported``) as arguments and results."""

    name = "jax"
    distributions = ("jax", "jaxlib")
    programs = ("jax", "jaxlib")
    tried_releases = TRIED_RELEASES
    self_test = "cachec_jax.self_test:self_test"
    types = (
        *_ARRAYS,
        "jax._src.random.prng.PRNGKeyArray",
        "jax._src.prng.PRNGKeyArray",
        "jax.ShapeDtypeStruct",
        "jax._src.core.ShapeDtypeStruct",
        "jax._src.api.ShapeDtypeStruct",
        "jax._src.stages.Lowered",
        "jax._src.stages.Compiled",
        "jax._src.export._export.Exported",
        *_PLACES,
        "cachec_jax.unstored_program.UnstoredProgram",
    )

    sent = ("jax._src.stages.Lowered", "jax._src.stages.Compiled", "jax._src.export._export.Exported")
    reduced = _ARRAYS

    def reduce(self, value: Any) -> Any:
        """Reduce an array on one device to its bytes."""
        from cachec_jax import array_values

        return array_values.reduce_array(value)

    def ambient(self) -> Mapping[str, str]:
        """Return each setting of JAX and XLA that is not at its default. ``import jax`` does not change the answer."""
        from cachec_jax.key_settings import read_settings

        return read_settings()

    def ambient_values(self) -> Mapping[str, Any]:
        """Return options that are not at their defaults, and this thread's contexts: precision, device, meshes."""
        from cachec_jax.settings_transfer import read

        return read()

    def set_ambient(self, values: Mapping[str, Any]) -> None:
        """Set options for the process, and contexts for this thread."""
        from cachec_jax.settings_transfer import write

        write(values)

    def describe(self, value: Any) -> Any:
        """Describe a jitted function by its function and the options, and a ``PyTreeDef`` by its text."""
        from cachec_jax.value_descriptions import describe

        return describe(value)

    def running(self, key: str) -> AbstractContextManager[Any]:
        """Return a context of JAX for this run alone, in which JAX uses no earlier trace."""
        from cachec_jax.trace_isolation import isolate_traces

        return isolate_traces()

    def fingerprint(self, value: Any) -> Fingerprint:
        """Hash an array's content, dtype, shape, weak type and placement.

        A ``Lowered`` counts by its text and its signature, a ``Compiled`` or ``Exported`` by its bytes. A mesh counts
        by its axes and its devices, and these by id, kind and platform.
        """
        if isinstance(value, UnstoredProgram):
            raise UnsupportedVersion(value.reason)
        if _is_place(value):
            from cachec_jax import sharding_codec

            return sharding_codec.fingerprint(value)
        if _is_array(value) or type(value).__name__ == "Lowered":
            from cachec_jax import array_values

            return array_values.fingerprint(value)
        from cachec_jax import program_values

        return program_values.fingerprint(value)

    def strip(self, value: Any, weights: WeightSet) -> Program:
        """Return the program of a ``jax.stages.Lowered``, with the dict of weights replaced by their names."""
        import jax

        from cachec_jax import lowering

        if not isinstance(value, jax.stages.Lowered):
            raise self._refusal("strip", value)
        return lowering.strip(value, weights)

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        """Write an array's bytes in row-major order, or a program's bytes, without pickle.

        Raises PluginError for a sharded array, and for a program with callbacks, which only this process can run.
        """
        if isinstance(value, UnstoredProgram):
            raise UnsupportedVersion(value.reason)
        if _is_place(value):
            raise UnstorableValue(f"a {type(value).__name__} names devices of this process and can't be stored")
        if _is_array(value):
            from cachec_jax import array_values

            return array_values.encode(value, out)
        from cachec_jax import program_values

        return program_values.encode(value, out)

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
        """Return the array, on the default device, or the program, on its own devices.

        Raises PluginError if ``meta`` and the bytes disagree, and for a program of another release of JAX or another
        kind of device.
        """
        if "program" not in meta:
            from cachec_jax import array_values

            return array_values.decode(meta, artifacts)
        from cachec_jax import program_values

        return program_values.decode(meta, artifacts)

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Return a function of the inputs for a file of ``compile_xla``.

        Raises PluginError for StableHLO, and LinkError for a program of another release of JAX or another kind of
        device.
        """
        from cachec_jax import xla_compiler

        if not isinstance(artifact, File) or artifact.kind != xla_compiler.KIND:
            raise PluginError(
                f"{artifact!r} is StableHLO, which nothing runs by itself; build it first, as with "
                "cachec_iree.compile, and link the artifact"
            )
        return xla_compiler.link(artifact, weights)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """Return None if two arrays have the same shape, dtype and numbers, within the precision of the dtype.

        Programs are equal if their texts are.
        """
        if isinstance(fresh, File):
            from cachec_jax import xla_compiler

            return xla_compiler.compare(fresh, stored)
        if not _is_array(fresh):
            from cachec_jax import program_values as programs

            return programs.compare(fresh, stored)
        from cachec_jax import array_values

        return array_values.compare(fresh, stored)


def _is_place(value: Any) -> bool:
    return f"{type(value).__module__}.{type(value).__qualname__}" in _PLACES


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype")
