"""Sends values to a worker that refer to objects of the caller's process.

A weight set is sent by reference: its layout, and a number by which the worker asks the caller for digests and bytes.
A program is sent with its IR. The rest is ``cloudpickle``'s: what is a global of a module that can be imported goes by
its name. Nothing whose copy could differ is sent at all: the stage then runs in the caller's process.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import mmap
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

from cachec.base.hashing import FileDigests, digest_bytes
from cachec.base.installed_folders import InstalledFolders
from cachec.base.instances import class_attribute, is_array
from cachec.base.tracer_hiding import unseen
from cachec.base.unsendable import Unsendable
from cachec.key.aliasing import memory_of
from cachec.key.canonical_forms import Forms
from cachec.key.random_generators import shared_generator
from cachec.programs.plugin import Plugin
from cachec.programs.program import Program
from cachec.programs.registry import Plugins, installed_plugins
from cachec.programs.supported_versions import Asking
from cachec.weights import WeightSet
from cachec.weights.handles import WorkerRank
from cachec.weights.layout import Layout
from cachec.weights.manifest import Manifest
from cachec.weights.sources import Source, Ways
from cachec.weights.tensor import Tensor
from cachec.worker.messages import Custom, GlobalValue
from cachec.worker.protocol import CannotSend, Sending

#: How much work it may be to find out whether two arrays share memory: see ``numpy.shares_memory``.
_MOST_WORK = 10_000


class WeightsRef(NamedTuple):
    """A weight set on its way."""

    #: Of the set, in this call.
    number: int
    layout: Layout
    rank: WorkerRank | None


class WeightRequest(NamedTuple):
    """What a worker asks of a weight: its digest, or (``is_bytes``) its bytes, as a descriptor beside the answer."""

    number: int
    name: str
    is_bytes: bool


class WeightAnswer(NamedTuple):
    """digest: of the bytes. offset: of the bytes in the file beside this. error: what the caller's set raised."""

    digest: str = ""
    offset: int = 0
    error: BaseException | None = None


#: Sends a request to the caller, and returns the answer with the descriptors beside it.
Ask = Callable[[WeightRequest], tuple[WeightAnswer, list[int]]]


