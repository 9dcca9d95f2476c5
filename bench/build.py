"""A Ninja build of many modules through ``cachec exec``, rebuilt from an emptied folder; ccache and sccache beside it.

The peers can't cache a model's compiler, so they build as many C files, and cachec builds these too. Both builds use
Ninja's own number of jobs. The first rebuild is not counted: it finds files that were changed within the last two
seconds, which prove nothing and are read.
"""

from __future__ import annotations

import operator
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.harness import Row, settle
from cachec.events import read_outcomes

#: What a module is compiled by, as a rule of Ninja's.
LOWER = "mlir-opt-19 $in -o $out --convert-func-to-llvm --convert-arith-to-llvm --reconcile-unrealized-casts"
#: Rebuilds that are timed; the median counts.
_ROUNDS = 3


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of 200 modules and of 200 C files."""
    if shutil.which("ninja") is None:
        return [Row("Ninja build (ninja is not installed)", 0.0, "")]
    count = max(4, int(200 * scale))
    builds = Builds(folder, count)
    try:
        rows = _rows(builds, count)
    finally:
        if shutil.which("sccache"):
            builds.call("sccache", "--stop-server", check=False)  # it may not have come to start one
    return rows or [Row("Ninja build (no compiler is installed)", 0.0, "")]


def _rows(builds: Builds, count: int) -> list[Row]:
    rows: list[Row] = []
    clang = next((name for name in ("clang-19", "clang") if shutil.which(name)), "")
    peers: dict[str, float] = {}
    if clang:
        for peer in ("ccache", "sccache"):
            if shutil.which(peer) and (peer != "sccache" or builds.starts_server()):
                peers[peer] = builds.timed(f"c-{peer}", ".c", _c_file, f"{peer} {clang} -O2 -c $in -o $out")
    told = ", ".join(f"{name} {seconds * 1e3:.1f} ms for C" for name, seconds in peers.items())
    ccache = peers.get("ccache")
    if shutil.which("mlir-opt-19"):
        line = LOWER
        again = builds.timed("modules", ".mlir", mlir_module, f"{builds.cachec} {line}")
        hits = builds.hits("modules")
        rows += [
            Row(f"Ninja, {count} modules, from an emptied folder: hits", hits, "", "all", hits == count),
            Row(f"Ninja, {count} modules: wall time per hit", again * 1e3, "ms", "", None, told, ratio(again, ccache)),
            *builds.first("modules", ".mlir", mlir_module, line),
        ]
    if clang:
        again = builds.timed("c-cachec", ".c", _c_file, f"{builds.cachec} {clang} -O2 -c $in -o $out")
        hits = builds.hits("c-cachec")
        rows += [
            Row(f"Ninja, {count} C files, from an emptied folder: hits", hits, "", "all", hits == count),
            Row(f"Ninja, {count} C files: wall time per hit", again * 1e3, "ms", "", None, told, ratio(again, ccache)),
            *builds.first("C files", ".c", _c_file, f"{clang} -O2 -c $in -o $out"),
        ]
    if shutil.which("gcc"):
        rows += builds.first("C files by gcc, unknown", ".c", _c_file, "gcc -O2 -c $in -o $out")
    return rows


def ratio(value: float, peer: float | None) -> float | None:
    """How many times a peer's figure, None without a peer."""
    return None if peer is None else value / peer


def mlir_module(number: int) -> str:
    """The text of one module."""
    return (
        f"func.func @f{number}(%x: i32) -> i32 {{\n  %c = arith.constant {number} : i32\n"
        "  %y = arith.addi %x, %c : i32\n  return %y : i32\n}\n"
    )


def _c_file(number: int) -> str:
    return f"#include <stdlib.h>\nint f{number}(int n) {{ return abs(n) + {number}; }}\n"


