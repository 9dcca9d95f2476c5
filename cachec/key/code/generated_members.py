"""Members that the standard library generates on classes: methods made from the class body, and bookkeeping.

These differ between Pythons where the class does not. What they are made from counts instead: the source of the class,
the members of an enumeration, the fields and defaults of a named tuple.
"""

from __future__ import annotations

import abc
import ast
import enum
import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from cachec.base.display_text import module_of
from cachec.key.code.code_snapshot import Watch
from cachec.key.code.module_sources import is_cell

#: Modules that make methods: of dataclasses, enumerations, named tuples, protocols.
_MAKERS = frozenset({"dataclasses", "enum", "typing", "collections", "reprlib"})
#: Py_TPFLAGSHEAPTYPE (Include/object.h): a class that was not compiled in.
HEAPTYPE = 1 << 9
#: Py_TPFLAGS_IMMUTABLETYPE: one whose attributes nobody may set.
_IMMUTABLETYPE = 1 << 8
#: What ``dataclasses.dataclass`` writes as text and compiles.
_OF_DATACLASSES = frozenset(
    f"__{name}__" for name in ("init", "repr", "eq", "lt", "le", "gt", "ge", "hash", "setattr", "delattr")
)
#: What each field and each dataclass was told, on every Python. ``hash`` may be None: as ``compare``.
_FIELD_OPTIONS = ("init", "repr", "hash", "compare", "kw_only")
_DATACLASS_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
#: What each field of attrs was told: what may be anything, and what is yes or no.
_ATTRS_VALUES = ("default", "validator", "converter", "on_setattr", "eq_key", "order_key", "repr", "metadata", "type")
_ATTRS_OPTIONS = ("init", "eq", "order", "hash", "kw_only", "inherited", "alias")
#: What every member of an enumeration holds beside what its class gives it.
_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
#: Descriptors of what objects have, and of what is made of the others when it is asked for.
_NOT_SHOWN = frozenset({"__dict__", "__weakref__", "__signature__"})
#: What the interpreter and the standard library put on classes that they were not told.
_INTERPRETERS = frozenset({"__slotnames__", "__classcell__", "__static_attributes__", "__replace__", "__new__"})


def is_open(cls: type) -> bool:
    """Whether anybody may set attributes of a class."""
    return bool(cls.__flags__ & HEAPTYPE) and not cls.__flags__ & _IMMUTABLETYPE


def tells(cls: type) -> bool:
    """Whether a class without source tells all that its methods are made from."""
    return is_named_tuple(cls) or isinstance(cls, enum.EnumType)


def is_generated(function: FunctionType, cls: type, is_library: Callable[[str], bool]) -> bool:
    """Whether a method was made from what its class says, and holds nothing that was written elsewhere.

    is_library: whether a file is one of the standard library.
    """
    file = function.__code__.co_filename
    if file.startswith("<") and not file.startswith("<frozen") and not is_cell(file):
        # Named after the class by who made it; what ``exec`` and ``python -c`` leave has its own name.
        return any(function.__qualname__ == f"{each.__qualname__}.{function.__name__}" for each in cls.__mro__)
    if function.__globals__.get("__name__") not in _MAKERS or not is_library(file):
        return False
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if isinstance(content, FunctionType):
            # A wrapper of what was made; of anything else it is not made from the class alone.
            if not content.__code__.co_filename.startswith("<") or is_cell(content.__code__.co_filename):
                return False
        elif callable(content) and content is not cls and not _built_in(content):
            return False
    return True


def is_standard(function: FunctionType, cls: type) -> bool:
    """Whether Python itself makes a method of that name of such a class. What it makes differs between Pythons; what
    others make is as they have it."""
    file = function.__code__.co_filename
    return (
        not file.startswith("<")
        or is_named_tuple(cls)
        or (hasattr(cls, "__dataclass_fields__") and function.__name__ in _OF_DATACLASSES)
        # attrs writes the hash of a text into it, which is another with each process.
        or (file.startswith("<attrs generated ") and function.__name__ == "__hash__")
    )


