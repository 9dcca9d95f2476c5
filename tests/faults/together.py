"""Many processes in one store, each doing at random what users do; half of them are killed now and then."""

from __future__ import annotations

import os
import random
import select
import signal
import time
import traceback
from pathlib import Path

import cachec
from cachec.base.hashing import digest_bytes
from cachec.store.store import Store, references
from cachec.weights.library.stored_weights import WeightStore
from tests.faults import stages
from tests.faults.campaign import Verdicts, in_process
from tests.faults.operations import OPERATIONS, REFUSED, RIGHT, Bench

PROCESSES = 8
#: Seconds after which what a process does counts as stuck.
_PATIENCE = 120
#: Operations of a process that is not killed.
_LIFE = 40


def together(prepared: Path, folder: Path, seed: int, count: int, minutes: float = 0) -> Verdicts:
    """``count`` operations in all, or so many minutes, by eight processes at a time; then the store is looked at."""
    verdicts = Verdicts()
    verdicts.take(*in_process(lambda: _together(prepared, folder, seed, count, minutes).given()))
    return verdicts


def _together(prepared: Path, folder: Path, seed: int, count: int, minutes: float) -> Verdicts:
    until = time.monotonic() + 60 * minutes

    def goes_on() -> bool:
        return time.monotonic() < until if minutes else _lines(done) < count

    bench = Bench(OPERATIONS[0], prepared, folder)
    done = folder / "done"
    done.write_text("")
    verdicts = Verdicts()
    alive: dict[int, int] = {}
    born = 0
    while alive or goes_on():
        while len(alive) < PROCESSES and goes_on():
            born += 1
            child = os.fork()
            if not child:
                _live(bench, done, random.Random(f"{seed}:{born}"), killed=bool(born % 2))
            alive[child] = born
        child, status = os.wait()
        killed = alive.pop(child) % 2
        ended = os.waitstatus_to_exitcode(status)
        if ended not in ({0, -signal.SIGKILL} if killed else {0}):
            verdicts.add("a process", "together", "stuck" if ended == -signal.SIGALRM else f"ended by {ended}", "")
    for line in done.read_text().splitlines():
        name, _, verdict = line.partition("|")
        verdict, _, words = verdict.partition("|")
        verdicts.add(name, "together", verdict, words.replace("\\n", "\n"))
    for words in _wrong(bench):
        verdicts.add("the store", "together", "wrong afterwards", words)
    return verdicts


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _live(bench: Bench, done: Path, rng: random.Random, *, killed: bool) -> None:
    """Be one of them; does not return."""
    log = os.open(done, os.O_WRONLY | os.O_APPEND)
    try:
        bench.scene.enter()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        if killed:
            _kill_later(os.getpid(), rng.uniform(0.05, 3))
        for _ in range(_LIFE):
            signal.alarm(_PATIENCE)
            os.write(log, f"{_operation(bench, rng)}\n".encode())
        os._exit(0)
    except BaseException:
        words = traceback.format_exc().replace("\n", "\\n")
        os.write(log, f"a process|exception|{words}\n".encode())
    finally:
        os._exit(1)


def _kill_later(pid: int, seconds: float) -> None:
    """Have a process killed by one of its own, which needs no turn of it and ends with it."""
    if os.fork():
        return
    ends = os.pidfd_open(pid)
    if not select.select([ends], [], [], seconds)[0]:
        signal.pidfd_send_signal(ends, signal.SIGKILL)
    os._exit(0)


def _operation(bench: Bench, rng: random.Random) -> str:
    """Name and verdict of one of them."""
    if rng.random() < 0.4:
        n = rng.randrange(12)
        cache = bench.scene.cache()
        try:
            return f"stage|{'right' if stages.stages(cache)['plain'](n) == stages.plain(n) else 'wrong'}"
        finally:
            cache.close()
    operation = rng.choice([each for each in OPERATIONS if each.name != "weights export"])
    status = operation.run(bench.scene)
    return f"{operation.name}|{ {RIGHT: 'right', REFUSED: 'refused'}.get(status, 'wrong') }"


def _wrong(bench: Bench) -> list[str]:
    """What is not as it should be: an artifact of an entry, the weights, a call."""
    bench.enter()
    store = Store(bench.scene.store)
    wrong = [
        f"an artifact of {entry.stage} is not whole"
        for entry in store.entries()
        for ref in references(entry)
        if digest_bytes(store.objects.read(ref)) != ref.digest
    ]
    wrong += [f"{name}: damaged" for name in ("base", "placed", "new") if WeightStore(store).verify(name)]
    store.close()
    cache = cachec.Cache(bench.scene.store, log="off")
    found = stages.stages(cache)["plain"]
    wrong += [f"plain({n})" for n in range(12) if found(n) != stages.plain(n)]
    cache.close()
    return wrong
