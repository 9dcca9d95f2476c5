"""What was found in the arguments of a call, by names of types alone: a command has few of them, and imports none."""

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
    from cachec.model import Part
    from cachec.programs.program import Program
    from cachec.weights import WeightSet
    from cachec.weights.manifest import Folded, Manifest


class ArgumentInfo(msgspec.Struct, eq=False):
    """What turned up in the arguments of one call: weight sets and programs by argument path; the number and bytes of
    arrays that are large together, by argument; the plugins whose types did; the code and stages that callables reach,
    functions with memos and installed distributions, which the stage may reach too; instances with cached properties
    that hold nothing yet (``unfilled``); what memos hold (``memo_entries``), and the names of those that answer for
    objects which changed since (``stale``); paths that count by content, and by digest of it (``files``); states of the
    process by which values answer; manifests, and what the caller calls the weights that programs renamed
    (``Manifest.callers``); which objects are one, of a stage that runs in a process of its own (``sharing``)."""

    callers: dict[str, str] = {}
    code: list[Part] = []
    callables: list[CodeKey] = []
    paths: list[str] = []
    weights: dict[str, WeightSet] = {}
    programs: dict[str, Program] = {}
    plugins: set[str] = set()
    stages: list[object] = []
    distributions: set[str] = set()
    large: dict[str, tuple[int, int]] = {}
    manifests: dict[str, Manifest] = {}
    files: dict[str, str] = {}
    memos: list[Memo] = []
    unfilled: list[UnfilledProperties] = []
    memo_entries: MemoEntries = {}
    stale: list[str] = []
    states: set[str] = set()
    sharing: Sharing | None = None

    @property
    def reaches_more(self) -> bool:
        """Whether these arguments bring tools, settings or stages with them."""
        return bool(self.stages or self.distributions or self.plugins)

    @property
    def folded_weights(self) -> Folded:
        """The weights that are in the programs and files by value."""
        if not self.manifests:
            return {}
        from cachec.weights.manifest import merge_ties

        return merge_ties(*[manifest.folded for manifest in self.manifests.values()])

    def check_callers(self) -> None:
        """Raise UnkeyableArgument where two arguments mean different weights by one name."""
        if not self.callers:
            return
        for path, manifest in self.manifests.items():
            for name, there in self.callers.items():
                caller_name = manifest.callers.get(name, name)
                if caller_name != there and name in manifest.weights:
                    raise UnkeyableArgument(
                        f"argument {path} means {caller_name!r} by the weight {name!r}, another argument means "
                        f"{there!r}; give the stage programs that keep the names of their weights"
                    )
