"""Makes the part of a key that torch's own cache keys lack: what the process has registered with torch. Imports torch.

torch's keys name an operation and hold nothing else of it. torch traces its fake function, its decomposition and its
backward into the program. Where an installed distribution registered something, the distribution counts. Where code of
the project did, all Python of the project counts, with the registrations in their order and the values that they hold.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import library
from torch._decomp import global_decomposition_table
from torch._inductor import decomposition, lowering, pattern_matcher
from torch._inductor.codegen import common
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._library import custom_ops, fake_class_registry, simple_registry
from torch._library.utils import Kernel
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _higher_order_ops, _OpNamespace
from torch._subclasses import fake_impls
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cachec.base.distributions import Distribution
from cachec.base.hashing import Hasher
from cachec.model import Reason
from cachec_torch import seams
from cachec_torch.kernel_recorder import FOR_CALLERS, KernelRecorder
from cachec_torch.native_libraries import library_parts
from cachec_torch.project_modules import TORCH, ProjectModules, UnstorableOperation

#: Namespaces of torch for which torch itself calls ``torch.library.register_autograd``, ``impl`` or ``define``.
TORCH_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "coor", "debugprims"})

#: A line of the dispatcher's description of an operation.
_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)
_DEFINED = re.compile(r"^debug: registered at (.*):\d+$", re.MULTILINE)

#: Exact types whose values are the same in every process where their texts are.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, range, type(None), type(...), type(NotImplemented)})
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size, torch.Tag)
_OPERATIONS = (OpOverload, OpOverloadPacket, HigherOrderOperator)

#: Types of values that lead to the same functions as long as they live.
_UNCHANGING = (FunctionType, MethodType, functools.partial, BuiltinFunctionType, Kernel, type)

#: Objects that torch runs in place of functions.
_PROGRAMS = (torch.nn.Module, torch.jit.ScriptFunction)

#: Nested values that are described; a registered function with deeper ones is refused.
_DEPTH = 20


class Registration(NamedTuple):
    """Something that was registered. role, subject: what it is, and of what. value: the function, class or object.
    caller: the file that registered it; empty where torch does not tell."""

    role: str
    subject: Any
    value: Any
    caller: str = ""

    @property
    def label(self) -> str:
        """For messages and digests."""
        return f"{self.role} {_name(self.subject)}"


class OperationsKey:
    """Makes the part of a key that holds what a process has registered with torch."""

    def __init__(self, recorder: KernelRecorder, modules: ProjectModules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._of_torch: dict[int, Any] = {}  # values by id that lead to nothing but torch; held, for their ids
        self._names: dict[str, _FunctionNames] = {}
        self._earlier: list[tuple[frozenset[str], str, str]] | None = None

    def digest(self, decompositions: Mapping[Any, Any] | None = None) -> str:
        """The digest of all that is registered.

        decompositions: a table that a backend gave to AOTAutograd. Raises UnstorableOperation for an operation that
        depends on something that no digest can hold.
        """
        hasher = Hasher("torch operations")
        try:
            parts = self.parts(decompositions)
        except OSError as error:
            raise UnstorableOperation(
                Reason.KEY_UNREADABLE, f"a file of an operation can't be read: {error}"
            ) from error
        for label, text in parts:
            hasher.part(label, text.encode("utf-8", "surrogatepass"))
        return hasher.digest()

    def parts(self, decompositions: Mapping[Any, Any] | None = None) -> list[tuple[str, str]]:
        """What the digest is made of, as labels and texts; the registrations in their order."""
        walk = _Walk(self._modules)
        generated = os.path.realpath(cache_dir())
        parts = [*library_parts(self._modules, generated), *self._definitions(walk)]
        self._check_earlier(walk)
        for each in self._registrations(decompositions or {}):
            is_by_torch = not each.caller or self._modules.is_library_file(each.caller)
            if is_by_torch and id(each.value) in self._of_torch:
                continue
            text, is_of_torch = walk.describe(each)
            if is_of_torch and isinstance(each.value, _UNCHANGING):
                self._of_torch[id(each.value)] = each.value
            elif not is_of_torch:
                parts.append((each.label, text))
        if walk.registering:
            parts += sorted(self._modules.project_parts(walk.registering, generated))
        else:
            parts += (self._modules.distribution_part(each) for _, each in sorted(walk.distributions.items()))
        if parts:
            parts.append(("python", f"{platform.python_version()} {sys.flags.optimize}"))
        for role, table in _tables(decompositions or {}).items():
            known = self._names.get(role)
            if known is None or not known.is_current(table):
                known = self._names[role] = _FunctionNames(table)
            parts.append((f"table {role}", known.text))
        return parts

    def _definitions(self, walk: _Walk) -> Iterator[tuple[str, str]]:
        """Schemas, tags and effects of operations that are not torch's, and that Python code defined."""
        for each in sorted(library._defs):
            operation = "".join(each.split())
            name, _, overload = operation.partition(".")
            found = torch._C._get_operation_overload(name, overload)
            if found is None or self._is_of_torch(operation):
                continue  # found is None where its library is gone
            tags = ", ".join(sorted(tag.name for tag in found[2]))
            entry = simple_registry.singleton.find(operation)
            definer = self._recorder.definers.get(each) or self._definer(operation)
            walk.note(definer, f"operation {operation}")
            yield (
                f"operation {operation}",
                f"{torch._C._get_schema(name, overload)} {tags} {seams.effects(operation, entry)}",
            )

    def _is_of_torch(self, operation: str) -> bool:
        if operation.partition("::")[0] in TORCH_NAMESPACES:
            return True
        if (made := custom_ops.OPDEFS.get(operation)) is not None:
            return self._modules.is_torch_file(made._init_fn.__code__.co_filename)
        place = self._definer(operation)
        return self._modules.is_torch_file(place) and not place.endswith(FOR_CALLERS)

    def _definer(self, operation: str) -> str:
        """The file that made the library which defined an operation, empty for none."""
        defined = _DEFINED.search(_dispatcher_text(operation))
        return "" if defined is None else seams.registered_by(defined[1], operation)

    def _check_earlier(self, walk: _Walk) -> None:
        """Note the distributions that registered kernels before the recorder was there.

        Raises UnstorableOperation for a kernel of the project that was registered then: its function is not known.
        """
        if self._earlier is None:
            self._earlier = list(self.earlier_kernels())
        replaced = {each.key for each in self._recorder.kernels()}
        for names, operation, place in self._earlier:
            if library._impls.isdisjoint(names) or not names.isdisjoint(replaced):
                continue  # its library is gone, or a kernel that is known replaced it
            owner = None if self._modules.is_torch_file(place) else self._modules.distribution(place)
            if owner is None:
                raise UnstorableOperation(
                    Reason.UNNAMED_CODE,
                    f"the operation {operation} has a kernel that was registered before cachec_torch.install(), so its "
                    "function is not known; call install() before the import that registers it",
                )
            walk.distributions[owner.name] = owner

    def earlier_kernels(self) -> Iterator[tuple[frozenset[str], str, str]]:
        """Kernels from before the recorder whose function no registry of torch holds: their names as ``Library`` notes
        them, their operation, and the file that made their library."""
        for operation in sorted({"::".join(key.split("/")[:2]) for key in self._recorder.earlier}):
            namespace, name = operation.split("::")
            entry = simple_registry.singleton.find(operation) if operation in simple_registry.singleton._data else None
            has_fake = entry is not None and bool(seams.fake_kernels(entry))
            for key, kernel_text in _KERNEL.findall(_dispatcher_text(operation)):
                names = {f"{namespace}/{name}/{key}"}
                if key == "CompositeImplicitAutograd":  # the key of a call that names none
                    names.add(f"{namespace}/{name}/")
                if not names & self._recorder.earlier or (key == "Meta" and has_fake):
                    continue
                place = seams.registered_by(kernel_text, min(names & self._recorder.earlier))
                if place == seams.NO_PLACE and namespace in TORCH_NAMESPACES:
                    continue
                is_of_torch = self._modules.is_torch_file(place)
                if is_of_torch and (not place.endswith(FOR_CALLERS) or namespace in TORCH_NAMESPACES):
                    continue
                if not (is_of_torch and place.endswith(FOR_CALLERS[1]) and operation in custom_ops.OPDEFS):
                    yield frozenset(names), operation, place

    def _registrations(self, decompositions: Mapping[Any, Any]) -> Iterator[Registration]:
        for kernel in self._recorder.kernels():
            yield Registration("kernel", kernel.key, kernel.function, kernel.caller)
        for name, made in list(custom_ops.OPDEFS.items()):
            for attribute, value in vars(made).items():
                if attribute.endswith(("_fn", "_fns", "_autocast_dtype")):
                    yield Registration(f"custom operation, {attribute}", name, value)
        for name, entry in list(simple_registry.singleton._data.items()):
            for each in (*seams.fake_kernels(entry), entry.torch_dispatch_rules._data):
                yield Registration("fake function or rule of", name, each)
        for role, table in (*_tables(decompositions).items(), ("layout", lowering._maybe_layout_constraints)):
            for operator, function in list(table.items()):
                yield Registration(f"{role} of", operator, function)
        for operator in _operators():
            for table in (operator.py_kernels, operator.python_key_table, operator.functorch_table):
                for key, function in list(table.items()):
                    yield Registration("Python kernel of", (operator, key), function)
            if isinstance(operator, HigherOrderOperator):
                kind = type(operator)
                yield Registration("higher-order operation", operator, kind)
                if kind.__module__.partition(".")[0] not in TORCH:
                    added = {name: value for name, value in vars(operator).items() if name not in vars(_BASE)}
                    file = self._modules.file_of_module(kind.__module__, f"the operation {operator}")
                    yield Registration("attributes of", operator, added, file)
        for table in (
            fake_impls.op_implementations_dict,
            fake_class_registry.global_fake_class_registry._registered_class,
        ):
            for subject, value in list(table.items()):
                yield Registration("fake function or class of", subject, value)
        for check in list(fake_impls.op_implementations_checks):
            yield Registration("fake function", "by a check", check)
        for device, codegen in list(common.device_codegens.items()):
            for name, value in vars(codegen).items():
                yield Registration(f"{name} of the device", device, value)
        for kind, value in seams.opaque_types():
            yield Registration("opaque type", kind, value)
        for base in (torch.Tensor, TorchDispatchMode, TorchFunctionMode):
            for kind in _subclasses(base):
                yield Registration("subclass", kind, kind)
        yield from _patterns()
        yield from _inner_compiles()


