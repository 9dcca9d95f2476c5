"""A row with a read that never ends or never answers is a miss, and no call waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec import Reason
from cachec.key.code.module_sources import Sources
from cachec.model import READ_KINDS
from cachec.remote.nodes import VERSION, TrieNode, encode_node, root_name
from cachec.remote.trust import Trust
from tests.effort import WHOLE
from tests.remote.test_sharing import Make

#: A FIFO and a file of a tebibyte with holes are made; ``/proc/kmsg`` is a regular file that waits.
PLACES = ["fifo", "holes", "/dev/zero", "/dev/tty", "/proc/kmsg", "/proc/self/mem", "/proc/kcore", "loop", ""]


def place_of(folder: Path, name: str) -> str:
    if name == "fifo":
        os.mkfifo(folder / name)
    elif name == "holes":
        (folder / name).touch()
        os.truncate(folder / name, 1 << 40)
    elif name == "loop":
        (folder / name).symlink_to(folder / name)
    return str(folder / name) if name.isalpha() else name


@pytest.mark.fuzz
@pytest.mark.parametrize("place", PLACES)
def test_a_look_at_a_trap_is_a_miss(machine: Make, tmp_path: Path, place: str) -> None:
    url = f"file://{tmp_path}/remote"
    one = machine(url)
    one.call()
    (offer,) = one.remotes.spool.offers()
    name = root_name("default", offer.key)
    row = tmp_path / "remote" / "r" / name[:2] / name
    row.parent.mkdir(parents=True)
    trap = place_of(tmp_path, place)
    # Each kind costs two caches: `make test` has each kind at one of the places.
    kinds = sorted(READ_KINDS)
    for kind in kinds if WHOLE else kinds[PLACES.index(place) :: len(PLACES)]:
        node = TrieNode(version=VERSION, name=name, requested_reads=((kind, trap, "model:build"),))
        row.write_bytes(encode_node(node, Trust(None, {}, is_written=True)))
        assert machine(f"{url}?mode=read").call()[1].reason is Reason.FIRST_RUN, kind


@pytest.mark.parametrize("place", PLACES[:-1])
def test_a_source_that_is_a_trap_is_none(tmp_path: Path, place: str) -> None:
    assert Sources().load(place_of(tmp_path, place)) is None
