"""Every place of a store, damaged in every way: a result is right or made anew; never another one, never an exception,
and nothing of the user's changes."""

from __future__ import annotations

import gc
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from cachec.errors import CachecError
from cachec.store.store import Store, references
from cachec.weights.library.stored_weights import WeightStore
from tests.faults import stages
from tests.faults.campaign import Verdicts, in_process, install_little
from tests.faults.damages import DAMAGES, Place, damage
from tests.faults.operations import OPERATIONS, RIGHT, WRONG, Bench, call, destroy, use
from tests.faults.scene import Scene, remove

#: Seconds of CPU and bytes of memory beyond what was there, for one use of a store.
_SECONDS, _MEMORY = 30, 3 << 30
#: How the process of a case ends that finds something gone.
_LOST = 5
#: Places that are damaged at a time.
_TOGETHER = 7
#: Of what kind the places of a few cases are: most of them are files and rows.
_ORDER = (
    *("file", "row", "folder", "file", "not there", "row"),
    *("file", "link", "file", "folder", "row", "database"),
)
#: What stands for digests, numbers of processes and dates in the name of a place.
_VARYING = re.compile(r"[0-9a-f]{64}|(?<=/)[0-9a-f]{2}\b|\d+-[0-9a-f]{16}|[0-9a-f]{16}|\d{4}-\d\d-\d\d|\d+:\d+:\d+:\d+")


def tamper_cases(
    prepared: Path, folder: Path, seed: int, count: int, tell: Callable[[Verdicts], None] = lambda _: None
) -> Verdicts:
    """Damage each place in each way, and use the store; ``count`` cases, spread over places and ways, where that is
    less. Where it is several times as many, it is done as often, with other random bytes."""
    folder.mkdir()
    tampered = _Tampered(Bench(OPERATIONS[0], prepared, folder / "scene"), folder / "worn")
    verdicts = Verdicts()
    for batch in _batches(_chosen(tampered.places, seed, count)):
        verdicts.take(*in_process(lambda batch=batch: tampered.run(batch, seed).given()))
        tell(verdicts)
    remove(folder)
    return verdicts


class _Case(NamedTuple):
    """turn: another one has other random bytes."""

    places: tuple[Place, ...]
    way: str
    turn: int

    def __str__(self) -> str:
        return f"{self.way} of {', '.join(f'{place.role}, {place.path}' for place in self.places)}"


