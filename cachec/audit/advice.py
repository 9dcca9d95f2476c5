"""What to say to ``cachec exec``, or to write in an adapter, so that a key covers what a command was seen to do."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from cachec.audit.findings import Finding
from cachec.launcher.command import Command

#: Kinds of findings whose ``fix`` is an option of ``cachec exec``.
_OPTIONS = frozenset({"read", "program", "listing", "written"})


class Advice(NamedTuple):
    """options: words of ``cachec exec``, in order. adapter: TOML, empty where the command has one."""

    options: tuple[str, ...]
    adapter: str


def advice_for(command: Command, outcome: str, problems: Sequence[Finding]) -> Advice:
    """What is missing; nothing where all is covered."""
    words: list[str] = []
    for problem in problems:
        if problem.kind in _OPTIONS and problem.fix.startswith("--"):
            words += problem.fix.split(" ", 1)
    if not words:
        return Advice((), "")
    options = tuple(words)
    has_adapter = command.adapter is not None
    adapter = _helpers(command, problems) if has_adapter else _adapter(command, problems)
    return Advice(options, adapter if not has_adapter or outcome == "described" else "")


def command_line(command: Sequence[str], options: Sequence[str]) -> str:
    """The whole line, as it would be typed."""
    return shlex.join(["cachec", "exec", *options, "--", *command])


def _helpers(command: Command, problems: Sequence[Finding]) -> str:
    """What to add to an adapter that is there: the programs that its command starts."""
    assert command.adapter is not None
    names = [problem.fix.removeprefix("--tool ") for problem in problems if problem.kind == "program"]
    if not names:
        return ""
    return f"# in the adapter {command.adapter.name}:\nhelpers = {json.dumps([*command.adapter.helpers, *names])}\n"


def _adapter(command: Command, problems: Sequence[Finding]) -> str:
    """An adapter for a command that has none, as far as its command line tells what is what; empty where it reads what
    no word of its line names (headers), which an adapter of flags can't cover."""
    name = os.path.basename(command.argv[0])
    reads = {problem.path for problem in problems if problem.kind == "read"}
    reads |= {os.path.normpath(each.path) for each in command.inputs}
    writes = {problem.path for problem in problems if problem.kind == "written"}
    writes |= {os.path.normpath(output.path) for output in command.outputs}
    weights = {os.path.normpath(path): key for path, key in command.weights.items()}
    unnamed, flags = set(reads), dict[str, str]()
    has_positional = is_odd = False
    previous = ""
    for word in command.argv[1:]:
        value, flag, takes = _value(word, previous)
        path = os.path.normpath(os.path.join(command.cwd, value)) if value else ""
        previous = word
        unnamed.discard(path)
        if path in weights:
            means = f'"weights", key = {json.dumps(weights[path])}'
        elif path in writes:
            means = '"output-folder"' if os.path.isdir(path) else '"output"'
        elif path in reads:
            means = '"input"'
        else:
            continue
        if flag:
            flags.setdefault(
                flag, f"  {{ names = [{json.dumps(flag)}], takes = [{json.dumps(takes)}], is = {means} }},"
            )
        elif means == '"input"':
            has_positional = True
        else:
            is_odd = True
    if is_odd or unnamed or not (has_positional or any('"input"' in line for line in flags.values())):
        return ""  # files without a flag are told apart by order, which no adapter can say either
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
    lines = [f"[adapters.{key}]", f"match = [{json.dumps(name)}]"]
    helpers = [problem.fix.removeprefix("--tool ") for problem in problems if problem.kind == "program"]
    if helpers:
        lines.append(f"helpers = {json.dumps(helpers)}")
    also = [problem.path for problem in problems if problem.kind == "distribution"]
    if also:
        lines.append(f"also = {json.dumps(also)}")
    if not has_positional:
        lines.append('positional = "value"')
    return "\n".join([*lines, "flags = [", *flags.values(), "]", ""])


def _value(word: str, previous: str) -> tuple[str, str, str]:
    """(the value of an argument, the flag that it belongs to, how the flag takes it)."""
    if word.startswith("-"):
        name, equals, value = word.partition("=")
        if equals:
            return value, name, "equals"
        joined = re.fullmatch(r"(-[A-Za-z])(.+)", word)
        return (joined[2], joined[1], "joined") if joined is not None else ("", "", "")
    is_flag = previous.startswith("-") and "=" not in previous
    return (word, previous, "next") if is_flag else (word, "", "")
