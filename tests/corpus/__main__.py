"""``python -m tests.corpus``: run the programs of the corpus and summarise what went wrong."""

from __future__ import annotations

import argparse
import compileall
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median

from tests.corpus.harness import Report, Step, check
from tests.corpus.program import load_all

_FAULTS = ("WRONG HIT", "WRONG VALUE", "FAILS ONLY WITH A CACHE")


def main() -> int:
    """Exit status 1 if a value was wrong or a program is unsound."""
    options = _parser().parse_args()
    variables = {"CACHEC_MODE": options.mode, **dict(pair.split("=", 1) for pair in options.env)}
    if options.isolated:
        variables["CACHEC_ISOLATED"] = "1"
    # Runs write no bytecode, so cachec itself would be compiled in each.
    root = Path(__file__).parents[2]
    for folder in ("cachec", "plugins"):
        compileall.compile_dir(root / folder, quiet=2)
    programs = [each for each in load_all() if any(fnmatchcase(each.name, name) for name in options.names)]
    runnable = [program for program in programs if not program.missing()]
    for program in programs:
        if program not in runnable:
            print(f"skipped {program.name}: {', '.join(program.missing())} not installed")
    reports = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for report in pool.map(partial(check, variables=variables, plain=options.plain), runnable):
            reports.append(report)
            print_report(report, options.verbose)
            if options.json:
                Path(options.json).write_text(json.dumps([each.data() for each in reports], indent=1))
    print_summary(reports)
    return int(any(report.unsound or report.wrong() for report in reports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--names", nargs="+", default=["*"], help="patterns of names of programs")
    parser.add_argument("--mode", default="on", help="CACHEC_MODE of the cached runs")
    parser.add_argument("--isolated", action="store_true", help="set CACHEC_ISOLATED=1 in the cached runs")
    parser.add_argument("--env", nargs="+", default=[], metavar="K=V", help="variables of the cached runs")
    parser.add_argument("--plain", action="store_true", help="plain runs only: are the programs sound?")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--json", metavar="OUT", help="write all steps to this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each step")
    return parser


def print_report(report: Report, verbose: bool) -> None:
    """What is wrong with one program, or ``ok``."""
    name = report.program.name + ("" if report.program.ordinary else " (to provoke)")
    lines = [f"UNSOUND PROGRAM {reason}" for reason in report.unsound]
    lines += [f"{_fault(step)} {_title(step)}: {step.difference()}" for step in report.wrong()]
    lines += [f"never stored {stage}: {reason}" for stage, reason in report.never_stored().items()]
    lines += [f"not hit again {stage}: {reason}" for stage, reason in report.missed_again().items()]
    for step in report.of("neutral", "moved"):
        lines += [f"needless miss {_title(step)}: {stage}: {why}" for stage, why in report.needless(step).items()]
    if verbose:
        for step in report.steps:
            calls = " ".join(f"{call.stage.rpartition('.')[2]}={call.reason}" for call in step.cached.calls)
            lines.append(f"{_title(step)}: {step.plain.seconds:.2f} s, {step.cached.seconds:.2f} s; {calls}")
    print(f"{name}: {'' if lines else 'ok'}")
    for line in lines:
        print(f"    {line}")
    sys.stdout.flush()


def _fault(step: Step) -> str:
    return _FAULTS[0] if step.is_wrong_hit else _FAULTS[2] if step.is_other_status else _FAULTS[1]


def _title(step: Step) -> str:
    return f"{step.kind} ({step.about})" if step.about else step.kind


def print_summary(reports: list[Report]) -> None:
    """The figures of the gate."""
    steps = [step for report in reports for step in report.steps]
    never = [report for report in reports if report.never_stored()]
    again = [report for report in reports if report.missed_again()]
    print(f"\n{len(reports)} programs, {len(steps)} steps; {sum(bool(report.unsound) for report in reports)} unsound")
    if not steps:
        return
    for fault in _FAULTS:
        flags = [_fault(step) == fault for step in steps if step.is_wrong]
        names = [report.program.name for report in reports if any(_fault(step) == fault for step in report.wrong())]
        print(f"{fault.lower()}: {sum(flags)} of {len(steps)} steps, {len(names)} programs {' '.join(names)}")
    print(f"programs with a stage never stored: {_share([report in never for report in reports])}")
    ordinary = [report for report in reports if report.program.ordinary]
    print(f"  of the ordinary ones: {_share([report in never for report in ordinary])}")
    reasons = Counter(why.partition(": ")[0] for report in never for why in report.never_stored().values())
    for reason, count in reasons.most_common():
        print(f"    {count} x {reason}")
    print(f"programs with a stage stored and not hit again: {_share([report in again for report in reports])}")
    for kind, title in (("neutral", "neutral edits"), ("moved", "other checkouts")):
        missed = [bool(report.needless(step)) for report in reports for step in report.steps if step.kind == kind]
        print(f"needless misses, {title}: {_share(missed)}")
    outcomes = Counter(call.reason for step in steps for call in step.cached.calls)
    print("calls: " + ", ".join(f"{count} {reason}" for reason, count in outcomes.most_common()))
    for kind in ("first", "again"):
        over = [step.cached.seconds - step.plain.seconds for step in steps if step.kind == kind]
        print(f"seconds over a plain run, {kind}: median {median(over):.2f}, largest {max(over):.2f}")


def _share(flags: list[bool]) -> str:
    return f"{sum(flags)} of {len(flags)} ({sum(flags) / max(1, len(flags)):.1%})"


if __name__ == "__main__":
    sys.exit(main())
