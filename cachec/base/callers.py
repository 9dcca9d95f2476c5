"""Warnings that name the line of the user's that cachec was called from."""

from __future__ import annotations

import re
import sys
import warnings
from types import FrameType

from cachec.errors import CachecWarning

_OWN = re.compile(r"cachec(_\w+)?(\.|$)")


def warn_caller(message: str) -> None:
    """Warn at the nearest line that is in no module of cachec or of its plugins."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_own(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CachecWarning, stacklevel=level)


def _is_own(frame: FrameType) -> bool:
    return _OWN.match(str(frame.f_globals.get("__name__"))) is not None
