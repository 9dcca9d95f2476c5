"""IREE modules bound to weights. Imports IREE's runtime and numpy: only ever imported when something is linked."""

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


class Lent:
    """Memory that IREE holds: buffers that are let go of when IREE has given them back, and not before.

    IREE's threads may give the last reference up, without Python's lock (``FileHandleWrapMemory`` in
    runtime/bindings/python/io.cc deletes what it retained wherever it is called): where that frees a Python object, the
    process ends by a segmentation fault. So each buffer is an object that nobody else has, and this holds it until its
    count of references says that it is the only one. The count is read from memory: asking Python would change it.
    """

    def __init__(self) -> None:
        self._buffers: list[memoryview] = []
        self._counts: list[ctypes.c_uint32] = []  # the lower half of PyObject.ob_refcnt

    def lend(self, memory: memoryview | mmap.mmap) -> memoryview:
        """The same memory, for IREE. The caller keeps no reference to it."""
        buffer = memoryview(memory)
        self._buffers.append(buffer)
        self._counts.append(ctypes.c_uint32.from_address(id(buffer)))
        return buffer

    @property
    def is_back(self) -> bool:
        """Whether IREE holds none of it."""
        return all(count.value == 1 for count in self._counts)

    def keep(self) -> None:
        """Hold it until it is back, from another thread; where the interpreter is ending, for good."""
        try:
            threading.Thread(target=self._wait, name="cachec-lent", daemon=True).start()
        except RuntimeError:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _wait(self) -> None:
        pause = 0.001
        while not self.is_back:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


class LinkedModule:
    """A module and its weights, ready to run. Call it like its function ``main``; ``call`` runs another by name.

    It holds on to the memory of its weights, so they stay valid when the weight set is released.
    """

    def __init__(self, path: str | os.PathLike[str], parameters: Mapping[str, memoryview]) -> None:
        """path: a ``.vmfb`` file. parameters: see ``cachec_iree.parameters``.

        Raises LinkError where it is no module or wants parameters that are not there.
        """
        instance = rt.VmInstance()
        self._device = rt.get_device(_DEVICE)
        index = rt.ParameterIndex()
        self._lent = Lent()
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
            # IREE's threads may still be copying parameters, nothing tells when they are done, and letting go of the
            # memory under them crashes the process: it is held until the process ends.
            atexit.register(_hold, instance, index, provider, hal, self.__dict__.pop("_lent"))
            raise LinkError(f"{os.fspath(path)} can't be linked: {error}") from error
        self._module = module
        self._invokers: dict[str, Any] = {}

    def __del__(self) -> None:
        lent = self.__dict__.get("_lent")
        self.__dict__.clear()  # IREE's objects go first
        if lent is not None and not lent.is_back:
            lent.keep()

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that can be called."""
        return tuple(name for name in self._module.function_names if not name.startswith("__"))

    def __call__(self, *inputs: Any) -> Any:
        """Run ``main``: arrays in, a numpy array out, or a tuple of them."""
        return self.call("main", *inputs)

    def call(self, function: str, *inputs: Any) -> Any:
        """Run a function. inputs: whatever ``numpy.asarray`` takes, of the dtype and shape that was compiled for.

        Raises UsageError where there is no such function, ValueError where an input does not fit.
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


def _hold(*things: object) -> None:
    """Does nothing, at exit, with what it was registered with."""