def _built_in(value: object) -> bool:
    return isinstance(value, BuiltinFunctionType) or (isinstance(value, type) and module_of(value) == "builtins")


def is_named_tuple(cls: type) -> bool:
    """Whether ``collections.namedtuple`` or ``typing.NamedTuple`` made a class; not one that inherits from such."""
    make = vars(cls).get("_make")
    return (
        cls.__bases__ == (tuple,)
        and isinstance(make, classmethod)
        and isinstance(make.__func__, FunctionType)
        and make.__func__.__globals__.get("__name__") == "collections"
    )


def is_made_elsewhere(cls: type) -> bool:
    """Whether a class is not the one that its module, one with Python source, has under its name: neither a class of
    that module nor one inside a function of it."""
    if not cls.__flags__ & HEAPTYPE or "<locals>" in cls.__qualname__:
        return False
    module = sys.modules.get(module_of(cls))
    if module is None or not str(getattr(module, "__file__", None)).endswith(".py"):
        return False
    owner: object = module
    for name in cls.__qualname__.split("."):
        owner = vars(owner).get(name) if isinstance(owner, type | ModuleType) else None
    return owner is not cls


def name_in_module(cls: type) -> str:
    """How the module of a class has it, where that is not under its own name: ``another`` where something else is there
    (a reload or a cell that ran again made it anew: no instance of one is one of the other), else the names that it has
    it under. Empty where it has it under its own, or not at all."""
    module = sys.modules.get(module_of(cls))
    if not isinstance(module, ModuleType):
        return ""
    if "<locals>" not in cls.__qualname__:
        owner: object = module
        for name in cls.__qualname__.split("."):
            owner = vars(owner).get(name) if isinstance(owner, type | ModuleType) else None
        if owner is not None:
            return "" if owner is cls else "another"
    return " ".join(sorted(name for name, each in list(vars(module).items()) if each is cls))


def is_own(cls: type, name: str, node: ast.ClassDef | None) -> bool:
    """Whether an attribute that is no method is the class's own. Double-underscore values are only where its statement
    ``node`` binds them: others are the interpreter's (some appear late: ``__slotnames__``); all count where there is no
    statement. Enumerations keep lists and caches of their members."""
    if name.startswith("__") and name.endswith("__"):
        return name in _bound_names(node) if node is not None else name not in _INTERPRETERS and not tells(cls)
    if isinstance(cls, enum.EnumType):
        return name not in cls.__members__ and not (name.startswith("_") and name.endswith("_"))
    return True


def binds(node: ast.ClassDef | None, name: str) -> bool:
    """Whether the statement of a class binds a name; unknown where there is none."""
    return node is None or name in _bound_names(node)


