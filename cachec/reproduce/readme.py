"""The README inside a reproducer: what it is, and how to run it with cachec and without."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cachec.base import __version__
from cachec.model import PartKind, WeightSpec
from cachec.reproduce.arguments import CodeOf, FileOf, Items, Long, NamedValues, ProgramOf, Scalar, Value, WeightsOf
from cachec.reproduce.metadata import About
from cachec.reproduce.recipe import Recipe, RecordedCommand, RecordedLine, Text, folder_name

#: Parts of the key that are listed: what a person needs in order to have the same.
_LISTED = (
    ("Tools", {PartKind.DISTRIBUTION, PartKind.REQUIREMENT, PartKind.EXECUTABLE}),
    ("Library settings", {PartKind.AMBIENT}),
    ("Environment", {PartKind.ENVIRONMENT}),
    ("Platform", {PartKind.PLATFORM}),
)


def readme(about: About, recipe: Recipe, specs: Mapping[str, WeightSpec], usages: Sequence[str]) -> str:
    """The text, in Markdown. usages: command lines for inputs that have the options of their command inside."""
    what = "Reproducer" if recipe.line is None else "What was run"
    lines = [f"# {what} of stage {_code(about.stage)}", ""]
    if about.failure is not None:
        lines += [f"The run failed: {_code(about.failure.error)}: {_code(_cut(about.failure.text))}", ""]
    for each in about.expected:
        lines += [f"- made {each.codec} of {each.nbytes} bytes, BLAKE3 `{each.digest}`"]
    lines += ["", f"Key `{about.key}`, made by cachec {__version__}. No weight is in here", ""]
    if about.given:
        lines[-2] += f" but {len(about.given)} in `weights.safetensors`"
    lines[-2] += "."
    if recipe.line is not None:
        lines += _line(recipe.line)
    else:
        lines += ["## With cachec", "", "    cachec repro run THIS.zip", "", _CONSENT, ""]
        lines += ["## Without cachec", ""]
        lines += _commands(recipe, usages) if about.mode == "command" else _call(recipe)
    lines += ["", "## Arguments of the stage", "", f"`{recipe.entry}`", ""]
    lines += [f"- `{name}`: {_display_value(value)}" for name, value in recipe.arguments.items()]
    lines += ["", *_weights(about, specs)]
    for title, kinds in _LISTED:
        parts = [part for part in about.parts if part.kind in kinds]
        if parts:
            lines += [f"## {title}", ""]
            lines += [f"- `{part.label}`: {part.detail or part.digest[:12]}" for part in parts]
            lines += [""]
    if about.missing:
        lines += ["## Not in here", ""]
        lines += [f"- {each}" for each in about.missing]
        lines += [""]
    return "\n".join(lines)


_CONSENT = """\
It says whether the same artifacts come out (exit code 0), others (1), or why it can't be run (2). A reproducer that
does not come from your own store is shown first, and runs only with `--run-code`: it names programs, or Python
functions of yours, and their arguments. Nothing that is inside the zip is ever executed by itself."""


def command_line(command: RecordedCommand) -> str:
    """Return a command for a shell, in the folder of the unpacked zip, which ``$R`` names."""
    words = [shlex.quote(command.tool.name), *(_quote(arg) for arg in command.args)]
    environ = [
        f"{name}={shlex.quote(value)}"
        for name, value in command.environ.items()
        if value is not None and name.isidentifier()
    ]
    return f"cd {_quote(command.cwd)} && {' '.join([*environ, *words])}"


def _commands(recipe: Recipe, usages: Sequence[str]) -> Iterator[str]:
    yield "Unpack the zip, and in its folder:"
    yield ""
    yield "    R=$PWD"
    for number, command in enumerate(recipe.commands):
        stdin = f" < $R/stdin/{number}" if command.stdin is not None else ""
        yield f"    {command_line(command)}{stdin}"
    for usage in usages:
        yield ""
        yield f"Or, with the options inside: `{usage}`."
    for command in recipe.commands:
        for weight in command.weights:
            yield ""
            yield f"The command was given the weights `{folder_name(weight.folder)}/{weight.path}` ({weight.rule})."
    if any(command.outputs for command in recipe.commands):
        yield ""
        yield "It wrote (BLAKE3, as `b3sum` prints it):"
        yield ""
        for command in recipe.commands:
            for each in command.outputs:
                yield f"    {each.digest}  {folder_name(each.folder)}/{each.path}"


def _line(line: RecordedLine) -> Iterator[str]:
    yield "It is a command of `cachec exec`, and its files are not in here, so that `cachec repro run` can't run it."
    yield "Where they are (`@`: the base folder), this does, and `cachec verify --recompute` compares what comes out:"
    yield ""
    yield f"    cd {shlex.quote(line.cwd)} && cachec exec {shlex.join(line.args)}".replace("\0", "@")


def _call(recipe: Recipe) -> Iterator[str]:
    yield "The stage is a Python function of the project that it comes from. There, call it with the arguments below:"
    yield ""
    module, _, name = recipe.entry.partition(":")
    yield f"    from {module} import {name.partition('.')[0]}"
    yield f"    {name}.uncached(...)"


def _weights(about: About, specs: Mapping[str, WeightSpec]) -> Iterator[str]:
    if not specs:
        return
    nbytes = sum(spec.nbytes for spec in specs.values())
    yield "## Weights"
    yield ""
    yield f"{len(specs)} weights of {nbytes} bytes; their specs are in `manifests/`."
    if about.reads:
        yield f"The run read the bytes of {len(about.reads)}: {_names(about.reads)}. With others it may do otherwise."
    yield f"Synthetic ones of the same shapes are made from the seed {about.seed} (generator {about.generator}):"
    yield ""
    yield "    cachec repro weights THIS.zip -o weights.safetensors"
    yield ""


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(f"`{name}`" for name in ordered[:6]) + (
        f" and {len(ordered) - 6} more" if len(ordered) > 6 else ""
    )


def _quote(text: Text) -> str:
    if isinstance(text, str):
        return shlex.quote(text)
    return "".join(f'"$R"/{folder_name(piece)}' if isinstance(piece, int) else shlex.quote(piece) for piece in text)


def _display_value(value: Value) -> str:
    if isinstance(value, Scalar):
        return _code(
            _cut(repr(value.inline.value) if value.inline.kind in {"str", "bytes"} else value.inline.value or "None")
        )
    if isinstance(value, Long):
        return f"{value.kind}, content `{value.digest[:12]}`"
    if isinstance(value, Items):
        return f"{value.kind} of {len(value.items)}: " + ", ".join(_display_value(item) for item in value.items[:8])
    if isinstance(value, NamedValues):
        return (
            ", ".join(f"{key!r} = {_display_value(item)}" for key, item in list(value.items.items())[:8])
            or "an empty dict"
        )
    if isinstance(value, ProgramOf):
        return f"a program, `{value.format}`, content `{value.ir[:12]}`"
    if isinstance(value, WeightsOf):
        return f"a weight set, manifest `{value.manifest[:12]}`"
    if isinstance(value, FileOf):
        return f"the file {_code(value.name)}, content `{value.digest[:12]}`"
    if isinstance(value, CodeOf):
        return f"`{value.module}:{value.qualname}`"
    return value.text


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("\n", " ") + "`"


def _cut(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
