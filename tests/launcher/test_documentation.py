"""docs/launcher.md: its commands work, its settings are accepted, and it names every outcome of a command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cachec.cli.completing import LINE_OPTIONS
from cachec.events import EventLog
from cachec.launcher import adapters
from cachec.launcher.command import Options
from cachec.launcher.exec_settings import ACCEPTED, with_settings
from cachec.model import Reason
from tests.launcher.conftest import Launcher, wait_for_clock, write
from tests.needs import need

TEXT = (Path(__file__).parents[2] / "docs" / "launcher.md").read_text()


COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


#: The files that the page's commands are run with.
FILES = {
    "a.c": "int f(void) { return 1; }\n",
    "model.mlir": "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n",
    "names.txt": "b\na\n",
    "generate.py": "open('made.h', 'w').write('#define X 1')\n",
    "train.py": "import os\nos.makedirs('build', exist_ok=True)\nopen('build/x', 'w').write('x')\n"
    "open('train.log', 'w').write('trained')\n",
}


def test_the_commands_work(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("gcc")
    commands = [line for line in COMMANDS if "--strip" not in line and line.startswith("cachec ")]
    assert len(commands) == 7
    iree = Path(sys.executable).with_name("iree-compile")
    if not iree.exists():
        pytest.skip("not installed: iree-compile")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{iree.parent}:{os.environ['PATH']}")
    for name, text in FILES.items():
        write(name, text)
    wait_for_clock()
    for command in commands:
        program, *line = shlex.split(command)
        assert program == "cachec"
        for kind in ("miss", "hit") if line[0] == "exec" else ("hit",):
            subprocess.run([sys.executable, "-m", "cachec", *line], check=True)
            assert launcher.last().reason.kind == kind, (command, launcher.last())


@pytest.mark.long
def test_what_strip_left_runs_as_it_says(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, running = COMMANDS[-2:]
    folder = Path(sys.executable).parent
    if not (folder / "iree-run-module").exists():
        pytest.skip("not installed: iree-run-module")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    raw = (64).to_bytes(4, "little") + np.arange(64, dtype="<f4").tobytes()
    write(
        "model.mlir",
        "func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {\n"
        "  %w = arith.constant dense_resource<w> : tensor<64xf32>\n"
        "  %y = arith.addf %x, %w : tensor<64xf32>\n"
        "  return %y : tensor<64xf32>\n}\n"
        f'{{-# dialect_resources: {{ builtin: {{ w: "0x{raw.hex()}" }} }} #-}}\n',
    )
    program, *line = shlex.split(compiling)
    assert program == "cachec"
    subprocess.run([sys.executable, "-m", "cachec", *line], check=True)
    assert launcher.last().reason.value == "miss:new-input"
    ran = subprocess.run(shlex.split(running), capture_output=True, text=True, check=True)
    assert "64xf32=10 11 12 13" in ran.stdout


def test_the_settings_and_the_adapter_are_accepted(launcher: Launcher) -> None:
    settings, adapter = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    write("cachec.toml", settings)
    assert with_settings(Options(), os.getcwd()).ignore_env == ("BUILD_USER",)
    write("cachec.toml", adapter)
    found = next(adapters.every())
    assert found.matches("mycc-12")
    assert found.environment.keyed == ("MYCC_OPTIONS",)


def test_the_page_names_each_option_and_each_setting() -> None:
    for name in (*LINE_OPTIONS, *(f"`{field}`" for field in ACCEPTED)):
        assert name in TEXT
    assert len([word for word in TEXT.split() if word != "|"]) <= 1000


def test_every_outcome_of_a_command_that_passes_by_is_there() -> None:
    # A command runs no code of stages, and no plugin speaks for it.
    of_python = {Reason.STALE_MEMO, Reason.UNNAMED_CODE, Reason.UNSUPPORTED_VERSION, Reason.UNRESOLVED_CODE}
    of_python |= {Reason.UNDECLARED_PROGRAM, Reason.PROCESS_BOUND, Reason.UNSTORABLE}
    of_python |= {Reason.NOT_ISOLATED, Reason.ISOLATION_DIFFERS}
    for reason in Reason:
        if reason.kind == "bypass" and reason not in {Reason.MODE_OFF, *of_python}:
            assert f"| `{reason.value}` |" in TEXT, reason


def test_the_documentation_says_which_outcomes_are_told(tmp_path: Path) -> None:
    table = {reason for reason in Reason if f"| `{reason.value}` |" in TEXT} - {Reason.STAGE_RAISED}
    sentence = TEXT.partition("By default ")[2].partition(" are reported on standard error")[0]
    events = EventLog(tmp_path)
    assert set(re.findall(r"`([^`]+)`", sentence)) == {reason.value for reason in table if events.tells(reason)}
