"""Commands that packages add: found without being imported, named in the help, and clear when they are broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cachec.cli.plugin_commands import GROUP, plugin_commands

from .conftest import Shell


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the path with a package ``toolbox`` 1.2 that offers commands."""
    folder = tmp_path / "site"
    info = folder / "toolbox-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toolbox\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nhammer = toolbox_cli:command\nbroken = toolbox_missing:command\nwrong = toolbox_cli:number\n"
        "absent = toolbox_cli:nothing\nstats = toolbox_cli:command\n"
    )
    (folder / "toolbox_cli.py").write_text(
        "import click\nfrom cachec.errors import UsageError\nnumber = 1\n"
        "@click.command()\n@click.option('--fail', is_flag=True)\ndef command(fail):\n    '''Hit it.'''\n"
        "    if fail:\n        raise UsageError('the nail is bent')\n    click.echo('bang')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("toolbox_cli", None)


def test_a_command_of_a_package(shell: Shell, site: Path) -> None:
    assert shell.run("hammer").stdout == "bang\n"
    assert "Hit it." in shell.run("hammer", "--help").stdout
    result = shell.run("hammer", "--fail")
    assert (result.exit_code, result.stderr) == (2, "cachec: error: the nail is bent\n")


def test_the_help_names_it_without_importing(shell: Shell, site: Path) -> None:
    help_ = shell.run("--help").stdout.partition("Commands of plugins")[2]
    assert "hammer" in help_
    assert "toolbox" in help_
    assert "toolbox_cli" not in sys.modules


def test_built_in_names_win(shell: Shell, site: Path) -> None:
    assert "stats" not in plugin_commands(["stats"])
    assert "bang" not in shell.run("stats").stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [("broken", "toolbox_missing"), ("wrong", "is a int, expected a click.core.Command"), ("absent", "nothing")],
)
def test_a_broken_one_names_its_package(shell: Shell, site: Path, name: str, says: str) -> None:
    result = shell.run(name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cachec: error: command '{name}' of package toolbox 1.2 (toolbox_")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert shell.run("--help").exit_code == 0


def test_an_unknown_command_is_compared_with_theirs_too(shell: Shell, site: Path) -> None:
    assert "Did you mean hammer?" in shell.run("hamer").stderr