class _Walk:
    """Walks through what is registered, describes its values, and collects the files that it comes from."""

    def __init__(self, modules: ProjectModules) -> None:
        self.registering: set[str] = set()
        self.distributions: dict[str, Distribution] = {}
        self._modules = modules
        self._label = ""
        self._is_of_torch = True
        self._active: set[int] = set()

    def describe(self, registration: Registration) -> tuple[str, bool]:
        """A text that is equal in every process, and whether all that it leads to is torch's or Python's.

        Raises UnstorableOperation for code without a file, and for values of it that have no text.
        """
        self._label = registration.label
        self._is_of_torch = not (registration.caller and self.note(registration.caller, self._label))
        return self._text(registration.value, is_exact=not self._is_of_torch), self._is_of_torch

    def note(self, path: str, label: str) -> bool:
        """Whether a file is neither torch's nor Python's; it counts from now on."""
        if not path or self._modules.is_library_file(path):
            return False
        owner = self._modules.distribution(path)
        if owner is not None:
            self.distributions[owner.name] = owner
        elif os.path.isfile(path):
            self.registering.add(os.path.abspath(path))
        else:
            raise UnstorableOperation(
                Reason.UNNAMED_CODE,
                f"{label} was registered by code from {path!r}, which is no file; register operations in a module of "
                "the project that a script imports",
            )
        self._is_of_torch = False
        return True

    def _text(self, value: Any, *, is_exact: bool) -> str:
        """is_exact: whether code outside of torch holds the value, so that all of it counts. Of what torch holds
        itself, functions count: torch's closures also hold its own state, which changes with each call."""
        if type(value) in _PLAIN or isinstance(value, _PLAIN_OF_TORCH):
            return f"{type(value).__qualname__} {value!r}" if is_exact or isinstance(value, _PLAIN_OF_TORCH) else ""
        if isinstance(value, _OPERATIONS):
            return f"operation {value}" if is_exact else ""
        if id(value) in self._active:
            return "again" if is_exact else ""
        if len(self._active) > _DEPTH:
            raise self._refusal(value)
        self._active.add(id(value))
        try:
            return self._nested_text(value, is_exact=is_exact)
        finally:
            self._active.remove(id(value))

    def _nested_text(self, value: Any, *, is_exact: bool) -> str:
        kind = type(value)
        if kind is FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if kind in {MethodType, functools.partial}:
            return self._bound_text(value, is_exact=is_exact)
        if kind in {staticmethod, classmethod, functools._lru_cache_wrapper}:
            return self._text(value.__wrapped__, is_exact=is_exact)
        if kind is dict or (isinstance(value, dict) and not is_exact):
            return self._texts([each for item in list(value.items()) for each in item], is_exact=is_exact)
        if kind in {list, tuple} or (isinstance(value, list | tuple) and not is_exact):
            return self._texts(value, is_exact=is_exact)
        if kind in {set, frozenset}:
            texts = sorted(self._text(each, is_exact=is_exact) for each in value)
            return f"set {texts}" if is_exact else " ".join(texts).strip()
        if kind is slice:
            return self._texts((value.start, value.stop, value.step), is_exact=is_exact)
        if kind is ModuleType:
            return f"module {value.__name__}" if is_exact else ""
        if kind is Kernel:
            return self._text(value.func, is_exact=False)
        if kind.__module__.startswith("torch._library"):
            return self._text(vars(value), is_exact=False)
        if kind.__module__.startswith("triton") and hasattr(value, "fn"):
            return self._text(value.fn, is_exact=is_exact)
        if not is_exact:
            is_library = kind.__module__.partition(".")[0] in TORCH | sys.stdlib_module_names
            if isinstance(value, _PROGRAMS) or (callable(value) and not is_library and not hasattr(kind, "__get__")):
                raise self._refusal(value)
            return ""
        return self._instance(value)

    def _texts(self, values: Any, *, is_exact: bool) -> str:
        texts = [self._text(each, is_exact=is_exact) for each in values]
        return f"({', '.join(texts)})" if is_exact else " ".join(sorted(set(texts) - {""}))

    def _function(self, function: FunctionType) -> str:
        is_foreign = self.note(self._modules.file_of_function(function, self._label), self._label)
        values: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # not bound yet
                values.append(None)
        values += vars(function).values()
        text = self._texts(values, is_exact=is_foreign)
        is_nested_in_torch = (
            not is_foreign and len(self._active) > 1
        )  # torch's own state has functions that come and go
        return text if is_nested_in_torch else f"{function.__module__}.{function.__qualname__} {text}".strip()

    def _bound_text(self, value: Any, *, is_exact: bool) -> str:
        """The text of a method or of a partial function."""
        kind = type(getattr(value, "__self__", None))
        if not is_exact and kind.__module__.partition(".")[0] in TORCH:
            function = getattr(kind, value.__name__, None)
            if function is value.__func__:  # torch makes some of its methods by exec
                return ""
        before, self._is_of_torch = self._is_of_torch, True
        function = self._text(value.func if isinstance(value, functools.partial) else value.__func__, is_exact=is_exact)
        is_exact |= not self._is_of_torch
        self._is_of_torch &= before
        receiver = (value.args, value.keywords) if isinstance(value, functools.partial) else value.__self__
        text = self._text(receiver, is_exact=is_exact)
        return f"{function} of {text}" if is_exact else f"{function} {text}".strip()

    def _class(self, kind: type) -> str:
        is_foreign = False
        for base in kind.__mro__[:-1]:
            path = self._modules.file_of_module(base.__module__, f"{self._label}: the class {base.__qualname__}")
            if self.note(path, self._label):
                is_foreign = True
                if "<locals>" in base.__qualname__:
                    raise self._refusal(base, f"the class {base.__qualname__}, which a function made")
        if is_foreign or "<locals>" in kind.__qualname__:  # torch makes classes of the functions that it is given
            functions = [value for name, value in vars(kind).items() if _is_written(name, value)]
            return f"class {kind.__module__}.{kind.__qualname__} {self._texts(functions, is_exact=is_foreign)}"
        return f"class {kind.__module__}.{kind.__qualname__}"

    def _instance(self, value: Any) -> str:
        """The text of an object that code outside of torch holds. Raises UnstorableOperation for most."""
        kind = type(value)
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type(None)):
            return f"{value.__module__ or getattr(value.__self__, '__name__', '')}.{value.__qualname__}"
        if isinstance(value, Enum):
            return f"{self._class(kind)} {value.name}"
        if kind.__module__ == "numpy" and any(base.__qualname__ == "generic" for base in kind.__mro__):
            return f"numpy {value.dtype.str} {value.tobytes().hex()}"
        if kind is re.Pattern or (isinstance(value, PurePath) and kind.__module__.startswith("pathlib")):
            return repr(value)
        if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            names = [each.name for each in dataclasses.fields(kind)]
            if set(getattr(value, "__dict__", ())) <= set(names):
                fields = [getattr(value, name) for name in names]
                return f"{self._class(kind)} {self._texts(fields, is_exact=True)}"
        raise self._refusal(value)

    def _refusal(self, value: Any, what: str = "") -> UnstorableOperation:
        what = what or f"a {type(value).__module__}.{type(value).__qualname__}, whose value no key can hold"
        return UnstorableOperation(
            Reason.UNNAMED_CODE,
            f"{self._label}: what it registers holds {what}; make it a constant of a module, or inside of the function",
        )


