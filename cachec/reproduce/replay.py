"""Runs a reproducer again, and says whether the same artifacts come out.

Whoever calls this has made sure that the user wants it to be run: a reproducer names programs and functions, and their
arguments. Files of the zip are written into a folder of its own, none of them executable, and are data alone.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.codecs.encoder import encode
from cachec.commands import run as command
from cachec.errors import ReproducerError, StoreFault, UsageError
from cachec.key.tools.executables import which
from cachec.key.tools.toolchain import ToolKeys
from cachec.model import WeightSpec
from cachec.programs.registry import Plugins
from cachec.recording import ReadRecorder, recording
from cachec.reproduce.arguments import Maker
from cachec.reproduce.metadata import ExpectedArtifact
from cachec.reproduce.pack import expected_of, needed_inputs
from cachec.reproduce.reader import LoadedReproducer
from cachec.reproduce.recipe import FileRef, RecordedCommand, Text, Tool, WeightFile, folder_name
from cachec.reproduce.synthetic import synthetic_weights
from cachec.store.store import Store
from cachec.weights import WeightSet, open_weights
from cachec.weights.formats import WRITTEN_SUFFIXES
from cachec.weights.layout import stated_ties
from cachec.weights.manifest import Manifest

if TYPE_CHECKING:
    from cachec.stage.decorator import Stage


class Remade(NamedTuple):
    """An artifact that was to come out. digest: what it has now, None where it was not made."""

    expected: ExpectedArtifact
    digest: str | None


class ReplayResult(NamedTuple):
    """How a replay ended. same: all artifacts are as recorded, or it failed as recorded. tools: in words, each whether
    it is the one that was recorded. failure: how it failed, in words; empty where it did not.
    """

    same: bool
    made: tuple[Remade, ...]
    tools: tuple[str, ...] = ()
    failure: str = ""


def replay_commands(
    reproducer: LoadedReproducer,
    folder: Path,
    *,
    tools: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    digests: FileDigests | None = None,
    timeout: float | None = None,
) -> ReplayResult:
    """Run the commands in ``folder``, which is empty.

    tools: name -> executable to take instead of the one that is found. files: name within the zip -> a file to take
    where the zip has none. Raises ReproducerError (a tool or a file is missing), UsageError.
    """
    recipe = reproducer.recipe
    chosen = [_executable(each.tool, tools or {}) for each in recipe.commands]
    for number in range(recipe.folders):
        (folder / folder_name(number)).mkdir(mode=0o700)
    made: dict[str, str] = {}
    messages: list[str] = []
    keys = ToolKeys(digests or FileDigests())
    failure = ""
    as_recorded = True
    for number, each in enumerate(recipe.commands):
        messages.append(_describe_tool(each.tool, chosen[number], keys))
        _put_files(reproducer, number, folder, files or {})
        try:
            ended = command.run(
                [chosen[number], *(_text(arg, folder) for arg in each.args)],
                cwd=_text(each.cwd, folder),
                env={  # secrets were not kept: the command gets those of today
                    **{name: value for name, value in each.environ.items() if value is not None},
                    **dict.fromkeys(each.hidden),
                },
                stdin=_stdin(reproducer, each),
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            failure = f"{each.tool.name} did not end within {timeout:g} s"
            as_recorded = as_recorded and each.returncode is None
            break
        as_recorded = as_recorded and ended.returncode == each.returncode
        for output in each.outputs:
            path = folder / folder_name(output.folder) / output.path
            if path.is_file() and not path.is_symlink():
                made[output.digest] = FileDigests().of_path(path)
        if ended.returncode:
            tail = ended.stderr[-2000:].decode(errors="replace").strip()
            failure = f"{each.tool.name} ended with exit code {ended.returncode}" + (f":\n{tail}" if tail else "")
            if ended.returncode != each.returncode:
                break
    results = tuple(Remade(each, made.get(each.digest)) for each in reproducer.about.expected)
    same = as_recorded and all(each.digest == each.expected.digest for each in results)
    return ReplayResult(same and (reproducer.about.failure is None or bool(failure)), results, tuple(messages), failure)


def replay_python(reproducer: LoadedReproducer, folder: Path, *, path: Sequence[str] = ()) -> ReplayResult:
    """Import the stage and call its function with the recorded arguments, uncached, with synthetic weights.

    path: folders to import from first. Raises ReproducerError where the project's code can't be imported, or is no
    stage, or where an argument is not in the reproducer.
    """
    recipe = reproducer.recipe
    sys.path[:0] = [os.path.abspath(each) for each in path]
    stage = stage_of(reproducer)
    fsio.make_dir(folder / "store")
    store = Store(folder / "store")
    store.prepare()
    recorder = ReadRecorder(recipe.stage, None, store.digests)
    guarded: list[WeightSet] = []

    def weights(manifest: Manifest, where: str) -> WeightSet:
        made = weights_of(reproducer, manifest.weights, folder).guard(where, recorder, store.digests)
        guarded.append(made)
        return made

    arguments = arguments_of(reproducer, stage, folder, weights)
    environ = {name: value for name, value in recipe.environ.items() if value is not None}
    plugins = Plugins(Distributions())
    failure, node = "", None
    try:
        with recording(recorder), _environment(environ):
            result = stage.binding.call(stage.__wrapped__, arguments)
            if hasattr(result, "__await__"):
                import asyncio

                result = asyncio.run(_await(result))
            node = encode(result, store.objects, plugins.for_type)
    except Exception as error:  # noqa: BLE001 - the user's own: told, and compared with what was recorded
        failure = f"{type(error).__qualname__}: {error}"
    finally:
        for each in guarded:
            each.close_guard()
        recorder.drop_scratch()
        store.close()
    made = [] if node is None else list(expected_of(node))
    results = tuple(
        Remade(each, made[number].digest if number < len(made) else None)
        for number, each in enumerate(reproducer.about.expected)
    )
    recorded = reproducer.about.failure
    if recorded is not None:
        return ReplayResult(failure.startswith(f"{recorded.error}: {recorded.text}"), results, (), failure)
    same = not failure and len(made) == len(results) and all(each.digest == each.expected.digest for each in results)
    return ReplayResult(same, results, (), failure)


def stage_of(reproducer: LoadedReproducer) -> Any:
    """The stage that made the run. Raises ReproducerError where it can't be imported, or is no stage."""
    module, _, name = reproducer.recipe.entry.partition(":")
    stage = import_object(module, name)
    if not getattr(stage, "__cachec_stage__", False):
        raise ReproducerError(
            f"{reproducer.recipe.entry} is no stage here; check out the version of the project that made this"
        )
    return stage


