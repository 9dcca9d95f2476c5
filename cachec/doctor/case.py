"""What is examined, and what a finding is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.base.mounts import Mounts
from cachec.config import Settings
from cachec.programs.plugin import Plugin
from cachec.programs.registry import Plugins
from cachec.store import sharing
from cachec.store.index import DiskcacheIndex
from cachec.store.store import Store

#: Seconds that a lock of the index is waited for: a question is not worth more.
_BUSY_SECONDS = 0.2


class Finding(NamedTuple):
    """Something that is wrong. check: which of the checks found it. fix: what a person is to do, in words or commands.

    repair: does so, where that is safe (nothing of use is lost, nothing of others changed), or cachec would soon do it.
    does: what the repair changes, in words.
    """

    check: str
    words: str
    fix: str
    repair: Callable[[], object] | None = None
    does: str = ""


class Case:
    """One store as this machine uses it. Each property is read on its first use."""

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str] | None = None,
        mounts: Mounts | None = None,
        distributions: Distributions | None = None,
        clock: Callable[[], float] = time.time,
        space: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        """All but the settings is for who examines another machine than this one: a test."""
        self.settings = settings
        self.environ = os.environ if environ is None else environ
        self.mounts = mounts or Mounts()
        self.distributions = distributions or Distributions()
        self.clock = clock
        self.space = space
        self.index = DiskcacheIndex(settings.dir / "index", mounts=self.mounts, busy_seconds=_BUSY_SECONDS)
        self.store = Store(settings.dir, settings.namespace, index=self.index, mounts=self.mounts)

    @property
    def folder(self) -> Path:
        """The store."""
        return self.settings.dir

    @property
    def place(self) -> Path:
        """The store, or the folder in which it will be made."""
        place = self.folder
        while not place.is_dir() and place.parent != place:
            place = place.parent
        return place

    @cached_property
    def _plugins(self) -> tuple[tuple[Plugin, ...], str]:
        try:
            return Plugins(self.distributions).all(), ""
        except Exception as error:  # noqa: BLE001 - a foreign module may raise any error, which is reported
            return (), str(error) or type(error).__qualname__

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The installed plugins; none where one can't be imported."""
        return self._plugins[0]

    @property
    def plugins_refused(self) -> str:
        """Why one can't be imported; empty where all can."""
        return self._plugins[1]

    @cached_property
    def is_shared(self) -> bool:
        """Whether the store is a group's: by its own record, by the mode of its folder, or as the setting says."""
        folder = os.fspath(self.folder)
        if self.settings.shared == "trusted" or sharing.is_recorded(folder):
            return True
        return self.folder.is_dir() and fsio.is_shared(os.stat(folder))

    @cached_property
    def refusal(self) -> str:
        """Why the store is refused for this user; empty where it is not."""
        return self.store.why_refused(self.settings.shared)
