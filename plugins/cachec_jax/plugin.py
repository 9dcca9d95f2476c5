"""The plugin object: what cachec asks of JAX. Nothing here imports JAX before a value of JAX's turns up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cachec.errors import PluginError, UnstorableValue
from cachec.programs.artifact import File
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_jax.versions import TRIED_RELEASES
from cachec_mlir.plugin import MlirFormats

#: Devices, and what names some: in a key by their form, never in a result.
_PLACES = (
    "jaxlib._jax.Device",
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
    types = (
        "jaxlib._jax.ArrayImpl",  # every concrete jax.Array of JAX 0.10
        "jax._src.random.prng.PRNGKeyArray",
        "jax.ShapeDtypeStruct",
        "jax._src.stages.Lowered",
        "jax._src.stages.Compiled",
        "jax._src.export._export.Exported",
        *_PLACES,
    )

    sent = ("jax._src.stages.Lowered", "jax._src.stages.Compiled", "jax._src.export._export.Exported")
    reduced = ("jaxlib._jax.ArrayImpl",)

    def reduce(self, value: Any) -> Any:
        """An array on one device, by the bytes that it lies in."""
        from cachec_jax import values

        return values.reduced(value)

    def ambient(self) -> Mapping[str, str]:
        """Every setting of JAX and XLA that is not at its default; the same before and after ``import jax``."""
        from cachec_jax.ambient import settings

        return settings()

    def ambient_values(self) -> Mapping[str, Any]:
        """Options that are not at their defaults, and what contexts set in this thread: precision, device, meshes."""
        from cachec_jax.settings import read

        return read()

    def set_ambient(self, values: Mapping[str, Any]) -> None:
        """Options for the process, contexts for this thread."""
        from cachec_jax.settings import write

        write(values)

    def describe(self, value: Any) -> Any:
        """A jitted function by its function and the options; a ``PyTreeDef`` by its text."""
        from cachec_jax.described import describe

        return describe(value)

    def running(self, key: str) -> AbstractContextManager[Any]:
        """A context of JAX's for this run alone: nothing that was traced before is used. Needs JAX 0.10."""
        from cachec_jax.running import running

        return running()

    def fingerprint(self, value: Any) -> Fingerprint:
        """Content, dtype, shape, weak type and placement. A ``Lowered`` by its text and its signature, what is compiled
        or exported by its bytes. A mesh by its axes and its devices, which count by id, kind and platform."""
        if _is_place(value):
            from cachec_jax import placements

            return placements.fingerprint(value)
        if _is_array(value) or type(value).__name__ == "Lowered":
            from cachec_jax import values

            return values.fingerprint(value)
        from cachec_jax import stored

        return stored.fingerprint(value)

    def strip(self, value: Any, weights: WeightSet) -> Program:
        """The program of a ``jax.stages.Lowered`` with its dict of weights replaced by their names."""
        import jax

        from cachec_jax import lowering

        if not isinstance(value, jax.stages.Lowered):
            raise self._refusal("strip", value)
        return lowering.strip(value, weights)

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        """An array's bytes in row-major order, and dtype, shape and weak type; a program without pickle. Raises
        PluginError for a sharded array, and for a program that is bound to this process (callbacks)."""
        if _is_place(value):
            raise UnstorableValue(f"a {type(value).__name__} names devices of this process and can't be stored")
        if _is_array(value):
            from cachec_jax import values

            return values.encode(value, out)
        from cachec_jax import stored

        return stored.encode(value, out)

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
        """The array, on the default device; the program, on the devices that it is for. Raises PluginError where
        ``meta`` and the bytes do not agree, and for a program of another release of JAX or another kind of device."""
        if "program" not in meta:
            from cachec_jax import values

            return values.decode(meta, artifacts)
        from cachec_jax import stored

        return stored.decode(meta, artifacts)

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """A function of the inputs, of what ``compile_xla`` made. Raises PluginError for StableHLO, LinkError where the
        program is for another release of JAX or another kind of device."""
        from cachec_jax import compiling

        if not isinstance(artifact, File) or artifact.kind != compiling.KIND:
            raise PluginError(
                f"{artifact!r} is StableHLO, which nothing runs by itself; build it first, as with "
                "cachec_iree.compile, and link what comes out"
            )
        return compiling.linked(artifact, weights)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """None where shape and dtype are equal and the numbers are, within the precision of the dtype; of programs,
        where their texts are."""
        if isinstance(fresh, File):
            from cachec_jax import compiling

            return compiling.compare(fresh, stored)
        if not _is_array(fresh):
            from cachec_jax import stored as programs

            return programs.compare(fresh, stored)
        from cachec_jax import values

        return values.compare(fresh, stored)


def _is_place(value: Any) -> bool:
    return f"{type(value).__module__}.{type(value).__qualname__}" in _PLACES


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype")