class ValueTransfer(Sending):
    """Sends values of one call. ``weights``: the sets that were met, in the order of their numbers."""

    def __init__(self, plugins: Plugins, forms: Forms | None = None) -> None:
        """forms: in the state of now; None where nothing is to be checked when it has arrived."""
        self._plugins = plugins
        self._forms = forms
        self.weights: list[WeightSet] = []
        #: The globals, by module, that the worker has too, equal to ours: functions and classes of ``__main__`` go by
        #: their names, and so does what only its identity tells apart.
        #: None before that is known.
        self.replayed: set[tuple[str, str]] | None = None
        #: Arrays and tensors of the arguments by the memory that they lie in.
        self._arrays: dict[int, list[Any]] = {}
        self._is_at_globals = False
        #: Whether what is sent now is of a global with a form, which is compared as a whole when it has arrived.
        self._has_form = False
        #: The classes and functions of the project that were met, by module and global: what they are counts.
        self.named: set[tuple[str, str]] = set()
        #: Objects that are pickled by code of the project.
        self.custom: list[Custom] = []

    def refer(self, value: Any) -> Any:
        if issubclass(type(value), Unsendable):
            raise CannotSend("this process was not sent it")
        if not isinstance(value, WeightSet):
            return None
        if not any(value is known for known in self.weights):
            self.weights.append(value)
        number = next(number for number, known in enumerate(self.weights) if known is value)
        return WeightsRef(number, value.layout, value.worker)

    def reduce(self, value: Any) -> Any:
        kind = type(value)
        named = value if isinstance(value, type | FunctionType) else kind
        if _is_made_up(made_up := vars(value).get("__name__") if kind is ModuleType else named.__module__):
            raise CannotSend(f"the module {made_up}, which the program has put into sys.modules")
        if _is_own(named.__module__):
            self.named.add((named.__module__, named.__qualname__.partition(".")[0]))
            if isinstance(named, type) and self._forms is not None:
                self._refuse_registered(named, self._forms)
            if named is kind and self._forms is not None and not self._has_form and _is_custom(kind):
                self._note_custom(value, self._forms.digest(value))
            if class_attribute(kind, "__new__") is object.__new__ and class_attribute(kind, "__getattr__"):
                _try_without_attributes(kind)
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            return value.__qualname__ if self._is_replayed(value) else NotImplemented
        if (
            class_attribute(kind, "__cachec_stage__")
            and value.__module__ == "__main__"
            and not self._is_replayed(value)
        ):
            return _itself, (value.__wrapped__,)  # what it calls there is seen by the trace around it
        if (place := shared_generator(value)) is not None:
            return getattr, (sys.modules[place[0]], place[1])
        if self._forms is not None and (reduced := self._reduce_sentinel(value, self._forms)):
            return reduced
        if kind is Layout:
            return Layout, (dict(value.tensors), value.ties, value.nesting)
        if kind is Program:
            return _program, (value.ir, value.format, value.manifest, value.canonical)
        if kind is Manifest:
            return _manifest, (value.encode(), dict(value.callers), dict(value.folded))
        if isinstance(value, io.IOBase):
            raise CannotSend(f"an open file ({kind.__name__})")  # cloudpickle would send its content
        if kind is GlobalValue:  # which come after the arguments
            self._is_at_globals, self._has_form = True, bool(value.digest)
        memory = memory_of(value, kind)
        if (
            memory is not None and not self._is_at_globals and kind.__name__ != "Parameter"
        ):  # it is sent as the tensor that it holds
            self._refuse_overlap(value, memory[0])
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return _reduce_array(value)
        if is_array(kind):
            raise CannotSend(f"a {kind.__qualname__}: of a subclass of numpy.ndarray, only the items would arrive")
        if memory is not None and value.is_leaf and value.grad is not None:
            return _reduce_with_gradient(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name == "jinja2.utils.LRUCache":  # of compiled templates: the worker reads their files itself
            return kind, (value.capacity,)
        for plugin in self._plugins.all():
            if name in plugin.sent:
                return _reduce_by_plugin(plugin, value)
            if name in plugin.reduced:
                with Asking(plugin):
                    return plugin.reduce(value)
        return NotImplemented

    def _reduce_sentinel(self, value: Any, forms: Forms) -> Any:
        """What finds the worker's own object, where only its identity tells a value from others; else None."""
        module, _, name = forms.sentinel(value).partition(":")
        if not module and type(value) is object and not self._is_at_globals:
            raise CannotSend("an object() that is no global: its copy would be another")
        if not module or (_is_own(module) and not self._has(module, name)):
            return None  # one that is sent as a global, too, stays the same object
        return _global, (module, name)

    def _refuse_overlap(self, value: Any, owner: int) -> None:
        """Raise CannotSend where two arrays of arguments lie in the same memory: their copies would not."""
        others = self._arrays.setdefault(owner, [])
        if any(_overlap(value, other) for other in others if other is not value):
            raise CannotSend("arrays that share memory")
        others.append(value)

    def _note_custom(self, value: Any, digest: str) -> None:
        if not digest:
            raise CannotSend(f"a {type(value).__qualname__}, which is pickled by code of its own")
        self.custom.append(Custom(value, digest, self._is_at_globals))

    def _has(self, module: str, name: str) -> bool:
        """Whether the worker has a global too. name: its own, or that of an attribute of it."""
        return (module, name.partition(".")[0]) in (self.replayed or ())

    def _refuse_registered(self, cls: type, forms: Forms) -> None:
        """Raise CannotSend where a registry of a library has a class that it has not in the worker."""
        is_there = self._has(cls.__module__, cls.__qualname__) and "<locals>" not in cls.__qualname__
        if self.replayed is not None and not is_there and forms.describe(cls) is not NotImplemented:
            raise CannotSend(f"a {cls.__qualname__}, which a library's registry has in this process alone")

    def _is_replayed(self, value: Any) -> bool:
        first, _, rest = value.__qualname__.partition(".")
        present: Any = vars(sys.modules["__main__"]).get(first) if self._has("__main__", first) else None
        for name in rest.split(".") if rest else ():
            present = getattr(present, name, None)
        return present is value


@lru_cache(maxsize=1024)
def _is_own(module: str) -> bool:
    """Whether a module is the project's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (isinstance(file, str) and InstalledFolders().is_project(os.path.abspath(file)))


def _is_made_up(module: object) -> bool:
    """Whether a module was put into ``sys.modules`` and not imported from anywhere."""
    found = sys.modules.get(module) if isinstance(module, str) and module != "__main__" else None
    return type(found) is ModuleType and found.__spec__ is None and not hasattr(found, "__file__")


def _is_custom(kind: type) -> bool:
    """Whether a class says itself what of its objects is pickled: what arrives may be something else."""
    return kind in copyreg.dispatch_table or any(
        getattr(kind, name, None) is not getattr(object, name, None) and isinstance(getattr(kind, name), FunctionType)
        for name in (
            *("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs_ex__", "__getnewargs__"),
        )
    )


def _try_without_attributes(kind: type) -> None:
    """Raise CannotSend where ``__getattr__`` asks for attributes that an object has only once it has arrived."""
    try:
        getattr(object.__new__(kind), "__setstate__", None)
    except Exception as error:  # noqa: BLE001 - the project's code, whatever it raises
        raise CannotSend(
            f"a {kind.__qualname__}, whose __getattr__ raises {type(error).__name__} when it is new"
        ) from None


class _ObjectParts:
    """Takes what a plugin writes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> None:
        self.parts.append(bytes(data))

    def copy(self, path: Path) -> None:
        self.parts.append(path.read_bytes())


def _reduce_by_plugin(plugin: Plugin, value: Any) -> Any:
    out = _ObjectParts()
    with Asking(plugin):
        meta = plugin.encode(value, out)
    return _of_plugin, (plugin.name, meta, out.parts)


def _of_plugin(name: str, meta: dict[str, Any], parts: list[bytes]) -> Any:
    plugin = installed_plugins().find(name)
    with unseen(), tempfile.TemporaryDirectory(prefix="cachec-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(parts))]
        for path, data in zip(paths, parts, strict=True):
            path.write_bytes(data)
        with Asking(plugin):
            return plugin.decode(meta, paths)


def _global(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module) if module != "__main__" else sys.modules[module])


def _itself(value: Any) -> Any:
    return value


def _manifest(encoded: bytes, callers: Any, folded: Any) -> Manifest:
    return Manifest(digest_bytes(encoded), lambda: encoded, callers, folded)


def _program(ir: bytes, form: str, manifest: Manifest, canonical: str | None) -> Program:
    return Program(ir, format=form, manifest=manifest, canonical=canonical)


def _overlap(one: Any, other: Any) -> bool:
    """Whether two arrays share memory; tensors of one storage always do: each is sent with all of it."""
    import numpy as np

    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return True
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))  # type: ignore[arg-type] # stubs have two
    except np.exceptions.TooHardError:
        return True


