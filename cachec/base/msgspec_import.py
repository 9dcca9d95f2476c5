"""Imports msgspec at two thirds of its cost, ahead of the modules that use it.

``msgspec._utils`` asks ``typing_extensions`` for three names, which on the Pythons that cachec runs on are those of
``typing`` (typing_extensions' own source: ``Required`` and ``NotRequired`` are passed on, and ``get_type_hints`` with
``include_extras`` ends in the same call). To import it takes as long as to start Python, since it brings ``inspect``.
So that one module of msgspec is told that there is none, unless the process has it already; nobody else notices.
"""

import builtins
import sys
from types import ModuleType
from typing import Any

_OMITTED, _ASKS = "typing_extensions", "msgspec._utils"


def import_msgspec() -> None:
    """Have msgspec imported. Where it is missing, the ImportError comes from who uses it, by its own line."""
    if "msgspec" in sys.modules or _OMITTED in sys.modules:
        return
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    package = PathFinder.find_spec("msgspec")
    spec = package and PathFinder.find_spec(_ASKS, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    # Its own builtins, not an entry of ``sys.modules``: another thread may import typing_extensions at this moment.
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _without}
    spec.loader.exec_module(module)
    # Only now, when it is whole: another thread may import msgspec at this moment, and nothing would have it wait.
    sys.modules.setdefault(_ASKS, module)
    import msgspec

    vars(msgspec).setdefault("_utils", sys.modules[_ASKS])  # as an import of it would have left it


def _without(name: str, *rest: Any) -> ModuleType:
    if name == _OMITTED:
        raise ImportError(f"{name} is left out", name=name)
    return builtins.__import__(name, *rest)
