"""Calls functions once a module has been imported, by a finder at the front of ``sys.meta_path``."""

import sys

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[str], None]


def watch(actions: "Mapping[str, Action]") -> None:
    """Call each action, with the name of its module, once that module has been imported; at once if it has been.

    So are earlier actions whose modules another finder has found: pytest's stands in front of this one.
    """
    finder = _finder()
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.actions.update(actions)
    for name in [name for name in finder.actions if name in sys.modules]:
        finder.actions.pop(name)(name)


def is_watching() -> bool:
    """Whether ``watch`` was called in this process."""
    return _finder() is not None


def _finder() -> "_Finder | None":
    return next((each for each in sys.meta_path if isinstance(each, _Finder)), None)


class _Finder:
    """Finds the modules that are watched as the other finders do, with a loader that calls their actions."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in self.actions:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):  # a folder without an __init__ has none
                    loader: Any = _Loader(spec.loader, self.actions)
                    spec.loader = loader
                return spec
        return None


class _Loader:
    """Stands in the place of a module's loader until the module is executed."""

    def __init__(self, loader: "Any", actions: "dict[str, Action]") -> None:
        self._loader = loader
        self._actions = actions

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As the module's loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module with its own loader, then do what waits for it."""
        module.__loader__ = self._loader
        assert module.__spec__ is not None  # the import system made it of one
        module.__spec__.loader = self._loader
        name = module.__name__
        action = self._actions.pop(name, None)  # none where its spec was used before
        try:
            self._loader.exec_module(module)
        except BaseException:
            if action is not None:
                self._actions[name] = action  # it may be imported again
            raise
        if action is not None:
            action(name)

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)
