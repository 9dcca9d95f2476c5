"""``python -m bench [NAME...]``: run the benchmarks, print a table, write ``bench/out/results.json``.

Rows of benchmarks that were not asked for stay in the file as they were.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Row

BENCHMARKS = (
    "hits",
    "misses",
    "recording",
    "opening",
    "processes",
    "weights",
    "minilm",
    "maintain",
    "mlir",
    "repro",
    "native",
    "warm",
    "watch",
    "launcher",
    "build",
)
OUT = Path(__file__).parent / "out" / "results.json"


def main() -> int:
    """Exit status 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rounds and bytes; bars hold at 1")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console = Console()
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        console.print(f"[dim]{name} ...[/dim]")
        with tempfile.TemporaryDirectory(prefix="cachec-bench-") as folder:
            rows += importlib.import_module(f"bench.{name}").run(Path(folder), scale=options.scale)
    console.print(_table(rows))
    _write(rows)
    return 1 if any(row.holds is False for row in rows) else 0


def _table(rows: list[Row]) -> Table:
    table = Table("what", "figure", "bar", "holds", "peer", "ratio")
    for row in rows:
        holds = {None: "", True: "yes", False: "[red]NO[/red]"}[row.holds]
        ratio = "" if row.ratio is None else f"{row.ratio:,.1f}x"
        table.add_row(row.name, f"{row.value:,.2f} {row.unit}", row.bar, holds, row.peer, ratio)
    return table


def _write(rows: list[Row]) -> None:
    OUT.parent.mkdir(exist_ok=True)
    kept = {row["name"]: row for row in json.loads(OUT.read_text())} if OUT.exists() else {}
    kept.update({row.name: row.json() for row in rows})
    OUT.write_text(json.dumps(list(kept.values()), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
