"""``cachec repro``: one run of a stage as a small zip, and that zip run again."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cachec import report
from cachec.base.display_text import number_of
from cachec.cli.session import Session, check_output, clean, json_option, pass_session, print_as_json
from cachec.errors import UsageError

if TYPE_CHECKING:
    from cachec.reproduce.reader import LoadedReproducer
    from cachec.reproduce.replay import ReplayResult

#: The message for a reproducer of a command, which must run in the folder of its files.
_NO_FILES = (
    "a command of cachec exec, whose files are not in it; run it where they are: cachec verify --recompute, or "
    "CACHEC_MODE=verify"
)


class _KeyOrCommand(click.Group):
    """What is no subcommand is a key: ``cachec repro 3fa9c2 -o bug.zip``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["make", *args]
        return super().resolve_command(ctx, args)


@click.group("repro", cls=_KeyOrCommand)
def command() -> None:
    """Make a reproducer of a run, without its weights, and run one again.

    A reproducer is a small zip: the stripped programs and other inputs, the specs of the weights, the commands, tools,
    environment and platform, and a README that says how to run it without cachec. The same run gives the same bytes.

    \b
    Examples:
      cachec repro 3fa9c2 -o bug.zip                     the run that made entry 3fa9c2
      cachec repro show bug.zip                          what is inside, and what would be run
      cachec repro run bug.zip                           does the same come out?
      cachec repro weights bug.zip -o w.safetensors      weights of the right shapes, from the seed
      CACHEC_REPRO_DIR=repros python build.py            every stage that fails leaves one there

    Every one of them has --json; its help shows the JSON. Exit codes: 0 done (run: the same came out), 1 not found
    (run: something else came out), 2 wrong use or an error.
    """