def _reduce_array(array: Any) -> Any:
    """A contiguous array is sent as it is. Of another, whose copy would be contiguous, the memory behind it is."""
    if array.flags.c_contiguous or array.flags.f_contiguous or array.dtype.hasobject:
        return NotImplemented
    import numpy as np

    begin, end = np.lib.array_utils.byte_bounds(array)
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    first, last = np.lib.array_utils.byte_bounds(base)
    if not (first <= begin and end <= last and base.flags.c_contiguous):
        raise CannotSend("an array that is a view of other memory than an array's")
    memory = pickle.PickleBuffer(base.reshape(-1).view(np.uint8)[begin - first : end - first])
    offset = array.__array_interface__["data"][0] - begin
    return _strided_array, (memory, array.dtype, array.shape, array.strides, offset, array.flags.writeable)


def _strided_array(memory: Any, dtype: Any, shape: Any, strides: Any, offset: int, writeable: bool) -> Any:
    import numpy as np

    array = np.ndarray(shape, dtype, memory, offset, strides)
    array.flags.writeable = writeable
    return array


class _TorchTensor(Protocol):
    """What is used of a ``torch.Tensor``."""

    grad: _TorchTensor | None


def _reduce_with_gradient(tensor: _TorchTensor) -> Any:
    """A tensor of torch's own form has no gradient."""
    form = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(form) != 2:
        raise CannotSend("a tensor with a gradient and attributes of its own")
    return *form, tensor.grad, None, None, _set_gradient


def _set_gradient(tensor: _TorchTensor, gradient: _TorchTensor) -> None:
    tensor.grad = gradient


class CallerSource(Source):
    """Weights of the caller, fetched when they are first read."""

    def __init__(self, number: int, ask: Ask) -> None:
        self._number = number
        self._ask = ask
        self._lock = threading.Lock()
        self._views: dict[str, memoryview] = {}

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        return self._ask_caller(name, is_bytes=False)[0].digest

    def ways(self, name: str, tensor: Tensor) -> Ways:
        return Ways(lambda: self._view(name, tensor))

    def state(self) -> bytes:
        return b"caller %d" % self._number

    def _view(self, name: str, tensor: Tensor) -> memoryview:
        with self._lock:
            if name not in self._views:
                answer, (fd,) = self._ask_caller(name, is_bytes=True)
                self._views[name] = _map_file(fd, answer.offset, tensor.nbytes)
            return self._views[name]

    def _ask_caller(self, name: str, *, is_bytes: bool) -> tuple[WeightAnswer, list[int]]:
        answer, fds = self._ask(WeightRequest(self._number, name, is_bytes))
        if answer.error is not None:
            raise answer.error
        return answer, fds


def received_weights(ref: WeightsRef, ask: Ask) -> WeightSet:
    """The set that a reference stands for in this worker."""
    return WeightSet(ref.layout, CallerSource(ref.number, ask), rank=ref.rank)


def answer_request(request: WeightRequest, weights: Sequence[WeightSet]) -> tuple[WeightAnswer, list[int]]:
    """The caller's answer, and the descriptors that go with it; the caller closes them."""
    try:
        weight = weights[request.number][request.name]
        if not request.is_bytes:
            return WeightAnswer(weight.digest()), []
        extent = weight.extent()
        if extent is not None:
            extent.check()
            return WeightAnswer(offset=extent.offset), [os.dup(extent.fd)]
        fd = os.memfd_create("cachec-weight")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(weight.raw())
        return WeightAnswer(), [fd]
    except Exception as error:  # noqa: BLE001 - raised where the stage reads the weight
        return WeightAnswer(error=error), []


def _map_file(fd: int, offset: int, nbytes: int) -> memoryview:
    """Bytes of a file, read-only; the descriptor is closed."""
    try:
        if not nbytes:
            return memoryview(b"")
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        whole = mmap.mmap(fd, nbytes + offset - begin, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED, offset=begin)
        return memoryview(whole)[offset - begin :]
    finally:
        os.close(fd)
