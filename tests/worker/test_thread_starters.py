"""Which functions start, whatever thread they start in; and when that can't be told. Each program is a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
import json, sys, threading
from cachec.worker.started_code import watch

def one(*_): return 1
def two(*_): return 2
def never(): return two()
"""
REPORT = """
names = lambda codes: sorted({code.co_name for code in codes if code.co_name in ("one", "two", "never")})
print(json.dumps([names(started.codes()), names(started.late()), started.is_complete()]))
"""

#: Programs of which all is seen, with the functions that start.
SEEN = {
    "a call": ("one()", ["one"]),
    "nothing": ("", []),
    "a thread": ("t = threading.Thread(target=one); t.start(); t.join(); two()", ["one", "two"]),
    "a pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool: list(pool.map(one, range(9)))",
        ["one"],
    ),
    "a thread of a thread": (
        "def outer():\n t = threading.Thread(target=one); t.start(); t.join()\n"
        "t = threading.Thread(target=outer); t.start(); t.join()",
        ["one"],
    ),
    "a loop's default pool": (
        "import asyncio\nasync def f(): return await asyncio.to_thread(one)\nasyncio.run(f())",
        ["one"],
    ),
    "a thread that raises": (
        "threading.excepthook = two\ndef f(): one(); raise ValueError\n"
        "t = threading.Thread(target=f); t.start(); t.join()",
        ["one", "two"],
    ),
    "a function that raises": (
        "def f():\n one(); raise ValueError\ntry: f()\nexcept ValueError: two()",
        ["one", "two"],
    ),
    "the deepest recursion": (
        "def f(n):\n try: return f(n + 1)\n except RecursionError: return one()\nf(0); two()",
        ["one", "two"],
    ),
    "a generator that is not done": ("def g():\n one(); yield\nkept = g(); next(kept)", ["one"]),
    "what libraries call": ("sorted([3, 1], key=one); import functools; functools.reduce(two, [1, 2])", ["one", "two"]),
    "a finalizer": ("class A:\n def __del__(self): one()\nA()", ["one"]),
    "many threads": (
        "threads = [threading.Thread(target=(one, two)[n % 2]) for n in range(40)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()",
        ["one", "two"],
    ),
}

#: Programs of which Python 3.11 does not tell all.
UNSEEN = {
    "another profile function": "sys.setprofile(one)\ntwo()\nsys.setprofile(None)",
    "a profile function that is put back": "f = sys.getprofile(); sys.setprofile(one); two(); sys.setprofile(f); two()",
    "a profiler": "import cProfile\nwith cProfile.Profile(): two()",
    "a profiler in a thread": (
        "import cProfile\ndef f():\n with cProfile.Profile(): two()\n"
        "t = threading.Thread(target=f); t.start(); t.join()"
    ),
    "threads without ours": "threading.setprofile(None); t = threading.Thread(target=two); t.start(); t.join()",
    "threads with another": "threading.setprofile(one); t = threading.Thread(target=two); t.start(); t.join()",
    "a thread without Thread": (
        "import _thread\nlock = _thread.allocate_lock(); lock.acquire()\n"
        "def f(): two(); lock.release()\n_thread.start_new_thread(f, ()); lock.acquire()"
    ),
    "a thread that goes on": (
        "from concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor(); p.submit(two).result()"
    ),
    "a thread of C code": (
        "import ctypes\nkind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)\ncall = kind(two)\n"
        "c = ctypes.CDLL(None); number = ctypes.c_ulong()\n"
        "c.pthread_create(ctypes.byref(number), None, call, None); c.pthread_join(number, None)"
    ),
    "stacks that are switched": "import types; sys.modules['greenlet'] = types.ModuleType('greenlet')",
}

only_profiled = pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring sees all threads")


def run(program: str, folder: Path, before: str = "", which: str = "code.co_filename == __file__") -> list[object]:
    path = folder / "program.py"
    made = f"started = watch(lambda code: {which})\n"
    path.write_text(PRELUDE + before + made + textwrap.dedent(program) + REPORT)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("program", "expected"), SEEN.values(), ids=SEEN)
def test_what_starts_is_seen(program: str, expected: list[str], tmp_path: Path) -> None:
    assert run(program, tmp_path) == [expected, expected, True]


@only_profiled
@pytest.mark.parametrize("program", UNSEEN.values(), ids=UNSEEN)
def test_what_goes_unseen_is_known(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path)[2] is False


@only_profiled
@pytest.mark.parametrize("before", ["sys.setprofile(one)\n", "threading.setprofile(one)\n"])
def test_a_profile_function_of_before_stays(before: str, tmp_path: Path) -> None:
    program = "assert one in (sys.getprofile(), threading.getprofile())\nsys.setprofile(None)"
    assert run(program, tmp_path, before)[2] is False


def test_equal_functions_of_two_files_are_two(tmp_path: Path) -> None:
    program = """
    text = "def one(): return 1"
    codes = [compile(text, name, "exec").co_consts[0] for name in (__file__, __file__ + "2")]
    assert codes[0] == codes[1]
    for code in codes: exec(code)
    for code in codes: exec(code)
    assert {code.co_filename for code in started.codes() if code.co_name == "one"} == {__file__, __file__ + "2"}
    """
    run(program, tmp_path, which="code.co_filename.startswith(__file__)")


def test_nothing_is_passed_over_while_the_collector_works(tmp_path: Path) -> None:
    """What it calls starts too."""
    program = """
    import gc
    functions = {}
    exec("\\n".join(f"def f{number}(): return {number}" for number in range(3000)), functions)
    def collected(*_): functions["f7"](), functions["f1500"]()
    gc.callbacks.append(collected)
    gc.set_threshold(5)
    for number in range(3000): functions[f"f{number}"]()
    assert len({code.co_name for code in started.codes()}) == 3000
    assert gc.isenabled()
    """
    run(program, tmp_path, which="code.co_name[1:].isdigit()")


def test_what_starts_again_in_the_run_is_late(tmp_path: Path) -> None:
    program = "one(); two()\nstarted.begin_run()\ntwo()"
    assert run(program, tmp_path) == [["one", "two"], ["two"], True]


def test_variables_that_threads_share_keep_their_values(tmp_path: Path) -> None:
    """A profile function in Python writes back old values of them."""
    program = """
    def outer():
        count, lock = 0, threading.Lock()
        def add():
            nonlocal count
            for _ in range(2000):
                with lock:
                    count += 1
        threads = [threading.Thread(target=add) for _ in range(4)]
        for t in threads: t.start()
        while any(t.is_alive() for t in threads): len(threads)
        for t in threads: t.join()
        return count
    assert outer() == 8000
    one()
    """
    assert run(program, tmp_path) == [["one"], ["one"], True]