class _Tampered:
    """A store that has been used, one process of which was killed, and its places."""

    def __init__(self, bench: Bench, worn: Path) -> None:
        self._bench = bench
        scene = bench.scene
        for folder in ("folder", "folder/sub"):
            (scene.folder / "outside" / folder).mkdir(parents=True)
        for file in ("file", "folder/file", "folder/sub/" + "a" * 64):
            (scene.folder / "outside" / file).write_bytes(b"the user's")
        absent = in_process(lambda: _wear(bench, worn.parent / "site"))
        shutil.copytree(scene.folder, worn, symlinks=True)
        self._worn = worn
        self.places = list(_places(scene, [Path(each) for each in absent]))
        self._outside = _content(scene)
        with closing(Store(scene.store)) as store:
            self._needs = {entry.key: {ref.digest for ref in references(entry)} for entry in store.entries()}
            given = {place.path.name for place in self.places if _is_object(place.path)}
            self._owned = given - set().union(*self._needs.values())

    def restore(self) -> None:
        """The scene as it was used."""
        for name in ("store", "work", "outside"):
            remove(self._bench.scene.folder / name)
            shutil.copytree(self._worn / name, self._bench.scene.folder / name, symlinks=True)

    def run(self, cases: list[_Case], seed: int) -> Verdicts:
        """Run cases, in a process that may learn what it likes."""
        verdicts = Verdicts()
        install_little(self._worn.parent / "site")
        gc.freeze()
        for case in cases:
            verdict, said = self._case(case, seed)
            each = [case] if len(case.places) == 1 else [case._replace(places=(place,)) for place in case.places]
            if verdict != "right" and len(each) > 1:  # which of them?
                found = [self._case(single, seed) for single in each]
                if all(single == "right" for single, _ in found):
                    verdicts.add("several", case.way, verdict, f"{case}: {verdict}\n{said}")
            else:
                found = [(verdict, said)] * len(each)
            for single, (verdict, said) in zip(each, found, strict=True):
                verdicts.add(single.places[0].role, case.way, verdict, f"{single}: {verdict}\n{said}")
        return verdicts

    def _case(self, case: _Case, seed: int) -> tuple[str, str]:
        """Verdict, and what was said."""
        self.restore()
        for place in case.places:
            damage(case.way, place, random.Random(f"{seed}{place.role}{case.way}{case.turn}"))
        verdict = self._used(case.places)
        if _content(self._bench.scene) != self._outside:
            verdict = "the user's files changed"
        return verdict, self._bench.said()

    def _used(self, places: tuple[Place, ...]) -> str:
        scene = self._bench.scene

        def run() -> int:
            _limit()
            self._bench.enter()
            if (status := use(scene)) != RIGHT:
                return status
            if lost := self._lost(places):
                print("lost:", lost)
                return _LOST
            return destroy(scene) or call(scene)

        ended = _forked(run)
        said = self._bench.said()
        if "Traceback" in said or "Exception ignored" in said:
            return "exception"
        stuck = {-signal.SIGALRM: "stuck", -signal.SIGXCPU: "stuck"}
        return {RIGHT: "right", WRONG: "wrong", _LOST: "lost", **stuck}.get(ended, "exception")

    def _lost(self, places: tuple[Place, ...]) -> list[str]:
        """What is gone or damaged that rested on no damaged place."""
        store = self._bench.scene.store
        damaged = {place.path for place in places}
        if any(store / "index" in (path, *path.parents) for path in damaged):
            return []
        touched = {
            other.path.name
            for other in self.places
            if _is_object(other.path) and not damaged.isdisjoint((other.path, *other.path.parents))
        }
        try:
            with closing(Store(store)) as opened:
                opened.refuse_foreign()
                there = {entry.key for entry in opened.entries()}
                lost = [key for key, needs in self._needs.items() if key not in there and not needs & touched]
                if not touched & self._owned and not any(
                    store / "weights" in (path, *path.parents) for path in damaged
                ):
                    lost += [name for name in ("base", "placed") if WeightStore(opened).verify(name)]
        except CachecError:
            return []  # refused as a whole
        return lost


