"""Code reached through live objects: functions, classes and values, as they are in this process."""

from __future__ import annotations

import ast
import collections
import functools
import os
import re
import sys
import types
from collections.abc import Callable
from types import FunctionType, ModuleType

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher, digest_bytes
from cachec.key.code import generated_members
from cachec.key.code.code_objects import code_digest, code_uses, code_words, nested_code
from cachec.key.code.code_snapshot import MISSING
from cachec.key.code.deferred_imports import DeferredImports
from cachec.key.code.executed_source import executed_sources
from cachec.key.code.library_objects import is_mock, is_plain
from cachec.key.code.module_sources import Locator, Sources
from cachec.key.code.namespaces import Namespaces
from cachec.key.code.normalized_syntax import docstrings, documentation
from cachec.key.code.origins import Origins
from cachec.key.code.part_graph import PartGraph, module_name, package_name
from cachec.key.code.referenced_values import ReferencedValues, is_plain_class, wraps_code
from cachec.key.code.scopes import Chain
from cachec.key.code.whole_modules import Units
from cachec.key.describe import name_of_class

_SKIPPED_ATTRIBUTES = frozenset(
    {
        *("__doc__", "__module__", "__annotations__", "__qualname__", "__name__"),
        *("__firstlineno__", "__static_attributes__", "__dataclass_fields__"),
        *("__dataclass_params__", "_abc_impl", "__parameters__"),
        *("__orig_bases__", "__type_params__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        "_torchdynamo_wrapper_id",  # an address
    }
)
#: Bookkeeping that a class statement may write itself; counts where it does, and where there is no statement.
_OF_THE_STATEMENT = frozenset({"__match_args__", "__hash__"})
#: Functions that the interpreter makes of a class statement, whose text they are in.
_MADE_OF_ANNOTATIONS = frozenset({"__annotate__", "__annotate_func__"})
#: Where an instance holds a field: the class says which there are.
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, type(collections.namedtuple("_", "x").x))  # type: ignore[attr-defined]
_DYNAMIC = frozenset({"globals", "eval", "exec"})


