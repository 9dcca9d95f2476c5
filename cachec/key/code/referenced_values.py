"""Values that code reads: globals, closure cells, defaults and attributes, encoded with the code that they hold."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import io
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

from cachec.base.display_text import module_of
from cachec.base.hashing import Hasher, digest_bytes
from cachec.base.instances import attribute, function_of, has_class
from cachec.errors import CapturedWeights, UnkeyableArgument
from cachec.key.code.code_objects import code_digest
from cachec.key.code.dynamic_imports import is_importer
from cachec.key.code.generated_members import HEAPTYPE, is_named_tuple
from cachec.key.code.library_objects import name_in_library, wrapper_options
from cachec.key.code.lru_cache_validity import is_memo
from cachec.key.code.origins import Origins
from cachec.key.code.part_graph import PartGraph
from cachec.key.describe import describe, name_of_class
from cachec.key.option_encoding import DECIMAL

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})
_BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
_LOCKS = frozenset({"_thread.lock", "_thread.RLock"})
#: Types whose instances take no part in a result: who holds a lock or writes a log line decides nothing.
_INERT = frozenset(
    {
        *(*_LOCKS, "logging.Logger", "logging.RootLogger", "builtins.object"),
        "dataclasses._HAS_DEFAULT_FACTORY_CLASS",  # a mark in what dataclasses make
    }
)
#: What pickling shows all of.
_GETTERS = frozenset({"operator.itemgetter", "operator.attrgetter", "operator.methodcaller"})


def _attributes_reader(*names: str) -> Callable[[Any], Any]:
    return lambda value: [attribute(value, name) for name in names]


class _AbslFlag(Protocol):
    """What is used of an ``absl.flags.Flag``."""

    value: object
    default: object
    present: int


def _flag(flag: _AbslFlag) -> list[object]:
    return [flag.value, flag.default, flag.present]


#: Of the standard library, msgspec and absl, what shows all that it holds, and how.
_SHOWING: Mapping[str, Callable[[Any], Any]] = {
    "_struct.Struct": lambda value: value.format,
    "absl.flags._flagvalues.FlagValues": lambda value: {name: _flag(value[name]) for name in value},
    "absl.flags._flagvalues.FlagHolder": lambda value: [value.name, _flag(value._flagvalues[value.name])],
    "argparse.Namespace": vars,
    "array.array": lambda value: [value.typecode, value.tobytes()],
    "builtins.code": code_digest,
    "builtins.bytearray": bytes,
    "collections.ChainMap": lambda value: value.maps,
    **dict.fromkeys(
        ("collections.UserDict", "collections.UserList", "collections.UserString"), lambda value: value.data
    ),
    "string.Template": lambda value: value.template,
    "msgspec._core.Factory": _attributes_reader("factory"),
    "msgspec.structs.StructConfig": lambda value: _attributes_reader(*(name for name in dir(value) if name[0] != "_"))(
        value
    ),
    **dict.fromkeys(
        ("msgspec.json.Encoder", "msgspec.msgpack.Encoder"),
        _attributes_reader("enc_hook", "decimal_format", "uuid_format", "order"),
    ),
    **dict.fromkeys(
        ("msgspec.json.Decoder", "msgspec.msgpack.Decoder"),
        _attributes_reader("type", "strict", "dec_hook", "float_hook", "ext_hook"),
    ),
}
_TYPING = (types.GenericAlias, types.UnionType)
#: More objects than this are not watched one by one.
_WATCHED = 1000
#: As for arguments (``canonical.MAX_DEPTH``): deeper nesting would exhaust Python's own stack.
_MAX_DEPTH = 100
#: Leaves of a value that are kept to tell a difference: there are many values, in each entry.
_MAX_LEAVES = 64
#: What ``repr`` says of an object that has none of its own; another in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Marks what stands for code in a value; no string of a program starts so.
_MARK = "\0cachec:"


#: Objects that one value may lead to, each counted once.
_MAX_OBJECTS = 100_000
#: Built-in types whose items are all looked at.
_BUILTIN_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
#: By the ``id`` of an object: the object, and what stands for it.
_Forms = dict[int, tuple[object, Any]]


#: Modules of the classes of paths, by Python.
_PATH_MODULES = frozenset({"pathlib", "pathlib._local"})


class Live(Protocol):
    """What this module needs of the walk over live objects."""

    def code(self, value: object, *, lenient: bool) -> str | None: ...
    def cls(self, cls: type, *, lenient: bool) -> str: ...
    def function(self, function: FunctionType, *, lenient: bool) -> str: ...
    def reference(self, value: object, name: str, *, lenient: bool) -> str: ...


class ReferencedValues:
    """Encodes values; code inside them is followed, and its label stands for it."""

    def __init__(
        self, graph: PartGraph, origins: Origins, live: Live, encode_value: Callable[[object, str], bytes]
    ) -> None:
        self._graph = graph
        self._origins = origins
        self._live = live

        def encode_and_note(value: object, name: str) -> bytes:
            data = encode_value(value, name)
            graph.has_decimals = graph.has_decimals or DECIMAL in data
            return data

        self._encode_value = encode_and_note
        self._visited = 0
        #: Names of values that hold something of which not all shows: the statements that make them count too.
        self._opaque: set[str] = set()

    def shows_not_all(self, value: object, name: str) -> bool:
        """Whether what a decorator of a library was told shows only in the statement that called it."""
        if isinstance(value, FunctionType):
            return bool(value.__closure__) and self._origins.is_foreign(value.__code__.co_filename)
        return name in self._opaque

    def part(
        self,
        value: object,
        name: str,
        *,
        lenient: bool,
        by_options: bool = False,
        fallback: Callable[[], str | None] = lambda: None,
    ) -> str:
        """Add the part of a value, and return what refers to it.

        fallback: what to say of a value that can't be encoded, None to report it. lenient: such a value counts by the
        source that makes it, which is in the key already; by_options: and by what it shows to hold, whatever it is.
        """
        graph = self._graph
        known = graph.find_label(("value", name, id(value)))
        if known is not None:
            return f"value {known}"
        try:
            return self._part(value, name, lenient=lenient, by_options=by_options, fallback=fallback)
        except Exception as error:  # noqa: BLE001 - user code may raise any
            return graph.report_exception(f"{name} ({name_of_class(value)})", error)

    def _part(
        self, value: object, name: str, *, lenient: bool, by_options: bool, fallback: Callable[[], str | None]
    ) -> str:
        graph = self._graph
        pickles = False
        try:
            data = self._encode(value, name, lenient)
        except CapturedWeights:
            if lenient:
                return "weights"
            raise
        except UnkeyableArgument as error:
            reference = fallback()
            if reference is None and lenient and (by_options or wraps_code(value)):
                try:
                    reference = self.wrapper_digest(value, name)
                except UnkeyableArgument as reason:
                    return self._report_unresolved(value, name, reason)
                if not wraps_code(value):
                    graph.watch.value(lambda: self.wrapper_digest(value, name).encode(), reference.encode())
            if reference is not None or lenient:
                return reference or "by source"
            if graph.tolerant:
                return self._report_unresolved(value, name, error)
            try:
                data, pickles = self._encode(value, name, lenient, pickles=True), True
            except UnkeyableArgument as reason:
                return self._report_unresolved(value, name, reason)
        label, _ = graph.label(("value", name, id(value)), name, value)
        hasher = Hasher("value")
        hasher.part("value", data)
        shown = describe(value, name=name.rpartition(".")[2])
        from cachec.key.flatten import leaves  # of values; most code reads none

        graph.part(label, hasher, shown, shown, leaves(value, label, _MAX_LEAVES))
        if not self._by_identity(value):
            graph.watch.value(
                functools.partial(self._digest_now, value, name, lenient, pickles), digest_bytes(data).encode()
            )
        return f"value {label}"

    def _report_unresolved(self, value: object, name: str, reason: UnkeyableArgument) -> str:
        kind = type(value)
        what = f"{name} ({module_of(kind)}.{kind.__qualname__})"
        return self._graph.formless(what, f"has no stable form ({reason})", reason)

    def wrapper_digest(self, value: object, name: str) -> str:
        """The digest of what an object without a stable form was told, see ``library.wrapper_options``."""
        text = repr(self._wrapper_form(value, name, True, (), {}))
        return f"told {digest_bytes(text.encode('utf-8', 'surrogatepass'))}"

    def _wrapper_form(
        self, value: object, name: str, lenient: bool, within: tuple[int, ...], forms: _Forms, pickles: bool = False
    ) -> Any:
        self._opaque.add(name)

        def follow(each: Any) -> str:
            self._visit(name)
            return digest_bytes(self._encode_value(self._plain(each, name, lenient, within, forms, pickles), name))

        # What wraps a function was made by a statement that says the rest; anything else may have been changed since.
        return wrapper_options(value, follow, strict=not lenient and attribute(value, "__wrapped__") is None)

    def _by_identity(self, value: object) -> bool:
        """Whether a change of a value shows in the identity of what it holds, which is then watched.

        Otherwise it is encoded again at each call, which is slower.
        """
        watch = self._graph.watch
        pending: list[Any] = [value]
        visited: set[int] = set()
        while pending:
            one = pending.pop()
            kind = type(one)
            if isinstance(one, _BUILTINS) and self._is_of_a_value(one):
                one = attribute(one, "__self__")
                kind = type(one)
            if kind in _PLAIN or isinstance(one, (*_BUILTINS, FunctionType, type, ModuleType)) or id(one) in visited:
                continue
            visited.add(id(one))
            if len(visited) > _WATCHED:
                return False
            if kind in (tuple, frozenset):
                pending += one
            elif kind is list:
                watch.sequence(one)
                pending += one
            elif kind in (dict, collections.OrderedDict, collections.Counter) and not attribute(one, "__dict__"):
                watch.mapping(one)
                pending += [*one, *one.values()]
            elif kind is types.SimpleNamespace:
                watch.mapping(vars(one))
                pending += vars(one).values()
            elif kind is MethodType:
                pending += [one.__func__, one.__self__]
            elif kind is functools.partial:
                watch.mapping(one.keywords)
                watch.mapping(vars(one))
                pending += [one.func, *one.args, *one.keywords.values(), *vars(one).values()]
            elif attribute(one, "__cachec_stage__") is True:
                watch.name(attribute(one, "__dict__"), "__wrapped__")
                pending += [attribute(one, "__wrapped__"), *(attribute(one, "bound_to") or ())]
            elif self._is_project_instance(one):
                if any("__slots__" in vars(base) for base in kind.__mro__[:-1]):
                    return False
                watch.instance(one)
                pending += vars(one).values()
            elif self._is_library_callable(one) and self._library_name(one):
                continue  # the library's own
            elif attribute(one, "__wrapped__") is not None and self._origins.of_class(kind)[0] != "project":
                # Of what a decorator of a library made: that it is the same, and wraps the same.
                pending.append(attribute(one, "__wrapped__"))
                attributes = attribute(one, "__dict__")
                if type(attributes) is dict:
                    watch.mapping(attributes)
                    pending += [each for each in attributes.values() if callable(each)]
            elif f"{module_of(kind)}.{kind.__qualname__}" not in _INERT | {"re.Pattern"}:
                return False
        return True

    def _is_of_a_value(self, method: object) -> bool:
        """Whether a compiled method is bound to an object that is no library's own."""
        return (
            not isinstance(attribute(method, "__self__"), ModuleType | type | None)
            and self._library_name(method) is None
        )

    def _is_library_callable(self, value: object) -> bool:
        """Whether a value is a library's callable, which may count by its name. No one that values are set in is, such
        as absl's FLAGS."""
        kind = type(value)
        is_set = any(name in vars(base) for base in kind.__mro__[:-1] for name in ("__setattr__", "__setitem__"))
        return (
            callable(value)
            and self._origins.of_class(kind)[0] != "project"
            and not (is_set and kind.__flags__ & HEAPTYPE)
        )

    def _library_name(self, value: object) -> tuple[str, str] | None:
        return name_in_library(value, lambda module: self._origins.of_module(module)[0] != "project")

    def _is_project_instance(self, value: object) -> bool:
        kind = type(value)
        if isinstance(value, enum.Enum) or self._origins.of_class(kind)[0] != "project":
            return False
        return is_plain_class(kind)

    def _digest_now(self, value: object, name: str, lenient: bool, pickles: bool) -> bytes:
        """The digest of a value now."""
        return digest_bytes(self._encode(value, name, lenient, pickles=pickles)).encode()

    def _encode(self, value: object, name: str, lenient: bool, *, pickles: bool = False) -> bytes:
        """pickles: an object without another form counts by its pickle."""
        self._visited = 0
        return self._encode_value(self._plain(value, name, lenient, (), {}, pickles), name)

    def _visit(self, name: str) -> None:
        """Count an object that is looked at. Raises UnkeyableArgument where one value leads to too many."""
        self._visited += 1
        if self._visited > _MAX_OBJECTS:
            raise UnkeyableArgument(
                f"{name} holds more than {_MAX_OBJECTS:,} objects; load it in the stage, or pass it as an argument"
            )

    # --- weights

    def refuse_weights(self, value: object, name: str, depth: int = 4) -> None:
        """Raise CapturedWeights for a weight set, a weight, or a plain container that holds one within ``depth``."""
        module = sys.modules.get("cachec.weights")
        if module is None:
            return
        kinds = tuple(k for k in (getattr(module, "WeightSet", None), getattr(module, "Weight", None)) if k is not None)
        pending: list[tuple[object, int]] = [(value, depth)]
        while pending:
            one, depth = pending.pop()
            if type(one) not in _PLAIN and has_class(one) and isinstance(one, kinds):
                raise CapturedWeights(
                    f"{name} holds a {type(one).__name__}: a weight that does not come in as an argument can't be "
                    "recorded when it is read. Pass it to the stage as an argument"
                )
            if depth and type(one) in (list, tuple, set, frozenset):
                pending += [(each, depth - 1) for each in one]  # type: ignore[attr-defined]
            elif depth and type(one) is dict:
                pending += [(each, depth - 1) for each in one.values()]

    # --- values with the code in them replaced by its label

    def _plain(
        self, value: Any, name: str, lenient: bool, within: tuple[int, ...], forms: _Forms, pickles: bool = False
    ) -> Any:
        """What stands for a value. forms: what stands for objects that were looked at already: each is once, by however
        many ways it is reached. What lies deeper stands by its digest: as text, such forms may have no end."""
        if type(value) in _PLAIN:
            return value if type(value) is not str else self._portable_path(value, value)
        known = forms.get(id(value))
        if known is not None:
            return known[1]
        self._visit(name)
        form = self._form(value, name, lenient, within, forms, pickles)
        if len(within) > 1 and not _is_flat(form):
            form = (_MARK + "digest", digest_bytes(self._encode_value(form, name)))
        forms[id(value)] = (value, form)
        return form

    def _form(self, value: Any, name: str, lenient: bool, within: tuple[int, ...], forms: _Forms, pickles: bool) -> Any:
        kind = type(value)
        if id(value) in within or len(within) >= _MAX_DEPTH:
            raise UnkeyableArgument(f"{name} contains itself, or is nested over {_MAX_DEPTH} deep")
        if kind not in _BUILTIN_CONTAINERS and not has_class(value):
            raise UnkeyableArgument(f"{name} is an object whose __class__ is no class ({describe(value, 40)})")
        if not within:  # before anything in it is refused for another reason
            self.refuse_weights(value, name)
        elif kind not in _BUILTIN_CONTAINERS:  # whose items come here themselves
            self.refuse_weights(value, name, 0)
        inner = (*within, id(value))
        again = functools.partial(self._plain, name=name, lenient=lenient, within=inner, forms=forms, pickles=pickles)
        if kind in (list, tuple):
            return _replace_items(value, kind, [again(each) for each in value])
        if kind in (set, frozenset):
            items = [again(each) for each in sorted(value, key=_order)]
            changed = any(new is not old for new, old in zip(items, sorted(value, key=_order), strict=True))
            return (_MARK + kind.__name__, sorted(items, key=repr)) if changed else value
        if kind is dict:
            pairs = [(again(key), again(each)) for key, each in value.items()]
            if all(k is old and v is each for (k, v), (old, each) in zip(pairs, value.items(), strict=True)):
                return value
            return (_MARK + "dict", pairs)
        if kind in _CONTAINERS:
            return (_MARK + kind.__name__, again(_CONTAINERS[kind](value)), again(attribute(value, "__dict__")))
        label = self._live.code(value, lenient=lenient)
        if label is not None:
            return (_MARK + "code", label)
        return self._object(value, kind, again, lenient)

    def _object(self, value: Any, kind: type, again: functools.partial[Any], lenient: bool) -> Any:
        name = f"{module_of(kind)}.{kind.__qualname__}"
        if self._is_inert(value, again.keywords["name"]):
            return (_MARK + "inert", name)
        if isinstance(value, PurePath) and type(value).__module__ in _PATH_MODULES:
            placed = self._portable_path(str(value), value)
            return value if placed is value else (_MARK + "path", name, placed)
        if isinstance(value, functools.partial):
            given = again(value.func), again(value.args), again(value.keywords)
            return (_MARK + "partial", *given, *([again(vars(value))] if vars(value) else ()))
        if isinstance(value, MethodType):
            return (_MARK + "method", again(value.__func__), again(value.__self__))
        if isinstance(value, _BUILTINS):
            return self._builtin(value, again)
        if name in _SHOWING:
            return (_MARK + "showing", name, again(_SHOWING[name](value)))
        if name in _GETTERS:
            return (_MARK + "getter", name, again(value.__reduce__()))
        if name == "re.Pattern":
            return (_MARK + "pattern", value.pattern, value.flags)
        if isinstance(value, _TYPING) or module_of(kind) == "typing":
            return (
                _MARK + "type",
                _type_name(value),
                [self._unless_refused(each, name, again) for each in _of_a_type(value)],
            )
        if attribute(value, "__cachec_stage__") is True:
            if not any(each is value for each in self._graph.stages):
                self._graph.stages.append(value)
            bound = attribute(value, "bound_to") or ()
            return (_MARK + "stage", again(attribute(value, "__wrapped__")), *map(again, bound))
        if module_of(kind) in ("cachec", "cachec.cache") and kind.__name__ == "Cache":
            return (_MARK + "inert", "cachec.Cache")
        origin, distribution = self._origins.of_class(kind)
        self._graph.distributions.add(distribution)
        if self._is_library_callable(value):
            named = self._library_name(value)
            if named is not None:
                _, distribution = self._origins.of_module(named[0])
                self._graph.distributions.add(distribution)
                return (_MARK + "library", distribution, *named)
        if origin == "project":
            label = self._live.cls(kind, lenient=lenient)
            if self._is_project_instance(value):
                from cachec.base.instances import (
                    counted_attributes,  # it imports dataclasses, 5 ms, and only such values need it
                )

                attributes = counted_attributes(value).items()
                return (
                    _MARK + "instance",
                    label,
                    [(each, _attribute(each, content, again)) for each, content in attributes],
                )
            base = next((each for each in _CONTAINERS if issubclass(kind, each)), None)
            if base is not None and is_plain_class(kind, base):
                return (_MARK + "items", label, again(_CONTAINERS[base](value)), again(attribute(value, "__dict__")))
        elif any(map(is_named_tuple, kind.__mro__)) and is_plain_class(kind, tuple):
            items = again([*tuple.__iter__(value)]), again(attribute(value, "__dict__"))
            return (_MARK + "items", self._live.cls(kind, lenient=lenient), *items)
        elif named := _module_constant(value):
            return (_MARK + "library", distribution, *named)  # a mark, such as one that says "not given"
        holding = self._is_library_callable(value) and kind.__flags__ & HEAPTYPE and name not in _HANDLES
        if attribute(value, "__wrapped__") is not None or name == "functools.KeyWrapper" or holding:
            if is_memo(value):
                self._graph.memos[id(value)] = value
            # What a compiled decorator made (functools.lru_cache, jax.jit, jax.custom_vjp): all that it wraps, whose
            # decorators are in its syntax, and what it was told as far as that shows.
            if attribute(value, "__wrapped__") is None:
                # An object that can be called is a value where it has a form of its own, as JAX's Mesh by its plugin.
                with contextlib.suppress(UnkeyableArgument):
                    return (_MARK + "encoded", digest_bytes(self._encode_value(value, again.keywords["name"])))
            return (_MARK + "wrapper", name, self._wrapper_form(value, **{**again.keywords, "lenient": lenient}))
        return self._pickle_form(value, kind, again) if again.keywords["pickles"] else value

    def _portable_path(self, text: str, value: Any) -> Any:
        """What stands for a text that is a path below the project's folder: where that is there. Any other value is its
        own form."""
        project = self._graph.project
        if not project or not (text.startswith(project) or text == project[:-1]):
            return value
        self._graph.has_project_paths = True
        return (_MARK + "project", text[len(project) :])

    def _pickle_form(self, value: Any, kind: type, again: functools.partial[Any]) -> Any:
        """What stands for an object of which only its pickle may tell all; itself where it has another form."""
        name: str = again.keywords["name"]
        try:
            return (_MARK + "encoded", digest_bytes(self._encode_value(value, name)))
        except UnkeyableArgument:
            pass
        from cachec.key.code.pickle_digest import pickle_digest  # few values need it

        if isinstance(value, io.IOBase):
            raise UnkeyableArgument(f"{name} is an open file")
        if hasattr(kind, "__next__"):
            raise UnkeyableArgument(f"{name} is an iterator, which changes as it is used")

        def follow(code: object) -> str:
            return digest_bytes(self._encode_value(again(code), name))

        digest = pickle_digest(value, name, follow, functools.partial(self._is_inert, where=name))
        return (_MARK + "pickled", self._live.cls(kind, lenient=again.keywords["lenient"]), digest)

    def _is_inert(self, value: object, where: str) -> bool:
        """Whether a value takes no part in a result. where: what it is, or is in, for a message."""
        name = f"{module_of(type(value))}.{type(value).__qualname__}"
        if name in _LOCKS:
            why = "is a lock, and the code may ask whether it is held (by `locked` or `acquire`; `with` does not)"
            self._graph.when("locks", functools.partial(self._graph.report_unresolved, where, why))
        return name in _INERT

    def _unless_refused(self, value: object, name: str, again: Callable[[Any], Any]) -> str:
        """The digest of what stands for a value; of its text for one without a stable form (``msgspec.Meta(le=6)``)."""
        try:
            return digest_bytes(self._encode_value(again(value), name))
        except UnkeyableArgument:
            return digest_bytes(_ADDRESS.sub("", repr(value)).encode("utf-8", "surrogatepass"))

    def _builtin(self, value: Any, again: Callable[[Any], Any]) -> Any:
        holder = getattr(value, "__self__", None)
        named = self._library_name(value)
        if named is not None and not isinstance(holder, ModuleType | None):
            return (_MARK + "library", *named)  # random.random: of an object that the library made
        if is_importer(value):
            self._graph.importer("__import__")
        if holder is None or isinstance(holder, ModuleType):
            module = holder.__name__ if holder is not None else getattr(value, "__module__", None)
            _, distribution = self._origins.of_module(module)
            self._graph.distributions.add(distribution)
            return (_MARK + "builtin", str(module), value.__qualname__)
        return (_MARK + "builtin", value.__qualname__, again(holder))


