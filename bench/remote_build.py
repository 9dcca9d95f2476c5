"""A Ninja build of many modules whose results are in a remote and nowhere here, against one whose results are here."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

from bench.build import LOWER, Builds, mlir_module
from bench.harness import Row, settle

#: Builds that are timed, of each kind by turns; the median of what one takes of the other counts.
_ROUNDS = 3

#: How much longer than a build of local hits, beside one round trip for each module.
_SLOWER = 1.5


def rows(folder: Path, urls: Mapping[str, str], trips: Mapping[str, float], count: int) -> list[Row]:
    """trips: the seconds of one round trip to each remote."""
    if shutil.which("ninja") is None or shutil.which("mlir-opt-19") is None:
        return []
    folder.mkdir()
    builds = Builds(folder, count)
    project = builds.project("modules", ".mlir", mlir_module, f"{builds.cachec} {LOWER}")
    settle(project)
    settle(builds.script.parent)
    everywhere = " ".join(f"{url}{'&' if '?' in url else '?'}timeout=60" for url in urls.values())
    builds.build(project, CACHEC_REMOTE=everywhere)
    builds.call(str(builds.script), "push", CACHEC_REMOTE=everywhere)
    builds.call(str(builds.script), "server", "stop")
    settle(folder / "store")
    builds.build(project)  # its files are proof from now on
    local: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in urls}
    hits = dict.fromkeys(urls, count)
    for _ in range(_ROUNDS):
        local.append(builds.build(project))
        assert builds.hits("modules") == count
        for name, url in urls.items():
            place = {"CACHEC_DIR": str(folder / "fresh"), "CACHEC_REMOTE": url}
            times[name].append(builds.build(project, **place))
            hits[name] = min(hits[name], builds.hits("modules"))
            builds.call(str(builds.script), "server", "stop", **place)
            shutil.rmtree(folder / "fresh")
    return [row for name in urls for row in _told(name, count, hits[name], local, times[name], trips[name])]


def _told(name: str, count: int, hits: int, local: list[float], times: list[float], trip: float) -> list[Row]:
    here, there = statistics.median(local), statistics.median(times)
    most = _SLOWER * here + count * trip
    peer = f"hits here {here / count * 1e3:.1f} ms, a round trip {trip * 1e3:.1f} ms"
    what = f"Ninja, {count} modules, all in {name}, none here"
    return [
        Row(f"{what}: hits", hits, "", "all", hits == count),
        Row(f"{what}: a module", there / count * 1e3, "ms", f"<= {_SLOWER}x + 1 trip", there <= most, peer, there / here),
    ]