def _wear(bench: Bench, site: Path) -> list[str]:
    """Use the store, then die in the middle of it. Returns the names that a use makes and takes away again."""
    install_little(site)
    bench.enter()
    made: dict[str, None] = {}

    def note(event: str, given: tuple[object, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes):
            made.setdefault(os.path.abspath(os.fsdecode(given[0])))

    sys.addaudithook(note)
    assert _forked(lambda: use(bench.scene)) == RIGHT, bench.said()
    use(bench.scene)

    def die() -> int:
        cache = bench.scene.cache()
        stages.stages(cache)["plain"](1)
        reader = sqlite3.connect(bench.scene.store / "index" / "cache.db")
        reader.execute("SELECT count(*) FROM Cache").fetchone()  # or the last to close takes -wal and -shm with it
        stages.stages(cache)["plain"](3)
        cache.store.locks.of(stages.stages(cache)["plain"].key(5)).try_acquire()
        cache.store.objects.staging().__enter__().write(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
        return WRONG

    assert _forked(die) == -signal.SIGKILL, bench.said()
    made[str(bench.scene.store / "index" / "cache.db-journal")] = None
    store = bench.scene.store
    return [
        path
        for path in made
        if store in Path(path).parents
        and Path(path).relative_to(store).parts[0] not in {"tmp", "leases"}
        and not os.path.lexists(path)
        and Path(path).parent.is_dir()
    ]


def _forked(body: Callable[[], int]) -> int:
    """How a process that does so ends."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _limit() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS + 5))
    signal.alarm(120)


def _content(scene: Scene) -> dict[str, tuple[int, bytes]]:
    """What the user has beside the store."""
    found: dict[str, tuple[int, bytes]] = {}
    for name in ("outside", "work/in.txt", "work/w.safetensors", "work/tree"):
        for path in [scene.folder / name, *sorted((scene.folder / name).rglob("*"))]:
            status = path.lstat()
            content = b"" if path.is_symlink() or path.is_dir() else path.read_bytes()
            if scene.folder / "outside" / "moved" not in (path, *path.parents):
                found[str(path)] = status.st_mode, content
    return found


def _is_object(path: Path) -> bool:
    return path.parent.parent.name == "objects"


def _places(scene: Scene, absent: list[Path]) -> Iterator[Place]:
    """All of them, in the same order on every machine: not by their names, which are digests."""
    paths = [path for path in scene.store.rglob("*") if path != scene.store / "tmp"]
    times = {path: path.lstat().st_mtime_ns for path in paths}
    described = _described(scene.store)  # takes -wal and -shm away

    def role(path: Path) -> str:
        if path.name in described:
            return described[path.name]
        if _is_object(path):
            return f"object of {path.lstat().st_size} bytes"
        return _shown(str(path.relative_to(scene.store)))

    ordered = sorted((role(path), times[path], path) for path in paths)
    kinds = ("link" if path.is_symlink() else "folder" if path.is_dir() else "file" for _, _, path in ordered)
    found = [Place(name, kind, path) for (name, _, path), kind in zip(ordered, kinds, strict=True)]
    found += [Place(f"{role(path)}, not there", "not there", path) for path in absent]
    file = scene.store / "index" / "cache.db"
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as database:
        rows = database.execute("SELECT rowid, key, tag FROM Cache ORDER BY rowid").fetchall()
    found += [Place(f"row {_shown(key)} {tag}", "row", file, row) for row, key, tag in rows]
    found.append(Place("database", "database", file))
    alike: dict[str, list[Place]] = {}
    for place in found:
        alike.setdefault(place.role, []).append(place)
    for role_of, each in alike.items():
        # Of folders that nothing tells apart, and rows of files of the system, the first, a middle and the last one.
        few = len(each) > 3 and (each[0].kind == "folder" or role_of.endswith(" digest"))
        chosen = [each[0], each[len(each) // 2], each[-1]] if few else each
        yield from (place._replace(role=f"{role_of} {number}") for number, place in enumerate(chosen, 1))


def _shown(name: str) -> str:
    return _VARYING.sub("*", name)


def _described(folder: Path) -> dict[str, str]:
    """By the names of objects, what they are."""
    found: dict[str, str] = {}
    made: Counter[str] = Counter()
    with closing(Store(folder)) as store:
        for entry in sorted(store.entries(), key=lambda entry: entry.traces[0].created):
            made[entry.stage] += 1
            for number, ref in enumerate(references(entry)):
                found.setdefault(ref.digest, f"object {number} of {entry.stage} {made[entry.stage]}")
    return found


def _chosen(places: list[Place], seed: int, count: int) -> Iterator[_Case]:
    """All cases, or as many as are wanted, of which each has places and a way that those before have not."""
    every = list(_all(places, 0))
    if count >= len(every):
        for turn in range(max(1, count // sum(len(case.places) for case in every))):
            yield from _all(places, turn)
        return
    left = random.Random(seed).sample(every, len(every))
    seen: set[Place | str] = set()
    for kind in islice(cycle(_ORDER), count):
        of_kind = [case for case in left if case.places[0].kind == kind] or left
        case = max(of_kind, key=lambda case: len({case.way, *case.places} - seen))
        left.remove(case)
        seen |= {case.way, *case.places}
        yield case


def _all(places: list[Place], turn: int) -> Iterator[_Case]:
    """Each place in each way; several at a time of those that lie side by side, which no other one hides."""
    for kind, ways in DAMAGES.items():
        alone = [place for place in places if place.kind == kind]
        beside = [place for place in alone if kind == "row" or (kind == "file" and place.path.parent.name != "index")]
        alone = [place for place in alone if place not in beside]
        groups = -(-len(beside) // _TOGETHER)
        for way in ways:
            yield from (_Case((place,), way, turn) for place in alone)
            yield from (_Case(tuple(beside[start::groups]), way, turn) for start in range(groups))


def _batches(cases: Iterator[_Case]) -> Iterator[list[_Case]]:
    while batch := list(islice(cases, 25)):
        yield batch
