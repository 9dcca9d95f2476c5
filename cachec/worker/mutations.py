"""What a run changes in place: globals of modules, and arguments.

A worker's changes end with it, and a hit makes none. So a run that changes something of the caller is not stored, and
made in the caller's process. Not so a *fill*: None becomes a value, a dictionary gets keys, an object gets attributes.
Programs remember so what they have made already, and another process makes it again. Of an argument, only attributes
with private names (``_engine``) may be filled: a public one (``weights``) may be what the caller waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.base.instances import attributes, holds_only_attributes
from cachec.key.canonical_forms import OF_TEXT, Forms

#: How deep attributes of classes and objects are looked through, and how many keys a dictionary may have for that.
_DEPTH, _MOST_KEYS = 3, 1000


class Snapshot(NamedTuple):
    """A value as it was."""

    #: Of its form.
    digest: str
    #: Whether it is None, and may become a value.
    may_fill: bool = False
    #: The attributes or items that may be filled; None where there are none.
    parts: Mapping[str, Snapshot] | None = None
    #: As for ``snapshot``.
    is_given: bool = False


def snapshot(value: Any, forms: Forms, depth: int = _DEPTH, *, is_given: bool = False) -> Snapshot:
    """Return what ``change`` compares. forms: in the state of now. is_given: whether it is an argument, or a
    public part of one."""
    parts: dict[str, Snapshot] | None = None
    kind = type(value)
    if depth and kind is dict and len(value) <= _MOST_KEYS and not is_given:
        parts = {forms.digest(key): Snapshot(forms.digest(item)) for key, item in value.items()}
    elif depth and (item := _attributes(value, forms)) is not None:
        parts = {
            name: snapshot(each, forms, depth - 1, is_given=is_given and not name.startswith("_"))
            for name, each in item.items()
        }
    return Snapshot(forms.digest(value), value is None and not is_given, parts, is_given)


def change(before: Snapshot, after: Snapshot, path: str) -> str:
    """Return the path of what differs and was not filled; empty where there is none."""
    if before.digest == after.digest or before.may_fill:
        return ""
    if before.parts is None or after.parts is None:
        return path
    if before.is_given and any(not name.startswith("_") for name in after.parts.keys() - before.parts.keys()):
        return path
    for name, part in before.parts.items():
        if name not in after.parts:
            return path
        if changed := change(part, after.parts[name], f"{path}.{name}" if name.isidentifier() else path):
            return changed
    return ""


def _attributes(value: Any, forms: Forms) -> Mapping[str, Any] | None:
    """Those of a class or an object of the project, and of a thread-local."""
    if type(value) is threading.local:
        return dict(vars(value))
    cls = value if isinstance(value, type) else type(value)
    if not forms.is_own_module(cls.__module__):
        return None
    if not isinstance(value, type) and not holds_only_attributes(cls):
        return None  # a dict or list of a class of the project: its items are no attributes
    namespace = vars(value) if isinstance(value, type) else attributes(value)
    return {name: each for name, each in namespace.items() if name not in OF_TEXT and not name.startswith("__")}
