"""Finds what imported modules hold against their text: names added, rebound or deleted, attributes and defaults of
functions, attributes of classes."""

from __future__ import annotations

import abc
import ast
import builtins
import enum
import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import msgspec

from cachec.base.display_text import module_of
from cachec.key.code import generated_members
from cachec.key.code.code_snapshot import MISSING, Watch
from cachec.key.code.constant_folding import UNKNOWN, literal, same
from cachec.key.code.module_sources import absolute
from cachec.key.code.scopes import Chain, dotted_name
from cachec.key.code.whole_modules import ModuleUnit

#: Words of a text that may bind names which it does not show.
_BINDING = rb"\b(globals|locals|vars|setattr|exec|eval|__dict__|modules|__getattr__)\b"
#: Of modules whose metaclasses put nothing but bookkeeping on a class.
_METACLASSES = frozenset({"builtins", "enum"})
#: Decorators that mark a method as abstract.
_ABSTRACT = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod"})
#: What frameworks note on functions that they have met.
_NOTES = ("_torchdynamo", "__wrapped__")


class Alteration(msgspec.Struct, frozen=True):
    """Something that the text of a module does not say."""

    #: Below the module, for messages.
    name: str
    #: ``MISSING`` where it is gone.
    value: Any
    #: The text stores something there, so what importing makes of it is not known.
    is_open: bool = False


def of_module(unit: ModuleUnit, namespace: Mapping[str, Any], watch: Watch) -> Iterator[Alteration]:
    """Names that the text does not bind."""
    watch.value(lambda: repr(sorted(namespace)).encode(), repr(sorted(namespace)).encode())
    for name in list(namespace):
        if name not in unit.source.bindings and name not in unit.source.imports:
            yield from of_name(unit, name, namespace, watch)


def of_name(unit: ModuleUnit, name: str, namespace: Mapping[str, Any], watch: Watch) -> Iterator[Alteration]:
    """A name that the text does not bind; a submodule, and what a star import brought, are not altered."""
    value = watch.name(namespace, name)
    if name == "__doc__" and value != ast.get_docstring(unit.source.tree, clean=False):
        yield Alteration(name, value)
    if isinstance(value, ModuleType) or (name.startswith("__") and name.endswith("__")):
        return
    if re.search(_BINDING, unit.source.text):
        yield Alteration(name, value, is_open=True)
        return
    for use in unit.source.imports.get("*", ()):
        star = sys.modules.get(absolute(use, unit.package) or "")
        if isinstance(star, ModuleType) and watch.name(vars(star), name) is value:
            return
    if value is not MISSING:
        yield Alteration(name, value)


def of_import(unit: ModuleUnit, name: str, namespace: Mapping[str, Any], watch: Watch) -> Iterator[Alteration]:
    """A name that only imports bind, and that stands for something else."""
    value = watch.name(namespace, name)
    for use in unit.source.imports[name]:
        target = absolute(use, unit.package) or ""
        module = watch.name(sys.modules, target)
        if not use.name:
            present = module
        elif isinstance(module, ModuleType):
            present = watch.name(vars(module), use.name)
            if present is MISSING:  # of a module that makes it when it is asked for, or a submodule
                present = watch.name(sys.modules, f"{target}.{use.name}")
                if present is MISSING and not _is_determined(value):
                    return
        else:
            present = MISSING
        if present is value:
            return
    yield Alteration(name, value)


