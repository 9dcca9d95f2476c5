"""Kills of processes of isolated stages: caller, starter (which supervises), keeper, worker, compiler.

A caller calls a stage that misses, again and again, and the stage starts a compiler. At a random moment one of their
processes is killed. Whatever the caller then says is right, or says that the stage crashed; what was stored before is
still there; and nothing runs on.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.campaign import Verdicts

#: Seconds that processes have to end.
_GRACE = 5.0
#: Seconds after which a caller counts as stuck.
_PATIENCE = 60.0
#: Seconds that a worker has to be there: on a busy machine most kills hit starters else.
_UNTIL_THERE = 30.0
#: After a kill of the caller, or so many calls, the results that were stored are asked for again.
_CALLS = 12

_PROGRAM = """
import subprocess, sys, time
import cachec

cache = cachec.Cache(log="off")


@cache.stage(isolated=True, ignore=["seconds"])
def compiled(n: int, seconds: str) -> str:
    made = subprocess.run(["sh", "compiler.sh", str(n), seconds], capture_output=True, text=True, check=True).stdout
    time.sleep(float(seconds) / 2)
    return made * 3


def main() -> None:
    for line in sys.stdin:
        n, seconds = line.split()
        try:
            value, outcome = compiled.call(int(n), seconds)
        except cachec.StageCrashed:
            print(n, "crashed", flush=True)
        except subprocess.CalledProcessError:
            print(n, "compiler", flush=True)
        except cachec.CacheMissError:
            print(n, "missing", flush=True)
        except Exception as error:
            print(n, "raised", repr(error), flush=True)
        else:
            is_there = outcome.stored or outcome.reason.value == "hit"
            print(n, "stored" if is_there else outcome.reason.value, value.split(), flush=True)


