"""What other packages offer through entry points is imported when it is first asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from cachec.errors import PluginError


def load_object(what: str, target: str, attribute: str, kind: type[Any]) -> Any:
    """The object of ``module:attribute``, or of ``module`` the attribute of that name, else the module itself.

    what: what errors call it. Raises PluginError where it can't be imported, or is no ``kind``.
    """
    module_name, _, named = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        value = getattr(module, named) if named else getattr(module, attribute, module)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PluginError(
            f"{what} ({target}) can't be loaded: {error}. Repair or uninstall the package that offers it; "
            f"this Python is {sys.executable}"
        ) from error
    if not isinstance(value, kind):
        wanted = f"{kind.__module__}.{kind.__name__}"
        raise PluginError(f"{what} ({target}) is a {type(value).__name__}, expected a {wanted}")
    return value
