"""Hits across processes: the first one of a new process, and many at once."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

from bench.harness import Row, interleaved, settle, sparse_checkpoint

_STAGE = """
import sys, time
from pathlib import Path
import cachec

cache = cachec.Cache(sys.argv[1], log="off", mode="on")

@cache.stage(ignore=["started"])
def lower(weights: cachec.WeightSet, batch: int, started: Path) -> cachec.Program:
    with started.open("a") as out:
        out.write("ran\\n")
    time.sleep(0.2)
    return cachec.Program(f"program {len(weights.specs)} {batch}", format="bench:text", manifest=weights.manifest)

if len(sys.argv) > 4:
    while not Path(sys.argv[4]).exists():
        time.sleep(0.001)
program, outcome = cache.call(lower, cachec.open_weights(sys.argv[2]), 3, Path(sys.argv[3]))
assert program.text == "program 200 3"
print(outcome.reason.value, sorted({"numpy", "jax", "iree", "torch"} & set(sys.modules)))
"""


_TOOL = _STAGE.replace('@cache.stage(ignore=["started"])', '@cache.stage(ignore=["started"], tools=["torchlike"])')

_MODULES, _FUNCTIONS = 20, 40
_FUNCTION = """
def f{0}(x, y=2, *, z=LIMIT):
    total = 0
    for i in range(x):
        if i % 2:
            total += i * y + math.sqrt(z)
        else:
            total -= {0}
    values = [a * b for a, b in zip(range(x), range(y))]
    return total + sum(values)
"""


def project(folder: Path) -> Path:
    """A script whose stage reaches a quarter of 8,000 lines in 20 modules beside it."""
    calls = " + ".join(f"f{number}(x)" for number in range(_FUNCTIONS // 4))
    names = [f"part_{number}" for number in range(_MODULES)]
    text = "import math\nLIMIT = 3\n" + "".join(_FUNCTION.format(number) for number in range(_FUNCTIONS))
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"{text}\ndef run(x):\n    return {calls}\n")
    imports, used = f"import {', '.join(names)}", " + ".join(f"{name}.run(batch)" for name in names)
    script = folder / "project_script.py"
    script.write_text(
        _STAGE.replace("import cachec\n", f"import cachec\n{imports}\n").replace("    time.sleep(0.2)", f"    {used}")
    )
    return script


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and processes."""
    script, checkpoint = folder / "stage_script.py", sparse_checkpoint(folder / "w.safetensors", 200, 1 << 30)
    script.write_text(_STAGE)
    with_tool = folder / "tool_script.py"
    with_tool.write_text(_TOOL)
    with_code = project(folder / "project")
    installed(folder / "site", "torchlike", max(100, int(14_600 * scale)))
    settle(folder)
    scripts = {"hit": script, "tool": with_tool, "project": with_code}
    return _first_hit(folder, scripts, checkpoint, scale) + _at_once(folder, script, checkpoint, scale)


def environment(**more: str) -> dict[str, str]:
    """That of a child which keeps what it compiles, as programs do: otherwise each would compile cachec anew."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


def cpu_of_children() -> float:
    """Seconds of the processor that ended children took, in user and system mode: these bear other work beside them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def installed(site: Path, name: str, count: int) -> None:
    """A distribution of so many files, in folders of a hundred, as an installer leaves it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    rows = []
    for number in range(count):
        path = f"{name}/part_{number // 1000}/deep/package_{number // 100}/module_{number}.py"
        if number % 100 == 0:
            (site / path).parent.mkdir(parents=True)
        (site / path).write_bytes(b"x = 1\n")
        rows.append(f"{path},sha256={digest},6")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))


def _command(script: Path, cache: Path, checkpoint: Path, ran: Path) -> list[str]:
    return [sys.executable, str(script), str(cache), str(checkpoint), str(ran)]


def _first_hit(folder: Path, scripts: dict[str, Path], checkpoint: Path, scale: float) -> list[Row]:
    environ = environment(PYTHONPATH=str(folder / "site"))
    commands = {
        name: _command(script, folder / "cache", checkpoint, folder / "ran") for name, script in scripts.items()
    }
    for command in commands.values():
        out = ""
        for _ in range(3):  # a run, a hit that remembers digests, and one that finds them
            out = subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout
        assert out.split(" ", 1) == ["hit", "[]\n"], out  # and neither numpy nor a compiler was imported
    commands["bare"] = [sys.executable, "-c", "pass"]
    times = interleaved(
        {
            name: lambda command=command: subprocess.run(command, check=True, capture_output=True, env=environ)
            for name, command in commands.items()
        },
        max(2, int(21 * scale)),
        clock=cpu_of_children,
    )
    rows = []
    for name, what, bar in (
        ("hit", "first hit of a new process, above bare Python", 3.5),
        ("tool", "the same, 14,600 files of a tool", 6.0),
    ):
        ratio = times[name] / times["bare"] - 1
        peer = f"python -c pass {times['bare'] * 1e3:.0f} ms"
        added = (times[name] - times["bare"]) * 1e3
        rows.append(Row(what, added, "ms CPU", f"<= {bar}x, no numpy, no compiler", ratio <= bar, peer, ratio))
    added = times["project"] - times["hit"]
    peer = f"the first hit without {times['hit'] * 1e3:.0f} ms"
    rows.append(
        Row("the same, 8,000 lines of a project more", added * 1e3, "ms CPU", "", None, peer, added / times["hit"])
    )
    return rows


def _at_once(folder: Path, script: Path, checkpoint: Path, scale: float) -> list[Row]:
    count = max(4, int(16 * scale))
    go, ran = folder / "go", folder / "ran-at-once"
    command = [*_command(script, folder / "cache-at-once", checkpoint, ran), str(go)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    go.touch()
    outcomes = Counter(child.communicate()[0].split()[0] for child in children)
    executions = len(ran.read_text().splitlines())
    holds = executions == 1 and outcomes["hit"] == count - 1
    return [
        Row(f"{count} processes, one key: executions", executions, "", "1", executions == 1),
        Row(f"{count} processes, one key: hits", outcomes["hit"], "", str(count - 1), holds),
    ]
