"""Models register themselves when their modules are imported."""

import importlib
import pkgutil

from .registry import create, names

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "registry":
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["create", "names"]
