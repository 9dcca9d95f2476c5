"""Values as canonical bytes that two processes can compare: equal where code that reads the values cannot tell them
apart.

Identity counts inside of one value (the same list twice is not two equal lists), not between values. No code of the
project runs while a form is made: attributes are read as ``object`` has them. Of installed packages, classes are asked
for ``__reduce_ex__`` and ``__getstate__``.

Without a form are values whose content no other process can have: open files, generators, sockets, held locks. Neither
have those that a compiled class does not show.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found] # typeshed has none
import copyreg
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from cachec.base.display_text import module_of
from cachec.base.hashing import digest_bytes
from cachec.base.instances import attribute, attributes, class_attribute, holds_only_attributes, is_array
from cachec.key.builtin_forms import BY_BASE, BY_NAME, BY_TYPE, OF_MODULES, FormlessError
from cachec.key.constant_forms import code_form, scalars_form
from cachec.key.option_encoding import SCALARS

__all__ = ["Describe", "Forms", "OwnModules"]

#: What a plugin says of a value of its library: anything that has a form itself, or NotImplemented.
Describe = Callable[[object], object]

#: A value that is nested deeper, or that holds more values, has no form.
MAX_DEPTH: Final = 120
MAX_VALUES: Final = 1_000_000

#: A longer text, or more bytes, are in a form by their digest.
_LONG: Final = 1024

#: Py_TPFLAGS_HEAPTYPE (Include/object.h): the class was made by a class statement or a call, not compiled in.
_HEAPTYPE: Final = 1 << 9

#: Attributes of classes and functions that only tell of their text, or that Python makes of the others. Annotations are
#: statements of the module, which count as its text.
OF_TEXT: Final = frozenset(
    {
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__"),
        *("__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__signature__", "__slotnames__"),
        *("__static_attributes__", "__type_params__", "__weakref__", "_abc_impl"),
        *("__pydantic_core_schema__", "__pydantic_decorators__", "__pydantic_serializer__", "__pydantic_validator__"),
    }
)

#: By these a function may read any of its globals.
_FINDS_GLOBALS: Final = frozenset({"eval", "exec", "f_globals", "globals", "locals", "vars", "__globals__"})

#: What ``functools.singledispatch`` remembers of the calls that there were.
_OF_DISPATCH: Final = frozenset({"_clear_cache", "cache_token", "dispatch_cache"})

#: What may be code of a class's author when an instance is asked for its state.
_STATE_METHODS: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")

#: Built-in classes whose content an instance of a subclass also has.
_BASES: Final = (int, float, complex, str, bytes, bytearray, tuple, list, set, frozenset, dict)

#: Values whose identity says nothing.
_VALUES: Final = (tuple, frozenset, complex, range, slice)


class _TooLargeError(FormlessError):
    """A value holds too many others."""


class OwnModules:
    """The names of the project's modules, ``__main__`` last; found again when others are imported."""

    def __init__(self) -> None:
        self._found: tuple[tuple[str, ...], list[str]] = ((), [])

    def names(self, is_own: Callable[[str], bool]) -> list[str]:
        """is_own: whether a module is the project's."""
        modules = tuple(sys.modules)
        if modules != self._found[0]:
            own = [name for name in modules if name != "__mp_main__" and is_own(name)]
            self._found = modules, sorted(own, key=lambda name: (name == "__main__", name))
        return self._found[1]