@command.command("make")
@click.argument("key", metavar="KEY")
@click.option("-o", "--output", required=True, metavar="FILE", help="The zip to write.")
@click.option("--with-weights", multiple=True, metavar="PATTERN", help="Put in the bytes of these weights, by name.")
@click.option("--weights", metavar="SOURCE", help="Where these bytes are: a checkpoint, or a name in the store.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="Of the synthetic weights; 0 by default.")
@json_option
@pass_session
def make(session: Session, key: str, output: str, with_weights: Sequence[str], weights: str | None, seed: int) -> None:
    """Write the reproducer of the newest run of entry KEY.

    Of a command of `cachec exec` there is none, as its files stay where they are: it says what was run, to be run
    there again (`cachec verify --recompute` does).

    \b
    Examples:
      cachec repro 3fa9c2 -o bug.zip
      cachec repro 3fa9c2 -o bug.zip --weights model.safetensors --with-weights 'embeddings.*' --json

    \b
    JSON: {"path", "size", "key", "stage", "mode": "command", "python" or "line", "weights": [names inside],
           "missing": []}
    Exit code 1: no such entry.
    """
    from cachec.reproduce.archive import write
    from cachec.reproduce.pack import pack_entry

    check_output(output, "-o", {"--weights": weights})
    entry = session.entry(key)
    chosen = None
    if weights is not None:
        from cachec.cli import weight_sources

        owned = weight_sources.weight_store(session)
        chosen = weight_sources.locate_weights(session, owned, weights).open(owned)
    made = pack_entry(session.store, entry, chosen, with_weights, seed=seed)
    write(output, made.data)
    about = made.about
    if print_as_json(
        {
            "path": output,
            "size": len(made.data),
            "key": about.key,
            "stage": about.stage,
            "mode": about.mode,
            "weights": list(about.given),
            "missing": list(about.missing),
        }
    ):
        return
    what = "what was run, and no reproducer," if about.mode == "line" else "a reproducer"
    click.echo(f"{clean(output)}: {report.size(len(made.data))}, {what} of stage {clean(about.stage)}")
    if about.mode == "line":
        click.echo(f"  {_NO_FILES}")
    for each in about.missing:
        click.echo(f"  not in it: {clean(each)}")


@command.command("show")
@click.argument("file", metavar="ZIP", type=click.Path(dir_okay=False))
@json_option
def show(file: str) -> None:
    """Say what a reproducer holds and what running it would run. Nothing is run or written.

    \b
    Examples:
      cachec repro show bug.zip
      cachec repro show bug.zip --json

    \b
    JSON: {"key", "stage", "mode", "entry", "commands": [shell text], "expected": [{"codec", "digest", "nbytes"}],
           "failure": {"error", "text"} or null, "parts": [{"part", "digest", "detail"}], "weights": count,
           "weight_bytes", "seed", "missing": []}
    """
    from cachec.reproduce.reader import load

    reproducer = load(file)
    details = _details(reproducer)
    if print_as_json(details):
        return
    click.echo(f"stage   {clean(details['stage'])}\nkey     {clean(details['key'])}")
    _print_plan(reproducer)
    for each in details["expected"]:
        click.echo(f"made    {clean(each['codec'])} {each['digest']} ({report.size(each['nbytes'])})")
    if details["failure"] is not None:
        click.echo(f"failed  {clean(details['failure']['error'])}: {clean(details['failure']['text'])}")
    click.echo(f"weights {details['weights']}, {report.size(details['weight_bytes'])}, seed {details['seed']}")
    for name in details["missing"]:
        click.echo(f"not in it: {clean(name)}")


@command.command("run")
@click.argument("file", metavar="ZIP", type=click.Path(dir_okay=False))
@click.option("--run-code", is_flag=True, help="Run it although it does not come from this store. Look at it first.")
@click.option("--tool", multiple=True, metavar="NAME=PATH", help="Take this executable for the tool NAME.")
@click.option("--file", "files", multiple=True, metavar="NAME=FILE", help="Take FILE for an input that is not inside.")
@click.option("--path", multiple=True, metavar="DIR", help="Import the project's code from DIR first.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds that each command may take.")
@click.option("--keep", metavar="DIR", help="Work in DIR, which must not exist yet, and leave it there.")
@json_option
@pass_session
def run(
    session: Session,
    file: str,
    run_code: bool,
    tool: Sequence[str],
    files: Sequence[str],
    path: Sequence[str],
    timeout: float | None,
    keep: str | None,
) -> None:
    """Run a reproducer again: does the same artifact come out, or the same failure?

    A reproducer of a run that this store holds is run at once. Any other names programs or Python functions of this
    machine, with arguments of somebody else's choice: it is shown, and only run with --run-code, or where you say yes
    on a terminal. What is inside the zip is data, and is never executed by itself.

    \b
    Examples:
      cachec repro run bug.zip
      cachec repro run bug.zip --run-code --tool iree-compile=build/tools/iree-compile
      cachec repro run bug.zip --path . --json

    \b
    JSON: {"same": bool, "artifacts": [{"codec", "expected", "found": digest or null}], "tools": [], "failure": text}
    Exit code 0: the same came out; 1: something else, or it failed otherwise; 2: it can't be run.
    """
    from cachec.reproduce import replay
    from cachec.reproduce.reader import load

    tools, given = _pairs("--tool", tool), _pairs("--file", files)
    reproducer = load(file)
    if reproducer.about.mode == "line":
        raise UsageError(f"{file}: {_NO_FILES}")
    if not run_code and not replay.is_own(session.store, reproducer):
        _ask(reproducer)
    with tempfile.TemporaryDirectory(prefix="cachec-repro-") as temporary:
        folder = Path(os.path.realpath(temporary))
        if keep is not None:
            folder = Path(os.path.abspath(keep))
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError as error:
                raise UsageError(f"--keep {keep}: a folder that does not exist yet expected, found one") from error
        if reproducer.about.mode == "command":
            ended = replay.replay_commands(
                reproducer, folder, tools=tools, files=given, digests=session.store.digests, timeout=timeout
            )
        else:
            ended = replay.replay_python(reproducer, folder, path=path)
    artifacts = [
        {"codec": each.expected.codec, "expected": each.expected.digest, "found": each.digest} for each in ended.made
    ]
    document = {"same": ended.same, "artifacts": artifacts, "tools": list(ended.tools), "failure": ended.failure}
    if not print_as_json(document):
        _print_replayed(reproducer, ended)
    if not ended.same:
        click.get_current_context().exit(1)


@command.command("weights")
@click.argument("file", metavar="ZIP", type=click.Path(dir_okay=False))
@click.option("-o", "--output", required=True, metavar="FILE", help="A .safetensors or .irpa file to write.")
@json_option
def weights(file: str, output: str) -> None:
    """Write weights of the names, shapes and types of the run: the real bytes that are inside, others from the seed.

    \b
    Examples:
      cachec repro weights bug.zip -o w.safetensors
      cachec repro weights bug.zip -o w.irpa --json

    \b
    JSON: {"path", "weights": count, "nbytes"}
    """
    from cachec.reproduce.reader import load
    from cachec.reproduce.replay import weights_of
    from cachec.weights.formats import WRITTEN_SUFFIXES

    if Path(output).suffix not in WRITTEN_SUFFIXES:
        raise UsageError(f"{output}: a name that ends with {' or '.join(WRITTEN_SUFFIXES)} expected")
    check_output(output, "-o", {"ZIP": file})
    reproducer = load(file)
    with tempfile.TemporaryDirectory(prefix="cachec-repro-") as folder:
        made = weights_of(reproducer, reproducer.specs, Path(folder))
        made.save(output)
        nbytes = made.nbytes
    if not print_as_json({"path": output, "weights": len(reproducer.specs), "nbytes": nbytes}):
        click.echo(f"{clean(output)}: {number_of(len(reproducer.specs), 'weight')}, {report.size(nbytes)}")


def _pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not name or not equals or not path:
            raise UsageError(f"{option} {value!r}: NAME=PATH expected")
        if not os.path.exists(path):
            raise UsageError(f"{option} {value!r}: there is no {path!r}")
        pairs[name] = path
    return pairs


def _ask(reproducer: LoadedReproducer) -> None:
    """Show what would be run, and continue only with the user's consent."""
    import sys

    why = "does not come from a run that this store holds"
    if reproducer.about.failure is not None:
        why = "is of a run that failed, and a store holds none of these, so that it may come from anywhere"
    click.echo(f"this reproducer {why}; it would run:", err=True)
    _print_plan(reproducer, err=True)
    if sys.stdin.isatty() and click.confirm("Run it?", err=True):
        return
    raise UsageError("nothing was run: look at the lines above, then say --run-code")


def _print_plan(reproducer: LoadedReproducer, *, err: bool = False) -> None:
    from cachec.reproduce.readme import command_line

    if reproducer.about.mode == "command":
        for each in reproducer.recipe.commands:
            click.echo(f"runs    {clean(command_line(each))}", err=err)
    elif reproducer.about.mode == "line":
        line = reproducer.recipe.line
        assert line is not None  # in this mode
        click.echo(f"runs    cachec exec {clean(shlex.join(line.args))} (in {clean(line.cwd)})", err=err)
    else:
        click.echo(f"calls   {clean(reproducer.recipe.entry)}", err=err)


def _details(reproducer: LoadedReproducer) -> dict[str, Any]:
    from cachec.reproduce.readme import command_line

    about = reproducer.about
    failure = about.failure
    return {
        "key": about.key,
        "stage": about.stage,
        "mode": about.mode,
        "entry": reproducer.recipe.entry,
        "commands": [command_line(each) for each in reproducer.recipe.commands],
        "expected": [{"codec": each.codec, "digest": each.digest, "nbytes": each.nbytes} for each in about.expected],
        "failure": None if failure is None else {"error": failure.error, "text": failure.text},
        "parts": [{"part": part.label, "digest": part.digest, "detail": part.detail} for part in about.parts],
        "weights": len(reproducer.specs),
        "weight_bytes": sum(spec.nbytes for spec in reproducer.specs.values()),
        "seed": about.seed,
        "missing": list(about.missing),
    }


def _print_replayed(reproducer: LoadedReproducer, ended: ReplayResult) -> None:
    for words in ended.tools:
        click.echo(clean(words))
    for each in ended.made:
        if each.digest == each.expected.digest:
            click.echo(f"same      {each.expected.codec} {each.digest}")
        else:
            click.echo(
                f"differs   {each.expected.codec}: {each.expected.digest} expected, found {each.digest or 'none'}"
            )
    if ended.failure:
        how = "failed as recorded" if ended.same else "failed"
        click.echo(f"{how}: " + "\n".join(clean(line) for line in ended.failure.split("\n")))
    elif reproducer.about.failure is not None:
        click.echo(f"did not fail; {clean(reproducer.about.failure.error)} was expected")
    about = reproducer.about
    if about.reads and not ended.same:
        click.echo(
            f"the run read {number_of(len(about.reads), 'weight')}, {len(about.given)} of them inside; with others "
            "another result is to be expected (see --with-weights)"
        )
