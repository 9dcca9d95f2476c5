"""What a reproducer says of its run: the record in ``reproducer.json``."""

from __future__ import annotations

import msgspec

from cachec.model import Digest, Part
from cachec.reproduce import synthetic


class ExpectedArtifact(msgspec.Struct, frozen=True):
    """One artifact that the run made. codec: what wrote it (``file``, ``program``, ...); ``inline`` for a value that is
    none, whose digest is that of its stored form.
    """

    codec: str
    digest: Digest
    nbytes: int


class Failure(msgspec.Struct, frozen=True):
    """How a run failed. error: the class of what was raised; text: its message."""

    error: str
    text: str


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``reproducer.json``: what the run was, for people, tools and the replay.

    parts: of the key. mode: ``command``: the commands alone make the artifacts; ``python``: the stage has to be called;
    ``line``: a command of ``cachec exec``, which is run where its files are, and not from a reproducer.
    reads: weights that the run read, by digest. given: weights whose real bytes are in the zip; the others are made
    from the seed. missing: contents that could not be put in.
    """

    version: int
    key: str
    stage: str
    mode: str
    recipe: Digest
    parts: tuple[Part, ...] = ()
    expected: tuple[ExpectedArtifact, ...] = ()
    failure: Failure | None = None
    seed: int = synthetic.SEED
    generator: int = 1
    reads: dict[str, str] = {}
    given: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
