"""Installs the plugin of a framework that has just been imported."""

import sys

from cachec_startup.import_hooks import watch
from cachec_startup.recorded import is_recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def install_plugin(name: str) -> None:
    """Do what the plugin's module ``startup`` has for its framework, now and after later imports.

    name: of the plugin, and of the framework's module.
    """
    _attempt(name, lambda: _install(name))


def _attempt(name: str, action: "Callable[[], object]") -> None:
    """Do it. The program goes on whatever is raised: that is one line on stderr."""
    if is_recorded():
        return
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the program has not asked for this
        words = " ".join(str(error).split()) or type(error).__name__
        print(f"cachec: {name} goes on without the cache: {words}", file=sys.stderr)  # noqa: T201


def _install(name: str) -> None:
    """Raises UsageError for a plugin that installs nothing."""
    from importlib import import_module
    from importlib.util import find_spec

    from cachec.base.distributions import Distributions
    from cachec.errors import UsageError
    from cachec.programs.registry import GROUP

    target = Distributions().plugin_entry_points(GROUP).get(name)
    module = "" if target is None else f"{target.partition(':')[0].partition('.')[0]}.startup"
    if not module or find_spec(module) is None:
        raise UsageError(f"CACHEC_INSTALL names {name!r}; expected plugins that install themselves, such as jax,torch")
    actions: dict[str, Callable[[], object]] = import_module(module).ACTIONS
    watch({place: lambda _, action=action: _attempt(name, action) for place, action in actions.items()})
