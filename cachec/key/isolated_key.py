"""The key parts of an isolated stage: its own function, and its arguments.

No code is followed: a function that can be imported counts by its name here, and by what it does in the trace. One that
can't be found by its name is sent with the call, and counts by its form.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from types import FunctionType
from typing import Any

import msgspec

from cachec.base.display_text import module_of
from cachec.base.hashing import FileDigests, digest_bytes, frame
from cachec.errors import UnkeyableArgument, UnresolvedCode
from cachec.key.aliasing import Sharing
from cachec.key.argument_info import ArgumentInfo
from cachec.key.arguments import Annotation, ArgumentCollector, ArgumentKeys, Payload
from cachec.key.plugin_forms import FormsWithPlugins
from cachec.key.stage_options import StageLike, text_part
from cachec.model import Part, PartKind
from cachec.programs.registry import Plugins


class _Callable(msgspec.Struct, frozen=True):
    """What a callable argument counts by, as ``CodeKey`` of a stage that is not isolated."""

    digest: str
    stages: tuple[object, ...] = ()
    memos: tuple[object, ...] = ()
    unfilled: tuple[object, ...] = ()
    distributions: frozenset[str] = frozenset()
    parts: tuple[Part, ...] = ()
    #: Of one that counts by its name: ``module:qualname``. What it holds is in the trace.
    name: str = ""


class _Callables:
    """The keys of callables."""

    def __init__(self, forms: FormsWithPlugins) -> None:
        self._forms = forms

    def of(self, value: object) -> _Callable:
        """By name, or by form. Raises UnresolvedCode where it has neither."""
        name = global_name(value)
        if name:
            return _Callable(digest_bytes(b"global " + name.encode()), name=name)
        forms = self._forms.now()
        digest = forms.digest(value)
        if not digest:
            raise UnresolvedCode(f"{value!r:.80} has no form that another process could have: {forms.obstacle(value)}")
        return _Callable(digest)


class IsolatedArguments(ArgumentKeys):
    """Turns arguments into payloads of a key."""

    def __init__(self, digests: FileDigests, plugins: Plugins, forms: FormsWithPlugins) -> None:
        super().__init__(digests, _Callables(forms), plugins)  # type: ignore[arg-type]
        self._forms = forms

    def payloads(self, arguments: Mapping[str, Any], *, per_rank: bool, inventory: ArgumentInfo) -> list[Payload]:
        """As of other stages; a value without a canonical form counts by the form that two processes compare.

        Raises UnresolvedCode where it has none of both."""
        found: list[Payload] = []
        inventory.sharing = sharing = Sharing(self._forms.now())
        for name, value in arguments.items():
            try:
                found += super().payloads({name: value}, per_rank=per_rank, inventory=inventory)
            except UnkeyableArgument as error:
                digest = "" if inventory.weights else self._forms.now().digest(value, sharing.meet)
                if not digest:
                    raise UnresolvedCode(str(error)) from error
                annotation = Annotation(f"{type(value).__qualname__} {digest[:12]}")
                found.append(Payload(PartKind.ARGUMENT, name, digest.encode(), partial(_itself, annotation)))
        if sharing.in_weak_table:
            raise UnresolvedCode(f"a {sharing.in_weak_table} is in a weak table (weakref), and its copy would not be")
        if sharing.pattern:
            annotation = Annotation(f"{len(sharing.pattern)} objects are given more than once")
            data = repr(sharing.pattern).encode()
            found.append(Payload(PartKind.ARGUMENT, "shared objects", data, partial(_itself, annotation)))
        return found

    def _collector(self, per_rank: bool, inventory: ArgumentInfo) -> ArgumentCollector:
        return _SharingCollector(*self._services, per_rank, inventory)

    def function_part(self, stage: StageLike) -> Part:
        """The part of the stage's own function."""
        function = stage.__wrapped__
        digest = self._forms.now().digest(function)
        return text_part(PartKind.CODE, stage.options.name, f"isolated {digest}", digest[:12])


class _SharingCollector(ArgumentCollector):
    """A collector of a stage that runs in a process of its own: how an array lies in memory counts, and whether it can
    be written, and which objects are one."""

    __slots__ = ()

    def special(self, value: object, path: str) -> bytes | None:
        answer = super().special(value, path)
        assert self._inventory.sharing is not None
        self._inventory.sharing.meet(value)
        if answer is None and (place := self._inventory.sharing.forms.sentinel(value)):
            return frame("sentinel", place.encode())
        return answer

    def layout(self, array: Any) -> bytes:
        flags = array.flags
        return b"" if flags.c_contiguous and flags.writeable else f" {array.strides} {flags.writeable}".encode()


def _itself(annotation: Annotation) -> Annotation:
    return annotation


def global_name(value: object) -> str:
    """``module:qualname`` of a function or class that an importable module has under that name; else empty."""
    if not isinstance(value, FunctionType | type):
        return ""
    module, name = module_of(value), value.__qualname__
    if module == "__main__" or not isinstance(module, str):
        return ""
    present: Any = sys.modules.get(module)
    for part in name.split("."):
        present = getattr(present, part, None)
    if present is value or getattr(present, "__wrapped__", None) is value:
        return f"{module}:{name}"
    return ""
