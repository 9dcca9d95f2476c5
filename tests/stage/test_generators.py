"""Random generators of the process, which isolated stages draw from and leave moved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

#: Runs a script with a seed; returns what it printed, and the outcomes of its stages.
Run = Callable[..., tuple[str, list[str]]]

_HEAD = """
import sys, os, random, threading, cachec
import numpy as np
SEED = int(sys.argv[1])
cache = cachec.Cache(os.environ["STORE"], log="off")
def show(stage, *args):
    value, outcome = stage.call(*args)
    print(value)
    print(outcome.reason.value, outcome.detail, file=sys.stderr)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)

    def go(text: str, seed: int = 0, **variables: str) -> tuple[str, list[str]]:
        (folder / "main.py").write_text(_HEAD + text)
        environ = {**os.environ, "STORE": str(tmp_path / "store"), "CACHEC_ISOLATED": "1", **variables}
        command = [sys.executable, "main.py", str(seed)]
        ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        kinds = ("hit", "miss:", "bypass:")
        return ended.stdout, [line.rstrip() for line in ended.stderr.splitlines() if line.startswith(kinds)]

    return go


#: Programs whose stages draw from what the program has seeded, or seed themselves.
_PROGRAMS = {
    "random": """
@cache.stage
def f(n): return [random.random() for _ in range(n)]
random.seed(SEED)
show(f, 3)
print(random.random())
""",
    "half of a pair": """
@cache.stage
def f(n): return [random.gauss(0, 1) for _ in range(n)], np.random.randn(n).tolist()
random.seed(SEED); np.random.seed(SEED)
show(f, 3)
print(random.gauss(0, 1), np.random.randn())
""",
    "names of functions": """
from random import shuffle
from numpy.random import rand
@cache.stage
def f(n):
    found = list(range(n)); shuffle(found); return found, float(rand())
random.seed(SEED); np.random.seed(SEED)
show(f, 9)
print(random.random(), np.random.rand())
""",
    "one after the other": """
@cache.stage
def f(n): return [random.random() for _ in range(n)]
@cache.stage
def g(n): return random.sample(range(100), n)
random.seed(SEED)
show(f, 3); show(g, 3); show(f, 3)
print(random.random())
""",
    "the stage sets a seed": """
@cache.stage
def f(v):
    random.seed(v); np.random.seed(v); return random.random(), float(np.random.rand())
@cache.stage
def g(n): return [random.random(), float(np.random.rand())]
show(f, SEED); show(g, 1)
print(random.random(), np.random.rand())
""",
    "in a thread": """
@cache.stage
def f(n):
    found = []
    threads = [threading.Thread(target=lambda: found.append(random.random())) for _ in range(n)]
    for each in threads: each.start(); each.join()
    return found
random.seed(SEED)
show(f, 3)
print(random.random())
""",
    "in a forked process": """
import multiprocessing
def work(_): return float(np.random.rand())
@cache.stage
def f(n):
    with multiprocessing.get_context("fork").Pool(1) as pool: return pool.map(work, range(n))
np.random.seed(SEED)
show(f, 2)
print(np.random.rand())
""",
    "nested": """
@cache.stage
def inner(n): return [random.random() for _ in range(n)]
@cache.stage
def outer(n): return inner(n), random.random()
random.seed(SEED)
show(outer, 2)
print(random.random())
""",
    "in a process that a nested stage forks": """
import multiprocessing
def work(_): return float(np.random.rand())
@cache.stage
def inner(n):
    with multiprocessing.get_context("fork").Pool(1) as pool: return pool.map(work, range(n))
@cache.stage
def outer(n): return inner(n)
np.random.seed(SEED)
show(outer, 2); show(inner, 2)
""",
    "the state": """
@cache.stage
def f(x): return hash(random.getstate()[1])
random.seed(SEED)
show(f, 1)
print(random.random())
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_another_seed_misses_and_the_same_hits_with_all_that_comes_after_it(name: str, run: Run) -> None:
    text = _PROGRAMS[name]
    for seed in (0, 1):
        plain = run(text, seed, CACHEC_MODE="off")[0]
        printed, outcomes = run(text, seed)
        assert printed == plain
        assert outcomes[0].startswith("miss:")
        assert not any(line.startswith("bypass:") for line in outcomes)
        printed, outcomes = run(text, seed)
        assert printed == plain
        assert set(outcomes) == {"hit"}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_in_this_process_the_state_of_a_generator_counts(name: str, run: Run) -> None:
    text = _PROGRAMS[name]
    for seed in (0, 1, 1):
        printed, outcomes = run(text, seed, CACHEC_ISOLATED="0")
        assert printed == run(text, seed, CACHEC_MODE="off")[0]
    kinds = {line.partition(" ")[0] for line in outcomes}
    # Of a method such as ``random.shuffle`` that a global holds, the state is in the key, and is another at the end.
    changed = "bypass:input-changed-during-run"
    assert kinds <= {"hit", changed, "bypass:volatile-input", "bypass:undeclared-program"}


def test_in_this_process_a_generator_of_its_own_and_one_that_is_not_used_are_stored(run: Run) -> None:
    text = """
@cache.stage
def f(n): return random.Random(n).random(), float(np.random.default_rng(n).random())
random.seed(SEED); np.random.seed(SEED)
random.random(); show(f, 1); show(f, 1)
"""
    assert [line[:4] for line in run(text, CACHEC_ISOLATED="0")[1]] == ["miss", "hit"]


def test_in_this_process_a_seed_that_is_set_where_a_generator_is_imported_first(run: Run) -> None:
    text = """
@cache.stage
def f(n):
    import numpy.random
    numpy.random.seed(n)
    return n
show(f, 1)
print(np.random.rand())
"""
    assert run(text, CACHEC_ISOLATED="0")[1][0].startswith("bypass:volatile-input it imported numpy")


@pytest.mark.parametrize("name", _PROGRAMS)
def test_both_ways_agree(name: str, run: Run) -> None:
    text = _PROGRAMS[name]
    printed, outcomes = run(text, CACHEC_MODE="both")
    assert printed == run(text, CACHEC_MODE="off")[0]
    assert not any(line.startswith("bypass:") for line in outcomes)
    assert set(run(text)[1]) == {"hit"}


def test_a_run_that_leaves_a_generator_elsewhere_than_this_process_is_told(run: Run) -> None:
    text = """
@cache.stage
def f(n):
    if os.environ.get("HERE") != str(os.getpid()): random.random()
    return n
random.seed(SEED)
os.environ["HERE"] = str(os.getpid())
show(f, 1)
"""
    assert "leaves the generator of random in another state" in run(text, CACHEC_MODE="both")[1][0]


@pytest.mark.parametrize(
    ("before", "body", "why"),
    [
        ("", "random.random()", "it drew from the generator of random without setting a seed"),
        ("random.random()", "random.random()", "it drew from the generator of random without setting a seed"),
        ("", "np.random.rand()", "it drew from the generator of numpy.random without setting a seed"),
        ("", "random.getstate()", "it asks for the state of a random generator"),
    ],
)
def test_a_state_that_no_other_process_has_is_not_stored(before: str, body: str, why: str, run: Run) -> None:
    text = f"""
@cache.stage
def f(x):
    {body}
    return x
{before}
show(f, 1)
"""
    assert run(text)[1][0].startswith(f"bypass:not-isolated {why}")


def test_a_generator_that_another_thread_moves_meanwhile(run: Run) -> None:
    text = """
import time
@cache.stage
def f(path):
    found = random.random()
    open(path, "w").close()
    while not os.path.exists(path + "2"): time.sleep(0.01)
    return found
random.seed(SEED)
path = os.environ["STORE"] + "-mark"
def move():
    while not os.path.exists(path): time.sleep(0.01)
    print(random.random()); open(path + "2", "w").close()
thread = threading.Thread(target=move)
thread.start()
value, outcome = f.call(path)
thread.join()
random.seed(SEED)
random.random()
print(value == random.random())
print(outcome.reason.value, outcome.detail, file=sys.stderr)
"""
    printed, outcomes = run(text)
    assert printed.splitlines()[1] == "True"
    assert outcomes == ["bypass:not-isolated the generator of random was moved by something else meanwhile"]


def test_inputs_of_a_map_draw_one_after_the_other(run: Run) -> None:
    text = """
@cache.stage
def f(x): return random.random()
random.seed(SEED)
found = cache.map(f, range(4), jobs=2)
random.seed(SEED)
print(sorted(found) == sorted(random.random() for _ in found))
"""
    assert run(text)[0] == "True\n"


def test_damaged_states_are_a_miss(run: Run, tmp_path: Path) -> None:
    text = _PROGRAMS["random"]
    plain = run(text)[0]
    changed = 0
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size > 3000 and b'"seeds"' in path.read_bytes():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-9])
            changed += 1
    assert changed == 1
    printed, outcomes = run(text)
    assert printed == plain
    assert outcomes[0].startswith("miss:artifact")
