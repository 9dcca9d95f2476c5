"""``python -m bench [NAME...]``: run benchmarks, print a table, write ``bench/out/results.json``.

Without names, those that take ten minutes together; ``all``: every one. Rows of others stay in the file as they were.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.harness import Row

#: What is measured without names: where people wait.
USUAL = ("hits", "misses", "recording", "opening", "processes", "commands", "minilm", "launcher")
BENCHMARKS = (
    *(*USUAL, "build", "weights", "maintain", "why", "see", "care", "bundle", "remote"),
    *("isolated", "mlir", "jax", "xla", "onnxruntime", "torch", "repro", "native", "warm", "watch", "tracing"),
)
#: Columns of the table, also where the terminal is wider or there is none.
WIDTH = 80
OUT = Path(__file__).parent / "out" / "results.json"


def main() -> int:
    """Exit status 1 where a bar does not hold, at full scale."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}, or all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rounds and bytes; bars hold at 1")
    options = parser.parse_args()
    unknown = set(options.names) - {*BENCHMARKS, "all"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console = Console(width=WIDTH)
    rows: list[Row] = []
    for name in BENCHMARKS if "all" in options.names else options.names or USUAL:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cachec-bench-") as folder:
            rows += importlib.import_module(f"bench.{name}").run(Path(folder), scale=options.scale)
        console.print(f"[dim]{name}: {time.monotonic() - started:.0f} s[/dim]")
    console.print(_table(rows))
    _write(rows)
    missed = [row.name for row in rows if row.holds is False]
    if missed:
        console.print(f"{len(missed)} of {sum(row.holds is not None for row in rows)} bars missed: {'; '.join(missed)}")
    return 1 if missed and options.scale == 1 else 0


def _table(rows: list[Row]) -> Table:
    """Four columns; under what was measured, what it was measured against."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what, against what", ratio=1)
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("bar", max_width=16)
    for row in rows:
        what = Text(row.name)
        if row.peer:
            what.append(f"\n  {row.peer}", style="dim")
        mark = {None: "", True: "", False: "\n[bold red]MISSED[/]"}[row.holds]
        ratio = "" if row.ratio is None else f"{row.ratio:,.3g}x" if row.ratio < 1000 else f"{row.ratio:,.0f}x"
        table.add_row(what, f"{row.value:,.2f} {row.unit}", ratio, f"{escape(row.bar)}{mark}")
    return table


def _write(rows: list[Row]) -> None:
    OUT.parent.mkdir(exist_ok=True)
    kept = {row["name"]: row for row in json.loads(OUT.read_text())} if OUT.exists() else {}
    kept.update({row.name: row.json() for row in rows})
    OUT.write_text(json.dumps(list(kept.values()), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
