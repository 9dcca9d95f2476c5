"""IREE modules linked to weights. Imports IREE's runtime and numpy."""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import iree.runtime as rt
import numpy as np

from cachec.errors import LinkError, PluginError, UsageError

#: The scope of the parameters in a module (``#flow.parameter.named<"model"::"NAME">``).
_SCOPE = "model"

#: IREE's CPU driver with a pool of threads.
_DEVICE = "local-task"


class BorrowedMemory:
    """Memory that IREE uses: buffers that are released only after IREE has returned them.

    IREE's threads may drop the last reference without Python's lock (``FileHandleWrapMemory`` in
    runtime/bindings/python/io.cc). If that freed a Python object, the process would end by a segmentation fault. So
    each buffer is a private object, and this class has a reference to it until its reference count is one. The count is
    read from memory, because a call of Python would change it.
    """

    def __init__(self) -> None:
        self._buffers: list[memoryview] = []
        self._counts: list[ctypes.c_uint32] = []  # the lower half of PyObject.ob_refcnt

    def lend(self, memory: memoryview | mmap.mmap) -> memoryview:
        """Return the same memory as a buffer for IREE. The caller must not keep a reference to the buffer."""
        buffer = memoryview(memory)
        self._buffers.append(buffer)
        self._counts.append(ctypes.c_uint32.from_address(id(buffer)))
        return buffer

    @property
    def is_returned(self) -> bool:
        """Whether IREE has no reference to any buffer."""
        return all(count.value == 1 for count in self._counts)

    def keep_until_returned(self) -> None:
        """Keep the memory in another thread until IREE returns it; for ever if the interpreter is ending."""
        try:
            threading.Thread(target=self._wait, name="cachec-lent", daemon=True).start()
        except RuntimeError:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _wait(self) -> None:
        pause = 0.001
        while not self.is_returned:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


class LinkedModule:
    """A module with its weights. Call it like its function ``main``; ``call`` runs another function by name.

    It keeps the memory of its weights, which stay valid after the weight set is released.
    """

    def __init__(self, path: str | os.PathLike[str], parameters: Mapping[str, memoryview]) -> None:
        """Load a ``.vmfb`` file. parameters: from ``cachec_iree.parameters``.

        Raises LinkError if the file is not a module, or needs parameters that are missing.
        """
        instance = rt.VmInstance()
        self._device = rt.get_device(_DEVICE)
        index = rt.ParameterIndex()
        self._lent = BorrowedMemory()
        for name, view in parameters.items():
            if view.nbytes:  # nothing to map; a module asks for no parameter without elements
                index.add_buffer(name, self._lent.lend(view))
        provider = rt.create_io_parameters_module(instance, index.create_provider(_SCOPE))
        hal = rt.create_hal_module(instance, self._device)
        try:
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            module = rt.VmModule.wrap_buffer(instance, self._lent.lend(mapped))
            self._context = rt.VmContext(instance, [provider, hal, module])
        except (ValueError, RuntimeError) as error:
            # IREE's threads may still copy parameters, and there is no way to wait for them. A release of their memory
            # would crash the process, so the memory is kept until the process ends.
            atexit.register(_do_nothing, instance, index, provider, hal, self.__dict__.pop("_lent"))
            raise LinkError(f"{os.fspath(path)} can't be linked: {error}") from error
        self._module = module
        self._invokers: dict[str, Any] = {}

    def __del__(self) -> None:
        lent = self.__dict__.get("_lent")
        self.__dict__.clear()  # IREE's objects go first
        if lent is not None and not lent.is_returned:
            lent.keep_until_returned()

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that can be called."""
        return tuple(name for name in self._module.function_names if not name.startswith("__"))

    def __call__(self, *inputs: Any) -> Any:
        """Run ``main``: arrays in, a numpy array out, or a tuple of them."""
        return self.call("main", *inputs)

    def call(self, function: str, *inputs: Any) -> Any:
        """Run a function. inputs: arguments for ``numpy.asarray``, of the compiled dtype and shape.

        Raises UsageError for an unknown function, and ValueError for an input that does not fit.
        """
        invoke = self._invokers.get(function)
        if invoke is None:
            target = self._module.lookup_function(function)
            if target is None:
                raise UsageError(f"no function {function!r} in this module; it has {', '.join(self.functions)}")
            invoke = self._invokers[function] = rt.FunctionInvoker(self._context, self._device, target)
        outputs = invoke(*(np.asarray(each, order="C") for each in inputs))
        return tuple(map(_to_numpy, outputs)) if isinstance(outputs, tuple) else _to_numpy(outputs)


def _to_numpy(output: Any) -> Any:
    if isinstance(output, rt.DeviceArray):
        return output.to_host()
    if output is None:
        return ()
    raise PluginError(f"the module returned a {type(output).__qualname__}, expected arrays")


def _do_nothing(*things: object) -> None:
    """Do nothing. Registered at exit, it keeps its arguments alive."""
