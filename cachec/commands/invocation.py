"""One call of ``cachec.run``: what is started, and what the caller says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

WeightRule = Literal["content", "opened", "withheld"]


class DeclaredFiles(NamedTuple):
    """The declarations of ``run``, as absolute paths (a tool may be a bare name for PATH)."""

    inputs: tuple[str, ...]
    candidates: tuple[str, ...]
    search: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, WeightRule]
    tools: tuple[str, ...]


class Invocation(NamedTuple):
    """What a process is started with."""

    args: tuple[str, ...]
    program: str
    cwd: str
    environ: Mapping[str, str]
    stdin: bytes | str | None
    pass_fds: tuple[int, ...]
    timeout: float | None
    #: Those that count, None where one was not set.
    named_variables: Mapping[str, str | None]

    def process_arguments(self) -> dict[str, Any]:
        """The arguments of ``run_process``."""
        arguments = self._asdict()
        del arguments["named_variables"]
        return arguments
