"""Reproducers: how large MiniLM's is without its 90 MB of weights, and whether the same module comes out again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bench.harness import Row
from bench.minilm import EXAMPLE, SENTENCES


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: not used: one model, one compile, one replay."""
    os.environ["CACHEC_DIR"] = str(folder / "cache")
    os.environ["CACHEC_LOG"] = "off"
    sys.path.insert(0, str(EXAMPLE))
    try:
        return _rows(folder)
    finally:
        sys.path.remove(str(EXAMPLE))
        del os.environ["CACHEC_DIR"], os.environ["CACHEC_LOG"]


def _rows(folder: Path) -> list[Row]:
    import checkpoint
    import pipeline
    import stages

    import cachec
    from cachec.reproduce.archive import write
    from cachec.reproduce.pack import pack_entry
    from cachec.reproduce.reader import load
    from cachec.reproduce.replay import replay_commands

    # Another benchmark of this process may have opened the example's cache elsewhere.
    cache = cachec.Cache(stages.cache.dir, log="off")
    with checkpoint.open_checkpoint() as weights:
        nbytes = weights.nbytes
        key = pipeline.compiled(weights, len(SENTENCES)).outcomes["build"].key
    entry = cache.store.lookup(key)
    assert entry is not None
    started = time.perf_counter()
    packed = pack_entry(cache.store, entry)
    packing = time.perf_counter() - started
    path = folder / "bug.zip"
    write(path, packed.data)
    (folder / "replay").mkdir()
    started = time.perf_counter()
    replayed = replay_commands(load(path), folder / "replay", digests=cache.store.digests)
    replaying = time.perf_counter() - started
    size = path.stat().st_size
    cache.close()
    return [
        Row("reproducer of MiniLM", size / 1e3, "kB", "<= 0.02x", size <= 0.02 * nbytes, "its weights", size / nbytes),
        Row("the same, made from the store", packing * 1e3, "ms"),
        Row(
            "the same, run again: artifacts that differ",
            sum(each.digest != each.expected.digest for each in replayed.made) + (not replayed.made),
            "",
            "0",
            replayed.same and bool(replayed.made),
        ),
        Row(
            "the same, run again", replaying, "s", peer="the compile itself", ratio=entry.traces[0].seconds / replaying
        ),
    ]