class Walk:
    """One computation of the code that a stage reaches."""

    def __init__(
        self,
        graph: PartGraph,
        locator: Locator,
        sources: Sources,
        units: Units,
        encode_value: Callable[[object, str], bytes],
    ) -> None:
        self._graph = graph
        self._locator = locator
        self._sources = sources
        self._units = units
        self._origins = Origins(graph, locator, sources, units)
        self._static = DeferredImports(graph, locator, sources, units, self)
        self._values = ReferencedValues(graph, self._origins, self, encode_value)
        self._namespaces = Namespaces(graph, locator, units, self._origins, self._static, self._values, self)

    def as_imported(self, value: object, name: str, made: bytes = b"") -> None:
        """Take a value as it is at run time, because its source does not tell (see ``static``). made: what made it, for
        one of which not all shows."""
        self._graph.is_as_written = False
        label, first = self._graph.label(("as imported", name, id(value)), f"{name} (as imported)", value)
        if first:
            hasher = Hasher("as imported")
            reference = self.reference(value, label, lenient=True)
            hasher.part("value", reference.encode())
            if reference == "by source" or self._values.shows_not_all(value, label):
                hasher.part("made", made)
            self._graph.part(label, hasher, "differs from its source file")

    def refuse_weights(self, value: object, name: str) -> None:
        """Raise CapturedWeights for a weight set, a weight, or a container that holds one."""
        self._values.refuse_weights(value, name)

    def reference(
        self, value: object, name: str, *, lenient: bool, lenient_value: bool | None = None, by_options: bool = False
    ) -> str:
        """What stands for a value in the part that refers to it; follows what it reaches. ``name`` labels its part.
        lenient_value: for what is no code, where that differs. by_options: see ``Values.part``."""
        if is_mock(value):
            self._graph.refuse_mock(name)
        try:
            label = self.code(value, lenient=lenient)
        except Exception as error:  # noqa: BLE001 - user code may raise any
            return self._graph.report_exception(f"{name} ({name_of_class(value)})", error)
        lenient = lenient if lenient_value is None else lenient_value
        return label if label is not None else self._values.part(value, name, lenient=lenient, by_options=by_options)

    def code(self, value: object, *, lenient: bool) -> str | None:
        """The label of a function, class or module, which is followed; None for every other value."""
        if isinstance(value, FunctionType):
            return self.function(value, lenient=lenient)
        if isinstance(value, type):
            return self.cls(value, lenient=lenient)
        if isinstance(value, ModuleType):
            return self._namespaces.module(value, (), lenient=lenient)
        return None

    def function(self, function: FunctionType, *, lenient: bool) -> str:
        """The label of a function; what it reaches is looked at later."""
        module = module_name(function.__globals__)
        name = f"{module}.{function.__qualname__}"
        kind, distribution = self._locator.of_file(function.__code__.co_filename)
        self._graph.distributions.add(distribution)
        is_foreign = kind != "project"
        if is_foreign and not function.__closure__ and "__wrapped__" not in function.__dict__:
            return f"{distribution or 'python'}:{name}{self._set(function)}"
        label, _ = self._graph.label(id(function), name, function)
        # A function of a library may wrap one of the project: what it holds is followed, the rest of it is not.
        self._graph.visit(label, lambda lenient: self._function(function, label, is_foreign, lenient), lenient=lenient)
        return label

    def _function(self, function: FunctionType, label: str, is_foreign: bool, lenient: bool) -> None:
        graph = self._graph
        graph.watch.function(function)
        hasher = Hasher("function")
        code = function.__code__
        detail = os.path.basename(code.co_filename)
        if not is_foreign:
            detail = self._body(function, label, hasher, lenient)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            value = graph.watch.cell(cell)
            where = f"{label}.<closure>/{name}"
            reference = "unbound"
            if value is not MISSING:
                reference = self.reference(value, where, lenient=lenient, lenient_value=lenient or is_foreign)
            if not is_foreign and self._values.shows_not_all(value, where):
                reference = f"{reference} made by {self._namespaces.maker(function)}"
            hasher.part(f"closure {name}", reference.encode())
        if function.__name__ != code.co_name and "__wrapped__" not in function.__dict__:
            hasher.part("name", function.__name__.encode())
        wrapped_lenient, lenient = lenient, lenient or is_foreign
        count = code.co_argcount
        defaults = function.__defaults__ or ()
        for name, value in zip(code.co_varnames[count - len(defaults) : count], defaults, strict=True):
            hasher.part(f"default {name}", self.reference(value, f"{label}.<default>/{name}", lenient=lenient).encode())
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            hasher.part(f"default {name}", self.reference(value, f"{label}.<default>/{name}", lenient=lenient).encode())
        for name, value in sorted(function.__dict__.items()):
            if name in _SKIPPED_ATTRIBUTES:
                continue  # what functools.wraps and the like copy: names and documentation
            is_lenient = wrapped_lenient or name != "__wrapped__"
            reference = self.reference(value, f"{label}.{name}", lenient=is_lenient, lenient_value=True)
            hasher.part(f"attribute {name}", reference.encode())
        graph.part(label, hasher, detail)

    def _body(self, function: FunctionType, label: str, hasher: Hasher, lenient: bool) -> str:
        """Feed what a function of the project says and refers to; returns the place for a person."""
        graph, code, namespace = self._graph, function.__code__, function.__globals__
        source = self._sources.load(code.co_filename)
        node = source.match(code) if source is not None else None
        package = package_name(namespace)
        unit = self._units.at(module_name(namespace), code.co_filename, package) if source is not None else None
        if source is not None and node is not None:
            hasher.part("syntax", source.syntax(node))
            graph.mentions(source.syntax(node))
            graph.covers(source, node, label)
            uses = source.function_uses(node)
            detail = f"{os.path.basename(code.co_filename)}:{node.lineno}"
            if "<locals>" not in function.__qualname__:
                for chain in source.decorator_refs(node):
                    reference = self.resolve(function, chain, label, lenient=True)
                    hasher.part(f"decorator {'.'.join(chain)}", reference.encode())
        else:
            hasher.part("code", code_digest(code).encode())
            graph.codes.update((code.co_filename, each) for each in nested_code(code))
            graph.mentions(
                " ".join(f"s{len(each)}:{each}" for each in code_words(code)).encode("utf-8", "surrogatepass")
            )
            uses = code_uses(code)
            detail = f"{os.path.basename(code.co_filename)}, " + (
                "source changed since import" if source is not None else "no source"
            )
        inner = functools.cache(lambda: [] if node is None else docstrings(node))  # few ask
        graph.aside("documentation", label, lambda: documentation([function.__doc__, inner()]))
        graph.when("annotations", lambda: self._annotations(function, label))
        if not lenient:
            graph.report_computed(label, uses)
        for chain in uses.refs:
            hasher.part(f"name {'.'.join(chain)}", self.resolve(function, chain, label, lenient=lenient).encode())
        self._static.follow(uses, package, label, lenient=lenient)
        owner = self._class_of(function)
        if owner is not None:
            hasher.part("class", self.cls(owner, lenient=lenient).encode())
        self._namespaces.reach_module(namespace, unit)
        return detail

    def _annotations(self, holder: FunctionType | type, label: str) -> None:
        """A part for what annotations mean; those that are text name globals."""
        module = sys.modules.get(module_of(holder))
        namespace = holder.__globals__ if isinstance(holder, FunctionType) else vars(module) if module else {}
        hasher = Hasher("annotations")
        annotations = getattr(holder, "__annotations__", None)  # of ``type`` itself, a descriptor
        if isinstance(holder, FunctionType):
            self._graph.watch.mapping(holder.__annotations__)
            self._graph.watch.value(lambda: b"%d" % id(holder.__annotations__), b"%d" % id(annotations))
        for name, value in annotations.items() if isinstance(annotations, dict) else ():
            reference = self.reference(value, f"{label}.<annotation>/{name}", lenient=True)
            hasher.part(f"annotation {name}", reference.encode())
            words = re.findall(r"[A-Za-z_]\w*", value) if isinstance(value, str) else ()
            self._namespaces.follow(namespace, [(word,) for word in words if word in namespace], hasher)
        self._graph.part(f"{label}.<annotations>", hasher, "asked for")

    def _class_of(self, function: FunctionType) -> type | None:
        """The class whose method this is, by its qualified name: its other methods are reached through ``self``."""
        head = function.__qualname__.partition(".")[0]
        if head == function.__qualname__:
            return None
        holder = self._graph.watch.name(function.__globals__, head)
        return holder if isinstance(holder, type) else None

    def resolve(self, function: FunctionType, chain: Chain, label: str, *, lenient: bool) -> str:
        """What a free name of a function, with the attributes taken from it, stands for now."""
        watch = self._graph.watch
        code, namespace, root = function.__code__, function.__globals__, chain[0]
        if root in code.co_freevars:
            value = watch.cell((function.__closure__ or ())[code.co_freevars.index(root)])
            return self._namespaces.resolve_value(value, chain[1:], f"{label}.<closure>/{root}", None, lenient)
        if root in _DYNAMIC and not lenient and root not in namespace:
            self._namespaces.whole(namespace, code.co_filename, dynamic=True)
            self._namespaces.all_names(namespace, modules=True)
        return self._namespaces.stands(namespace, chain, lenient=lenient)

    def cls(self, cls: type, *, lenient: bool) -> str:
        """The label of a class; its body, bases and methods are looked at later."""
        name = f"{module_of(cls)}.{cls.__qualname__}"
        kind, distribution = self._origins.of_class(cls)
        self._graph.distributions.add(distribution)
        if kind != "project":
            description = f"{distribution or 'python'}:{name}{self._replaced_methods(cls)}"
            return (
                description if "<locals>" not in cls.__qualname__ else f"{description} {self._made_by_call(cls, name)}"
            )
        module = sys.modules.get(module_of(cls))
        wanted = f"{module_name(vars(module))}.{cls.__qualname__}" if module is not None else name
        label, _ = self._graph.label(id(cls), wanted, cls)
        self._graph.visit(label, lambda lenient: self._cls(cls, label, lenient), lenient=lenient)
        return label

    def _made_by_call(self, cls: type, name: str) -> str:
        """The label of a class that a function of a library makes, each time another one: of what it holds."""
        label, first = self._graph.label(id(cls), name, cls)
        if not first:
            return label
        hasher = Hasher("made by call")
        for base in cls.__bases__:
            hasher.part("base", self.cls(base, lenient=True).encode())
        for each, value in sorted(self._graph.watch.attributes(cls).items()):
            if not _is_skipped(each, value, None):
                hasher.part(f"attribute {each}", self.reference(value, f"{label}.{each}", lenient=True).encode())
        self._graph.part(label, hasher, "made by a library")
        return label

    def _set(self, function: FunctionType) -> str:
        """What anybody may have set of a function of a library: plain values of its defaults, and code of the project
        in the place of code by a name that it uses."""
        watch, namespace = self._graph.watch, function.__globals__
        watch.function(function)
        defaults = function.__defaults__ or ()
        code = function.__code__
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        given = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
        # Tuples are tables of the library's own, and others with each Python (``functools.WRAPPER_ASSIGNMENTS``), and
        # so are marks that say "not given".
        shown = [
            (name, each)
            for name, each in sorted(given.items())
            if each is not None and type(each) is not tuple and is_plain(each)
        ]
        digest = f" {digest_bytes(repr(shown).encode('utf-8', 'surrogatepass'))}" if shown else ""
        for name in sorted({name for each in nested_code(function.__code__) for name in each.co_names}):
            if isinstance(namespace.get(name), FunctionType | type):
                value = watch.name(namespace, name)
                is_class = isinstance(value, type)
                own = self._origins.of_module(module_of(value))[0] == "project" if is_class else False
                if own or self._locator.is_own(value):
                    digest += f" {name} {self.code(value, lenient=True)}"
            elif is_mock(namespace.get(name)):
                self._graph.refuse_mock(f"{name} of {namespace.get('__name__')}")
        return digest

    def _replaced_methods(self, cls: type) -> str:
        """What the project put in the place of methods of a library's class, and its public attributes that are classes
        or plain values, which anybody may set; empty where there is none of that."""
        if not generated_members.is_open(cls):
            return ""
        descriptions = []
        for name, value in sorted(self._graph.watch.attributes(cls).items()):
            if is_mock(value):
                self._graph.refuse_mock(f"{name} of {module_of(cls)}.{cls.__qualname__}")
            if self._locator.is_own(value):
                descriptions.append(f" {name} {self.function(value, lenient=True)}")
            elif not name.startswith("_") and isinstance(value, type):
                descriptions.append(f" {name} {module_of(value)}.{value.__qualname__}")
            elif not name.startswith("_") and is_plain(value):
                descriptions.append(f" {name} {digest_bytes(repr(value).encode('utf-8', 'surrogatepass'))}")
        return "".join([*descriptions, *(self._replaced_methods(base) for base in cls.__bases__)])

    def _cls(self, cls: type, label: str, lenient: bool) -> None:
        graph = self._graph
        hasher = Hasher("class")
        module = sys.modules.get(module_of(cls))
        own = self._origins.of_module(module_of(cls))[0] == "project"
        namespace = vars(module) if own and module is not None else {}
        unit = self._origins.unit(namespace)
        if unit is not None and self._origins.ambiguous(unit, cls.__qualname__.partition(".")[0]):
            unit = self._origins.cell_of(cls, namespace)
        definition = unit.source.definition(cls.__qualname__) if unit is not None else None
        node = definition if isinstance(definition, ast.ClassDef) else None
        by_source = node is not None or (lenient and unit is not None)  # or else nothing says what made its values
        is_in_source = node is not None or generated_members.tells(cls)
        opaque = False
        detail = "no source"
        if unit is not None and node is not None:
            apart = {
                name
                for name, value in vars(cls).items()
                if isinstance(value, FunctionType) and value.__code__.co_qualname == f"{cls.__qualname__}.{name}"
            } - _MADE_OF_ANNOTATIONS
            body = unit.source.class_syntax(node, apart)
            hasher.part("syntax", body)
            graph.covers(unit.source, node, label)
            graph.mentions(body)
            # All that the body runs: fields, tables, wrappers, of which not everything shows in what they made.
            for chain in unit.source.class_uses(node).refs:
                stands = self._namespaces.stands(namespace, chain, lenient=True)
                hasher.part(f"name {'.'.join(chain)}", stands.encode())
            detail = f"{os.path.basename(unit.source.path)}:{node.lineno}"
        graph.aside("order", label, lambda: repr([name for name in vars(cls) if name[:2] != "__"]).encode())
        for base in cls.__bases__:
            hasher.part("base", self.cls(base, lenient=lenient).encode())
        hasher.part("metaclass", self.cls(type(cls), lenient=lenient).encode())
        for name, value in sorted(graph.watch.attributes(cls).items()):
            if _is_skipped(name, value, node):
                continue
            for kind, content_value in _descriptor_parts(value):
                if (
                    isinstance(content_value, FunctionType)
                    and is_in_source
                    and generated_members.is_generated(content_value, cls, self._origins.is_library)
                ):
                    if not generated_members.is_standard(content_value, cls):
                        hasher.part(f"made {name}", code_digest(content_value.__code__).encode())
                    continue  # from what the class says, by a decorator or base
                stands = self.reference(
                    content_value, f"{label}.{name}", lenient=by_source if wraps_code(content_value) else lenient
                )
                hasher.part(f"{kind} {name}", stands.encode())
                opaque = opaque or stands == "by source" or self._values.shows_not_all(content_value, f"{label}.{name}")
            if not _descriptor_parts(value) and generated_members.is_own(cls, name, node):
                is_by_statement = by_source and self._is_keyed_by_statement(
                    value, is_made=not generated_members.binds(node, name)
                )
                stands = self.reference(
                    value, f"{label}.{name}", lenient=lenient or is_by_statement, by_options=is_by_statement
                )
                hasher.part(f"attribute {name}", stands.encode())
                opaque = opaque or stands == "by source" or self._values.shows_not_all(value, f"{label}.{name}")
        for name, content in generated_members.shown_by_metaclass(cls):
            stands = self.reference(content, f"{label}.{name}", lenient=by_source)
            hasher.part(f"shown {name}", stands.encode())
            opaque = opaque or stands == "by source" or self._values.shows_not_all(content, f"{label}.{name}")
        if opaque and unit is not None and namespace:
            replaced = generated_members.is_made_elsewhere(cls)  # by a reload: which text made this one is not known
            hasher.part("unsure", executed_sources().token(module_of(cls)) + b" earlier" if replaced else unit.unsure)
            if node is not None and "__file__" not in namespace:
                for chain in unit.source.class_uses(node).refs:
                    if chain[0] in namespace:
                        self._namespaces.check_one(namespace, chain[0])
        content_value = generated_members.name_in_module(cls)
        graph.watch.value(lambda: generated_members.name_in_module(cls).encode(), content_value.encode())
        if content_value:
            hasher.part("held", content_value.encode())
        for name, content in generated_members.contents(cls, graph.watch):
            is_by_statement = by_source and self._is_keyed_by_statement(content, is_made=True)
            stands = self.reference(
                content, f"{label}.{name}", lenient=lenient or is_by_statement, by_options=is_by_statement
            )
            hasher.part(f"content {name}", stands.encode())
        graph.part(label, hasher, detail)
        text, inner = vars(cls).get("__doc__"), functools.cache(lambda: node and docstrings(node))
        graph.aside("documentation", label, lambda: documentation([text, inner()]))
        graph.when("annotations", lambda: self._annotations(cls, label))
        graph.when("subclasses", lambda: self._subclasses(cls, label))
        self._namespaces.reach_module(namespace, unit)

    def _is_keyed_by_statement(self, value: object, *, is_made: bool) -> bool:
        """Whether what a class holds may count by the statement that made it and what it was told: a wrapper or another
        descriptor, an object of a library that shows what it holds, and what a library puts on a class (is_made: no
        statement of the class binds it). A value counts by what it is, as a global does."""
        if wraps_code(value):
            return True
        kind = type(value)
        where = self._origins.of_class(kind)[0]
        return (where == "distribution" and is_made) or (where != "project" and is_plain_class(kind))

    def _subclasses(self, cls: type, label: str) -> None:
        """A part for the subclasses that a class has in this process, whoever made them; they are followed."""
        hasher = Hasher("subclasses")
        for each in self._graph.watch.subclasses(cls):
            hasher.part("subclass", self.cls(each, lenient=True).encode())
        self._graph.part(f"{label}.<subclasses>", hasher, "in their order")