def arguments_of(
    reproducer: LoadedReproducer, stage: Stage[..., Any], folder: Path, weights: Callable[[Manifest, str], WeightSet]
) -> dict[str, Any]:
    """The arguments of the run by name, files among them in ``folder``. weights: a set for a manifest and the path of
    an argument. Raises ReproducerError where one is not in the reproducer.
    """
    maker = Maker(reproducer.contents, folder, weights, import_object)
    try:
        given = {name: maker.make(value, name) for name, value in reproducer.recipe.arguments.items()}
    except StoreFault as error:
        raise ReproducerError(f"an argument in the reproducer is malformed: {error.detail}") from error
    arguments = {**_defaults(stage), **given}
    missing = set(stage.binding.parameters) - arguments.keys()
    if missing:
        raise ReproducerError(
            f"{reproducer.recipe.entry} takes {min(missing)!r}, which is left out of its key (ignore=) and so of the "
            "reproducer; give it a default"
        )
    return arguments


def weights_of(reproducer: LoadedReproducer, specs: Mapping[str, WeightSpec], folder: Path) -> WeightSet:
    """Weights of these specs: the real bytes where the reproducer has them, else those of its seed."""
    given = {name: specs[name] for name in reproducer.about.given if name in specs}
    made = synthetic_weights({name: spec for name, spec in specs.items() if name not in given}, reproducer.about.seed)
    if not given or reproducer.weights is None:
        return made
    path = folder / "weights.safetensors"
    if not path.exists():
        path.write_bytes(reproducer.weights)
    real = open_weights(path).select(sorted(given))
    both = {name: real[name] if name in given else made[name] for name in specs}
    return WeightSet.from_weights(both, tied=stated_ties(specs.values()))


def import_object(module: str, name: str) -> Any:
    """What a module and a qualified name lead to. Raises ReproducerError where it can't be imported."""
    if module == "__main__":
        raise ReproducerError(
            f"{name} was defined in a script that was run as the main program, so no import leads to it; "
            "run that script, or move the stage into a module"
        )
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ReproducerError(
            f"{module}:{name} can't be imported here: {error}. It is code of the project that made this reproducer; "
            "install that, or say --path FOLDER where it is"
        ) from error
    return value


