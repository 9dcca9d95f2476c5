"""Mode ``verify``: compares a fresh result with the stored one, and reports undeclared accesses."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cachec.errors import StoreFault, Uncacheable, UnstorableResult
from cachec.key.stage_options import StageOptions
from cachec.model import Read
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program
from cachec.programs.supported_versions import Asking
from cachec.recording.observations import Observations

if TYPE_CHECKING:
    from cachec.stage.lookup import EngineServices, LookupResult
    from cachec.stage.run import Run

#: How many undeclared things one outcome spells out.
_SHOWN = 5


def describe_undeclared(observed: Observations, reads: Sequence[Read], *, recorded: bool) -> str:
    """What a run did that neither its key nor its trace covers, in words; empty where that is nothing.

    recorded: whether the files that it opened are reads of its trace.
    """
    known = {os.path.realpath(read.where) for read in reads if read.kind in {"file", "absent", "tool", "content"}}
    opened = () if recorded else map(os.path.realpath, observed.opened)
    copied = observed.copied is not None and not recorded
    kinds = {
        "opened without cachec.depends": [path for path in opened if path not in known and not _is_covered(path)],
        "started without cachec.run": [*observed.started],
        "not to be read again alike": [*observed.unrepeatable],
        "copied": ["the whole environment"] if copied and not observed.started else [],
    }
    return "; ".join(f"{did}: {_list_names(names)}" for did, names in kinds.items() if names)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_covered(path: str) -> bool:
    return path.endswith((".py", ".pyc")) or path.startswith(_covered_roots()) or not os.path.isfile(path)


@lru_cache(maxsize=1)
def _covered_roots() -> tuple[str, ...]:
    """Places whose content a key covers otherwise (Python and its packages, as tools) or that hold nothing of value."""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {tempfile.gettempdir(), "/proc", "/sys", "/dev", sys.prefix, sys.base_prefix}
    return tuple(os.path.realpath(root).rstrip("/") + "/" for root in sorted(roots))


def difference(run: Run, tools: EngineServices, options: StageOptions, fresh: Any, lookup: LookupResult) -> str | None:
    """None where a fresh result is what is stored, else the difference in words.

    Compared by stored bytes; where the stage is declared ``deterministic=False``, by the plugin's own comparison.
    """
    assert lookup.trace is not None
    try:
        node = run.encode(fresh)
    except StoreFault as fault:
        return f"the fresh result can't be encoded: {fault.detail}"
    except (UnstorableResult, Uncacheable) as error:
        return f"the fresh result can't be stored: {error}"
    if node == lookup.trace.value:
        return None
    if options.deterministic:
        return "the fresh result has other bytes than the stored one (deterministic=False compares numerically)"
    kind = fresh.kind if isinstance(fresh, File | Dir) else fresh.format if isinstance(fresh, Program) else ""
    plugin = tools.plugins.find(kind.partition(":")[0]) if kind else tools.plugins.for_type(type(fresh))
    if plugin is None:
        return f"no plugin compares a {type(fresh).__qualname__}, and its bytes differ"
    try:
        with Asking(plugin):
            return plugin.compare(fresh, lookup.value)
    except Exception as error:  # noqa: BLE001 - of the plugin: the caller gets the fresh result all the same
        return f"the bytes differ, and plugin {plugin.name!r} can't compare them: {error}"