#: What may be called, and stands for something outside of the process.
_HANDLES = frozenset({"sqlite3.Connection"})

_CONTAINERS: Mapping[type, Callable[[Any], Any]] = {
    collections.OrderedDict: lambda value: [*collections.OrderedDict.items(value)],
    collections.Counter: lambda value: [*dict.items(value)],
    collections.defaultdict: lambda value: [value.default_factory, *dict.items(value)],
    collections.deque: lambda value: [value.maxlen, *collections.deque.__iter__(value)],
    types.MappingProxyType: lambda value: [*value.items()],
    types.SimpleNamespace: lambda value: [],
    dict: lambda value: [*dict.items(value)],
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: [*tuple.__iter__(value)],
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: {*frozenset.__iter__(value)},
}


#: What forms of types hold: arguments, what stands behind a ``NewType``, bounds of variables.
_TYPE_PARTS = ("__origin__", "__args__", "__metadata__", "__supertype__", "__bound__", "__constraints__", "__default__")


#: The class of what says that a type variable has no default, from Python 3.13 on.
_NO_DEFAULT = "NoDefaultType"


def _type_name(value: object) -> str:
    """What tells a form of types from another of the same parts: the text of one with many parts may have no end."""
    if attribute(value, "__args__") is not None:
        kind = type(value)
        return f"{module_of(kind)}.{kind.__qualname__} {attribute(value, '_name')} {attribute(value, '__unpacked__')}"
    return _ADDRESS.sub("", repr(value))