def is_own(store: Store, reproducer: LoadedReproducer) -> bool:
    """Whether the store has a run with this very recipe, so that running it does what this cache did before."""
    try:
        entry = store.lookup(reproducer.about.key)
        recipe = None if entry is None else store.recipe(entry)
    except StoreFault:
        return False  # nothing that can't be read vouches for anything
    return recipe is not None and digest_bytes(recipe) == reproducer.about.recipe


def _defaults(stage: Stage[..., Any]) -> dict[str, Any]:
    """Defaults by name; of ``*args`` and ``**kwargs`` that they are empty."""
    import inspect

    defaults: dict[str, Any] = {}
    for each in inspect.signature(stage.__wrapped__).parameters.values():
        if each.default is not each.empty:
            defaults[each.name] = each.default
        elif each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            defaults[each.name] = () if each.kind is each.VAR_POSITIONAL else {}
    return defaults


async def _await(awaitable: Any) -> Any:
    return await awaitable


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the body."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _executable(tool: Tool, given: Mapping[str, str]) -> str:
    if tool.name in given:
        return os.path.abspath(given[tool.name])
    owner = Distributions().find(tool.distribution) if tool.distribution else None
    if owner is not None and owner.lists(tool.path):
        path = os.path.normpath(os.path.join(owner.root, tool.path))
        if os.access(path, os.X_OK):
            return path
    executable = which(tool.name, os.environ, os.getcwd())
    if executable is None:
        wanted = f" (of {tool.distribution} {tool.version})" if tool.distribution else ""
        way = f"pip install {tool.distribution}=={tool.version}, or " if tool.distribution else "install it, or "
        raise ReproducerError(f"{tool.name}{wanted} is not installed here; {way}say --tool {tool.name}=PATH")
    return executable


def _describe_tool(tool: Tool, path: str, keys: ToolKeys) -> str:
    try:
        part = keys.executable(path)
    except UsageError as error:
        raise ReproducerError(f"{tool.name}: {error}") from error
    if part.digest == tool.digest:
        return f"{tool.name}: the same tool as recorded"
    recorded = f"{tool.distribution} {tool.version}" if tool.distribution else tool.digest[:12] or "an unknown one"
    return f"{tool.name}: another tool than recorded ({recorded}); here: {part.detail or part.digest[:12]}"


def _text(text: Text, folder: Path) -> str:
    if isinstance(text, str):
        return text
    return "".join(str(folder / folder_name(piece)) if isinstance(piece, int) else piece for piece in text)


def _stdin(reproducer: LoadedReproducer, each: RecordedCommand) -> bytes | None:
    if each.stdin is None:
        return None
    data = reproducer.contents.get(each.stdin)
    if data is None:
        raise ReproducerError(f"what {each.tool.name} read from stdin is not in the reproducer; make a new one")
    return data


def _put_files(reproducer: LoadedReproducer, number: int, folder: Path, files: Mapping[str, str]) -> None:
    each = reproducer.recipe.commands[number]
    for ref in needed_inputs(reproducer.recipe.commands, number):
        name, target = _place(folder, ref)
        data = reproducer.contents.get(ref.digest)
        if data is None and name in files:
            data = Path(files[name]).read_bytes()
        if data is None:
            raise ReproducerError(
                f"the input {name} ({ref.nbytes} bytes, BLAKE3 {ref.digest[:12]}) is not in the reproducer; "
                f"say --file {name}=FILE"
            )
        target.write_bytes(data)
        target.chmod(0o600)
    for output in each.outputs:
        _place(folder, output)
    for weight in each.weights:
        name, target = _place(folder, weight)
        if target.exists():
            continue
        if name in files:
            os.symlink(os.path.abspath(files[name]), target)
            continue
        data = reproducer.contents.get(weight.manifest)
        if data is None or target.suffix not in WRITTEN_SUFFIXES:
            raise ReproducerError(
                f"{each.tool.name} wants the weights {name}, which can't be made from a seed; say --file {name}=FILE"
            )
        made = weights_of(reproducer, Manifest(weight.manifest, lambda data=data: data).weights, folder)  # type: ignore[misc]
        made.save(target)


def _place(folder: Path, file: FileRef | WeightFile) -> tuple[str, Path]:
    """The name of a file in the zip, and where it is put, in a folder that is there then."""
    name = f"{folder_name(file.folder)}/{file.path}"
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return name, target
