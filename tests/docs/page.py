"""A page of docs/ as a program: its files are written, its commands run in order, and what they print is compared.

A block of code whose first line is a comment with a name (``# first.py``, ``// abs.mlir``) is that file. In a block
``console`` a line after ``$ `` is a command, and the lines below it are what it prints. There ``...`` stands for
any text, as a line of its own for any lines; numbers, their units and keys may be others, and columns wider.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?:#|//) ([\w./-]+)\n")
_MARK = "-- exit code "


@dataclass(frozen=True)
class Block:
    """language: as the page has it after the backquotes. name: of the file that the block is, or None."""

    language: str
    text: str

    @property
    def name(self) -> str | None:
        named = _NAME.match(self.text)
        return None if named is None or self.language == "console" else named[1]


@dataclass(frozen=True)
class Command:
    """line: what a shell gets. output: the lines that the page shows below it."""

    line: str
    output: tuple[str, ...]


def sections(page: str) -> dict[str, str]:
    """Heading -> text, of a page by its path below docs/. What stands before the first heading is ``""``."""
    first, *others = re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)
    return {"": first} | {heading: text for heading, _, text in (each.partition("\n") for each in others)}


def blocks(text: str) -> Iterator[Block]:
    """The blocks of code in the text of a page."""
    for language, code in _BLOCK.findall(text):
        yield Block(language, code)


def commands(block: Block) -> Iterator[Command]:
    """Of a block ``console``."""
    for each in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *output = each.splitlines()
        while line.endswith("\\"):
            line += "\n" + output.pop(0)
        yield Command(line, tuple(output))


class Reader:
    """Somebody who follows pages in a folder, with a store of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".bin").mkdir()
        for name, command in (
            ("cachec", f'"{sys.executable}" -P -m cachec'),
            ("cachec-ci.sh", f'bash "{DOCS.parent / "plugins" / "github" / "cachec-ci.sh"}"'),
        ):
            script = folder / ".bin" / name
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            script.chmod(0o755)
        programs = [str(folder / ".bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("CACHEC_", "MAKE", "PYTEST_"))
        }
        self.environ = inherited | {
            "PATH": os.pathsep.join(programs),
            "CACHEC_DIR": str(folder / ".store"),
            "CACHEC_SERVER": "off",
            "HOME": str(folder / ".home"),
        }
        (folder / ".home").mkdir()

    def follow(self, page: str, *headings: str) -> None:
        """Follow a page, or only its sections with these headings; see ``follow_text``."""
        chosen = [text for heading, text in sections(page).items() if not headings or heading in headings]
        self.follow_text("".join(chosen))

    def follow_text(self, text: str) -> None:
        """Write the files of a text, run its commands, and compare what they print."""
        shown: list[Command] = []
        script = []
        for number, block in enumerate(blocks(text)):
            if block.name is not None:
                end = f"END{number}"
                script += [f"mkdir -p $(dirname {block.name})", f"cat > {block.name} <<'{end}'\n{block.text}{end}"]
            if block.language == "console":
                for command in commands(block):
                    shown.append(command)
                    script += [command.line, f"printf '\\n{_MARK}%s\\n' $?"]
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        *printed, rest = re.split(rf"\n{_MARK}(\d+)\n", done.stdout)
        assert not rest, done.stdout
        for command, output, code in zip(shown, printed[::2], printed[1::2], strict=True):
            lines = [f"$ {command.line}", "expected:", *command.output, f"found, exit code {code}:", output]
            if command.output:
                assert re.fullmatch(_expected(command.output), _plain(output) + "\n"), "\n".join(lines)
            says_failure = set(command.output) - {"..."}  # else nobody would see it, here and in the page
            assert code == "0" or says_failure, "\n".join(lines)


def _plain(text: str) -> str:
    """The text without what differs from run to run: numbers, their units, keys, and how wide a column is."""
    text = re.sub(r"\b[0-9a-f]{12}\b", "KEY", text)
    text = re.sub(r"\d+(?:[.,:]\d+)*", "N", text)
    text = re.sub(r"\bN (?:µs|ms|s|min|h)\b", "N s", text)
    text = re.sub(r"\bN (?:[KMG]i)?B\b", "N B", text)
    text = re.sub(r"\bnow\b", "N s ago", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _expected(lines: tuple[str, ...]) -> str:
    """A regular expression for what ``_plain`` makes of an output."""
    plain = _plain("\n".join(lines)).splitlines()
    return "".join("(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in plain)
