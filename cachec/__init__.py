"""cachec: a compilation cache for machine-learning compilers.

Everything public is here and imported when it is first used, so that ``import cachec`` costs next to nothing.
"""

from cachec.base import __version__ as __version__

TYPE_CHECKING = False  # type checkers know the name; importing typing would double the start of `cachec exec`
if TYPE_CHECKING:
    from typing import Any

    from cachec.cache import Cache
    from cachec.commands.run import run, scratch
    from cachec.errors import (
        CachecError,
        CachecWarning,
        CacheMissError,
        CapturedWeights,
        CheckpointError,
        ConfigError,
        HandleClosed,
        LinkError,
        PluginError,
        ReproducerError,
        StageCrashed,
        StageFailed,
        StageOutOfMemory,
        StageTimedOut,
        UnkeyableArgument,
        UnknownWeight,
        UnresolvedCode,
        UnstorableResult,
        UnsupportedFunction,
        UsageError,
        WeightError,
        WeightReadError,
        WeightsChanged,
    )
    from cachec.model import Mode, Outcome, Reason, WeightSpec
    from cachec.programs.artifact import Dir, File
    from cachec.programs.linker import link
    from cachec.programs.program import Program
    from cachec.stage.decorator import Stage
    from cachec.stage.depends import depends
    from cachec.weights import Weight, WeightSet, open_weights
    from cachec.weights.manifest import Manifest
    from cachec.weights.overlay import ComputedWeight

#: Where names are; any other is an error (``cachec.errors``).
_HOMES = {
    "cachec.programs.artifact": ("Dir", "File"),
    "cachec.cache": ("Cache",),
    "cachec.commands.run": ("run", "scratch"),
    "cachec.programs.linker": ("link",),
    "cachec.model": ("Mode", "Outcome", "Reason", "WeightSpec"),
    "cachec.stage.depends": ("depends",),
    "cachec.stage.decorator": ("Stage",),
    "cachec.programs.program": ("Program",),
    "cachec.weights.manifest": ("Manifest",),
    "cachec.weights": ("Weight", "WeightSet", "open_weights"),
    "cachec.weights.overlay": ("ComputedWeight",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Cache",
    "CacheMissError",
    "CachecError",
    "CachecWarning",
    "CapturedWeights",
    "CheckpointError",
    "ComputedWeight",
    "ConfigError",
    "Dir",
    "File",
    "HandleClosed",
    "LinkError",
    "Manifest",
    "Mode",
    "Outcome",
    "PluginError",
    "Program",
    "Reason",
    "ReproducerError",
    "Stage",
    "StageCrashed",
    "StageFailed",
    "StageOutOfMemory",
    "StageTimedOut",
    "UnkeyableArgument",
    "UnknownWeight",
    "UnresolvedCode",
    "UnstorableResult",
    "UnsupportedFunction",
    "UsageError",
    "Weight",
    "WeightError",
    "WeightReadError",
    "WeightSet",
    "WeightSpec",
    "WeightsChanged",
    "depends",
    "link",
    "open_weights",
    "run",
    "scratch",
]


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'cachec' has no attribute {name!r}")
    from importlib import import_module

    from cachec.base.msgspec_import import import_msgspec

    import_msgspec()
    value = getattr(import_module(_HOME.get(name, "cachec.errors")), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
