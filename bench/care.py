"""Care: digests of a whole store against reading its files, and a look at everything among 100,000 entries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from blake3 import blake3

from bench.filled import fill
from bench.harness import Row, against, interleaved
from bench.processes import cpu_of_children
from cachec.store.store import Store
from cachec.verify.artifacts import finish, hash_artifacts

#: Bytes and number of the artifacts: of models, and of manifests and parts.
_SIZES = ((16 << 20, 32), (256 << 10, 400), (4 << 10, 4000))


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the files and rounds."""
    store = Store(folder / "store")
    store.prepare()
    for size, count in _SIZES:
        for _ in range(max(1, int(count * scale))):
            store.objects.add_bytes(os.urandom(size))
    store.release()

    def read() -> None:
        """What there is to do: each file read, and hashed."""
        for path in sorted(store.objects.root.glob("*/*")):
            blake3(path.read_bytes()).hexdigest()

    def verify() -> None:
        hash_artifacts(store, 1.0, lambda done, total: None)
        finish(store)

    tasks = {"read": read, "verify": verify}
    times = interleaved(tasks, max(3, int(9 * scale)))
    # 0.8 of its speed is 1.25 of its time
    rows = [against("verify: digests of a store", times["verify"], 1.25, "files read and hashed", times["read"])]
    cachec = [sys.executable, "-m", "cachec", "--dir", str(store.folder)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC", "PYTHON"))}

    def said(command: str) -> None:
        subprocess.run([*cachec, command], env=environ, stdout=subprocess.DEVNULL, check=True)

    entries = max(100, int(100_000 * scale))
    fill(store, range(entries), files=False)
    times = interleaved(
        {name: lambda name=name: said(name) for name in ("config", "doctor")},
        max(3, int(9 * scale)),
        clock=cpu_of_children,
    )
    words = f"doctor: all is looked at, {entries:,} entries, of the processor"
    rows.append(against(words, times["doctor"], 4, "cachec config", times["config"]))
    store.close()
    return rows
