"""Every artifact, or a share of them, hashed again; it goes on where an earlier run was ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, ArtifactRef, Digest
from cachec.store.objects import GONE
from cachec.store.row_codec import pack, unpack
from cachec.store.store import Store

#: The row that says how far a run has come, and how much is done between two of its states.
ROW = "verify:"
_EVERY_FILES, _EVERY_BYTES = 2000, 1 << 30

#: The digits of a digest that say whether it is in a sample.
_DIGITS = 8


class VerifyState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come.

    share: of the artifacts, from 0 to 1; begin: where in the range of digests the sample begins. last: the artifact
    that was hashed last, in the order of their names. damaged: what was wrong, in words.
    """

    version: int = RECORD_VERSION
    share: float
    begin: float
    last: str = ""
    count: int = 0
    nbytes: int = 0
    damaged: dict[Digest, str] = {}

    def takes(self, digest: Digest) -> bool:
        """Whether an artifact is in the sample."""
        place = int(digest[:_DIGITS], 16) / float(1 << 4 * _DIGITS)
        return (place - self.begin) % 1.0 < self.share


class HashProgress(NamedTuple):
    """What was hashed, over all runs that it took. resumed: whether an earlier one had begun. there: all artifacts."""

    artifacts: int
    nbytes: int
    damaged: dict[Digest, str]
    resumed: bool
    there: dict[Digest, int]


def hash_artifacts(
    store: Store, share: float, progress: Callable[[int, int], None], *, restart: bool = False
) -> HashProgress:
    """Hash every artifact, or a share of them. What is damaged is removed, as by whoever meets it.

    progress: called with bytes done and bytes in all. restart: not from where an earlier run was ended. Raises
    StoreFault.
    """
    there = {ref.digest: ref.size for ref, _ in store.objects.iterate()}
    state = None if restart else _load_state(store)
    resumed = state is not None and state.share == share and bool(state.last)
    if state is None or not resumed:
        state = VerifyState(share=share, begin=0.0 if share >= 1 else int.from_bytes(os.urandom(4)) / 2**32)
    chosen = [ArtifactRef(*each) for each in there.items() if each[0] > state.last and state.takes(each[0])]
    total = state.nbytes + sum(ref.size for ref in chosen)
    kept = state
    try:
        for ref in chosen:
            wrong = store.objects.verify(ref)
            is_whole = wrong in {"", GONE}  # removed by gc during the check
            damaged = state.damaged if is_whole else {**state.damaged, ref.digest: wrong}
            state = msgspec.structs.replace(
                state, last=ref.digest, count=state.count + 1, nbytes=state.nbytes + ref.size, damaged=damaged
            )
            progress(state.nbytes, total)
            if state.count - kept.count >= _EVERY_FILES or state.nbytes - kept.nbytes >= _EVERY_BYTES:
                _keep(store, kept := state)
    except BaseException:
        _keep(store, state)  # Ctrl-C, for one: the next run goes on here
        raise
    return HashProgress(state.count, state.nbytes, state.damaged, resumed, there)


def finish(store: Store) -> None:
    """Nothing is left to go on with."""
    if store.index.read(ROW) is not None:
        store.index.delete(ROW)


def _load_state(store: Store) -> VerifyState | None:
    try:
        row = store.index.read(ROW)
        return None if row is None else unpack(row, VerifyState, ROW)
    except StoreFault:
        return None  # it starts over


def _keep(store: Store, state: VerifyState) -> None:
    with suppress(StoreFault):  # a read-only store: the next run starts over
        store.index.write(ROW, pack(state), "verify")
