"""JAX programs in keys and in the store: ``Lowered``, ``Compiled``, ``Exported``. Imports JAX.

An ``Exported`` is stored in the format of ``jax.export`` (needs ``flatbuffers``). It has no pickle in it, unless the
user's functions for static data write one (``jax.export.register_pytree_node_serialization``). The other two are stored
without pickle, in cachec's format (``cachec_jax.program_codec``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import msgspec

from cachec.base.hashing import Hasher
from cachec.errors import PluginError, UnstorableValue, UnusableHere
from cachec.programs.plugin import ArtifactWriter, Fingerprint
from cachec_jax.callbacks import refuse_exported
from cachec_jax.internals import hlo_options
from cachec_jax.program_codec import decode_program, encode_program
from cachec_jax.program_format import parse_program
from cachec_jax.xla_target import check_flags, record_target


class _ProgramMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    program: Literal["compiled", "lowered", "exported"]


def fingerprint(value: Any) -> Fingerprint:
    """Hash all bytes of the stored form."""
    data, kind = _encode(value), _kind(value)
    hasher = Hasher("jax")
    hasher.part(kind, data)
    return Fingerprint(hasher.digest(), f"{kind} program of {len(data)} bytes")


def encode(value: Any, out: ArtifactWriter) -> dict[str, Any]:
    """Raises UsageError as ``compile_xla`` does, if XLA_FLAGS changed after XLA read them."""
    if _kind(value) == "compiled":
        check_flags()
        record_target()
    out.write(_encode(value))
    return {"program": _kind(value)}


def decode(meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
    try:
        kind = msgspec.convert(dict(meta), _ProgramMeta).program
    except msgspec.ValidationError as error:
        raise PluginError(f"a stored program of JAX has malformed meta data: {error}") from error
    if len(artifacts) != 1:
        raise PluginError(f"a stored program of JAX has {len(artifacts)} artifacts, expected one")
    data = artifacts[0].read_bytes()
    if kind == "exported":
        return _decode_exported(data)
    form, rest = parse_program(data)
    if form.kind != kind:
        raise PluginError(f"a stored program of JAX is {form.kind}, expected it {kind}")
    return decode_program(form, rest)


def compare(fresh: Any, stored: Any) -> str | None:
    """Compare two programs by their text, without source lines."""
    return None if _text(fresh) == _text(stored) else "the programs differ"


def _text(program: jax.stages.Compiled | jax.stages.Lowered | jax.export.Exported) -> str:
    kind = _kind(program)
    if kind != "compiled":
        return str(program.mlir_module() if kind == "exported" else program.as_text())
    options = hlo_options()
    options.print_metadata = False
    return "\n".join(module.to_string(options) for module in program.runtime_executable().hlo_modules())


def _kind(value: Any) -> str:
    return type(value).__name__.lower()


def _encode(value: Any) -> bytes:
    if not isinstance(value, jax.export.Exported):
        return encode_program(value)
    refuse_exported(value)
    try:
        return bytes(value.serialize())
    except (ImportError, ValueError, NotImplementedError) as error:  # no flatbuffers; a node without its functions
        raise UnstorableValue(f"an Exported can't be stored: {error}") from error


def _decode_exported(data: bytes) -> Any:
    try:
        return jax.export.deserialize(bytearray(data))
    except Exception as error:  # flatbuffers raises any error for malformed bytes
        raise UnusableHere(f"a stored Exported can't be read: {type(error).__name__}: {error}") from error