main()
"""
_COMPILER = 'read scale < scale.txt\nsleep "$2"\necho "made-$1-by-$scale"\n'


def kill_isolated(folder: Path, seed: int, count: int) -> Verdicts:
    """``count`` kills, in as many callers as that takes."""
    verdicts = Verdicts()
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "main.py").write_text(_PROGRAM)
    (work / "compiler.sh").write_text(_COMPILER)
    (work / "scale.txt").write_text("7\n")
    rng, number, stored = random.Random(seed), 0, dict[int, str]()
    while sum(verdicts.counts.values()) < count:
        number = _run_caller(folder, rng, number, stored, verdicts)
        _check_stored(folder, rng, stored, verdicts)
    _check_stored(folder, rng, stored, verdicts, everything=True)
    return verdicts


class _Caller:
    """A process that calls the stage for each line that it is given."""

    def __init__(self, folder: Path, mode: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHEC_")}
        environ |= {"CACHEC_DIR": str(folder / "store"), "CACHEC_MODE": mode, "PYTHONDONTWRITEBYTECODE": "1"}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        self.process = subprocess.Popen(
            [sys.executable, "main.py"],
            cwd=folder / "work",
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, number: int, seconds: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number} {seconds}\n")
        self.process.stdin.flush()

    def is_ready(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self) -> list[str]:
        """The words of the answer; none where the process has ended."""
        assert self.process.stdout is not None
        if not self.is_ready(_PATIENCE):
            return ["stuck"]
        return self.process.stdout.readline().strip().split(maxsplit=2)

    def error_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-1500:]

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


def _run_caller(folder: Path, rng: random.Random, number: int, stored: dict[int, str], verdicts: Verdicts) -> int:
    """Calls, and one kill in each, until the caller is the one. Returns the next unused number."""
    caller = _Caller(folder, "on")
    try:
        caller.ask(number, "0")  # the first call starts what the others find
        caller.answer()
        for _ in range(_CALLS):
            number += 1
            seconds = f"{rng.uniform(0, 0.05):.3f}"
            caller.ask(number, seconds)
            if rng.random() < 0.75:  # there is a stage that runs
                _wait(caller, lambda: len(list(_family(caller.process.pid))) > 3, _UNTIL_THERE)
                _wait(caller, lambda: False, rng.uniform(0, 0.08))
            else:
                _wait(caller, lambda: False, rng.uniform(0, 0.6))
            processes = list(_family(caller.process.pid))
            role, victim = _choose(rng, caller.process.pid, processes)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            words = caller.answer()
            if not words and role != "caller":
                words = [f"status {caller.process.wait()}", caller.error_text()]
            _judge(number, role, words, stored, verdicts)
            if caller.process.poll() is not None or role == "caller":
                caller.process.wait()
                _check_ended(processes, role, number, verdicts)
                break
        else:
            processes = list(_family(caller.process.pid))
            caller.end()
            _check_ended(processes, "end", number, verdicts)
    finally:
        caller.process.kill()
        caller.end()
    return number + 1


def _wait(caller: _Caller, is_there: Callable[[], bool], seconds: float) -> None:
    """Until something is there, the call has ended, or the time is over."""
    until = time.monotonic() + seconds
    while not is_there() and not caller.is_ready(0.002) and time.monotonic() < until:
        pass


def _family(pid: int) -> Iterator[int]:
    """A process and all that descend from it, parents first."""
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        children = [
            each for thread in threads for each in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        ]
    except OSError:
        return  # it has ended
    for child in children:
        yield from _family(int(child))


def _choose(rng: random.Random, caller: int, processes: list[int]) -> tuple[str, int]:
    """A process to kill, and what it is: its depth below the caller tells."""
    others = processes[1:]
    if not others or rng.random() < 0.15:
        return "caller", caller
    victim = rng.choice(others)
    try:
        name = Path(f"/proc/{victim}/comm").read_text().strip()
        parent = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return "caller", caller  # it has ended meanwhile
    if name in {"sh", "sleep"}:
        return "compiler", victim
    return ("starter", victim) if parent == caller else ("worker or keeper", victim)


def _judge(number: int, role: str, words: list[str], stored: dict[int, str], verdicts: Verdicts) -> None:
    expected = str([f"made-{number}-by-7"] * 3)
    if role == "caller" and len(words) < 2:
        verdict = "killed"
    elif words[0] != str(number) or len(words) == 1:
        verdict = "the caller ended"
    elif words == ["stuck"]:
        verdict = "stuck"
    elif words[1] in {"crashed", "compiler"}:
        verdict = "refused"
    elif words[-1] != expected:
        verdict = "wrong result"
    else:
        verdict = "right"
        if words[1] == "stored":
            stored[number] = expected
    verdicts.add("an isolated miss", role, verdict, f"kill of the {role} in call {number}: {verdict}: {words}")


def _check_ended(processes: list[int], role: str, number: int, verdicts: Verdicts) -> None:
    until = time.monotonic() + _GRACE
    while left := [pid for pid in processes if _runs(pid)]:
        if time.monotonic() > until:
            names = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80] for pid in left]
            verdicts.add("an isolated miss", role, "runs on", f"after call {number}: {names}")
            return
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _check_stored(
    folder: Path, rng: random.Random, stored: dict[int, str], verdicts: Verdicts, *, everything: bool = False
) -> None:
    """What was stored is a hit with the same value; the store has no damage."""
    asked = (
        sorted(stored)
        if everything
        else sorted({*sorted(stored)[-6:], *rng.sample(sorted(stored), min(4, len(stored)))})
    )
    caller = _Caller(folder, "require")
    try:
        for number in asked:
            caller.ask(number, "0")
            words = caller.answer()
            if words[1:] != ["stored", stored[number]]:
                verdicts.add("what was stored", "afterwards", "lost", f"call {number} gives {words}")
    finally:
        caller.end()
    if everything:
        environ = os.environ | {"CACHEC_DIR": str(folder / "store")}
        line = [sys.executable, "-m", "cachec", "verify"]
        checked = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
        if checked.returncode:
            verdicts.add("the store", "afterwards", "damaged", checked.stdout + checked.stderr)
