"""The file format of a stored JAX program. This module does not import JAX, so that a program can run without it.

A file has

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
    """One level of a tree structure."""

    kind: Literal["leaf", "none", "dict", "list", "tuple", "node"]
    #: The keys of a dict; the class and the static data of a node.
    data: Any = None
    children: tuple[TreeForm, ...] = ()


class AvalForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The type of an array, which JAX calls an abstract value."""

    #: For a random key ``key<...>``, with the name of the implementation.
    dtype: str
    shape: tuple[_Size, ...]
    weak: bool = False
    #: The mesh of an array with a sharding in its type.
    axes: tuple[AxisForm, ...] = ()
    spec: _Spec = ()
    #: Kind, cores and platform of the mesh's devices.
    device: tuple[str, int | None, str] | None = None


class ShardingForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The placement of an array."""

    #: ``single``, ``named``, ``gspmd`` or ``unspecified``.
    kind: str
    #: Ids, in the order of the mesh.
    devices: tuple[int, ...] = ()
    memory: str | None = None
    axes: tuple[AxisForm, ...] = ()
    spec: _Spec = ()
    #: XLA's own form, as hexadecimal digits.
    text: str = ""


class LayoutForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layout of an array in memory."""

    order: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None
    bits: int


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The releases and the devices that a program was made with. It runs only with the same ones."""

    jax: str
    jaxlib: str
    platform: str
    version: str
    #: Ids.
    devices: tuple[int, ...]
    #: The kind of each device.
    kinds: tuple[str, ...]


def check_toolchain(made: Toolchain, here: Toolchain) -> None:
    """Raise PluginError if a program was made with other releases or for other devices."""
    pairs = [
        f"{name} {getattr(made, name)!r}, here {getattr(here, name)!r}"
        for name in Toolchain.__struct_fields__
        if getattr(made, name) != getattr(here, name)
    ]
    if pairs:
        raise UnusableHere(f"a stored program of JAX is of another machine or release: {'; '.join(pairs)}")


class ProgramForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data that JAX needs to call a program, as the JSON of a file has it."""

    kind: Literal["compiled", "lowered"]
    toolchain: Toolchain
    name: str
    #: The names of the weights if the first argument is a tuple of weights, otherwise None.
    names: tuple[str, ...] | None
    in_tree: TreeForm
    out_tree: TreeForm
    arguments: tuple[AvalForm, ...]
    #: Indexes of the donated arguments.
    donated: tuple[int, ...]
    #: Indexes of the arguments that the program uses. Shardings and layouts of arguments are of these.
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
    #: The shardings of intermediate values of a Lowered.
    inside: tuple[ShardingForm, ...] = ()
    #: The registered functions that the program calls by name (``jax.ffi.register_ffi_target``, JAX's own for LAPACK).
    targets: tuple[str, ...] = ()


def join_program(form: ProgramForm, data: bytes) -> bytes:
    header = msgspec.json.encode(form)
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, data))


def parse_program(data: bytes) -> tuple[ProgramForm, bytes]:
    """Return the validated form and the data of a file of ``join_program``. Raises PluginError for other bytes."""
    start = len(_MAGIC) + _LENGTH.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise PluginError("expected a program of JAX, found other bytes")
    end = start + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    try:
        found = msgspec.json.decode(data[start:end], type=ProgramForm)
    except (ValueError, RecursionError) as error:  # of msgspec, and for bytes that are not UTF-8
        raise PluginError(f"a stored program of JAX is malformed: {error}") from error
    used, count = found.kept, len(found.arguments)
    each = (found.in_shardings, found.in_layouts, *([found.dispatch_layouts] if found.kind == "compiled" else []))
    counted = all(len(one) == len(used) for one in each) and len(found.argument_names) == count
    results = len(found.results) == len(found.out_shardings) == len(found.out_layouts)
    if not (counted and results and len(set(used)) == len(used) and {*used, *found.donated} <= set(range(count))):
        raise PluginError("a stored program of JAX is malformed: its lists do not fit one another")
    if found.names is not None and len(found.names) > count:
        raise PluginError("a stored program of JAX is malformed: it names more weights than it takes")
    return found, data[end:]


def uses_lapack(data: bytes) -> bool:
    """Whether a program calls LAPACK on a CPU, by functions that JAX registers and initialises."""
    return b"lapack_" in data
