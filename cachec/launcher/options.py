"""The options of ``cachec exec``, ``check`` and ``why`` before ``--``; by hand, as click takes 27 ms to import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from cachec.base.display_text import nearest
from cachec.errors import UsageError
from cachec.launcher.adapters import WeightKey
from cachec.launcher.command import Options

#: Options with a value, each of which may come several times.
_MANY = ("--input", "--output", "--outputs", "--weights", "--env", "--ignore-env", "--tool", "--network")
_SWITCHES = ("--strip", "--hardlink", "--portable", "--restat", "--stdin", "--relocatable")


def parse(args: Sequence[str]) -> tuple[Options, list[str]]:
    """(options, command line). Raises UsageError naming the argument."""
    if "--" not in args:
        given = next((arg for arg in args if not arg.startswith("-")), None)
        hint = f": cachec exec -- {given} ..." if given is not None else ", as in: cachec exec -- clang -c a.c -o a.o"
        raise UsageError(f"no command: put it behind '--'{hint}")
    end = list(args).index("--")
    command = list(args[end + 1 :])
    if not command or not command[0]:
        raise UsageError("no command behind '--', as in: cachec exec -- clang -c a.c -o a.o")
    many: dict[str, list[str]] = {name: [] for name in _MANY}
    switches: set[str] = set()
    remaining = list(args[:end])
    while remaining:
        arg = remaining.pop(0)
        name, equals, value = arg.partition("=")
        if arg in _SWITCHES:
            switches.add(arg)
        elif name not in _MANY:
            close = nearest(name, (*_MANY, *_SWITCHES))
            hint = f"; did you mean {close}?" if close else f"; the options are {', '.join((*_MANY, *_SWITCHES))}"
            raise UsageError(f"{arg!r} is no option of cachec exec{hint}")
        elif equals or remaining:
            many[name].append(value if equals else remaining.pop(0))
            if not many[name][-1]:
                raise UsageError(f"{name} needs a value, found an empty one")
        else:
            raise UsageError(f"{name} needs a value; nothing follows it")
    options = Options(
        inputs=tuple(many["--input"]),
        outputs=tuple(many["--output"]),
        weights=dict(map(_weights, many["--weights"])),
        env=tuple(many["--env"]),
        tools=tuple(many["--tool"]),
        strip="--strip" in switches,
        hardlink="--hardlink" in switches,
        portable="--portable" in switches,
        patterns=tuple(many["--outputs"]),
        stdin="--stdin" in switches,
        relocatable="--relocatable" in switches,
        ignore_env=tuple(many["--ignore-env"]),
        network=_network(many["--network"]),
        restat="--restat" in switches,
    )
    return options, command


def _network(values: Sequence[str]) -> Literal["", "trust"]:
    for value in values:
        if value != "trust":
            raise UsageError(f"--network {value}: expected trust; without it what uses the network is not stored")
    return "trust" if values else ""


def _weights(text: str) -> tuple[str, WeightKey]:
    path, _, word = text.rpartition("=")
    for key in get_args(WeightKey):
        if word == key and path:
            return path, key
    return text, "content"
