"""Linking of ``native:library`` files to weights: a private copy of the code, with the weights in place.

The weights of such a library are undefined symbols. ``link`` maps the weights. It then writes a copy of the library
(kilobytes) to memory, with absolute addresses of the mapped weights as symbols, and the dynamic loader loads this copy.
No byte of a weight is copied or relocated. Each copy is a separate library, so a process can use any number of weight
sets at once.

Other ways were rejected. An object file of ``.incbin`` for each set copies the weights on disk, and the linker reads
them. ``MAP_FIXED`` over a section needs each weight at a page boundary of its file. A stub library that defines the
symbols (``RTLD_GLOBAL``) lets the first set win for every library. ``dlmopen`` has 16 namespaces, each with a C library
of its own. Weights as arguments change the signature of each function in between.

This module imports ctypes and numpy.
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

#: The first glibc with absolute symbols in its dynamic loader.
_GLIBC = (2, 28)

#: The assumed requirements of a library that does not state them.
_UNKNOWN = Needs(ALIGNMENT, constant=False)

#: ``MAP_NORESERVE`` of Linux (asm-generic/mman.h; in ``mmap`` from Python 3.13 on): a file may be larger than memory.
_MAP_NORESERVE = 0x4000

#: dtype and shape of an argument, as a weight's.
Type = tuple[str, Sequence[int]]
_NumpyType = tuple[np.dtype[Any], tuple[int, ...]]


class NativeLinked:
    """A library and its weights. Both stay loaded as long as this object, or a function of it, is in use.

    copied: weights with a private copy in memory, because they have no file, or an address that the code does not
    allow.
    """

    def __init__(self, handle: int, memory: Sequence[memoryview], copied: Sequence[str]) -> None:
        self.copied = tuple(copied)
        self._library = ctypes.CDLL(None, handle=handle)
        self._memory = tuple(memory)
        # The memory is released with the library: a caller may still have a function of it.
        weakref.finalize(self, _close, handle, self._memory).atexit = False

    def function(self, name: str, *, inputs: Sequence[Type] = (), outputs: Sequence[Type] = ()) -> NativeFunction:
        """Return the ``func.func`` of that name, with memrefs of these types as arguments: inputs, then outputs.

        The types must be those of the module. A library does not record them, and wrong types read or write other
        memory. The ``func.func`` must have ``llvm.emit_c_interface`` and no result. Raises UsageError if the library
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
        return NativeFunction(
            self, name, call, [_numpy_type(each) for each in inputs], [_numpy_type(each) for each in outputs]
        )


class NativeFunction:
    """A function of a library. Keeps it loaded."""

    def __init__(
        self,
        linked: NativeLinked,
        name: str,
        call: Callable[..., None],
        inputs: list[_NumpyType],
        outputs: list[_NumpyType],
    ) -> None:
        self._linked = linked
        self._name = name
        self._call = call
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *arrays: Any) -> Any:
        """Call with one array for each input, of exactly its dtype and shape. Returns a new array, or a tuple of them.

        Raises UsageError, with the argument's number, for any other value.
        """
        if len(arrays) != len(self._inputs):
            raise UsageError(f"{self._name} takes {len(self._inputs)} arrays, found {len(arrays)}")
        given = [_check_array(self._name, i, *each) for i, each in enumerate(zip(arrays, self._inputs, strict=True))]
        results = [np.zeros(shape, dtype) for dtype, shape in self._outputs]
        self._call(*(ctypes.byref(_descriptor(each)) for each in (*given, *results)))
        return results[0] if len(results) == 1 else tuple(results)


def link(artifact: File, weights: WeightSet) -> NativeLinked:
    """Load the library with ``weights`` for its undefined symbols. The caller has checked the manifest.

    Raises LinkError for another file, for a library that needs other symbols than weights, for a symbol that only has
    the name of a weight, and for a library that can't be loaded.
    """
    check_loader()
    where = os.fspath(artifact.path)
    library = Library(artifact.read_bytes(), where)
    needs = needs_of(library, where)
    check(library, weights, where)
    private: dict[OpenedFile, memoryview] = {}
    addresses: dict[str, int] = {}
    views: list[memoryview] = []
    copied: list[str] = []
    for name in library.undefined:
        if name not in weights:
            continue
        view, is_copy = _expose_aligned(weights[name], needs.get(name, _UNKNOWN), private)
        views.append(view)
        addresses[name] = _address(view)
        if is_copy:
            copied.append(name)
    return NativeLinked(_load(library.bind(addresses), where), views, copied)


def check_loader() -> None:
    """Raise LinkError unless the dynamic loader of this process uses absolute symbols unchanged.

    An older glibc adds the library's own address to them (bug 19818), and so does musl.
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
    """Return the requirements in the library's section; empty without one. Raises LinkError for a malformed section."""
    data = library.needs
    if data is None:
        return {}
    by_name = from_json(data, dict[str, Needs], LinkError, f"{where}: section {SECTION} is malformed")
    for name, needs in by_name.items():
        if not 0 < needs.alignment <= LARGEST_ALIGNMENT or needs.alignment & (needs.alignment - 1):
            raise LinkError(f"{where}: section {SECTION} wants {name!r} aligned to {needs.alignment} bytes")
    return by_name


def _expose_aligned(weight: Weight, needs: Needs, private: dict[OpenedFile, memoryview]) -> tuple[memoryview, bool]:
    """Return a weight's bytes at an allowed address, writable if the code may write, and whether they were copied.

    private: the files that are mapped so far, in pages that need memory only if the code writes to them. There is one
    map for each file, because Python's maps have a descriptor each before 3.13, and there may be thousands of weights.
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
    # New pages, even for a weight without elements, because its symbol needs an address.
    out = memoryview(mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    if nbytes:
        ways.fill(out)
    return out, bool(nbytes)


def _load(data: bytearray, where: str) -> int:
    """Load the library ``data`` from memory, and return its handle. Raises LinkError if the dynamic loader refuses
    it."""
    fd = os.memfd_create("cachec-native", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        # The dynamic loader does not load a known path again, and descriptor numbers are reused: use a new name.
        with tempfile.TemporaryDirectory(prefix="cachec-native-") as folder:
            path = Path(folder, "library.so")
            path.symlink_to(f"/proc/self/fd/{fd}")
            return ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)._handle
    except OSError as error:
        raise LinkError(f"{where} can't be loaded: {error}") from error
    finally:
        os.close(fd)


def _close(handle: int, memory: Sequence[memoryview]) -> None:
    """Unload a library. The argument ``memory`` keeps its weights alive until then."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(handle)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _numpy_type(given: Type) -> _NumpyType:
    from cachec.weights.dtypes import numpy_dtype

    dtype, shape = given
    return numpy_dtype(dtype), tuple(shape)


def _check_array(name: str, number: int, value: Any, wanted: _NumpyType) -> np.ndarray[Any, Any]:
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
