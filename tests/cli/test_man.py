"""The pages of the manual: every command and option, as the help has them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cachec.cli import main
from cachec.cli.cmd_man import pages
from cachec.cli.completion import LINE_OPTIONS

from .conftest import Shell


@pytest.fixture(scope="module")
def manual() -> dict[str, str]:
    return dict(pages(main))


def plain(page: str) -> str:
    """What a page says, without what is for roff alone."""
    marks = {r"\-": "-", r"\(dq": '"', r"\(ga": "`", r"\(aq": "'", r"\(ti": "~", r"\(ha": "^", r"\&": "", r"\e": "\\"}
    for mark, said in marks.items():
        page = page.replace(mark, said)
    return page


def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    yield path, group
    for name in [*group.list_commands(context), *(["mlir"] if len(path) == 1 else [])]:
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


def words_of(text: str) -> list[str]:
    return re.sub(r"^\.(PP|nf|fi)$", "", text.replace("\b", ""), flags=re.MULTILINE).split()


def test_every_command_and_option_is_there(manual: dict[str, str]) -> None:
    known = dict(commands(main, ("cachec",)))
    assert set(manual) == {"-".join(path) for path in known}
    assert len(known) > 35
    for path, command in known.items():
        text = plain(manual["-".join(path)])
        sections = dict(re.findall(r"^\.SH (.*)\n((?:(?!\.SH ).*\n)*)", text, re.MULTILINE))
        assert sections["SYNOPSIS"].startswith(f".B {' '.join(path)}\n")
        assert words_of(sections["DESCRIPTION"]) == words_of(command.help or ""), path
        for param in command.params:
            if isinstance(param, click.Option):
                for name in (*param.opts, *param.secondary_opts):
                    assert re.search(rf"^\.B (.*[ ,])?{re.escape(name)}\b", sections["OPTIONS"], re.MULTILINE)
                assert (param.help or "") in sections["OPTIONS"]
            else:
                assert param.make_metavar(click.Context(command)) in sections["SYNOPSIS"]


@pytest.mark.parametrize("name", ["exec", "check"])
def test_completion_offers_what_the_help_names(shell: Shell, manual: dict[str, str], name: str) -> None:
    page, told = plain(manual[f"cachec-{name}"]), " ".join(shell.run(name, "--help").output.split())
    for option, (metavar, words) in LINE_OPTIONS.items():
        assert " ".join(f"{option} {metavar} {words}".split()) in told
        assert f"{option} {metavar}".rstrip() in page


@pytest.mark.long
def test_roff_has_nothing_to_complain_of(shell: Shell) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    found = shell.json("man", "man1")["pages"]
    assert found[0] == "man1/cachec.1"
    for page in found:
        done = subprocess.run([groff, "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, check=True)
        assert not done.stderr
    assert r"cachec bundle create" in Path("man1/cachec-bundle-create.1").read_text()


def test_a_file_in_place_of_the_folder(shell: Shell) -> None:
    Path("taken").write_text("")
    assert shell.run("man", "taken").exit_code == 2
