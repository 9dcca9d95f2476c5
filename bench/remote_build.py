"""A Ninja build of many modules whose results are in a remote and nowhere here, against one whose results are here.

That one goes by memos of its command lines, which a machine that has never built them can't have: what is beside it is
a build whose results are here without memos, as after a move of the checkout, so that keys are made as for the remote.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

from bench.build import LOWER, Builds, mlir_module
from bench.harness import Row, against, settle

#: Builds that are timed, of each kind by turns; of fewer modules one is enough to see that it works.
_ROUNDS, _MANY = 3, 50

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
    builds.build(project, {"CACHEC_REMOTE": everywhere})
    builds.call(str(builds.script), "push", variables={"CACHEC_REMOTE": everywhere})
    builds.call(str(builds.script), "server", "stop")
    settle(folder / "store")
    builds.build(project)  # its files are proof from now on
    local: list[float] = []
    keyed: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in urls}
    hits = dict.fromkeys(urls, count)
    for _ in range(_ROUNDS if count >= _MANY else 1):
        local.append(builds.build(project))
        assert builds.hits("modules") == count
        shutil.rmtree(folder / "store" / "direct")
        keyed.append(builds.build(project))
        for name, url in urls.items():
            place = {"CACHEC_DIR": str(folder / "fresh"), "CACHEC_REMOTE": url}
            times[name].append(builds.build(project, place))
            hits[name] = min(hits[name], builds.hits("modules"))
            builds.call(str(builds.script), "server", "stop", variables=place)
            shutil.rmtree(folder / "fresh")
    return [row for name in urls for row in _told(name, count, hits[name], (local, keyed, times[name]), trips[name])]


def _told(name: str, count: int, hits: int, times: tuple[list[float], ...], trip: float) -> list[Row]:
    """times: of builds of hits here, of such without memos, and of hits in the remote."""
    here, keyed, there = map(statistics.median, times)
    most = _SLOWER * here + count * trip
    of_each = ", ".join(
        f"{what} {seconds / count * 1e3:.1f} ms"
        for what, seconds in (("hits here", here), ("a round trip", count * trip))
    )
    what = f"Ninja, {count} modules, all in {name}, none here"
    bar = f"<= {_SLOWER}x + 1 trip"
    return [
        Row(f"{what}: hits", hits, "", "all", hits == count),
        Row(f"{what}: a module", there / count * 1e3, "ms", bar, there <= most, of_each, there / here),
        against(f"{what}: against hits here without memos", there / count, 0, "those", keyed / count),
    ]
