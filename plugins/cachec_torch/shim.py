"""torch's C ABI (``aoti_torch/c/shim.h``, ``aoti_runtime/interface.h``) by ctypes. torch is loaded, not imported."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from cachec.errors import LinkError, PluginError

Handle = ctypes.c_void_p

#: dtype -> its number (``c10/core/ScalarType.h``).
DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
    "float8_e8m0fnu": 44,
}

_NAMES = {number: name for name, number in DTYPES.items()}

_CPU = 0

#: In the order in which they need one another.
_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch.so")


#: The function by which a library takes weights in place. Earlier releases have one that only C++ can call.
BINDING = "UpdateUserManagedConstantBufferPairs"


class Block(NamedTuple):
    """A tensor in memory. shape, strides: in elements. keeps: what holds the memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    keeps: object = None


class LibraryConstant(NamedTuple):
    """A constant of a library. name: its own. fqn: in the program. dtype: its number. nbytes: None where the library,
    made by an earlier release, does not say."""

    name: bytes
    fqn: str
    dtype: int
    nbytes: int | None


class _Pair(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("handle", Handle))


def torch_folder() -> Path:
    """Where torch is installed. Raises LinkError where it is not."""
    module = sys.modules.get("torch")
    origin = module.__file__ if module is not None else getattr(importlib.util.find_spec("torch"), "origin", None)
    if origin is None:
        raise LinkError("torch is not installed; install it with: pip install 'cachec[torch]'")
    return Path(origin).parent


def torch_version() -> str:
    """As torch itself says, without importing it."""
    found = re.search(r"^__version__ = '([^']*)'", (torch_folder() / "version.py").read_text(), re.MULTILINE)
    if found is None:
        raise LinkError(f"{torch_folder() / 'version.py'} does not say which torch it is")
    return found[1]


@lru_cache(maxsize=1)
def _torch() -> ctypes.CDLL:
    loaded = [_load_library(torch_folder() / "lib" / name) for name in _LIBRARIES]
    return loaded[1]


def _load_library(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL if path.name in _LIBRARIES else ctypes.RTLD_LOCAL)
    except OSError as error:
        raise LinkError(f"{path} can't be loaded: {error}") from error


def _own(function: Callable[..., int], *arguments: Any) -> None:
    """Call a function of torch's."""
    if function(*arguments) != 0:
        raise PluginError(f"{function.__name__} failed: {arguments!r}")


def _tensor(block: Block) -> Handle:
    """A new handle; whoever gets it deletes it, or hands it over."""
    rank = len(block.shape)
    numbers = ctypes.c_int64 * max(rank, 1)
    made = Handle()
    _own(
        _torch().aoti_torch_create_tensor_from_blob,
        Handle(block.address),
        ctypes.c_int64(rank),
        numbers(*block.shape),
        numbers(*block.strides),
        ctypes.c_int64(0),
        ctypes.c_int32(DTYPES[block.dtype]),
        ctypes.c_int32(_CPU),
        ctypes.c_int32(0),
        ctypes.byref(made),
    )
    return made


def _block(handle: Handle) -> Block:
    """What a handle stands for, as long as it is not deleted."""
    torch = _torch()

    def ask(name: str, answer: Any) -> Any:
        _own(getattr(torch, name), handle, ctypes.byref(answer))
        return answer

    rank = ask("aoti_torch_get_dim", ctypes.c_int64()).value
    sizes = ask("aoti_torch_get_sizes", ctypes.POINTER(ctypes.c_int64)())
    strides = ask("aoti_torch_get_strides", ctypes.POINTER(ctypes.c_int64)())
    number = ask("aoti_torch_get_dtype", ctypes.c_int32()).value
    if number not in _NAMES or ask("aoti_torch_get_device_type", ctypes.c_int32()).value != _CPU:
        raise PluginError(f"the program returned a tensor of type {number}, or not on the CPU; expected {list(DTYPES)}")
    address = ask("aoti_torch_get_data_ptr", Handle()).value or 0
    return Block(address, _NAMES[number], tuple(sizes[:rank]), tuple(strides[:rank]))


