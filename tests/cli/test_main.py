"""The command line as a whole: help, exit codes, errors, imports."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cachec import __version__
from cachec.cli import main
from cachec.cli.session import print_table
from cachec.errors import StoreFault
from cachec.model import Fault

from .conftest import Shell

COMMANDS = [
    "check",
    "stats",
    "ls",
    "log",
    "top",
    "report",
    "show",
    "why",
    "invalidate",
    "gc",
    "pin",
    "weights",
    "bundle",
    "warm",
    "watch",
    "doctor",
    "verify",
    "repro",
    "remote",
    "push",
    "server",
    "init",
    "config",
    "man",
]


def test_commands_are_listed() -> None:
    assert set(main.list_commands(click.Context(main))) == {
        *COMMANDS,
        "exec",
        "python",
        "completion",
    }  # these print what is no JSON


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_and_the_json_fields(shell: Shell, name: str) -> None:
    result = shell.run(name, "--help")
    assert result.exit_code == 0
    assert f"cachec {name}" in result.output.split("Examples:")[1]
    assert "JSON" in result.output
    assert "--json" in result.output


def test_version(shell: Shell) -> None:
    assert shell.run("--version").output == f"cachec, version {__version__}\n"


def test_no_store_gives_empty_answers_and_makes_nothing(shell: Shell) -> None:
    none = f"{shell.dir}: there is no store yet\n"
    assert shell.run("stats").output == f"no calls are recorded in {none}"
    assert shell.run("why", "--all").output == f"no calls are recorded in {none}"
    assert shell.run("pin").output == "no pins: there is no store yet\n"
    assert shell.run("verify").output == f"there is no store in {shell.dir}\n"
    assert shell.run("ls").output == f"no entries in {shell.dir}: there is no store yet\n"
    assert shell.json("ls") == {"dir": str(shell.dir), "entries": []}
    assert shell.json("stats")["calls"] == 0
    for command in ("show", "why", "invalidate"):
        result = shell.run(command, "abcdef")
        assert result.exit_code == 1
        assert "no entry has a key that begins with abcdef" in result.stderr
    assert not shell.dir.exists()


def test_unknown_command(shell: Shell) -> None:
    result = shell.run("stat")
    assert result.exit_code == 2
    assert "Did you mean stats?" in result.stderr


def test_an_option_of_all_commands_goes_before_them(shell: Shell) -> None:
    result = shell.run("ls", "--dir", "x")
    assert result.exit_code == 2
    assert "cachec --dir DIR COMMAND" in result.stderr
    assert "--stage" in shell.run("ls", "--stages", "x").stderr


@pytest.mark.parametrize("text", ["abc", "abcdeg", "a" * 65])
def test_what_is_no_key(shell: Shell, text: str) -> None:
    result = shell.run("why", text)
    assert result.exit_code == 2
    assert result.stderr == f"cachec: error: '{text}' is no key: give 6 to 64 hexadecimal characters\n"


def test_a_config_error_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_MODE", "onn")
    result = shell.run("ls")
    assert result.exit_code == 2
    assert result.stderr.startswith("cachec: error: environment: CACHEC_MODE: mode = 'onn'")
    assert result.stderr.count("\n") == 1


def test_a_store_fault_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_store: object) -> None:
        raise StoreFault(Fault.INDEX_CORRUPT, "no database")

    monkeypatch.setattr("cachec.store.index.DiskcacheIndex.rows", lambda _index, _prefix: broken(None))
    result = shell.run("ls")
    assert (result.exit_code, result.stderr) == (2, "cachec: error: index-corrupt: no database\n")


def test_an_error_of_the_system_is_one_line(shell: Shell) -> None:
    (shell.dir / "log").mkdir(parents=True)
    (shell.dir / "log").chmod(0o000)
    result = shell.run("stats")
    (shell.dir / "log").chmod(0o700)
    assert result.exit_code in {0, 2}  # root may read it
    assert result.stderr.count("\n") == result.stderr.count("cachec: error:")


def test_a_file_that_is_not_there_is_named(shell: Shell) -> None:
    result = shell.run("repro", "show", "nothing.zip")
    assert (result.exit_code, result.stderr) == (2, "cachec: error: 'nothing.zip': No such file or directory\n")


def test_the_folder_comes_from_the_settings_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_DIR", "elsewhere")
    result = CliRunner().invoke(main, ["ls"])
    assert result.output == f"no entries in {shell.dir.parent / 'elsewhere'}: there is no store yet\n"


@pytest.mark.parametrize("line", ["ls", "show abcdef", "gc", "pin", "invalidate abcdef", "weights ls"])
def test_a_file_in_place_of_a_store_is_said_to_be_none(shell: Shell, line: str) -> None:
    shell.dir.write_text("x")
    result = shell.run(*line.split())
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cachec: error: {shell.dir} is no folder, so it can be no store")


def test_neither_numpy_nor_a_compiler_is_imported() -> None:
    code = (
        "import sys, cachec.cli; from cachec.cli import cmd_ls, cmd_show, cmd_why, cmd_stats, cmd_config, cmd_weights;"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'numpy', 'jax', 'iree', 'rich', 'ml_dtypes'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_question_imports_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """``check`` of a command that would hit: no code of stages, no weights, no decoding, no comparison, no process."""
    (tmp_path / "a").write_text("text")
    line = ["--input", "a", "--output", "b", "--", "cp", "a", "b"]
    environ = os.environ | {"CACHEC_DIR": str(tmp_path / "cache"), "CACHEC_SERVER": "off"}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    run([sys.executable, "-m", "cachec", "exec", *line])
    shutil.rmtree(tmp_path / "cache" / "direct")  # a memo would answer without most of it
    done = run([sys.executable, "-X", "importtime", "-m", "cachec", "check", *line])
    assert done.stdout == "hit\n"
    imported = {each.rpartition("|")[2].strip() for each in done.stderr.splitlines() if each.startswith("import time:")}
    assert "cachec.launcher.explain" in imported
    rooms = ("cachec.key.code", "cachec.weights", "cachec.codecs", "cachec.key.key_diff", "cachec.key.arguments")
    others = (
        "cachec.commands.process",
        "cachec.launcher.execute",
        "subprocess",
        "shutil",
        "tomllib",
        "asyncio",
        "json",
    )
    assert not [name for name in imported if name.startswith(rooms) or name in others]


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_what_click_seldom_needs_is_left_out(tmp_path: Path, command: str) -> None:
    environ = os.environ | {"CACHEC_DIR": str(tmp_path)}
    line = [sys.executable, "-X", "importtime", "-m", "cachec", command]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
    imported = {each.rpartition("|")[2].strip() for each in done.stderr.splitlines() if each.startswith("import time:")}
    assert "click.core" in imported
    assert imported.isdisjoint({"inspect", "ast", "tokenize", "ipaddress"})


_LEFT_OUT = """
import sys, cachec.__main__
cachec.__main__._import_click()
import click.core
stand_in = click.core.inspect
texts = [" a\\tb ", "", "a\\n\\n   b\\n     c\\n "]
print("inspect" in sys.modules, stand_in.cleandoc("a"), "inspect" in sys.modules)
cleaned = [stand_in.cleandoc(text) for text in texts]
import inspect, ipaddress, urllib.parse
print(type(inspect).__name__, cleaned == [inspect.cleandoc(text) for text in texts])
print(stand_in.signature is inspect.signature, type(ipaddress).__name__, urllib.parse.urlsplit("http://[::1]/x").hostname)
"""


def test_what_is_left_out_is_there_for_whoever_asks() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT_OUT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False a False", "module True", "True module ::1"]


def test_a_thread_that_a_command_leaves_behind_is_waited_for() -> None:
    """Where none is left, the process ends without taking the interpreter apart."""
    code = (
        "import sys, threading, cachec.cli, cachec.__main__\n"
        "def late():\n    threading.main_thread().join()\n    print('done', flush=True)\n"
        "def command(prog_name):\n"
        "    if sys.argv[1:] == ['late']: threading.Thread(target=late).start()\n"
        "    print('command')\n    sys.exit(3)\n"
        "cachec.cli.main = command\nsys.exit(cachec.__main__.main())\n"
    )
    for words, said in ((["late"], "command\ndone\n"), ([], "command\n")):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


def test_columns_are_as_wide_as_a_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A microsecond is shown without an import of rich."""
    print_table(("took", "name"), [("3 µs", "é"), ("\u6771\u4eac", "e\u0301"), ("10 ms", "x")])
    assert capsys.readouterr().out.splitlines() == [
        "took   name",
        "3 µs   é",
        "\u6771\u4eac   e\u0301",
        "10 ms  x",
    ]