class Forms:
    """Makes forms of values in one state of this process: what it learns of classes holds until something changes.

    is_project: whether a file belongs to the project. describe: see ``Describe``. folder: paths below it count from
    there, so that they are the same in another checkout.
    """

    def __init__(
        self,
        is_project: Callable[[str], bool],
        describe: Describe = lambda _value: NotImplemented,
        folder: str = "",
        *,
        has_fills: bool = True,
        own_modules: OwnModules | None = None,
    ) -> None:
        """has_fills: whether it counts what cached properties hold. own_modules: of this process, if it is known."""
        self.has_fills = has_fills
        self.describe = describe
        self.folder = os.path.join(folder, "") if folder else ""
        #: Forms of classes that refer to nothing around them, each with the ids of all that is in it.
        self.classes: dict[type, tuple[bytes, frozenset[int]]] = {}
        self._is_project = is_project
        self._modules: dict[str, bool] = {}
        self._own_modules = own_modules or OwnModules()
        self._sentinels: dict[int, str] | None = None

    def form(self, value: object) -> bytes | None:
        """The canonical bytes of a value, or None where it has none."""
        return self._form(value)[0]

    def digest(self, value: object, meet: Callable[[object], None] | None = None) -> str:
        """The digest of its form, empty where it has none. meet: is given each object of it whose identity counts."""
        form = self._form(value, meet)[0]
        return "" if form is None else digest_bytes(form)

    def obstacle(self, value: object) -> str:
        """Why a value has no form, in words; empty where it has one."""
        return self._form(value)[1]

    def _form(self, value: object, meet: Callable[[object], None] | None = None) -> tuple[bytes | None, str]:
        try:
            return self._walk_value(value, meet), ""
        except FormlessError as error:
            return None, str(error)
        except RecursionError:
            return None, "a value that is nested too deeply"
        except Exception as error:  # noqa: BLE001 - what a library's code raises is no fault of the call
            return None, f"a value that can't be read ({type(error).__name__}: {error})"

    def _walk_value(self, value: object, meet: Callable[[object], None] | None) -> bytes:
        walk = _ValueWriter(self)
        form = walk.form(value)
        if meet is not None:
            for each in walk.identities():
                meet(each)
        return form

    def is_own_module(self, name: str) -> bool:
        """Whether a module is the project's, or one that no file is known of."""
        known = self._modules.get(name)
        if known is None:
            known = self._modules[name] = name == "__main__" or self._is_own_module(name)
        return known

    def _is_own_module(self, name: str) -> bool:
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if path is not None:
            return self._is_project(path)
        if "." in name:  # compiled packages have modules that no import has made
            return self.is_own_module(name.rpartition(".")[0])
        return getattr(module, "__spec__", None) is None

    def sentinel(self, value: object) -> str:
        """``module:qualname`` of an object without content that is a global, or an attribute of a class of the project:
        code tells it from others by its identity alone. Empty for any other value."""
        if not _is_bare(value):
            return ""
        if self._sentinels is None:
            found = [each for name in self._own_modules.names(self.is_own_module) for each in _bare_in(name)]
            self._sentinels = {id(instance): place for place, instance in reversed(found)}
        of_library = (place for place, instance in _bare_in(module_of(type(value))) if instance is value)
        return self._sentinels.get(id(value)) or next(of_library, "")

    def is_installed(self, value: object, name: str) -> bool:
        """Whether an installed module has a class or a function under its own name, which then says it all."""
        module = module_of(value) if isinstance(value, type) else attribute(value, "__module__")
        if not isinstance(module, str) or self.is_own_module(module):
            return False
        first, *rest = name.split(".")
        found: object = vars(sys.modules[module]).get(first) if module in sys.modules else None
        for part in rest:
            found = getattr(found, part, None)
        return found is value