def _free_port() -> int:
    """A port for a server of our own: sccache's own may be in use."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Builds:
    """Projects in a folder, with stores of their own, of the same number of files."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        script = folder / "bin" / "cachec"  # nothing is written there: Python looks for modules beside a script
        script.parent.mkdir()
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom cachec.__main__ import main\nsys.exit(main())\n")
        script.chmod(0o755)
        self.cachec = f"{script} exec --"
        self.script = script
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "CCACHE_"))}
        environ |= {"CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off", "CCACHE_DIR": str(folder / "ccache")}
        environ |= {"SCCACHE_DIR": str(folder / "sccache"), "SCCACHE_SERVER_PORT": str(_free_port())}
        environ |= {"PYTHONPYCACHEPREFIX": str(folder / "pycache")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._environ: Mapping[str, str] = environ

    def timed(self, name: str, suffix: str, text: Callable[[int], str], command: str) -> float:
        """Seconds a file of a rebuild from an emptied folder: the median."""
        project = self.project(name, suffix, text, command)
        self.build(project)
        if (self._folder / "store").exists():
            settle(self._folder / "store")
        self.build(project)
        return statistics.median(self.build(project) for _ in range(_ROUNDS)) / self._count

    def first(self, name: str, suffix: str, text: Callable[[int], str], command: str) -> list[Row]:
        """A build into an empty store, with no server left behind, against one without cachec and those of peers."""
        lines = {"bare": command, "cachec": f"{self.cachec} {command}"}
        if suffix == ".c" and shutil.which("ccache"):
            lines["ccache"] = f"ccache {command}"
        projects = {kind: self.project(f"first-{name}-{kind}", suffix, text, line) for kind, line in lines.items()}
        settle(self.script.parent)
        times: dict[str, list[float]] = {kind: [] for kind in lines}
        for _ in range(_ROUNDS):
            for kind, project in projects.items():
                self.call(str(self.script), "server", "stop")
                for store in ("store", "ccache"):
                    shutil.rmtree(self._folder / store, ignore_errors=True)
                times[kind].append(self.build(project))
        self.call(str(self.script), "server", "stop")
        took = {kind: statistics.median(each) / self._count for kind, each in times.items()}
        share = {kind: statistics.median(map(operator.truediv, times[kind], times["bare"])) for kind in lines}
        told = ", ".join(f"{kind} {took[kind] * 1e3:.1f} ms ({share[kind]:.1f}x)" for kind in lines if kind != "cachec")
        return [
            Row(
                f"Ninja, {self._count} {name}: first build, a file",
                took["cachec"] * 1e3,
                "ms",
                "<= 3x of without",
                share["cachec"] <= 3.0,
                told,
                share["cachec"],
            )
        ]

    def project(self, name: str, suffix: str, text: Callable[[int], str], command: str) -> Path:
        """A new project, whose files are compiled by ``command``."""
        project = self._folder / name.replace(" ", "-").replace(",", "")
        (project / "src").mkdir(parents=True)
        rules = [f"rule cc\n  command = {command}\n"]
        for number in range(self._count):
            (project / "src" / f"{number}{suffix}").write_text(text(number))
            rules.append(f"build out/{number}.o: cc src/{number}{suffix}\n")
        (project / "build.ninja").write_text("".join(rules))
        return project

    def build(self, project: Path, variables: Mapping[str, str] = MappingProxyType({})) -> float:
        """The seconds of a build, into an emptied folder."""
        shutil.rmtree(project / "out", ignore_errors=True)
        (project / "stats").unlink(missing_ok=True)
        started = time.perf_counter()
        own = {**variables, "CACHEC_STATS_FILE": str(project / "stats")}
        self.call("ninja", "-C", str(project), variables=own)
        return time.perf_counter() - started

    def hits(self, name: str) -> int:
        """Hits of the last build of a project."""
        return sum(outcome.hit for outcome in read_outcomes(self._folder / name / "stats"))

    def starts_server(self) -> bool:
        """Whether sccache's server is there now. Compilers that each start it at once fail on its port."""
        line = ("sccache", "--start-server")
        return subprocess.run(line, env=dict(self._environ), check=False, capture_output=True).returncode == 0

    def call(self, *line: str, check: bool = True, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        """One process. variables: of its environment, beside those of all."""
        subprocess.run(line, env={**self._environ, **variables}, check=check, capture_output=True)
