"""Variables of the environment that project code looks up while a run is active.

``os.environ`` and ``os.environb`` are given a class that tells, and their own back when the last run ends. A look
counts where a project's code asks, also by way of a library (``dotenv_values``): what a library looks up by a name in
its own code is its plugin's to declare. The whole environment taken at once (``dict(os.environ)``, ``{**os.environ}``)
is a look at every variable but those that do not count, unless the run also starts a program, for which one takes it
so: that is named in mode ``verify``.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from cachec.recording.active_runs import Active, active
from cachec.recording.calling_frames import asker_of_variable

if TYPE_CHECKING:
    _Environ = os._Environ[Any]
else:
    _Environ = type(os.environ)


class _Telling(_Environ):
    """The environment while a run is active; instances are made by changing the class of ``os.environ``."""

    def __getitem__(self, key: Any) -> Any:
        try:
            value = super().__getitem__(key)
        except KeyError:
            variables().note_lookup(key, None, sys._getframe(1))
            raise
        variables().note_lookup(key, value, sys._getframe(1))
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        variables().set(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        if self.encodekey(key) not in self._data:  # type: ignore[attr-defined]
            variables().note_lookup(key, None, sys._getframe(1))
        variables().set(key)
        super().__delitem__(key)

    def __len__(self) -> int:
        variables().taken_whole(sys._getframe(1))
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        variables().taken_whole(sys._getframe(1))
        return super().__iter__()


class VariableObserver:
    """Tells active runs of the variables that project code looks up."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        #: The frame and instruction that takes the whole environment just now, and the names that it looks up next.
        self._whole: tuple[tuple[int, int], deque[str]] | None = None

    def arm(self, on: bool) -> None:
        """A run begins (``on``), or the last one has ended."""
        wanted: type = _Telling if on else _Environ
        for each in (os.environ, os.environb):
            if type(each) in {_Environ, _Telling} and type(each) is not wanted:
                each.__class__ = wanted

    def note_lookup(self, name: str | bytes, value: str | bytes | None, frame: FrameType) -> None:
        """``frame`` asks for a variable, and gets this value."""
        name, value = os.fsdecode(name), None if value is None else os.fsdecode(value)
        asking = asker_of_variable(frame, self._runs.is_project, name)
        if asking is None:
            return
        is_of_whole = self._is_next_of_whole(asking, name)
        for observed in self._runs.here():
            if is_of_whole and observed.copied is not None:
                continue
            if name in observed.fixed:
                if f"${name}" in observed.others:
                    observed.inconsistent = (
                        observed.inconsistent or f"variable {name}, which the run had set, was set by another thread"
                    )
            elif observed.variables.setdefault(name, value) != value:
                observed.inconsistent = (
                    observed.inconsistent or f"variable {name} was looked up twice, and had changed in between"
                )

    def set(self, name: str | bytes) -> None:
        """The run itself says what a variable is from here on."""
        name, acting = os.fsdecode(name), self._runs.acting()
        for observed in self._runs.every:
            if any(each is observed for each in acting):
                observed.fixed.setdefault(name)
            else:
                observed.others.setdefault(f"${name}", (None, None))

    def _is_next_of_whole(self, asking: FrameType, name: str) -> bool:
        """Another frame may be at the same place later, so it has to ask for one name after the other, too."""
        place, names = self._whole or (None, deque())
        if place != (id(asking), asking.f_lasti) or not names or names[0] != name:
            self._whole = None
            return False
        names.popleft()
        return True

    def taken_whole(self, frame: FrameType) -> None:
        """``frame`` goes through all names."""
        asking = asker_of_variable(frame, self._runs.is_project)
        self._whole = None
        if asking is not None:
            names = os.environ._data  # type: ignore[attr-defined]
            found = {os.fsdecode(each): os.fsdecode(value) for each, value in names.items()}
            self._whole = (id(asking), asking.f_lasti), deque(found)
            for observed in self._runs.here():
                if observed.copied is None:
                    observed.copied = found
                elif not observed.fixed and observed.copied != found:
                    observed.inconsistent = (
                        observed.inconsistent or "the environment was looked through twice, and had changed in between"
                    )


@lru_cache(maxsize=1)
def variables() -> VariableObserver:
    """The one of this process."""
    return VariableObserver(active())