class _ValueWriter:
    """One form being made.

    A value that is reached again from inside itself is written as how many levels above it is; one that was written
    before, by its number. Classes and the items of sets are numbered for themselves, so that their forms are the same
    wherever they are met.
    """

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._levels: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []  # an id is given again once its value is gone
        self._count = 0
        self._lowest = 0  # the uppermost level that the class being written refers to
        self._inside: set[int] = set()  # what was met since its beginning

    def form(self, value: Any) -> bytes:
        cls = type(value)
        scalar = SCALARS.get(cls)
        if scalar is not None:
            if cls is str and self._forms.folder and f"{value}/".startswith(self._forms.folder):
                return self.node("path", scalar(value[len(self._forms.folder) :]))
            form = scalar(value)
            return form if len(form) <= _LONG else b"h" + bytes.fromhex(digest_bytes(form))
        key, level = id(value), len(self._levels)
        above = self._levels.get(key)
        if above is not None:
            self._lowest = min(self._lowest, above)
            return b"^" + (level - above).to_bytes(2, "little")
        if key in self._numbers:
            return b"=" + self._numbers[key].to_bytes(4, "little")
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooLargeError(f"over {MAX_VALUES:,} values")
        if level >= MAX_DEPTH:
            raise _TooLargeError(f"values that are nested over {MAX_DEPTH} deep")
        if cls not in _VALUES and not issubclass(cls, type):
            self._numbers[key] = len(self._numbers)
        self._alive.append(value)
        self._levels[key] = level
        self._inside.add(key)
        try:
            return self._class(value) if issubclass(cls, type) else self._content(value, cls)
        finally:
            del self._levels[key]

    def identities(self) -> list[object]:
        """The objects that were walked and whose identity counts, in order."""
        return [each for each in self._alive if id(each) in self._numbers]

    def node(self, kind: str, *parts: bytes) -> bytes:
        """A form of one kind. Each part says its own length."""
        return b"<%b %d>" % (kind.encode(), len(parts)) + b"".join(parts)

    def forms(self, kind: str, values: Iterable[object]) -> bytes:
        """Values in order."""
        values = list(values)
        scalars = scalars_form(values)
        return self.node(kind, *map(self.form, values)) if scalars is None else self.node(kind, scalars)

    def encode_unordered(self, kind: str, values: Iterable[object]) -> bytes:
        """Values in the order of their forms."""
        numbers, forms = self._numbers, []
        for value in values:
            self._numbers = {}
            forms.append(self.form(value))
        self._numbers = numbers
        return self.node(kind, *sorted(forms))

    def pairs(self, kind: str, pairs: Iterable[tuple[object, object]]) -> bytes:
        """Keys and values in order."""
        return self.forms(kind, [part for pair in pairs for part in pair])

    # --- classes

    def _class(self, cls: type) -> bytes:
        name = module_of(cls), *_names(cls)
        if not cls.__flags__ & _HEAPTYPE or self._forms.is_installed(cls, cls.__qualname__):
            return self.forms("named", name)
        known = self._forms.classes.get(cls)
        # From inside of something that the class leads to, it is written another way: up to there and no further.
        if known is not None and known[1].isdisjoint(self._levels.keys() - {id(cls)}):
            self._inside |= known[1]
            return known[0]
        outer, level = (self._lowest, self._numbers, self._inside), len(self._levels) - 1
        self._lowest, self._numbers, self._inside = level, {}, {id(cls)}
        try:
            parts = [self.forms("name", (*name, type(cls), *cls.__bases__))]
            parts += [
                part for key, value in list(_attributes_of(cls).items()) if (part := self._class_part(key, value))
            ]
            parts.append(self._plugin_form(cls))
            if "_abc_impl" in vars(cls):
                parts.append(self.forms("registered", _registered_names(cls)))
            form = b"c" + bytes.fromhex(digest_bytes(self.node("class", *parts)))
            if self._lowest >= level:
                self._forms.classes[cls] = form, frozenset(self._inside)
            return form
        finally:
            self._lowest, self._numbers, self._inside = min(outer[0], self._lowest), outer[1], outer[2] | self._inside

    def _class_part(self, name: str, value: object) -> bytes:
        if name in OF_TEXT or _is_generated(value):
            return b""
        try:
            return self.form(name) + self.form(value)
        except _TooLargeError:
            raise
        except FormlessError as error:
            if name.startswith("__") and name.endswith("__"):
                return b""  # a library's decorator or metaclass made it of the others
            raise FormlessError(f"{error} (as {name} of the class)") from None

    # --- everything else

    def _content(self, value: Any, cls: type) -> bytes:
        handler = BY_TYPE.get(cls)
        if handler is not None:
            return handler(self, value)
        for base, inherited in BY_BASE:
            if issubclass(cls, base):
                return inherited(self, value)
        described = self._plugin_form(value)
        if described:
            return described
        by_name = BY_NAME.get(f"{module_of(cls)}.{cls.__qualname__}")
        if by_name is not None:
            return by_name(self, value)
        if class_attribute(cls, "__cachec_stage__"):
            state = vars(value)
            return self.forms("stage", (state["__wrapped__"], state["options"], str(state["mode"]), state["_before"]))
        if class_attribute(cls, "__call__"):
            own = attribute(value, "__qualname__") or attribute(value, "__name__")
            if isinstance(own, str) and self._forms.is_installed(value, own):
                return self.forms("named", (attribute(value, "__module__"), own))
        return self._instance(value, cls)

    def _plugin_form(self, value: object) -> bytes:
        cls = type(value)
        try:
            described = self._forms.describe(value)
        except Exception as error:
            raise FormlessError(f"a {module_of(cls)}.{cls.__qualname__} that its plugin refuses: {error}") from error
        return b"" if described is NotImplemented else self.forms("described", (cls, described))

    def _instance(self, value: Any, cls: type) -> bytes:
        if place := self._forms.sentinel(value):
            return self.node("sentinel", self.form(cls), self.form(place))
        base = next((each for each in _BASES if issubclass(cls, each)), None)
        bare = holds_only_attributes(cls, base or object)
        reduce = copyreg.dispatch_table.get(cls)
        authors = {each for name in _STATE_METHODS for each in cls.__mro__ if name in vars(each)} - {object}
        is_own = self._forms.is_own_module(module_of(cls))
        if bare and cls is not object and (is_own or not (reduce or authors)):
            state = attributes(value)
            if not self._forms.has_fills:
                state = {name: item for name, item in state.items() if not _is_fill(cls, name)}
            form = self.form(cls) + self.pairs("attributes", state.items())
            return self.node("object", form if base is None else form + self._builtin(value, base))
        if any(each.__flags__ & _HEAPTYPE and self._forms.is_own_module(module_of(each)) for each in authors):
            raise FormlessError(f"a {module_of(cls)}.{cls.__qualname__}, whose state its own code makes")
        return self._encode_reduced(value, cls, reduce)

    def _builtin(self, value: Any, base: type) -> bytes:
        """What an instance of a subclass of a built-in class has of that class."""
        if base is dict:
            return self.pairs("dict", dict.items(value))
        if base in (set, frozenset):
            return self.encode_unordered("set", base.__iter__(value))
        if base in (list, tuple):
            return self.forms("list", base.__iter__(value))
        if base is bytearray:
            return self.form(bytes(memoryview(value)))
        return self.form(base.__getnewargs__(value)[0] if base in (str, bytes) else _PLAIN[base](value))

    def _encode_reduced(self, value: Any, cls: type, reduce: Callable[[Any], Any] | None) -> bytes:
        try:
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            raise FormlessError(f"a {module_of(cls)}.{cls.__qualname__}") from error
        if isinstance(reduced, str):
            return self.forms("named", (attribute(value, "__module__") or module_of(cls), reduced))
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [self.form(function), self.form(arguments), self.form(state)]
        if is_array(cls):  # which pickles its items alone
            parts.append(self.pairs("attributes", (attribute(value, "__dict__") or {}).items()))
        return self.node("reduced", *parts, self.forms("list", items or ()), self.pairs("dict", pairs or ()))

    def function(self, value: types.FunctionType) -> bytes:
        """By name where an installed module has it, else its code and all that it holds. Its globals count here where
        no module of ``sys.modules`` has them."""
        name = value.__module__, *_names(value)
        if self._forms.is_installed(value, value.__qualname__):
            return self.forms("named", name)
        described = self._plugin_form(value)
        if described:
            return described
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        if value.__globals__ is vars(functools):
            cells = {name: cell for name, cell in cells.items() if name not in _OF_DISPATCH}
        attributes = [(key, part) for key, part in value.__dict__.items() if key not in OF_TEXT | _OF_DISPATCH]
        parts = [self.form((*name, value.__defaults__, value.__kwdefaults__, tuple(cells.values())))]
        if loose := _loose_globals(value):
            parts.append(self.pairs("globals", loose.items()))
        return self.node("function", *parts, self.pairs("attributes", attributes), code_form(value.__code__))


