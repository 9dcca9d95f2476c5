"""Installs the plugin of a framework that has just been imported."""

from cachec_startup.import_hooks import watch
from cachec_startup.messages import write_line
from cachec_startup.own_process import is_own_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def install_plugin(name: str) -> None:
    """Do what the plugin's module ``startup`` has for its framework, now and after later imports.

    name: of the plugin, and of the framework's module.
    """
    _guarded(name, lambda: _install(name))(name)


def _guarded(name: str, action: "Callable[[], object]") -> "Callable[[str], None]":
    """What does it, given the name of a module. The program goes on whatever it raises: that is one line on stderr."""

    def attempt(_: str) -> None:
        if is_own_process():
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program has not asked for this
            words = " ".join(str(error).split()) or type(error).__name__
            write_line(f"{name} goes on without the cache: {words}")

    return attempt


def _install(name: str) -> None:
    """Raises UsageError for a plugin that installs nothing."""
    from importlib import import_module
    from importlib.util import find_spec

    from cachec.base.distributions import Distributions
    from cachec.errors import UsageError
    from cachec.programs.registry import GROUP

    import_module("cachec.base.call_hooks")  # so that ``watch`` has the calls counted
    target = Distributions().plugin_entry_points(GROUP).get(name)
    home = "" if target is None else f"{target.partition(':')[0].partition('.')[0]}.startup"
    if not home or find_spec(home) is None:
        raise UsageError(f"CACHEC_INSTALL names {name!r}; expected plugins that install themselves, such as jax,torch")
    actions: dict[str, Callable[[], object]] = import_module(home).ACTIONS
    watch({module: _guarded(name, action) for module, action in actions.items()})
