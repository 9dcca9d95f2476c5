"""Mode ``verify``: hold a fresh result against the stored one, and see what the stage did without saying so."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextvars import ContextVar, Token
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cachec.errors import StoreFault
from cachec.key.request import StageOptions
from cachec.model import Read
from cachec.programs.artifact import Dir, File
from cachec.programs.program import Program

if TYPE_CHECKING:
    from cachec.stage.look import Look
    from cachec.stage.run import Run, Tools

#: How many undeclared things one outcome spells out.
_SHOWN = 5

_current: ContextVar[Audit | None] = ContextVar("cachec_audit", default=None)


class Audit:
    """What one run opened and started, as ``sys.addaudithook`` (PEP 578) tells."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._opened: dict[str, None] = {}
        self._started: dict[str, None] = {}
        self._token: Token[Audit | None]

    def __enter__(self) -> Audit:
        """Send the audit events of this context here until the body ends."""
        _install_hook()
        self._token = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _current.reset(self._token)

    def note(self, event: str, args: Sequence[Any]) -> None:
        """One audit event; called by the hook, for events of this context only."""
        if event == "open" and isinstance(args[0], str | bytes):
            flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR):
                self._opened[os.path.realpath(os.fsdecode(args[0]))] = None
        elif event in {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"}:
            self._started[os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else str(args[0])] = None

    def undeclared(self, reads: Sequence[Read]) -> str:
        """The files read and the commands run that neither the key nor the trace covers, in words; empty for none."""
        known = {os.path.realpath(read.where) for read in reads if read.kind in {"file", "absent", "tool"}}
        opened = [path for path in self._opened if path not in known and not _covered(path)]
        started = [] if any(read.kind == "tool" for read in reads) else list(self._started)
        words = []
        if opened:
            words.append(f"opened without cachec.depends: {_listed(opened)}")
        if started:
            words.append(f"started without cachec.run: {_listed(started)}")
        return "; ".join(words)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _covered(path: str) -> bool:
    return path.endswith((".py", ".pyc")) or path.startswith(_covered_roots()) or not os.path.isfile(path)


@lru_cache(maxsize=1)
def _covered_roots() -> tuple[str, ...]:
    """Places whose content a key covers otherwise (Python and its packages, as tools) or that hold nothing of value."""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {tempfile.gettempdir(), "/proc", "/sys", "/dev", sys.prefix, sys.base_prefix}
    return tuple(os.path.realpath(root).rstrip("/") + "/" for root in sorted(roots))


@lru_cache(maxsize=1)
def _install_hook() -> None:
    """Audit hooks can't be removed, so there is one a process, installed when ``verify`` is first used."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        audit = _current.get()
        if audit is not None:
            audit.note(event, args)

    sys.addaudithook(hook)


def difference(run: Run, tools: Tools, options: StageOptions, fresh: Any, look: Look) -> str | None:
    """None where a fresh result is what is stored, else the difference in words.

    Compared by stored bytes; where the stage is declared ``deterministic=False``, by the plugin's own comparison.
    """
    assert look.trace is not None
    try:
        node = run.encode(fresh)
    except StoreFault as fault:
        return f"the fresh result can't be encoded: {fault.detail}"
    if node == look.trace.value:
        return None
    if options.deterministic:
        return "the fresh result has other bytes than the stored one (deterministic=False compares numerically)"
    kind = fresh.kind if isinstance(fresh, File | Dir) else fresh.format if isinstance(fresh, Program) else ""
    plugin = tools.plugins.named(kind.partition(":")[0]) if kind else tools.plugins.for_type(type(fresh))
    if plugin is None:
        return f"no plugin compares a {type(fresh).__qualname__}, and its bytes differ"
    return plugin.compare(fresh, look.value)