def _names(value: Any) -> tuple[str, ...]:
    """The qualified name of a class or function, and the short one where the program has set another."""
    own: str = value.__qualname__
    return (own,) if own.rpartition(".")[2] == value.__name__ else (own, value.__name__)


def _is_bare(value: object) -> bool:
    """Whether an instance holds nothing."""
    cls = type(value)
    if cls is not object and (not cls.__flags__ & _HEAPTYPE or issubclass(cls, type) or not holds_only_attributes(cls)):
        return False
    return not attributes(value)


def _bare_in(name: str) -> Iterator[tuple[str, object]]:
    """The objects without content among the globals of a module, and among the attributes of its classes, by place."""
    for key, member in list(getattr(sys.modules.get(name), "__dict__", {}).items()):
        if issubclass(type(member), type) and module_of(member) == name:
            yield from ((f"{name}:{key}.{each}", part) for each, part in list(vars(member).items()) if _is_bare(part))
        elif _is_bare(member):
            yield f"{name}:{key}", member


def _attributes_of(cls: type) -> Mapping[str, Any]:
    """What a class holds. A flag makes a member of each combination when it is first asked for."""
    namespace = vars(cls)
    if not issubclass(cls, enum.Flag):
        return namespace
    members = {value: each for value, each in cls._value2member_map_.items() if each._name_ in cls._member_map_}
    return {**namespace, "_value2member_map_": members}


def _loose_globals(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function may read where they are those of no module in ``sys.modules``: ``exec`` made it, or
    a file was loaded as a module that nothing registered."""
    namespace = function.__globals__
    module = sys.modules.get(namespace.get("__name__", ""))
    if module is not None and vars(module) is namespace:
        return {}
    names = _names_in(function.__code__)
    counted = namespace.keys() - OF_MODULES if names & _FINDS_GLOBALS else names & namespace.keys()
    return {name: namespace[name] for name in sorted(counted)}


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*inner)


_PLAIN: Final[dict[type, Callable[[Any], object]]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
}


def _registered_names(cls: Any) -> list[str]:
    """The names of the classes that were registered with an abstract one."""
    found = [reference() for reference in _abc._get_dump(cls)[0]]
    return sorted(f"{module_of(each)}.{each.__qualname__}" for each in found if each is not None)


def _is_fill(cls: type, name: str) -> bool:
    """Whether an attribute of an instance is what a cached property holds."""
    return isinstance(class_attribute(cls, name), functools.cached_property)


def _is_generated(value: object) -> bool:
    """Whether attrs has made a method: of the fields, and with a number that differs in each process."""
    return isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith("<attrs generated")