def _is_skipped(name: str, value: object, node: ast.ClassDef | None) -> bool:
    """Whether an attribute of a class says nothing that its statement does not, or nobody but readers looks at it."""
    if isinstance(value, _SLOTS) or name in _MADE_OF_ANNOTATIONS:
        return True
    if type(value).__qualname__ == "CField" and module_of(type(value)) in {"_ctypes", "ctypes"}:
        return True  # as slots are: ``_fields_`` says which there are
    if _descriptor_parts(value):
        return False
    return not generated_members.binds(node, name) if name in _OF_THE_STATEMENT else name in _SKIPPED_ATTRIBUTES


def _descriptor_parts(value: object) -> list[tuple[str, object]]:
    """What a method, or another descriptor that Python has for methods, holds, each with its part in it."""
    if isinstance(value, FunctionType):
        return [("method", value)]
    parts: list[tuple[str, object]]
    if isinstance(value, property):
        parts = [("get", value.fget), ("set", value.fset), ("delete", value.fdel)]
    elif isinstance(value, staticmethod | classmethod):
        parts = [(type(value).__name__, value.__func__)]
    elif isinstance(value, functools.cached_property):
        parts = [("cached", value.func)]
    elif isinstance(value, functools.partialmethod):
        parts = [("partial", value.func), ("arguments", value.args), ("keywords", value.keywords)]
    elif isinstance(value, functools.singledispatchmethod):
        parts = [("dispatched", value.func), ("dispatcher", value.dispatcher)]
    else:
        return []
    return [(kind, each) for kind, each in parts if each is not None]