def _of_a_type(value: object) -> list[object]:
    items = []
    for name in _TYPE_PARTS:
        with contextlib.suppress(NameError):  # a bound is evaluated when it is asked for
            items.append((name, attribute(value, name)))
    return [(name, each) for name, each in items if each is not None and type(each).__qualname__ != _NO_DEFAULT]


def _attribute(attribute_name: str, value: object, again: functools.partial[Any]) -> Any:
    """What stands for an attribute of an instance. An UnkeyableArgument names the attribute, not the instance alone."""
    name: str = again.keywords["name"]
    try:
        return again(value)
    except UnkeyableArgument as error:
        message = str(error)
        if not message.startswith(name):
            raise
        raise UnkeyableArgument(f"{name}.{attribute_name}{message.removeprefix(name)}") from error


def is_plain_class(kind: type, builtin: type = object) -> bool:
    """Whether everything that an instance holds, beside what a ``builtin`` base does, is in its ``__dict__`` and slots:
    no other base is compiled."""
    from cachec.base.instances import holds_only_attributes  # it brings msgspec, which the key of most code does not

    for base in kind.__mro__:
        if base in builtin.__mro__:
            continue
        file = getattr(sys.modules.get(module_of(base)), "__file__", None)
        if not base.__flags__ & HEAPTYPE or (file is not None and not file.endswith(".py")):
            return False
    return holds_only_attributes(kind, builtin)


