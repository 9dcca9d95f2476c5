"""The reproducer that a failing stage leaves behind, where the setting ``repro_dir`` asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachec.base import fsio
from cachec.key.stage_options import StageLike
from cachec.model import Part
from cachec.recording import ReadRecorder
from cachec.reproduce.archive import write
from cachec.reproduce.metadata import Failure
from cachec.reproduce.pack import pack_failure
from cachec.reproduce.recipe import recipe_of

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
#: The number of characters of a message that are stored.
_MESSAGE = 4000


def leave_reproducer(
    folder: Path,
    key: str,
    parts: tuple[Part, ...],
    stage: StageLike,
    arguments: Mapping[str, Any],
    recorder: ReadRecorder,
    error: Exception,
) -> Path:
    """Write ``folder/<stage>-<key>.zip``, over an older one of that key. Raises OSError, and what packing raises."""
    made = recipe_of(stage, arguments, recorder)
    failure = Failure(type(error).__qualname__, str(error)[:_MESSAGE])
    packed = pack_failure(key, parts, made.encoded, made.contents, failure)
    fsio.make_dir(folder)
    path = folder / file_name(stage.options.name, key)
    write(path, packed.data)
    return path


def file_name(stage: str, key: str) -> str:
    """What the reproducer of a run is called."""
    return f"{_UNSAFE.sub('-', stage).strip('-.')[-80:] or 'stage'}-{key[:12]}.zip"
