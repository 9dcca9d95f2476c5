"""What a person sees at 60, 80, 120 and 200 columns, as files: ``screens/<columns>.txt``.

After a change that is meant: ``make test ARGS='tests/cli/test_screens.py -n 0 --write-screens'``, and read the diff.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

import cachec
import cachec.doctor.case  # binds time.time as it is imported, which must not be while that is patched
import cachec.key.tools.distribution_watch  # the same
from cachec.cli import main
from cachec.cli.help_layout import WIDEST
from cachec.cli.screen import cell_width, cut, print_table, wrap_text
from cachec.events import EventLog
from cachec.maintain.maintainer import Maintainer
from cachec.model import Fault, Outcome, Reason
from cachec.weights.library.stored_weights import WeightStore
from tests.parts import part

from .conftest import Shell

SCREENS = Path(__file__).with_name("screens")
COLUMNS = (60, 80, 120, 200)
_NOW = 1.8e9
_DAYS = 3.2 * 86400

#: Each is a command line; what changes from run to run is not in any of them.
LINES = (
    "ls",
    "ls --stage nothing",
    "show aaaaaa",
    "show aaaaaa --full",
    "show cccccc",
    "why bbbbbb aaaaaa",
    "why --all",
    "stats",
    "invalidate --stage lower --dry-run",
    "invalidate --older-than 4w --dry-run",
    "gc --dry-run",
    "pin",
    "config",
    "weights ls",
    "weights show deep",
    "weights show small",
    "weights diff small deep",
    "weights show --help",
)

_LONG = "a_project.with_packages.whose_names_are_long.and_modules.that_say_what_they_do.lower_the_whole_model_to_linalg"


@pytest.fixture(scope="module")
def screens_shell() -> Iterator[Shell]:
    """A store with all kinds of entries, in a folder whose name is as long in each run."""
    with tempfile.TemporaryDirectory(prefix="screens-", dir="/tmp") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        for variable in [each for each in os.environ if each.startswith(("CACHEC_", "XDG_", "COLUMNS"))]:
            patch.delenv(variable)
        patch.chdir(folder)
        patch.setenv("HOME", name)
        patch.setattr("time.time", lambda: _NOW)
        # These have bound theirs.
        for holder, then in ((Maintainer, _NOW), (WeightStore, _NOW - 53 * 86400)):
            patch.setitem(holder.__init__.__kwdefaults__ or {}, "clock", lambda then=then: then)
        (folder / "cachec.toml").write_text('namespace = "default"\nmax_size = "5GiB"\n')
        shell = Shell(folder / "store")
        _fill(shell, folder)
        yield shell


def _fill(shell: Shell, folder: Path) -> None:
    base = (
        part("stage/pkg.build", ""),
        part("code/pkg.build", "build.py:12"),
        part("distribution/iree-base-compiler", "iree-base-compiler 3.13.0"),
        part("platform", f"x86_64 Linux glibc 2.36; {' '.join(f'feature{n}' for n in range(40))}"),
        part("arg/target", "'llvm-cpu'"),
    )
    other = (*base[:-1], part("arg/target", "'vmvx with ' + " + " + ".join(f"'{n} words'" for n in range(20))))
    helpers = tuple(part(f"code/pkg.layers.helper_{n}", f"layers.py:{n}") for n in range(30))
    shell.publish("aaaaaa", base, ago=_DAYS)
    shell.publish("bbbbbb", other, content=b"x" * 5000, ago=4 * _DAYS)
    shell.publish("cccccc", (*base, *helpers), stage=_LONG, content=b"y" * 3_000_000, ago=30 * _DAYS)
    shell.publish("dddddd", base, stage="\u6771\u4eac.lower", ago=31 * _DAYS)
    shell.run("pin", "aaaaaa", "--tag", "release")
    log = EventLog(shell.dir, log="off", clock=lambda: _NOW - _DAYS)
    for reason, stage, seconds, saved, detail in (
        (Reason.FIRST_RUN, "pkg.build", 50.0, 0.0, "no entry of this stage"),
        (Reason.HIT, "pkg.build", 0.5, 40.0, ""),
        (Reason.HIT, "pkg.tiny", 0.5, 0.25, ""),
        (Reason.OPTION_CHANGED, _LONG, 75.0, 0.0, " ".join(["target: 'llvm-cpu' -> 'vmvx'"] * 12)),
        (Reason.STAGE_RAISED, "pkg.tiny", 0.01, 0.0, "ValueError"),
    ):
        key = "b" * 64 if reason is Reason.OPTION_CHANGED else ""
        log.emit(Outcome(reason=reason, stage=stage, key=key, detail=detail, seconds=seconds, saved=saved))
    log.note_fault(Fault.STORE_FULL, "no room")
    deep = {
        f"model.layers.{n}.self_attn.{each}_proj.weight": np.zeros((64, 64), "f4") for n in range(6) for each in "qkvo"
    }
    small = {"embed": np.ones((8, 4), "f4"), "head": np.ones((4, 8), "f4")}
    for name, arrays in (("deep", deep), ("small", small)):
        path = folder / f"{name}-{'x' * 40}.safetensors"
        cachec.WeightSet.from_arrays(arrays).save(path)
        assert shell.run("weights", "add", path.name, name, "--own").exit_code == 0


def screen(shell: Shell, line: str) -> str:
    """What a command says, with names and times that are the same in each run."""
    result = shell.run(*line.split(), terminal_width=min(shutil.get_terminal_size().columns, WIDEST))
    text = result.output.replace(str(shell.dir.parent), f"/tmp/screens-{'_' * 8}")
    return re.sub(r"\d\.\d{2} (ms|µs|s) hash", "0.00 s hash", text)


@pytest.mark.parametrize("columns", COLUMNS)
def test_screens(
    screens_shell: Shell, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    told = [(line, screen(screens_shell, line)) for line in LINES]
    found = "\n".join(f"$ cachec {line}\n{text}" for line, text in told)
    path = SCREENS / f"{columns}.txt"
    if pytestconfig.getoption("--write-screens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert path.read_text() == found, "see the beginning of this module"
    for each in found.splitlines():
        is_whole = len(each.split()) <= 3 or each.lstrip().startswith("cachec --dir ")
        assert cell_width(each) <= columns or is_whole, "one word, or a command, may be longer than a line"
        assert each == each.rstrip()


def commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command, groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*above, name)
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*above, name))


@pytest.mark.parametrize("columns", [60, 110])
def test_help_fits_and_its_json_is_filled(screens_shell: Shell, columns: int) -> None:
    for words in [(), *commands(main)]:
        text = screens_shell.run(*words, "--help", terminal_width=columns).output
        assert text.startswith(" ".join(("Usage: cachec", *words)))
        long = [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
        assert not long, f"cachec {' '.join(words)} --help"


def test_show_fits_a_screen(screens_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for line in ("show cccccc", "weights show deep"):
        assert len(screen(screens_shell, line).splitlines()) < 24
    assert "layers.py:29" in screen(screens_shell, "show cccccc --full")
    whole = screen(screens_shell, "weights show deep --full")
    assert whole.count("self_attn") == 24


def test_nothing_is_wrapped_for_a_program(screens_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    header, *rows = screen(screens_shell, "ls").splitlines()
    assert len(rows) == 4
    assert all(row.index("  ") == header.index("  ", 3) or row.startswith(("a", "b", "c", "d")) for row in rows)
    assert any(_LONG in row and row.endswith("1.50 s") for row in rows)


def test_the_cell_that_tells_rows_apart_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("k" * 30, "1", "why"), ("a" * 10, "22", "a long reason " * 8)]
    for columns in (*range(20, 60), 500):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(("name", "number", "reason"), rows, right=("number",), detail="reason")
        printed = capsys.readouterr().out.splitlines()
        assert {"k" * 30, "a" * 10} <= {line.split()[0] for line in printed}
        assert max(map(len, printed)) <= max(columns, 30)
        assert "\n".join(printed).count("reason") == 8 + ("reason" in printed[0])


def test_words_are_never_broken() -> None:
    digest = "0123456789abcdef" * 4
    for limit in range(20, 100):
        lines = [*wrap_text(f"the digest {digest} of it, and so on", limit, 3, hanging=2)]
        assert sum(digest in line for line in lines) == 1
        assert all(len(line) <= limit or line.strip() == digest for line in lines)
    assert [*wrap_text("", 80, 4)] == [""]
    assert [*wrap_text("a  b", None, 2)] == ["  a  b"]


def test_what_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert cut("x" * 30, 10) == "x" * 30
    assert cut("x" * 31, 10) == "x" * 29 + "…"
    assert cut("\u6771" * 16, 10) == "\u6771" * 14 + "…"


@pytest.mark.parametrize(
    ("environ", "bold"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=str
)
def test_colour_is_for_terminals_that_want_it(screens_shell: Shell, environ: dict[str, str], bold: bool) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "cachec", "--dir", str(screens_shell.dir), "ls"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "TERM": "xterm", **environ},
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    assert (b"\x1b[1mkey" in shown, done.stderr) == (bold, b"")
    assert (b"\x1b" in shown) == bold