def bound_names(node: ast.ClassDef) -> set[str]:
    """All names that the statement of a class binds."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = {each.name for statement in node.body for each in ast.walk(statement) if isinstance(each, definitions)}
    aliases = (each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.alias))
    return _bound_names(node) | named | {each.asname or each.name.partition(".")[0] for each in aliases}


def _bound_names(node: ast.ClassDef) -> set[str]:
    return {
        each.id
        for statement in node.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for each in ast.walk(statement)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def contents(cls: type, watch: Watch) -> Iterator[tuple[str, object]]:
    """What a class holds, each with a name, where its attributes do not show it in the same way on every Python: the
    members of an enumeration in their order, with what was put on them; the defaults of a named tuple; the classes that
    an abstract one was told of. All of it is watched.
    """
    if isinstance(cls, enum.EnumType):
        members: dict[str, Any] = dict(cls.__members__)
        yield "<members>", list(members)
        for name, member in members.items():
            namespace = vars(member)
            watch.mapping(namespace)
            given = {
                each: value for each, value in namespace.items() if each not in _MEMBER and not _is_cached(cls, each)
            }
            yield name, [member._value_, given] if given else member._value_
    elif is_named_tuple(cls):
        new = vars(cls)["__new__"]
        if isinstance(new, staticmethod):
            new = new.__func__
        if isinstance(new, FunctionType):
            watch.function(new)
            yield "<defaults>", new.__defaults__
    if isinstance(cls, abc.ABCMeta):
        watch.value(
            lambda: repr(list(map(id, registered_classes(cls)))).encode(),
            repr(list(map(id, registered_classes(cls)))).encode(),
        )
        if found := registered_classes(cls):
            yield "<registered>", found
    fields: object = vars(cls).get("__dataclass_fields__")
    if isinstance(fields, dict):
        for name, field in fields.items():
            for kind in ("default", "default_factory"):
                namespace = getattr(field, kind, None)
                if type(namespace).__qualname__ != "_MISSING_TYPE":
                    yield f"<{kind}> {name}", namespace
            yield f"<options> {name}", [getattr(field, each, None) is True for each in _FIELD_OPTIONS]
            if metadata := dict(getattr(field, "metadata", None) or {}):
                yield f"<metadata> {name}", metadata
    yield from _of_attrs(cls)
    yield from _of_pydantic(cls)
    if (params := vars(cls).get("__dataclass_params__")) is not None:
        yield "<options>", [getattr(params, each, None) is True for each in _DATACLASS_OPTIONS]
    if "__abstractmethods__" in vars(cls):  # as they are now: anybody may set them
        yield "<abstract>", sorted(vars(cls)["__abstractmethods__"])
    for kind in ("__parameters__", "__orig_bases__"):  # of a class that a reload replaced, not what its text says now
        declared = vars(cls).get(kind)
        if declared:
            yield kind, declared


def _of_attrs(cls: type) -> Iterator[tuple[str, object]]:
    """What methods that attrs made of a class hold: as it was when they were made, whatever names stand for now."""
    fields: object = vars(cls).get("__attrs_attrs__")
    for field in fields if isinstance(fields, tuple) else ():
        name = getattr(field, "name", None)
        for kind in _ATTRS_VALUES:
            setting: Any = getattr(field, kind, None)
            if kind == "default" and hasattr(setting, "factory"):
                setting = [setting.factory, getattr(setting, "takes_self", None)]
            if setting is not None and not isinstance(setting, enum.Enum):  # attrs has a member of one for no default
                yield f"<{kind}> {name}", setting
        yield f"<options> {name}", [getattr(field, each, None) for each in _ATTRS_OPTIONS]


def _of_pydantic(cls: type) -> Iterator[tuple[str, object]]:
    """The defaults of a model of pydantic, as its validator has them."""
    fields: object = vars(cls).get("__pydantic_fields__")
    for name, field in fields.items() if isinstance(fields, dict) else ():
        for kind in ("default", "default_factory"):
            setting = getattr(field, kind, None)
            if setting is not None and type(setting).__qualname__ != "PydanticUndefinedType":
                yield f"<{kind}> {name}", setting


def shown_by_metaclass(cls: type) -> Iterator[tuple[str, object]]:
    """What a class holds where only its compiled metaclass shows it: fields and defaults of msgspec's structs."""
    for base in type.mro(type(cls)):
        if module_of(base) not in {"builtins", "abc"}:
            for name, value in vars(base).items():
                if isinstance(value, MemberDescriptorType | GetSetDescriptorType) and name not in _NOT_SHOWN:
                    yield name, getattr(cls, name, None)


def registered_classes(cls: abc.ABCMeta) -> list[type]:
    """The classes that were registered with an abstract one (``cls.register``), by name."""
    found = [reference() for reference in abc._get_dump(cls)[0]]  # type: ignore[attr-defined]
    return sorted((each for each in found if each is not None), key=lambda each: (module_of(each), each.__qualname__))


def _is_cached(cls: type, name: str) -> bool:
    return any(isinstance(vars(base).get(name), functools.cached_property) for base in cls.__mro__)
