"""The options of ``cachec exec`` that change what is stored, on the command line and in ``[exec]`` of the settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachec.cli.completion import LINE_OPTIONS
from cachec.errors import ConfigError, UsageError
from cachec.launcher import options
from cachec.launcher.command import Options
from cachec.launcher.exec_settings import with_settings
from tests.launcher.conftest import Launcher, wait_for_clock, write


def configure(launcher: Launcher, text: str) -> None:
    """Write ``[exec]`` into the configuration file, which is in the folder above."""
    (launcher.folder.parent / "cachec.toml").write_text(f"[exec]\n{text}\n")


@pytest.fixture(params=["option", "setting"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refined(launcher: Launcher, way: str, option: str, setting: str) -> list[str]:
    """The options of a command line; or none, and the settings that say the same."""
    if way == "option":
        return [option]
    configure(launcher, setting)
    return []


def test_outputs_elsewhere(launcher: Launcher, tmp_path: Path, way: str) -> None:
    (tmp_path / "away").mkdir()
    line = ("sh", "-c", f"d={tmp_path}/aw'ay' && date +%N > $d/x.log")
    launcher.run(*line)
    assert launcher.last().reason.value == "bypass:undescribed-effect"
    given = refined(launcher, way, f"--outputs={tmp_path}/away/*", 'outputs = ["away"]')
    launcher.run(*line, options=given)
    assert launcher.last().stored, launcher.last()
    made = (tmp_path / "away" / "x.log").read_bytes()
    (tmp_path / "away" / "x.log").unlink()
    launcher.run(*line, options=given)
    assert launcher.last().hit
    assert (tmp_path / "away" / "x.log").read_bytes() == made
    assert launcher.direct(*line, options=given) is not None
    if way == "setting":
        configure(launcher, 'outputs = ["elsewhere"]')
        assert launcher.direct(*line) is None
        launcher.run(*line)
        assert not launcher.last().hit


#: Commands whose result depends on what ``log`` held before, and whether each also runs without a file there.
USES = {
    "sed -i s/v/w/ log": False,
    "echo tail >> log": True,
    "echo x 1<> log": True,
    "touch log": False,
    "chmod 600 log": False,
    "old=$(cat log 2>&1); echo $old > log": True,
    "mv log old; cat old > log; rm old": False,
    "{ cat log; echo x; } > new 2>&1; mv new log": True,
}


@pytest.mark.parametrize("script", USES)
def test_an_output_that_was_used_before_it_was_written(launcher: Launcher, way: str, script: str) -> None:
    given = refined(launcher, way, "--outputs=log", 'outputs = ["work/log"]')
    line = ("sh", "-c", script)
    for text in ("v2\n", "v3\n"):
        write("log", text)
        wait_for_clock()
        subprocess.run(line, check=True)
        made = Path("log").read_text()
        write("log", text)
        launcher.run(*line, options=given)
        assert Path("log").read_text() == made
        assert not launcher.last().stored
        assert "/work/log" in launcher.last().detail
        assert "--outputs" not in launcher.last().detail


@pytest.mark.parametrize("script", [script for script, runs_without in USES.items() if runs_without])
def test_an_output_that_was_not_there_to_be_used(launcher: Launcher, way: str, script: str) -> None:
    given = refined(launcher, way, "--outputs=log", 'outputs = ["work/log"]')
    line = ("sh", "-c", script)
    launcher.run(*line, options=given)
    write("log", "v3\n")
    wait_for_clock()
    subprocess.run(line, check=True)
    made = Path("log").read_text()
    write("log", "v3\n")
    launcher.run(*line, options=given)
    assert Path("log").read_text() == made
    assert not launcher.last().hit


@pytest.mark.parametrize("script", ["test -s log; echo x > log", "rm -f log; echo x > log", "echo x > new; mv new log"])
def test_an_output_that_was_looked_at_or_replaced(launcher: Launcher, way: str, script: str) -> None:
    given = refined(launcher, way, "--outputs=log", 'outputs = ["work/log"]')
    for text in ("v2\n", "v3 and more\n"):
        write("log", text)
        launcher.run("sh", "-c", script, options=given)
        assert Path("log").read_text() == "x\n"
    assert launcher.last().hit


def test_variables_that_do_not_count(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    given = refined(launcher, way, "--ignore-env=BUILD_*", 'ignore_env = ["BUILD_*"]')
    line = ("sh", "-c", "echo $BUILD_HOST > out")
    for value in ("one", "two"):
        monkeypatch.setenv("BUILD_HOST", value)
        launcher.run(*line, options=given)
    assert launcher.reasons() == ["miss:new-input", "hit"]
    monkeypatch.setenv("OTHER", value)
    launcher.run(*line, options=given)
    assert launcher.last().reason.value == "miss:environment-changed"


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that says hello to each."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    asked, _ = listening.accept()
                except OSError:
                    return
                with asked:
                    asked.sendall(b"hello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_network_that_is_trusted(launcher: Launcher, server: int, way: str) -> None:
    script = f"import socket; print(socket.create_connection(('127.0.0.1', {server})).recv(9))"
    line = (sys.executable, "-S", "-c", script)
    launcher.run(*line)
    assert launcher.last().reason.value == "bypass:network"
    given = refined(launcher, way, "--network=trust", 'network = "trust"')
    launcher.run(*line, options=given)
    assert launcher.last().stored
    assert launcher.run(*line, options=given).stdout == "b'hello'\n"
    assert launcher.last().hit
    (launcher.folder.parent / "cachec.toml").unlink()
    launcher.run(*line)
    assert launcher.last().reason.value == "bypass:network"  # what somebody trusts is no hit of who does not


@pytest.mark.parametrize("folder", [".tool", "work/var/cache", "~/of-tool"])
def test_folders_in_which_a_program_keeps_what_saves_time(launcher: Launcher, folder: str) -> None:
    path = {".tool": "sub/.tool", "work/var/cache": "var/cache", "~/of-tool": "$HOME/of-tool"}[folder]
    parts = f"{path[:-2]}''{path[-2:]}"  # the script does not name the folder
    line = ("sh", "-c", f"d={parts}; mkdir -p $d; date +%N >> $d/x; echo made > out")
    launcher.run(*line)
    launcher.run(*line)
    assert not launcher.last().hit
    configure(launcher, f'cache_folders = ["{folder}"]')
    launcher.run(*line)
    assert launcher.last().stored
    place = Path(os.path.expandvars(path), "x")
    made = place.read_bytes()
    launcher.run(*line)
    assert launcher.last().hit
    assert place.read_bytes() == made


def test_all_of_standard_input(launcher: Launcher) -> None:
    """A pipe counts where it is read to its end first; the command gets all of it."""
    program = [sys.executable, "-m", "cachec", "exec"]
    for given, text, expected in (
        *(([], b"one\n", "bypass:undescribed-effect"), (["--stdin"], b"one\n", "miss:first-run")),
        *((["--stdin"], b"one\n", "hit"), (["--stdin"], b"two\n", "miss:file-changed")),
    ):
        done = subprocess.run([*program, *given, "--", "sort"], input=text, capture_output=True, check=True)
        assert done.stdout == text
        assert launcher.last().reason.value == expected


def test_a_result_that_holds_no_folder(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given, expected in (
        *(("one", [], "miss:new-input"), ("two", [], "miss:dependency-changed")),
        *(("one", ["--relocatable"], "miss:option-changed"), ("two", ["--relocatable"], "hit")),
    ):
        write(f"{name}/a.txt", "x\n")
        wait_for_clock()
        monkeypatch.chdir(launcher.folder / name)
        monkeypatch.setenv("CACHEC_BASE_DIR", os.getcwd())
        launcher.run("cp", "a.txt", "b.txt", options=given)
        assert launcher.last().reason.value == expected, (name, given)
        monkeypatch.chdir(launcher.folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("output = []", "'output' is not a setting of [exec] (did you mean outputs?)"),
        ('outputs = "*.log"', "is not accepted; give a list of patterns"),
        ('outputs = ["../x"]', "leads out of the project"),
        ('outputs = ["/etc/*"]', "leads out of the project"),
        ('outputs = ["."]', "leads out of the project"),
        ('ignore_env = [""]', "is not accepted; give a list of names"),
        ('network = "on"', "is not accepted"),
        ('network = ""', "is not accepted"),
        ("cache_folders = [1]", "is not accepted; give a list of names of folders"),
        ('cache_folders = ["~nobody-of-that-name/x"]', "its home folder is not known"),
    ],
)
def test_settings_that_are_refused(launcher: Launcher, text: str, words: str) -> None:
    configure(launcher, text)
    with pytest.raises(ConfigError) as error:
        with_settings(Options(), os.getcwd())
    assert words in str(error.value)
    assert "cachec.toml:2: " in str(error.value)
    assert words in launcher.run("true").stderr


def test_settings_of_others_are_refused(launcher: Launcher) -> None:
    configure(launcher, 'network = "trust"')
    (launcher.folder.parent / "cachec.toml").chmod(0o666)
    assert "is refused" in launcher.run("true").stderr


def test_the_help_has_each_option() -> None:
    for name, (metavar, _) in LINE_OPTIONS.items():
        value = {"--network": "trust"}.get(name, "x")
        given, command = options.parse([name, *([value] if metavar else []), "--", "true"])
        assert (given != Options(), command) == (True, ["true"])
    with pytest.raises(UsageError) as error:
        options.parse(["--no-such-thing", "--", "true"])
    assert set(str(error.value).partition("the options are ")[2].split(", ")) == {*LINE_OPTIONS}


def test_a_variable_that_an_option_names_counts(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the settings say."""
    write("cachec.toml", '[exec]\nignore_env = ["BUILD_USER"]\n')
    for given, hits in (([], True), (["--env", "BUILD_USER"], False)):
        for user in ("one", "two"):
            monkeypatch.setenv("BUILD_USER", user)
            assert launcher.run("sh", "-c", "echo $BUILD_USER > out", options=given).code == 0
        assert launcher.last().hit is hits
