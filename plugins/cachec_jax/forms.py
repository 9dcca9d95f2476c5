"""The stored form of a program of JAX's. Does not import JAX, as what only runs one need not. A file has

    13 bytes    cachec-jax-1\\n
    4 bytes     length of the JSON, little-endian
    JSON        a ProgramForm
    the rest    of a Compiled what XLA serialised; of a Lowered MLIR bytecode

in this order.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import msgspec

from cachec.errors import PluginError, UnusableHere

_MAGIC = b"cachec-jax-1\n"
_LENGTH = struct.Struct("<I")

_Size = Annotated[int, msgspec.Meta(ge=0)]

#: Of an axis of a mesh: name, size and type (``Auto``, ``Explicit``, ``Manual``).
AxisForm = tuple[str, _Size, str]
#: Of each dimension: None, an axis, or some.
_Spec = tuple[str | tuple[str, ...] | None, ...]


class TreeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a structure. data: keys of a dict; class, and what it holds beside its children, of a node."""

    kind: Literal["leaf", "none", "dict", "list", "tuple", "node"]
    data: Any = None
    children: tuple[TreeForm, ...] = ()


class AvalForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What JAX calls an abstract value. dtype: of a random key, ``key<...>`` with the name of the implementation. axes,
    spec, device: of an array whose type says how it is sharded; kind, cores and platform of the mesh's devices.
    """

    dtype: str
    shape: tuple[_Size, ...]
    weak: bool = False
    axes: tuple[AxisForm, ...] = ()
    spec: _Spec = ()
    device: tuple[str, int | None, str] | None = None


class ShardingForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an array lies. kind: ``single``, ``named``, ``gspmd`` or ``unspecified``. devices: ids, in the order of the
    mesh. text: of XLA's own, as hexadecimal digits.
    """

    kind: str
    devices: tuple[int, ...] = ()
    memory: str | None = None
    axes: tuple[AxisForm, ...] = ()
    spec: _Spec = ()
    text: str = ""


class LayoutForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an array lies in memory."""

    order: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None
    bits: int


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With what it was made, and for what: it runs with and on the same. devices: their ids. kinds: of each one's."""

    jax: str
    jaxlib: str
    platform: str
    version: str
    devices: tuple[int, ...]
    kinds: tuple[str, ...]


def check_toolchain(made: Toolchain, here: Toolchain) -> None:
    """Raises PluginError where a program was made with or for another."""
    pairs = [
        f"{name} {getattr(made, name)!r}, here {getattr(here, name)!r}"
        for name in Toolchain.__struct_fields__
        if getattr(made, name) != getattr(here, name)
    ]
    if pairs:
        raise UnusableHere(f"a stored program of JAX is of another machine or release: {'; '.join(pairs)}")


class ProgramForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What JAX knows of a program.

    names: of the weights that are the first argument, a tuple; None where it is like the others. arguments: all of
    them; donated, kept: the numbers of those that are, as nothing uses the others. The shardings and layouts are of
    those that are kept. targets: the functions that the program calls by their names, as registered in the process that
    made it (``jax.ffi.register_ffi_target``; JAX's own for LAPACK too).
    """

    kind: Literal["compiled", "lowered"]
    toolchain: Toolchain
    name: str
    names: tuple[str, ...] | None
    in_tree: TreeForm
    out_tree: TreeForm
    arguments: tuple[AvalForm, ...]
    donated: tuple[int, ...]
    kept: tuple[int, ...]
    results: tuple[AvalForm, ...]
    in_shardings: tuple[ShardingForm, ...]
    out_shardings: tuple[ShardingForm, ...]
    in_layouts: tuple[LayoutForm | None, ...]
    out_layouts: tuple[LayoutForm | None, ...]
    dispatch_layouts: tuple[LayoutForm | None, ...]
    argument_names: tuple[str, ...]
    committed: bool
    no_keywords: bool
    options: tuple[tuple[str, bool | int | float | str], ...] = ()
    inside: tuple[ShardingForm, ...] = ()
    targets: tuple[str, ...] = ()


def joined(form: ProgramForm, data: bytes) -> bytes:
    header = msgspec.json.encode(form)
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, data))


def described(data: bytes) -> tuple[ProgramForm, bytes]:
    """What ``joined`` has joined, validated, and the rest. Raises PluginError for anything else."""
    start = len(_MAGIC) + _LENGTH.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise PluginError("expected a program of JAX, found other bytes")
    end = start + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    try:
        found = msgspec.json.decode(data[start:end], type=ProgramForm)
    except (ValueError, RecursionError) as error:  # of msgspec, and for what is no UTF-8
        raise PluginError(f"a stored program of JAX is malformed: {error}") from error
    kept, count = found.kept, len(found.arguments)
    each = (found.in_shardings, found.in_layouts, *([found.dispatch_layouts] if found.kind == "compiled" else []))
    counted = all(len(one) == len(kept) for one in each) and len(found.argument_names) == count
    results = len(found.results) == len(found.out_shardings) == len(found.out_layouts)
    if not (counted and results and len(set(kept)) == len(kept) and {*kept, *found.donated} <= set(range(count))):
        raise PluginError("a stored program of JAX is malformed: its lists do not fit one another")
    if found.names is not None and len(found.names) > count:
        raise PluginError("a stored program of JAX is malformed: it names more weights than it takes")
    return found, data[end:]


def uses_lapack(data: bytes) -> bool:
    """Whether a program calls LAPACK on a CPU, by functions that JAX registers and initialises."""
    return b"lapack_" in data
