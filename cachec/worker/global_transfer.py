"""Sends a global that differs to a worker: its value, or the changes to an object that the worker has too.

A class and a function of a module are pickled by name, so the worker's own is given the attributes of the caller's. A
context variable and a thread-local are none without the module that made them: the worker's own is set. What
arrives is compared again (``state.table``): what can't be set this way has another form there, and counts as missing.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from cachec.base.display_text import module_of
from cachec.base.instances import class_attribute
from cachec.base.unsendable import Unsendable
from cachec.key.canonical_forms import OF_TEXT, Forms


class UnsendableError(Exception):
    """A worker can't be given a value; the message says why."""


#: Types of objects that are somewhere in a file, a database or their own code: a worker's are at their beginning.
_STATEFUL = frozenset(
    {"builtins.generator", "builtins.coroutine", "builtins.async_generator", "sqlite3.Connection"}
) | {
    *("_io._IOBase", "_socket.socket", "subprocess.Popen", "mmap.mmap", "sqlite3.Cursor", "queue.Queue"),
    *("_hashlib.HASH", "_hashlib.HMAC", "re.Match", "zlib.Compress", "zlib.Decompress", "functools.KeyWrapper"),
    *(
        "_queue.SimpleQueue",
        "itertools.count",
        "itertools.cycle",
        "itertools.chain",
        "cachec.base.unsendable.Unsendable",
    ),
}


def is_stateful(value: Any) -> bool:
    """Whether two processes' values without a form may differ although the same text makes them."""
    return any(f"{module_of(cls)}.{cls.__qualname__}" in _STATEFUL for cls in type(value).__mro__)


class DeletedGlobal(NamedTuple):
    """The caller has deleted a global."""


class Attributes(NamedTuple):
    """Of a class or a function that the worker finds by its name. Those of an installed one are not sent."""

    module: str
    qualname: str
    values: Mapping[str, Any]


class ContextValue(NamedTuple):
    """What a context variable is set to."""

    value: Any


class LocalValues(NamedTuple):
    """What this thread has in a ``threading.local``."""

    values: Mapping[str, Any]


def to_send(value: Any, forms: Forms) -> Any:
    """Return what stands for a global's value on its way. Raises UnsendableError."""
    kind = type(value)
    if issubclass(kind, Unsendable):
        raise UnsendableError("this process was not sent it")
    if isinstance(value, type | FunctionType) and _find(module_of(value), value.__qualname__) is value:
        is_own = forms.is_own_module(module_of(value))
        return Attributes(value.__module__, value.__qualname__, _data_of(value) if is_own else {})
    if kind is ContextVar:
        if value not in copy_context():
            raise UnsendableError("a context variable that is no longer set")
        return ContextValue(value.get())
    if kind is threading.local:
        return LocalValues(dict(vars(value)))
    if kind is functools._lru_cache_wrapper:
        raise UnsendableError("a function that remembers results")
    return value


def assign(module: ModuleType, name: str, sent: Any, forms: Forms) -> None:
    """Give a global of this process what ``to_send`` returned in another.

    forms: of this process as it is; its knowledge of classes is out of date afterwards. Raises UnsendableError where
    the object that is to be changed is not here, and what its setters raise.
    """
    own = vars(module).get(name)
    if isinstance(sent, DeletedGlobal):
        vars(module).pop(name, None)
    elif isinstance(sent, Attributes):
        found = _find(sent.module, sent.qualname)
        if found is None:
            raise UnsendableError(f"{sent.module} has no {sent.qualname} in a fresh process")
        if forms.is_own_module(sent.module):
            _change(found, sent.values, forms)
        vars(module)[name] = found
    elif isinstance(sent, ContextValue):
        _check_type(own, ContextVar).set(sent.value)
    elif isinstance(sent, LocalValues):
        attributes = vars(_check_type(own, threading.local))
        attributes.clear()
        attributes.update(sent.values)
    else:
        vars(module)[name] = sent


def _find(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found


def _data_of(value: Any) -> dict[str, Any]:
    """The attributes that are no methods: a class's own code is its module's text. Classes within it likewise."""
    found = {}
    for name, part in vars(value).items():
        if name in OF_TEXT or (name.startswith("__") and name.endswith("__")):
            continue
        if isinstance(part, type):
            if part.__qualname__ == f"{value.__qualname__}.{name}" and part.__module__ == value.__module__:
                found[name] = Attributes(part.__module__, part.__qualname__, _data_of(part))
        elif class_attribute(type(part), "__get__") is None:
            found[name] = part
    return found


def _change(own: Any, values: Mapping[str, Any], forms: Forms) -> None:
    """Attributes that are equal stay the objects that they are, which others may hold too."""
    for name in _data_of(own).keys() - values.keys():
        delattr(own, name)
    for name, value in values.items():
        if isinstance(value, Attributes):
            if name not in vars(own):
                raise UnsendableError(f"{value.module} has no {value.qualname} in a fresh process")
            _change(vars(own)[name], value.values, forms)
        elif name not in vars(own) or forms.form(vars(own)[name]) != forms.form(value):
            setattr(own, name, value)


def _check_type(own: Any, kind: type) -> Any:
    if not isinstance(own, kind):
        raise UnsendableError(f"a fresh process has no {module_of(kind)}.{kind.__qualname__} there")
    return own
