"""What the arguments of a call hold, by type names alone: a command, which has few of these types, imports none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cachec.errors import UnkeyableArgument

if TYPE_CHECKING:
    from cachec.base.cached_properties import UnfilledProperties
    from cachec.key.aliasing import Sharing
    from cachec.key.code.fingerprint import CodeKey
    from cachec.key.code.lru_cache_contents import MemoEntries
    from cachec.key.code.lru_cache_validity import Memo
    from cachec.key.stage_options import StageLike
    from cachec.model import Part
    from cachec.programs.program import Program
    from cachec.weights import WeightSet
    from cachec.weights.manifest import Folded, Manifest


class ArgumentInfo(msgspec.Struct, eq=False):
    """What the arguments of one call hold. Weight sets and programs are named by argument path."""

    #: What the caller calls the weights that programs renamed (``Manifest.callers``).
    callers: dict[str, str] = {}
    #: The code that callables reach.
    code: list[Part] = []
    #: The keys of callables that the call is given.
    callables: list[CodeKey] = []
    #: Arguments that are paths.
    paths: list[str] = []
    #: Weight sets, by argument path.
    weights: dict[str, WeightSet] = {}
    #: Programs, by argument path.
    programs: dict[str, Program] = {}
    #: The stage and the stages that it reaches, each with the key that its code had before the run: modules that the
    #: run imports are not in the key.
    reached: list[tuple[StageLike, CodeKey]] = []
    #: Plugins whose types were found.
    plugins: set[str] = set()
    #: Stages that callables reach, which the stage may call.
    stages: list[object] = []
    #: Installed distributions that callables reach.
    distributions: set[str] = set()
    #: The number and bytes of arrays that are large together, by argument.
    large: dict[str, tuple[int, int]] = {}
    #: Manifests, by argument path.
    manifests: dict[str, Manifest] = {}
    #: Paths that count by content, by the digest of it.
    files: dict[str, str] = {}
    #: Functions with ``lru_cache`` that callables reach.
    memos: list[Memo] = []
    #: Instances with cached properties that hold nothing yet.
    unfilled: list[UnfilledProperties] = []
    #: What these memos hold.
    memo_entries: MemoEntries = {}
    #: The names of memos that answer for objects which changed since.
    stale: list[str] = []
    #: States of the process by which values answer.
    states: set[str] = set()
    #: Which objects are one; of a stage that runs in a process of its own.
    sharing: Sharing | None = None

    @property
    def reaches_more(self) -> bool:
        """Whether these arguments bring tools, settings or stages with them."""
        return bool(self.stages or self.distributions or self.plugins)

    @property
    def weights_by_value(self) -> Folded:
        """The weights that are in the programs and files by value."""
        if not self.manifests:
            return {}
        from cachec.weights.manifest import merge_ties

        return merge_ties(*[manifest.folded for manifest in self.manifests.values()])

    def check_callers(self) -> None:
        """Raise UnkeyableArgument where two arguments mean different weights by one name."""
        for path, manifest in self.manifests.items():
            for name, there in self.callers.items():
                caller_name = manifest.callers.get(name, name)
                if caller_name != there and name in manifest.weights:
                    raise UnkeyableArgument(
                        f"argument {path} means {caller_name!r} by the weight {name!r}, another argument means "
                        f"{there!r}; give the stage programs that keep the names of their weights"
                    )
