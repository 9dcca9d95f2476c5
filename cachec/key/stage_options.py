"""The options of a stage, as far as they are in its key, and the protocols of stages and key builders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Protocol

import msgspec

from cachec.base.hashing import Hasher
from cachec.model import Mode, Part, PartKind, part_label

#: Bump it when the meaning of a key changes: every older entry is then a miss.
KEY_VERSION = "5"


class StageOptions(msgspec.Struct, frozen=True, dict=True):
    """What ``cache.stage(...)`` was told; see there."""

    name: str
    version: str = ""
    ignore: frozenset[str] = frozenset()
    tools: tuple[str | os.PathLike[str], ...] = ()
    env: tuple[str, ...] = ()
    depends: tuple[object, ...] = ()
    portable: bool = False
    per_rank: bool = False
    deterministic: bool = True
    tags: tuple[str, ...] = ()
    isolated: bool = False
    timeout: float | None = None
    memory: int | None = None

    @cached_property
    def depends_on_code(self) -> tuple[object, ...]:
        """Of ``depends`` what is no path."""
        return tuple(item for item in self.depends if not isinstance(item, str | os.PathLike))

    @cached_property
    def part(self) -> Part:
        """The stage itself: its name and version, and the version of keys."""
        return text_part(PartKind.STAGE, self.name, f"{KEY_VERSION} {self.version}", self.version)


class StageLike(Protocol):
    """What a stage shows to the key layer; ``stage.decorator.Stage`` is one."""

    options: StageOptions

    @property
    def __wrapped__(self) -> Any: ...


class ArgumentBinder(Protocol):
    """Binds the arguments of a call to parameters; ``argument_binding.Binding`` is one."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]: ...

    def call(self, function: Callable[..., Any], bound: Mapping[str, Any]) -> Any: ...


class CallableStage(StageLike, Protocol):
    """What the engine needs of a stage that it calls; ``stage.decorator.Stage`` and ``launcher.stage.CommandStage``."""

    @property
    def mode(self) -> Mode | None: ...

    @property
    def lock_timeout(self) -> float | None: ...

    @property
    def binding(self) -> ArgumentBinder: ...


@lru_cache(maxsize=1024)
def text_part(kind: PartKind, name: str, text: str, detail: str) -> Part:
    """The part of a text; equal texts give the same object."""
    hasher = Hasher("text")
    hasher.part(part_label(kind, name), text.encode())
    return Part(kind, name, hasher.digest(), detail)
