"""Libraries of kind ``native:library`` bound to weights: a private copy of the code, the weights where they lie.

The weights of such a library are undefined symbols. ``link`` maps the weights, writes a copy of the library (kilobytes)
where those symbols are absolute addresses into these maps, into memory of its own, and has the dynamic loader load
that. No byte of a weight is copied or relocated, and as each copy is a library of its own, any number of weight sets is
live at once in one process, without seeing each other.

Other ways were rejected. An object file of ``.incbin`` for each set copies the weights on disk, and the linker reads
them. ``MAP_FIXED`` over a section needs each weight at a page boundary of its file. A stub library that defines the
symbols (``RTLD_GLOBAL``) lets the first set win for every library. ``dlmopen`` has 16 namespaces, each with a C library
of its own. Weights as arguments change the signature of each function in between.

Imports ctypes and numpy: only ever imported when something is linked.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachec.errors import LinkError, UsageError
from cachec.model import from_json
from cachec.programs.artifact import File
from cachec.programs.weight_files import OpenedFile
from cachec.weights import Weight, WeightSet
from cachec_mlir.blobs import ALIGNMENT
from cachec_native.elf import LARGEST_ALIGNMENT, SECTION, Library, Needs

#: The first whose dynamic loader has absolute symbols.
_GLIBC = (2, 28)

#: What is assumed of a library that does not say.
_UNKNOWN = Needs(ALIGNMENT, constant=False)

#: ``MAP_NORESERVE`` of Linux (asm-generic/mman.h; in ``mmap`` from Python 3.13 on): a file may be larger than memory.
_MAP_NORESERVE = 0x4000

#: dtype and shape of an argument, as a weight's.
Type = tuple[str, Sequence[int]]
_Typed = tuple[np.dtype[Any], tuple[int, ...]]


class NativeLinked:
    """A library and its weights. Keeps both loaded as long as it, or a function of it, is in use.

    copied: weights that could not be used in place, because they lie at an address that the code does not allow (or
    have no file): each has a private copy in memory.
    """

    def __init__(self, handle: int, held: Sequence[memoryview], copied: Sequence[str]) -> None:
        self.copied = tuple(copied)
        self._library = ctypes.CDLL(None, handle=handle)
        self._held = tuple(held)
        # Only then may the memory go: a function of the library may still be known to somebody.
        weakref.finalize(self, _close, handle, self._held).atexit = False

    def function(self, name: str, *, inputs: Sequence[Type] = (), outputs: Sequence[Type] = ()) -> NativeFunction:
        """The ``func.func`` of that name, whose arguments are memrefs of these types: the inputs, then the outputs.

        The types are as in the module, which no library records: wrong ones read or write memory of something else.
        The ``func.func`` must carry ``llvm.emit_c_interface`` and return nothing. Raises UsageError where the library
        exports no such function.
        """
        symbol = f"_mlir_ciface_{name}"
        try:
            call = getattr(self._library, symbol)
        except AttributeError as error:
            raise UsageError(
                f"no function {symbol!r} in this library; does func.func @{name} carry llvm.emit_c_interface?"
            ) from error
        call.restype = None
        return NativeFunction(self, name, call, [_typed(each) for each in inputs], [_typed(each) for each in outputs])


class NativeFunction:
    """A function of a library. Keeps it loaded."""

    def __init__(
        self, linked: NativeLinked, name: str, call: Callable[..., None], inputs: list[_Typed], outputs: list[_Typed]
    ) -> None:
        self._linked = linked
        self._name = name
        self._call = call
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *arrays: Any) -> Any:
        """Takes one array an input, of exactly its dtype and shape; returns a new array, or a tuple of them.

        Raises UsageError, naming the argument, for anything else.
        """
        if len(arrays) != len(self._inputs):
            raise UsageError(f"{self._name} takes {len(self._inputs)} arrays, found {len(arrays)}")
        given = [_checked(self._name, i, *each) for i, each in enumerate(zip(arrays, self._inputs, strict=True))]
        results = [np.zeros(shape, dtype) for dtype, shape in self._outputs]
        self._call(*(ctypes.byref(_descriptor(each)) for each in (*given, *results)))
        return results[0] if len(results) == 1 else tuple(results)


def link(artifact: File, weights: WeightSet) -> NativeLinked:
    """Load the library with ``weights`` for its undefined symbols. The manifest was checked.

    Raises LinkError where the file is no such library, where it needs a symbol that is no weight, or has a weight's
    name for something else, and where it can't be loaded.
    """
    check_loader()
    where = os.fspath(artifact.path)
    library = Library(artifact.read_bytes(), where)
    needs = needs_of(library, where)
    check(library, weights, where)
    private: dict[OpenedFile, memoryview] = {}
    addresses: dict[str, int] = {}
    held: list[memoryview] = []
    copied: list[str] = []
    for name in library.undefined:
        if name not in weights:
            continue
        view, is_copy = _placed(weights[name], needs.get(name, _UNKNOWN), private)
        held.append(view)
        addresses[name] = _address(view)
        if is_copy:
            copied.append(name)
    return NativeLinked(_load(library.bound(addresses), where), held, copied)


def check_loader() -> None:
    """Raise LinkError unless the dynamic loader of this process is known to take absolute symbols as they stand.

    An older one would add the library's own address to them (glibc bug 19818), and so does musl's.
    """
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        numbers = tuple(map(int, version.split(".")[:2]))
    except (OSError, ValueError):
        name, numbers = "", ()
    if name != "glibc" or numbers < _GLIBC:
        raise LinkError(
            f"linking native code expected glibc {'.'.join(map(str, _GLIBC))} or later, found "
            f"{f'{name} {version}' if name else 'another C library'}; run it where there is one"
        )


def check(library: Library, names: WeightSet | Mapping[str, Any], where: str) -> None:
    """Raise LinkError unless every undefined symbol is one of the weights or of a library that it was linked with."""
    for name, symbol in library.undefined.items():
        if name not in names:
            if not symbol.versioned and not symbol.weak:
                raise LinkError(
                    f"{where} needs {name!r}, which is neither one of its weights nor in a library that it was linked "
                    "with; give the library that has it (libraries=), or the weight"
                )
        elif symbol.versioned or symbol.called or symbol.weak:
            raise LinkError(
                f"{where} has {name!r} for a function or a symbol of another library, and a weight is called so; "
                "rename the weight"
            )
    inside = sorted(name for name in library.defined if name in names)
    if inside:
        raise LinkError(
            f"{where} defines {inside[0]!r} itself, so the bytes of that weight are in it; strip the module first "
            '(cachec_mlir.strip(..., to="undefined"))'
        )


def needs_of(library: Library, where: str) -> Mapping[str, Needs]:
    """What the section of the library says, nothing where it has none. Raises LinkError where that is malformed."""
    data = library.needs
    if data is None:
        return {}
    by_name = from_json(data, dict[str, Needs], LinkError, f"{where}: section {SECTION} is malformed")
    for name, needs in by_name.items():
        if not 0 < needs.alignment <= LARGEST_ALIGNMENT or needs.alignment & (needs.alignment - 1):
            raise LinkError(f"{where}: section {SECTION} wants {name!r} aligned to {needs.alignment} bytes")
    return by_name


def _placed(weight: Weight, needs: Needs, private: dict[OpenedFile, memoryview]) -> tuple[memoryview, bool]:
    """The bytes, writable where the code may write, at an address that it allows; whether they had to be copied.

    private: the files that are mapped so far, in pages that take memory only where the code writes. One map a file:
    Python's maps hold a descriptor each before 3.13, and there may be thousands of weights.
    """
    ways, nbytes = weight.expose(), weight.nbytes
    if needs.constant:
        view = ways.view()
        if view.nbytes and _address(view) % needs.alignment == 0:
            return view, False
    elif nbytes and not ways.copies:
        extent = ways.extent()
        if extent is not None and extent.offset % needs.alignment == 0:
            if extent.file not in private:
                flags, prot = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                mapped = mmap.mmap(extent.fd, 0, flags=flags, prot=prot)
                extent.check()
                private[extent.file] = memoryview(mapped)
            return private[extent.file][extent.offset : extent.offset + extent.nbytes], False
    # Pages of their own; for a weight without elements as well, whose symbol needs an address.
    out = memoryview(mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    if nbytes:
        ways.fill(out)
    return out, bool(nbytes)


def _load(data: bytearray, where: str) -> int:
    """A handle of the library ``data``, which is in no file. Raises LinkError where the dynamic loader refuses it."""
    fd = os.memfd_create("cachec-native", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        # The dynamic loader takes a path that it has seen for the library that it loaded then, and numbers of
        # descriptors come back: a new name each time.
        with tempfile.TemporaryDirectory(prefix="cachec-native-") as folder:
            path = Path(folder, "library.so")
            path.symlink_to(f"/proc/self/fd/{fd}")
            return ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)._handle
    except OSError as error:
        raise LinkError(f"{where} can't be loaded: {error}") from error
    finally:
        os.close(fd)


def _close(handle: int, held: Sequence[memoryview]) -> None:
    """Unload a library; only after that its weights may go (``held``)."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(handle)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _typed(given: Type) -> _Typed:
    from cachec.weights.dtypes import numpy_dtype

    dtype, shape = given
    return numpy_dtype(dtype), tuple(shape)


def _checked(name: str, number: int, value: Any, wanted: _Typed) -> np.ndarray[Any, Any]:
    dtype, shape = wanted
    array = np.asarray(value)
    if array.dtype != dtype or array.shape != shape:
        raise UsageError(
            f"{name}: argument {number} expected {dtype} {list(shape)}, found {array.dtype} {list(array.shape)}"
        )
    return np.ascontiguousarray(array).reshape(shape)


def _descriptor(array: np.ndarray[Any, Any]) -> ctypes.Structure:
    """MLIR's descriptor of a memref in C (``StridedMemRefType``; two pointers, offset, sizes, strides in elements)."""
    at, dimensions = array.ctypes.data, ctypes.c_int64 * array.ndim
    strides = tuple(each // array.itemsize for each in array.strides)
    return _descriptor_type(array.ndim)(at, at, 0, dimensions(*array.shape), dimensions(*strides))


@functools.cache
def _descriptor_type(rank: int) -> type[ctypes.Structure]:
    class Descriptor(ctypes.Structure):
        _fields_ = (
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            ("sizes", ctypes.c_int64 * rank),
            ("strides", ctypes.c_int64 * rank),
        )

    return Descriptor