def wraps_code(value: object) -> bool:
    """Whether a value may be called, or stands for a method of a class, and was made by a decorator or the like."""
    if isinstance(value, (FunctionType, MethodType, *_BUILTINS)):
        return False
    return callable(value) or hasattr(type(value), "__get__")


def wraps(value: object) -> bool:
    """Whether this is no function but wraps one: what a compiled decorator makes."""
    return (
        not isinstance(value, (FunctionType, type, ModuleType, MethodType))
        and attribute(value, "__wrapped__") is not None
        and attribute(value, "__cachec_stage__") is not True
    )


def _module_constant(value: object) -> tuple[str, str] | None:
    """Module and name, where the module of its class has this very object, which holds nothing."""
    module = sys.modules.get(module_of(type(value)))
    if not isinstance(module, ModuleType) or not is_plain_class(type(value)):
        return None
    from cachec.base.instances import counted_attributes  # as in ``is_plain_class``

    if counted_attributes(value):
        return None
    return next(((module.__name__, name) for name, each in list(vars(module).items()) if each is value), None)


def _is_flat(form: Any) -> bool:
    """Whether a form is plain, or a container of what is."""
    kind = type(form)
    if kind in (tuple, list, set, frozenset):
        return all(type(each) in _PLAIN for each in form)
    if kind is dict:
        return all(type(key) in _PLAIN and type(each) in _PLAIN for key, each in form.items())
    return kind in _PLAIN


def _replace_items(value: Any, kind: type, items: list[Any]) -> Any:
    """The container itself where no item was replaced, so that its encoding is the plain one."""
    return value if all(new is old for new, old in zip(items, value, strict=True)) else kind(items)


def _order(value: object) -> tuple[str, str, list[int]]:
    """An order of the items of a set that does not depend on hashes: enough to number functions of one name."""
    function = function_of(value)
    code = attribute(function, "__code__")
    if isinstance(code, CodeType):
        places = [-1 if each is None else each for place in code.co_positions() for each in place]
        return (str(attribute(function, "__module__") or ""), code.co_qualname, [code.co_firstlineno, *places])
    return (type(value).__qualname__, repr(value) if type(value) in _PLAIN else "", [])
