"""The tracer: what a reported system call costs, and a traced compile, against bare ones and strace."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from bench.harness import Row, interleaved
from cachec.tracing import listener
from cachec.tracing.supervisor import trace

#: Prints the median microseconds of an open: of one path (0), or of another path each time (1).
_OPENS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}
static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
int main(int count, char **words) {
    int calls = atoi(words[1]), differ = atoi(words[2]);
    double *taken = malloc(calls * sizeof *taken);
    char path[64];
    for (int i = 0; i < calls; i++) {
        sprintf(path, differ ? "/none/%d" : "/etc/passwd", i);
        double started = now();
        int fd = open(path, O_RDONLY);
        taken[i] = now() - started;
        if (fd >= 0) close(fd);
    }
    qsort(taken, calls, sizeof *taken, compare);
    printf("%.3f\n", taken[calls / 2]);
}
"""


class _Compile(NamedTuple):
    """A command that is built from generated text. most: CPU seconds traced, at most so many times those without."""

    name: str
    command: Sequence[str]
    most: float


_IREE = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_MODULE = """
!t = tensor<64x64xf32>
func.func @main(%a: !t, %b: !t) -> !t {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (!t, !t) -> !t
  %1 = stablehlo.tanh %0 : !t
  return %1 : !t
}
"""

_COMPILES = (
    _Compile("clang -O2 -c", ("clang-19", "-O2", "-c", "a.c", "-o", "a.o"), 1.15),
    _Compile("gcc -O2 -c", ("gcc", "-O2", "-c", "a.c", "-o", "a.o"), 1.3),
    _Compile(
        "iree-compile", (str(Path(sys.executable).with_name("iree-compile")), "m.mlir", "-o", "m.vmfb", *_IREE), 1.05
    ),
    _Compile("gcc -c of a tiny file", ("gcc", "-c", "tiny.c", "-o", "tiny.o"), 0),
)


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and calls."""
    compiler = shutil.which("cc")
    if compiler is None:
        return [Row("no C compiler here", 0, "")]
    source = folder / "opens.c"
    source.write_text(_OPENS)
    subprocess.run([compiler, "-O2", "-o", folder / "opens", source], check=True)
    rounds = max(2, int(9 * scale))
    rows = [*_calls(folder, max(200, int(10_000 * scale)), rounds)]
    rows.append(_fixed(rounds))
    (folder / "tiny.c").write_text('#include <stdio.h>\nint main(void) { return puts("x"); }\n')
    (folder / "a.c").write_text("#include <stdio.h>\n" + "".join(map(_function, range(max(3, int(300 * scale))))))
    (folder / "m.mlir").write_text(_MODULE)
    compiles = _COMPILES if scale > 0.01 else _COMPILES[-1:]
    rows += [_compile(folder, each, rounds) for each in compiles if shutil.which(each.command[0])]
    return rows


def _calls(folder: Path, calls: int, rounds: int) -> list[Row]:
    def bare(command: Sequence[str]) -> float:
        return float(subprocess.run(command, check=True, capture_output=True).stdout)

    def traced(differ: str, flag: int) -> float:
        reader, writer = os.pipe()
        with patch.object(listener, "_SYNC_WAKE_UP", flag), os.fdopen(reader) as file:
            accesses = trace([f"{folder}/opens", str(calls), differ], stdout=writer)
            os.close(writer)
            assert not accesses.problems, accesses.problems
            assert accesses.notifications >= calls
            return float(file.read())

    opens = [f"{folder}/opens", str(calls), "0"]
    tasks: dict[str, Callable[[], float]] = {
        "bare": lambda: bare(opens),
        "sync": lambda: traced("0", 1),
        "without": lambda: traced("0", 0),
        "new": lambda: traced("1", 1),
    }
    if shutil.which("strace"):
        tasks["strace"] = lambda: bare(
            ["strace", "-f", "--seccomp-bpf", "-e", "open,openat", "-o", "/dev/null", *opens]
        )
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            found[name].append(task())
    times = {name: statistics.median(each) for name, each in found.items()}
    against = f"bare {times['bare']:.1f} us" + (f", strace {times['strace']:.1f} us" if "strace" in times else "")

    def row(name: str, key: str, most: float) -> Row:
        return Row(name, times[key], "us", f"<= {most:g} us", times[key] <= most, against, times[key] / times["bare"])

    return [
        row("a traced open, median", "sync", 20),
        row("of a new path each time", "new", 20),
        row("without SYNC_WAKE_UP", "without", 35),
    ]


def _fixed(rounds: int) -> Row:
    """CPU seconds of a run that does nothing."""
    tasks: dict[str, Callable[[], object]] = {
        "bare": lambda: subprocess.run(["true"], check=True),
        "traced": lambda: trace(["true"]),
    }
    times = interleaved(tasks, rounds, clock=_cpu)
    against = f"bare {times['bare'] * 1e3:.1f} ms"
    ratio = times["traced"] / times["bare"]
    return Row("true, traced (CPU)", times["traced"] * 1e3, "ms", peer=against, ratio=ratio)


def _compile(folder: Path, compile_: _Compile, rounds: int) -> Row:
    """CPU seconds of the command, and of the supervisor."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def traced() -> None:
        accesses = trace(compile_.command, cwd=str(folder), stdout=null, stderr=null)
        assert (accesses.returncode, accesses.problems) == (0, ())

    def bare(*before: str) -> None:
        subprocess.run([*before, *compile_.command], cwd=folder, check=True, capture_output=True)

    tasks: dict[str, Callable[[], object]] = {"bare": bare, "traced": traced}
    if shutil.which("strace"):
        tasks["strace"] = lambda: bare("strace", "-f", "--seccomp-bpf", "-e", "%file", "-o", "/dev/null")
    times = interleaved(tasks, rounds, clock=_cpu)
    os.close(null)
    ratio = times["traced"] / times["bare"]
    against = f"bare {times['bare'] * 1e3:.0f} ms"
    if "strace" in times:
        against += f", strace {times['strace'] / times['bare']:.2f}x"
    bar, holds = (f"<= {compile_.most:g}x", ratio <= compile_.most) if compile_.most else ("", None)
    return Row(f"{compile_.name}, traced (CPU)", times["traced"] * 1e3, "ms", bar, holds, against, ratio)


def _cpu() -> float:
    """Seconds of the processor, of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _function(number: int) -> str:
    return (
        f"int f{number}(const int *a, int n) {{ int s = {number}; for (int i = 0; i < n; i++) "
        f's = a[i] & 1 ? s * {number + 3} + a[i] : s - a[i] / {number + 2}; printf("%d", s); return s; }}\n'
    )
