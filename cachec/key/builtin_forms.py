"""The forms of instances of Python's own classes, and of some of well-known libraries."""

from __future__ import annotations

import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.base.instances import attribute, attributes
from cachec.base.unsendable import Unsendable
from cachec.key.constant_forms import code_form

#: Globals of every module that only tell where it comes from.
OF_MODULES: Final = frozenset(
    {
        *("__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__"),
        *("__package__", "__path__", "__spec__", "__warningregistry__"),
    }
)


class FormlessError(Exception):
    """A value has no form: the message says what and where."""


class FormWriter(Protocol):
    """Writes the forms of the parts of a value, and of functions; see ``canonical_forms``."""

    def form(self, value: Any) -> bytes: ...

    def node(self, kind: str, *parts: bytes) -> bytes: ...

    def forms(self, kind: str, values: Iterable[object]) -> bytes: ...

    def encode_unordered(self, kind: str, values: Iterable[object]) -> bytes: ...

    def pairs(self, kind: str, pairs: Iterable[tuple[object, object]]) -> bytes: ...

    def function(self, value: types.FunctionType) -> bytes: ...


def _module(walk: FormWriter, value: types.ModuleType) -> bytes:
    name = attribute(value, "__name__")
    if sys.modules.get(name) is value:
        return walk.forms("module", (name,))
    if type(value) is not types.ModuleType:
        raise FormlessError(f"a module that is not in sys.modules ({name})")
    members = [(name, part) for name, part in vars(value).items() if name not in OF_MODULES]
    return walk.node("loose module", walk.form(name), walk.pairs("globals", members))


def _memo(walk: FormWriter, value: Any) -> bytes:
    """The function alone: what it remembers, another process makes again from the same inputs."""
    return walk.node("memo", walk.form(value.__wrapped__), walk.form(tuple(value.cache_parameters().values())))


def _array(walk: FormWriter, value: Any) -> bytes:
    """An array of numpy: bytes, and how they lie in memory."""
    if value.dtype.hasobject:
        return walk.node("objects", walk.form(value.shape), walk.form(value.dtype), walk.form(value.tolist()))
    flat = (value if value.flags.c_contiguous else value.copy("C")).reshape(-1)
    placed = (value.dtype, value.shape, value.strides, bool(value.flags.writeable))
    return walk.forms("array", (*placed, digest_bytes(memoryview(flat.view("u1"))) if flat.nbytes else ""))


def _encode_builtin(walk: FormWriter, value: Any) -> bytes:
    """A built-in function or method."""
    owner = value.__self__
    is_of_module = owner is None or isinstance(owner, types.ModuleType) or type(owner).__name__ == "PyCapsule"
    if is_of_module or type(owner).__name__.startswith("pybind11_"):
        return walk.forms("named", (value.__module__, value.__qualname__))
    return walk.forms("bound", (owner, value.__name__))


def _descriptor(walk: FormWriter, value: Any) -> bytes:
    owner = value.__objclass__
    return walk.forms("descriptor", (type(value).__name__, module_of(owner), owner.__qualname__, value.__name__))


def _cell(walk: FormWriter, value: types.CellType) -> bytes:
    try:
        return walk.node("cell", walk.form(value.cell_contents))
    except ValueError:
        return walk.node("cell")


def _lock(walk: FormWriter, value: Any) -> bytes:
    if not repr(value).startswith("<unlocked"):
        raise FormlessError("a lock that is held")
    return walk.forms("lock", (type(value).__name__,))


def _context_variable(walk: FormWriter, value: ContextVar[Any]) -> bytes:
    try:
        return walk.forms("context", (value.name, value.get()))
    except LookupError:
        return walk.forms("context", (value.name,))


def _logger(walk: FormWriter, value: logging.Logger) -> bytes:
    return walk.forms("logger", (value.name, value.level, value.disabled, value.propagate))


def _unsent(walk: FormWriter, value: Unsendable) -> bytes:
    raise FormlessError("what this worker was not sent")


def _stream(walk: FormWriter, value: object) -> bytes:
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        if value is getattr(sys, name, None):
            return walk.forms("stream", (name.strip("_"),))
    raise FormlessError("an open file")


BY_TYPE: Final[dict[type, Callable[[FormWriter, Any], bytes]]] = {
    tuple: lambda walk, value: walk.forms("tuple", value),
    list: lambda walk, value: walk.forms("list", value),
    dict: lambda walk, value: walk.pairs("dict", list(value.items())),
    set: lambda walk, value: walk.encode_unordered("set", value),
    frozenset: lambda walk, value: walk.encode_unordered("frozenset", value),
    types.MappingProxyType: lambda walk, value: walk.pairs("proxy", dict(value).items()),
    memoryview: lambda walk, value: walk.forms("view", (value.format, value.readonly, value.shape, value.tobytes())),
    types.FunctionType: lambda walk, value: walk.function(value),
    types.MethodType: lambda walk, value: walk.forms("method", (value.__func__, value.__self__)),
    types.CodeType: lambda walk, value: walk.node("code", code_form(value)),
    types.CellType: _cell,
    staticmethod: lambda walk, value: walk.forms("static", (value.__func__,)),
    classmethod: lambda walk, value: walk.forms("classmethod", (value.__func__,)),
    property: lambda walk, value: walk.forms("property", (value.fget, value.fset, value.fdel)),
    functools.partial: lambda walk, value: walk.forms("partial", (value.func, value.args, value.keywords, vars(value))),
    functools.cached_property: lambda walk, value: walk.forms("cached", (value.func, value.attrname)),
    functools._lru_cache_wrapper: _memo,
    types.BuiltinFunctionType: _encode_builtin,
    types.MethodWrapperType: lambda walk, value: walk.forms("bound", (value.__self__, value.__name__)),
    types.WrapperDescriptorType: _descriptor,
    types.MethodDescriptorType: _descriptor,
    types.ClassMethodDescriptorType: _descriptor,
    types.GetSetDescriptorType: _descriptor,
    types.MemberDescriptorType: _descriptor,
    ContextVar: _context_variable,
    weakref.ref: lambda walk, value: walk.forms("weak", (value(),)),
    weakref.KeyedRef: lambda walk, value: walk.forms("weak", (value(),)),
}

BY_BASE: Final[tuple[tuple[type, Callable[[FormWriter, Any], bytes]], ...]] = (
    (types.ModuleType, _module),
    (logging.Logger, _logger),
    (Unsendable, _unsent),
)

#: Types by name, so that their modules are not imported for this.
BY_NAME: Final[dict[str, Callable[[FormWriter, Any], bytes]]] = {
    "numpy.ndarray": _array,
    "_thread.lock": _lock,
    "_thread.RLock": _lock,
    "_thread._local": lambda walk, value: walk.pairs("local", vars(value).items()),
    "_io.TextIOWrapper": _stream,
    **dict.fromkeys(
        (f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "PurePosix")),
        lambda walk, value: walk.forms("path", (type(value), str(value))),
    ),
    "jinja2.utils.LRUCache": lambda walk, value: walk.forms("memo", (value.capacity,)),  # of compiled templates
    "_struct.Struct": lambda walk, value: walk.forms("struct", (value.format,)),
    "itertools.count": lambda walk, value: walk.forms("count", (repr(value),)),
    "cachec.cache.Cache": lambda walk, value: walk.forms("cache", (str(value.settings.store_folder),)),
    # The type of a field is an annotation.
    "dataclasses.Field": lambda walk, value: walk.pairs(
        "field", [(name, part) for name, part in attributes(value).items() if name != "type"]
    ),
}
