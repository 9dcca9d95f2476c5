"""Makes the part of a key that torch's own cache keys lack: what the process has registered with torch. Imports torch.

torch's keys name an operation and hold nothing else of it. torch traces its fake function, its decomposition and its
backward into the program. So everything counts that the project registered: operations, kernels, decompositions,
lowerings, tensor subclasses, native libraries. Whether the graph shows it does not matter, because a decomposed
operation is in no graph.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import library
from torch._decomp import global_decomposition_table
from torch._inductor import decomposition, lowering, pattern_matcher
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._library import custom_ops, fake_class_registry, simple_registry
from torch._library.utils import Kernel
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _higher_order_ops, _OpNamespace
from torch._subclasses import fake_impls

from cachec.base import elf
from cachec.base.hashing import Hasher, digest_bytes
from cachec.model import Reason
from cachec_torch.project_modules import FileIdentity, ProjectModules, UnstorableOperation

#: Namespaces of torch for which torch itself calls ``torch.library.register_autograd``, ``impl`` or ``define``.
TORCH_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "debugprims"})

#: Files of torch that register an operation for their caller.
_FOR_CALLERS = ("torch/library.py", "torch/_library/custom_ops.py")

#: The table of decompositions that a backend gives to AOTAutograd.
_BACKEND = "decomposition (backend)"

#: A line of the dispatcher's description of an operation.
_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*\.py):\d+ ::", re.MULTILINE)
_DEFINED = re.compile(r"^debug: registered at (.*):\d+$", re.MULTILINE)

#: Symbols by which a native library registers operations.
_REGISTERING = re.compile(rb"5torch7Library|17RegisterOperators|torch_library_")

#: Values that are the same in every process whose text is the same.
_PLAIN = (bool, int, float, complex, str, bytes, Enum, range, slice, type(None), type(...), type(NotImplemented))
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size, torch.Tag)

#: What the kernel appends to the path of a mapped file that is no longer there.
_DELETED = " (deleted)"

#: The place of the path in a line of ``/proc/self/maps``.
_PATH_FIELD = 5

#: Nested values that are described; a registered function with deeper ones is refused.
_DEPTH = 20


class Registration(NamedTuple):
    """Something that was registered. role, subject: what it is, and of what. operation: the qualified name of its
    operation, empty where the function alone tells whose it is. value: the function or class."""

    role: str
    subject: Any
    operation: str
    value: Any

    @property
    def label(self) -> str:
        """For messages and digests."""
        return f"{self.role} {self.subject}"


class _EarlierKernel(NamedTuple):
    """A kernel whose function is not known. names: as ``Library`` notes it. place: the file that made its library."""

    names: frozenset[str]
    operation: str
    place: str


class _Table:
    """A table of functions by operation, as it was when it was last read."""

    def __init__(self, role: str, table: Mapping[Any, Any]) -> None:
        self._items = [*table, *table.values()]
        items = list(table.items())
        # Inductor adds lowerings of operations as it compiles them, so there the function alone tells whose it is.
        self.registrations = [
            Registration(f"{role} of", operator, "" if role == "lowering" else _operation_name(operator), function)
            for operator, function in items
        ]
        names = (
            f"{operator.name()} {getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
            for operator, function in items
            if isinstance(operator, OpOverload) and operator.namespace in {"aten", "prims"}
        )
        #: Which function stands for each of torch's own operations: another function of torch changes the program too.
        self.names = "\n".join(sorted(names))

    def is_current(self, table: Mapping[Any, Any]) -> bool:
        """Whether the table holds the same objects."""
        return self._items == [*table, *table.values()]


class KernelRecorder:
    """Stands in place of ``Library.impl`` and ``Library.fallback``, and remembers the functions that they were given.

    torch hands these to the dispatcher, which gives none of them back. Of kernels that were registered before, only the
    places of their libraries are known.
    """

    def __init__(self) -> None:
        self.earlier = frozenset(library._impls)
        self._kernels: dict[tuple[str, str, str], list[Any]] = {}

    def impl(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function in place of ``Library.impl``."""

        @functools.wraps(original)
        def impl(lib: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
            done = original(lib, op_name, fn, dispatch_key, **options)
            name = op_name if isinstance(op_name, str) else op_name.name()
            self._kernels.setdefault((lib.ns, name.split("::")[-1], dispatch_key or lib.dispatch_key), []).append(fn)
            return done

        return impl

    def fallback(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function in place of ``Library.fallback``."""

        @functools.wraps(original)
        def fallback(lib: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
            done = original(lib, fn, dispatch_key, **options)
            self._kernels.setdefault((lib.ns, "", dispatch_key or lib.dispatch_key), []).append(fn)
            return done

        return fallback

    def names(self) -> set[str]:
        """The kernels that were registered since, as ``Library`` notes them."""
        return {"/".join(key) for key in self._kernels}

    def registrations(self) -> Iterator[Registration]:
        for (namespace, name, key), functions in list(self._kernels.items()):
            operation = f"{namespace}::{name}" if name else ""
            for function in list(functions):
                yield Registration("kernel", f"{namespace}::{name} {key}", operation, function)


class OperationsKey:
    """Makes the part of a key that holds what a process has registered with torch."""

    def __init__(self, recorder: KernelRecorder, modules: ProjectModules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._of_torch: dict[int, Any] = {}  # functions by id that lead to nothing but torch; held, for their ids
        self._is_torch_operation: dict[str, bool] = {}
        self._earlier: list[_EarlierKernel] | None = None
        self._tables: dict[str, _Table] = {}

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
        """What the digest is made of, as labels and texts."""
        found = _Description(self._modules)
        parts = [*_libraries(self._modules), *self._definitions(), *self._check_earlier()]
        for each in self._registrations(decompositions or {}):
            if self._is_of_torch(each):
                continue
            is_own = self._is_own(each.operation)
            text, is_of_torch = found.describe(each)
            if not is_of_torch or not is_own:
                parts.append((each.label, text))
            else:
                self._of_torch[id(each.value)] = each.value
        parts += self._modules.parts(sorted(found.modules))
        names = {role: table.names for role, table in self._tables.items() if decompositions or role != _BACKEND}
        parts += ((f"table {role}", text) for role, text in names.items())
        return [("python", platform.python_version()), *sorted(parts)]

    def _is_of_torch(self, registration: Registration) -> bool:
        """Whether a registration is known to be torch's own."""
        return id(registration.value) in self._of_torch and self._is_own(registration.operation)

    def _is_own(self, operation: str) -> bool:
        """Whether an operation is torch's; True for no operation."""
        known = self._is_torch_operation.get(operation)
        if known is None:
            known = self._is_torch_operation[operation] = self._defined_by_torch(operation)
        return known

    def _defined_by_torch(self, operation: str) -> bool:
        namespace = operation.partition("::")[0]
        if not operation or namespace in TORCH_NAMESPACES:
            return True
        if namespace == "aten" and operation not in {"".join(each.split()) for each in library._defs}:
            return True
        if (made := custom_ops.OPDEFS.get(operation)) is not None:
            return self._modules.is_torch_file(made._init_fn.__code__.co_filename)
        text = _dispatcher_text(operation)
        defined = _DEFINED.search(text)
        if defined is None or not defined[1].endswith(".py"):  # by a native library
            return bool(text) and not any(_libraries(self._modules))
        return self._modules.is_torch_file(defined[1]) and not defined[1].endswith(_FOR_CALLERS)

    def _definitions(self) -> Iterator[tuple[str, str]]:
        """Schemas, tags and effects of operations that Python code defined."""
        for each in sorted(library._defs):
            operation = "".join(each.split())
            if self._is_own(operation):
                continue
            name, _, overload = operation.partition(".")
            found = torch._C._get_operation_overload(name, overload)
            if found is None:
                continue  # its library is gone
            tags = ", ".join(sorted(tag.name for tag in found[2]))
            entry = simple_registry.singleton.find(operation)
            effects = f"{entry.effect._effect} {entry.symm_mem_args._symm_mem_args}"
            yield f"operation {operation}", f"{torch._C._get_schema(name, overload)} {tags} {effects}"

    def _check_earlier(self) -> Iterator[tuple[str, str]]:
        """The distributions that registered kernels before the recorder was there.

        Raises UnstorableOperation for a kernel of the project that was registered then: its function is not known.
        """
        if self._earlier is None:
            self._earlier = list(self._earlier_kernels())
        for names, operation, place in self._earlier:
            if library._impls.isdisjoint(names):
                continue  # its library is gone
            owner = None if self._modules.is_torch_file(place) else self._modules.distribution(place)
            if owner is None:
                raise UnstorableOperation(
                    Reason.UNNAMED_CODE,
                    f"the operation {operation} has a kernel that was registered before cachec_torch.install(), so its "
                    "function is not known; call install() before the import that registers it",
                )
            yield self._modules.distribution_part(owner)

    def _earlier_kernels(self) -> Iterator[_EarlierKernel]:
        """The kernels from before the recorder whose function no registry of torch holds."""
        for operation in sorted({"::".join(key.split("/")[:2]) for key in self._recorder.earlier}):
            namespace, name = operation.split("::")
            entry = simple_registry.singleton.get(operation)
            has_fake = entry is not None and bool(entry.fake_impl.kernels)
            for key, place in _KERNEL.findall(_dispatcher_text(operation)):
                is_of_torch = self._modules.is_torch_file(place)
                if (key == "Meta" and has_fake) or (is_of_torch and not place.endswith(_FOR_CALLERS)):
                    continue
                if place.endswith(_FOR_CALLERS[1]) and is_of_torch and operation in custom_ops.OPDEFS:
                    continue
                if not (is_of_torch and namespace in TORCH_NAMESPACES):
                    names = {f"{namespace}/{name}/{key}"}
                    if key == "CompositeImplicitAutograd":  # the key of a call that names none
                        names.add(f"{namespace}/{name}/")
                    if names & self._recorder.earlier and not names & self._recorder.names():
                        yield _EarlierKernel(frozenset(names), operation, place)

    def _registrations(self, decompositions: Mapping[Any, Any]) -> Iterator[Registration]:
        yield from self._recorder.registrations()
        for name, made in list(custom_ops.OPDEFS.items()):
            for attribute, value in _held_functions(made):
                yield Registration("custom operation", f"{name} {attribute}", name, value)
        for name, entry in list(simple_registry.singleton._data.items()):
            for kernel in entry.fake_impl.kernels:
                yield Registration("fake function of", name, name, kernel.func)
            for kind, function in entry.torch_dispatch_rules._data.items():
                yield Registration("dispatch rule of", f"{name} for {kind.__qualname__}", name, function)
        tables = {
            **{f"decomposition ({name})": table for name, table in global_decomposition_table.items()},
            "decomposition (Inductor)": decomposition.decompositions,
            **({_BACKEND: decompositions} if decompositions else {}),
            "lowering": lowering.lowerings,
            "lowering of the user": lowering.user_lowerings,
        }
        for role, table in tables.items():
            known = self._tables.get(role)
            if known is None or not known.is_current(table):
                known = self._tables[role] = _Table(role, table)
            else:  # only those that are not torch's are described again
                known.registrations = [each for each in known.registrations if not self._is_of_torch(each)]
            yield from known.registrations
        for operator in _operators():
            for table in (operator.py_kernels, operator.python_key_table, operator.functorch_table):
                for key, function in list(table.items()):
                    role = "Python kernel for a class of" if isinstance(key, type) else "Python kernel of"
                    yield Registration(role, operator, "", function)
            if isinstance(operator, HigherOrderOperator):
                yield Registration("higher-order operation", operator, "", type(operator))
        for operator, function in list(fake_impls.op_implementations_dict.items()):
            yield Registration("fake function of", operator, "", function)
        for check, function in list(fake_impls.op_implementations_checks):
            yield Registration("fake function", "by a check", "", function)
            yield Registration("check", "of a fake function", "", check)
        for name, kind in list(fake_class_registry.global_fake_class_registry._registered_class.items()):
            yield Registration("fake class", name, "", kind)
        for kind in _dispatching_subclasses(torch.Tensor):
            yield Registration("tensor subclass", kind.__qualname__, "", kind)
        yield from _patterns()


class _Description:
    """Describes registered functions by text, and collects the modules that they are in."""

    def __init__(self, modules: ProjectModules) -> None:
        self.modules: set[str] = set()
        self._files = modules
        self._label = ""
        self._is_of_torch = True
        self._active: set[int] = set()

    def describe(self, registration: Registration) -> tuple[str, bool]:
        """A text that is equal in every process, and whether all that it leads to is torch's or Python's.

        Raises UnstorableOperation for a function without a file, and for values of it that have no text.
        """
        self._label, self._is_of_torch = registration.label, True
        return self._text(registration.value, is_exact=False), self._is_of_torch

    def _text(self, value: Any, *, is_exact: bool) -> str:
        """is_exact: whether code of the project holds the value, so that all of it counts. Of what torch holds itself,
        functions and dtypes count: torch's closures also hold its own state, which changes with each call."""
        if isinstance(value, _PLAIN_OF_TORCH) or (isinstance(value, _PLAIN) and is_exact):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, _PLAIN):
            return ""
        if isinstance(value, OpOverload | OpOverloadPacket | HigherOrderOperator):
            return f"operation {value}"
        if id(value) in self._active:
            return ""
        if len(self._active) > _DEPTH:
            raise self._refused(value)
        self._active.add(id(value))
        try:
            return self._nested(value, is_exact=is_exact)
        finally:
            self._active.remove(id(value))

    def _nested(self, value: Any, *, is_exact: bool) -> str:
        match value:
            case FunctionType():
                return self._function(value)
            case type():
                return self._class(value)
            case MethodType():
                return self._method(value, is_exact=is_exact)
            case functools.partial():
                return self._partial(value, is_exact=is_exact)
            case staticmethod() | classmethod():
                return self._text(value.__func__, is_exact=is_exact)
            case list() | tuple():
                return self._texts(value, is_exact=is_exact)
            case set() | frozenset():
                return " ".join(sorted(self._text(each, is_exact=is_exact) for each in value))
            case dict():
                return " ".join(sorted(self._texts(each, is_exact=is_exact) for each in value.items()))
            case ModuleType():
                self._note(value.__name__)
                return f"module {value.__name__}"
        wrapped = vars(value).get("__wrapped__") if hasattr(value, "__dict__") else None
        if callable(wrapped):  # of functools.lru_cache, for one
            return self._text(wrapped, is_exact=is_exact)
        if not hasattr(type(value), "__get__") and not isinstance(value, BuiltinFunctionType):
            return self._instance(value, is_exact=is_exact)
        return self._native_function(value)

    def _texts(self, values: Any, *, is_exact: bool) -> str:
        texts = [self._text(each, is_exact=is_exact) for each in values]
        return f"({', '.join(texts)})" if is_exact else " ".join(sorted(set(texts) - {""}))

    def _function(self, function: FunctionType) -> str:
        name = ""
        if not self._files.is_torch_file(function.__code__.co_filename):
            name = self._files.module_of_function(function, self._label)
        if name:
            self.modules.add(name)
            self._is_of_torch = False
        values: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # not bound yet
                values.append(None)
        nested = self._texts(values, is_exact=bool(name))
        is_nested_in_torch = not name and len(self._active) > 1
        return nested if is_nested_in_torch else f"{function.__module__}.{function.__qualname__} {nested}"

    def _partial(self, value: functools.partial[Any], *, is_exact: bool) -> str:
        before, self._is_of_torch = self._is_of_torch, True
        function = self._text(value.func, is_exact=is_exact)
        values = self._texts((value.args, value.keywords), is_exact=is_exact or not self._is_of_torch)
        self._is_of_torch &= before
        return f"{function} {values}".strip()

    def _method(self, method: MethodType, *, is_exact: bool) -> str:
        held = method.__self__
        owner = held if isinstance(held, type) else type(held)
        is_plain = getattr(owner, method.__func__.__name__, None) in {method.__func__, method}
        if is_plain and not self._files.counts(
            owner.__module__, self._label
        ):  # torch makes some of its methods by exec
            return f"{method.__func__.__qualname__} of {self._text(held, is_exact=is_exact)}"
        return self._texts((method.__func__, held), is_exact=is_exact)

    def _class(self, kind: type) -> str:
        is_of_project = self._note(kind.__module__)
        for base in kind.__mro__[1:-1]:
            self._note(base.__module__)
        name = f"class {kind.__module__}.{kind.__qualname__}"
        if not is_of_project and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
            return name
        # torch makes classes of the functions that it is given, for one.
        functions = {label: value for label, value in vars(kind).items() if _is_written(value)}
        return f"{name} {self._text(functions, is_exact=False)}"

    def _note(self, module: str) -> bool:
        """Whether a module counts; it does from now on."""
        counts = self._files.counts(module, self._label)
        if counts:
            self.modules.add(module)
            self._is_of_torch = False
        return counts

    def _native_function(self, value: Any) -> str:
        held = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(type(held), "__module__", None)
        module = held.__name__ if isinstance(held, ModuleType) else module
        if not isinstance(module, str) or module not in sys.modules:
            raise self._refused(value)
        self._note(module)
        return f"{module}.{getattr(value, '__qualname__', value.__name__)}"

    def _instance(self, value: Any, *, is_exact: bool) -> str:
        kind = type(value)
        module = kind.__module__
        name = f"{module}.{kind.__qualname__}"
        if kind is Kernel:  # it also holds the path of the file
            return self._text(value.func, is_exact=False)
        if module.startswith("torch._library") or module.partition(".")[0] == "triton":
            held = value.fn if module.startswith("triton") and hasattr(value, "fn") else vars(value)
            return self._text(held, is_exact=False)
        if not self._files.counts(module, f"{self._label}: a {kind.__qualname__}"):
            is_torch = module.partition(".")[0] == "torch"
            if (is_exact or (callable(value) and not is_torch)) and kind not in {
                object,
                re.Pattern,
                library.Library,
                _OpNamespace,
                logging.Logger,
            }:
                raise self._refused(value)
            return repr(value) if kind is re.Pattern else name if is_exact else ""
        if not hasattr(value, "__dict__"):
            raise self._refused(value)
        return f"{self._class(kind)} {self._text(vars(value), is_exact=True)}"

    def _refused(self, value: Any) -> UnstorableOperation:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return UnstorableOperation(
            Reason.UNNAMED_CODE,
            f"{self._label}: what it registers holds a {kind}, whose value no key can hold; "
            "make it inside of the function, or reach it as a global name of its module",
        )


def _held_functions(made: Any) -> Iterator[tuple[str, Any]]:
    """The functions of a custom operation, and the dtypes that it is cast to, by attribute."""
    for attribute in ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn"):
        if getattr(made, attribute) is not None:
            yield attribute, getattr(made, attribute)
    for attribute in ("_backend_fns", "_torch_dispatch_fns", "_autocast_dtype"):
        for key, value in list(getattr(made, attribute).items()):
            yield f"{attribute} {key.__qualname__ if isinstance(key, type) else key}", value


def _operation_name(operator: Any) -> str:
    return operator.name() if isinstance(operator, OpOverload) else ""


def _is_written(value: Any) -> bool:
    """Whether an attribute of a class is a function, and none that Python made for a data class or a named tuple."""
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not isinstance(function, FunctionType):
        return False
    name = function.__name__
    return not (name.startswith("__") and name.endswith("__") and function.__code__.co_filename.startswith("<"))


def _dispatcher_text(operation: str) -> str:
    try:
        return str(torch._C._dispatch_dump(operation))
    except RuntimeError:  # no such operation any more
        return ""


def _operators() -> Iterator[Any]:
    """The operators that exist as objects of Python."""
    yield from list(_higher_order_ops.values())
    for namespace in list(vars(torch.ops).values()):
        for packet in list(vars(namespace).values()) if isinstance(namespace, _OpNamespace) else ():
            if isinstance(packet, OpOverloadPacket):
                yield from (each for each in list(vars(packet).values()) if isinstance(each, OpOverload))


def _dispatching_subclasses(kind: type) -> Iterator[type]:
    """Subclasses that torch traces through by ``__torch_dispatch__``."""
    children: list[type] = type.__subclasses__(kind)
    for each in children:
        if "__torch_dispatch__" in vars(each):
            yield each
        yield from _dispatching_subclasses(each)


def _patterns() -> Iterator[Registration]:
    """The functions of the replacements in Inductor's passes over graphs."""
    for each in _passes():
        for (_, target), entries in list(each.patterns.items()):
            for function in (value for entry in list(entries) for value in vars(entry).values()):
                if isinstance(function, FunctionType):
                    yield Registration("pattern of", target, "", function)


def _passes() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor.fx_passes.") and isinstance(module, ModuleType):
            for held in list(vars(module).values()):
                values = (
                    held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else (held,)
                )
                yield from (each for each in values if isinstance(each, pattern_matcher.PatternMatcherPass))


def _libraries(modules: ProjectModules) -> Iterator[tuple[str, str]]:
    """The loaded native libraries that register operations, by content; those of torch and Inductor excepted.

    Raises UnstorableOperation for one that was replaced since it was loaded.
    """
    compiled = f"{os.path.realpath(cache_dir())}{os.sep}"
    asked = frozenset(map(os.path.realpath, torch.ops.loaded_libraries))
    for mapped in sorted({*_mapped_files(), *asked}):
        path = mapped.removesuffix(_DELETED)
        if modules.is_torch_file(path) or path.startswith(compiled):
            continue
        try:
            state = os.stat(path)
            identity = FileIdentity(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            digest = _library_digest(identity, is_asked=path in asked)
        except FileNotFoundError as error:
            if path not in asked:
                continue  # a file that another library made, loaded and removed
            raise _replaced(path) from error
        if digest and path != mapped:
            raise _replaced(path)
        if digest:
            yield f"library {os.path.basename(path)}", digest


def _replaced(path: str) -> UnstorableOperation:
    return UnstorableOperation(
        Reason.INPUT_CHANGED, f"the library {path} was replaced after it was loaded; start the process again"
    )


def _mapped_files() -> Iterator[str]:
    """The native libraries in the memory of this process."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > _PATH_FIELD and "x" in fields[1] and fields[_PATH_FIELD].startswith("/"):
            yield fields[_PATH_FIELD]


@functools.lru_cache(maxsize=4096)
def _library_digest(identity: FileIdentity, *, is_asked: bool) -> str:
    """The digest of a library that registers operations, empty for any other file. is_asked: whether the project had
    torch load it."""
    path = Path(identity.path)
    try:
        needed = elf.read_dynamic(path).needed
    except elf.ElfError:
        needed = ()
    if not is_asked and not any(name.startswith(("libtorch", "libc10")) for name in needed):
        return ""
    content = path.read_bytes()
    return digest_bytes(content) if is_asked or _REGISTERING.search(content) else ""