class ModelContainer:
    """A library of AOTInductor's, loaded: ``AOTInductorModelContainer`` with one model. Calls wait for one another."""

    def __init__(self, path: Path) -> None:
        """Raises LinkError where it can't be loaded."""
        _torch()
        self._library = _load_library(path)
        self._handle = Handle()
        self._call("CreateWithDevice", ctypes.byref(self._handle), ctypes.c_size_t(1), b"cpu", None)
        self._blocks: Sequence[Block] = ()
        self.inputs, self.outputs = self._number("GetNumInputs"), self._number("GetNumOutputs")

    def __del__(self) -> None:
        if self.__dict__.get("_handle"):
            self._library.AOTInductorModelContainerDelete(self._handle)

    def constants(self) -> list[LibraryConstant]:
        """All but those that it computes itself from others."""
        found = []
        has_sizes = hasattr(self._library, "AOTInductorModelContainerGetConstantDataSize")
        for index in map(ctypes.c_size_t, range(self._number("GetNumConstants"))):
            folded = self._ask("GetConstantFromFolded", index, ctypes.c_bool())
            if not folded:
                found.append(
                    LibraryConstant(
                        self._ask("GetConstantName", index, ctypes.c_char_p()),
                        self._ask("GetConstantOriginalFQN", index, ctypes.c_char_p()).decode(),
                        self._ask("GetConstantDtype", index, ctypes.c_int32()),
                        self._ask("GetConstantDataSize", index, ctypes.c_size_t()) if has_sizes else None,
                    )
                )
        return found

    def bind(self, blocks: Sequence[tuple[bytes, Block]]) -> None:
        """Give it its constants, by their own names. Their memory is used in place, and held from now on."""
        pairs = (_Pair * len(blocks))()
        handles = []
        for pair, (name, block) in zip(pairs, blocks, strict=True):
            handles.append(_tensor(block))
            pair.name, pair.handle = name, handles[-1]
        try:
            self._call(
                BINDING,
                self._handle,
                pairs,
                ctypes.c_size_t(len(blocks)),
                ctypes.c_bool(False),  # the buffer in use
                ctypes.c_bool(True),  # all of them are here
            )
        finally:
            for handle in handles:
                _own(_torch().aoti_torch_delete_tensor_object, handle)
        self._blocks = [block for _, block in blocks]

    def run(self, inputs: Sequence[Block], take: Callable[[Block], Any]) -> list[Any]:
        """take: makes of each output what is to be kept of it; the memory of the block goes afterwards."""
        given = (Handle * len(inputs))(*(_tensor(block).value for block in inputs))
        made = (Handle * self.outputs)()
        sizes = (ctypes.c_size_t(len(inputs)), made, ctypes.c_size_t(self.outputs))
        self._call("Run", self._handle, given, *sizes, None, None)
        try:
            return [None if not handle else take(_block(Handle(handle))) for handle in made]
        finally:
            # What is returned twice has one handle.
            for handle in {handle for handle in made if handle}:
                _own(_torch().aoti_torch_delete_tensor_object, Handle(handle))

    def _number(self, name: str) -> int:
        answer = ctypes.c_size_t()
        self._call(name, self._handle, ctypes.byref(answer))
        return answer.value

    def _ask(self, name: str, index: ctypes.c_size_t, answer: Any) -> Any:
        self._call(name, self._handle, index, ctypes.byref(answer))
        return answer.value

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, f"AOTInductorModelContainer{name}")(*arguments) != 0:
            words = ctypes.c_char_p()
            self._library.AOTInductorGetLastError(ctypes.byref(words))
            raise PluginError(f"AOTInductor's {name} failed: {(words.value or b'').decode(errors='replace')}")
