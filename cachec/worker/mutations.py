"""What a run changes in place: globals of modules, and arguments.

A worker's changes end with it, and a hit makes none. So a run that changes something of the caller is not stored, and
made in the caller's process. A singleton that is made at the first call, and a dictionary of earlier results, are such
changes: what the program does later may depend on them. Memos of ``functools`` are none: their author says that the
same arguments have the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.base.instances import attributes, holds_only_attributes
from cachec.key.canonical_forms import OF_TEXT, Forms

#: How deep attributes of classes and objects are looked through, to name the one that was changed.
_DEPTH = 3


class Snapshot(NamedTuple):
    """A value as it was."""

    #: Of its form.
    digest: str
    #: Its attributes; None where it is no object of the project.
    parts: Mapping[str, Snapshot] | None = None


def snapshot(value: Any, forms: Forms, depth: int = _DEPTH) -> Snapshot:
    """Return what ``change`` compares. forms: in the state of now."""
    held = _attributes(value, forms) if depth else None
    parts = None if held is None else {name: snapshot(each, forms, depth - 1) for name, each in held.items()}
    return Snapshot(forms.digest(value), parts)


def change(before: Snapshot, after: Snapshot, path: str) -> str:
    """Return the path of what differs; empty where there is nothing."""
    if before.digest == after.digest:
        return ""
    if before.parts is not None and after.parts is not None:
        for name in before.parts.keys() & after.parts.keys():
            if changed := change(before.parts[name], after.parts[name], f"{path}.{name}"):
                return changed
    return path


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