#: A higher-order operation of torch, whose attributes every other one has.
_BASE = torch.ops.higher_order.cond


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)


def _is_written(name: str, value: Any) -> bool:
    """Whether an attribute of a class is a function, and none that Python made for a data class or a named tuple."""
    function = inspect.unwrap(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
    if not isinstance(function, FunctionType):
        return False
    return not (name.startswith("__") and function.__code__.co_filename.startswith("<"))


def _dispatcher_text(operation: str) -> str:
    try:
        return str(torch._C._dispatch_dump(operation))
    except RuntimeError:  # no such operation any more
        return ""


def _tables(decompositions: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
    """The tables of functions by operation. decompositions: those that a backend gives to AOTAutograd."""
    return {
        **{f"decomposition ({name})": table for name, table in global_decomposition_table.items()},
        "decomposition (Inductor)": decomposition.decompositions,
        "decomposition (backend)": decompositions,
        "lowering": lowering.lowerings,
        "lowering of the user": seams.user_lowerings(lowering),
    }


class _FunctionNames:
    """Which function stands for each of torch's own operations: another function of torch changes the program too."""

    def __init__(self, table: Mapping[Any, Any]) -> None:
        self._items = [*table, *table.values()]
        names = []
        for operator, function in list(table.items()):
            if not isinstance(operator, OpOverload | OpOverloadPacket):
                continue
            # Inductor makes a fallback of an operation without a lowering while it compiles.
            packet = operator.overloadpacket if isinstance(operator, OpOverload) else None
            is_made = packet is not None and _is_fallback(function) and _is_fallback(table.get(packet, function))
            if not is_made and str(operator).startswith(("aten.", "prims.")):
                names.append(
                    f"{operator} {getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
                )
        self.text = "\n".join(sorted(names))

    def is_current(self, table: Mapping[Any, Any]) -> bool:
        """Whether the table holds the same objects."""
        return self._items == [*table, *table.values()]


def _qualname(function: Any) -> str:
    return str(getattr(function, "__qualname__", ""))


def _is_fallback(function: Any) -> bool:
    return _qualname(function).startswith("fallback_handler.")


def _operators() -> Iterator[Any]:
    """The operators that exist as objects of Python."""
    yield from list(_higher_order_ops.values())
    for namespace in list(vars(torch.ops).values()):
        for packet in list(vars(namespace).values()) if isinstance(namespace, _OpNamespace) else ():
            if isinstance(packet, OpOverloadPacket):
                yield from (each for each in list(vars(packet).values()) if isinstance(each, OpOverload))


def _subclasses(kind: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(kind)
    for each in children:
        yield each
        yield from _subclasses(each)


def _patterns() -> Iterator[Registration]:
    """The functions of the replacements in Inductor's passes over graphs."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor.fx_passes.") and isinstance(module, ModuleType):
            for held in list(vars(module).values()):
                values = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else [held]
                for each in values:
                    if isinstance(each, pattern_matcher.PatternMatcherPass):
                        yield from _entries(each)


def _entries(found: Any) -> Iterator[Registration]:
    for target, entries in list(found.patterns.items()):
        for value in (value for entry in list(entries) for value in vars(entry).values()):
            if isinstance(value, FunctionType):
                yield Registration("pattern of", target, value)


def _inner_compiles() -> Iterator[Registration]:
    """The functions that a backend has Inductor call in place of its own, in the compile that makes this key."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code.co_filename.endswith("torch/_inductor/compile_fx.py") and "inner_compile" in frame.f_locals:
            yield Registration("inner compile", "of a backend", frame.f_locals["inner_compile"])