def of_function(
    unit: ModuleUnit, node: ast.FunctionDef | ast.AsyncFunctionDef, chain: Chain, function: FunctionType
) -> Iterator[Alteration]:
    """Literal defaults that are others, and attributes. ``chain``: the dotted name of the function in its module."""
    where = ".".join(chain)
    defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    pairs = list(zip(node.args.defaults, defaults, strict=False))
    pairs += [
        (each, named[argument.arg])
        for argument, each in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if each is not None and argument.arg in named
    ]
    count = sum(each is not None for each in node.args.kw_defaults)
    if len(defaults) != len(node.args.defaults) or len(named) != count:
        yield Alteration(f"{where}.__defaults__", (defaults, named))
    for written, value in pairs:
        constant = literal(written)
        if constant is not UNKNOWN and not same(constant, value):
            yield Alteration(f"{where}.__defaults__", value)
    decorators = {(dotted_name(each) or ("",))[-1] for each in node.decorator_list}
    for name, value in list(vars(function).items()):
        if name == "__isabstractmethod__" and value is True and not decorators.isdisjoint(_ABSTRACT):
            continue
        if not name.startswith(_NOTES):
            yield Alteration(f"{where}.{name}", value, is_open=stores(unit, (*chain, name)))


def of_class(
    unit: ModuleUnit,
    node: ast.ClassDef,
    cls: type,
    attributes: Mapping[str, Any],
    chain: Chain,
    namespace: Mapping[str, Any],
) -> Iterator[Alteration]:
    """Bases and attributes of a class that its statement does not say. Open where other code has a say in them: a
    metaclass, a base, whoever registers with an abstract class. ``chain``: the dotted name of the class in its
    module, of which ``namespace`` is."""
    above = [each for each in cls.__mro__[1:-1] if module_of(each) != "typing"]
    by_others = module_of(type(cls)) not in _METACLASSES or any("__init_subclass__" in vars(each) for each in above)
    if by_others or isinstance(cls, abc.ABCMeta) or generated_members.is_named_tuple(cls):
        yield Alteration(".".join(chain), cls, is_open=True)
        return
    bases = [_resolve_dotted(each, namespace) for each in node.bases]
    if all(isinstance(each, type) for each in bases) and (tuple(bases) or (object,)) != cls.__bases__:
        yield Alteration(".".join((*chain, "__bases__")), cls.__bases__)
    bound = generated_members.bound_names(node)
    for name, value in attributes.items():
        is_bookkeeping = name.startswith("__") and name.endswith("__")
        is_bookkeeping = is_bookkeeping or (isinstance(cls, enum.EnumType) and name[:1] == name[-1:] == "_")
        plain = name.removeprefix(f"_{node.name.lstrip('_')}") if "__" in name else name  # as the statement has it
        if not is_bookkeeping and bound.isdisjoint({name, plain}) and not isinstance(value, MemberDescriptorType):
            yield Alteration(".".join((*chain, name)), value, is_open=stores(unit, (*chain, name)))


def of_try(node: ast.Try, name: str, value: object, *, is_absent: bool) -> bool:
    """Whether a name that assignments of literals alone bind, in a ``try``, stands for something else. is_absent:
    whether a module that it imports was missing."""
    handlers = [each for handler in node.handlers for each in handler.body]
    written = []
    for each in (inner for outer in (*(handlers if is_absent else (*node.body, *node.orelse)), *node.finalbody)
                 for inner in ast.walk(outer)):  # fmt: skip
        if isinstance(each, ast.Assign) and any(dotted_name(target) == (name,) for target in each.targets):
            written.append(literal(each.value))
        elif isinstance(each, ast.alias) and (each.asname or each.name.partition(".")[0]) == name:
            return _is_determined(value) and not any(same(one, value) for one in written)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name == name:
            return False
    return bool(written) and not any(each is UNKNOWN or same(each, value) for each in written)


def _is_determined(value: object) -> bool:
    return isinstance(value, bool | int | float | complex | str | bytes | None)


def _resolve_dotted(node: ast.expr, namespace: Mapping[str, Any]) -> object:
    """What a dotted name stands for now; None where that can't be told."""
    root, *chain = dotted_name(node) or ("",)
    value = namespace.get(root, getattr(builtins, root, None))
    for name in chain:
        value = vars(value).get(name) if isinstance(value, type | ModuleType) else None
    return value


def stores(unit: ModuleUnit, chain: Chain) -> bool:
    """Whether a statement of a module, when it is imported, stores to this dotted name."""
    return any(
        dotted_name(target) == chain
        for statement in unit.source.tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )
