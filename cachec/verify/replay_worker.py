"""One run made again, in a process of its own: ``python -m cachec.verify.replay_worker ZIP FOLDER RESULT [PATH...]``.

The stage is imported and called in mode ``verify``, so that it is the engine that compares, by bytes or as the plugin
does, and puts away what differs. It is only called where a call now would be a hit on the very entry. What this says is
written to RESULT, as the code that it runs may print.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cachec.base.call_hooks import Oversight, oversee_process
from cachec.errors import CachecError, PluginError, ReproducerError
from cachec.model import Mode, Outcome, Reason
from cachec.reproduce.reader import LoadedReproducer, load
from cachec.reproduce.replay import arguments_of, replay_commands, stage_of, weights_of

if TYPE_CHECKING:
    from cachec.stage.decorator import Stage


class WorkerReplay(NamedTuple):
    """How it ended: ``same``, ``differs``, ``failed`` (it did not before), or ``skipped``; and why."""

    result: str
    words: str = ""


def run_reproducer(reproducer: LoadedReproducer, folder: Path) -> WorkerReplay:
    """Run it, in ``folder``, which is empty."""
    if reproducer.recipe.line is not None:
        from cachec.verify.command_replay import run_line  # the launcher, which others do without

        return WorkerReplay(*run_line(reproducer.recipe, reproducer.recipe.line, reproducer.about.key, folder))
    try:
        stage = stage_of(reproducer)
    except Exception as error:  # noqa: BLE001 - the project's code, whatever it raises when it is imported
        if reproducer.about.mode == "command":
            return _commands(reproducer, folder)
        words = str(error) if isinstance(error, CachecError) else f"{type(error).__qualname__}: {error}"
        return WorkerReplay("skipped", words)
    try:
        return _call_stage(reproducer, stage, folder)
    except ReproducerError as error:
        return WorkerReplay("skipped", str(error))


def _call_stage(reproducer: LoadedReproducer, stage: Stage[..., Any], folder: Path) -> WorkerReplay:
    arguments = arguments_of(
        reproducer, stage, folder, lambda manifest, _: weights_of(reproducer, manifest.weights, folder)
    )
    heard: list[Outcome] = []
    with oversee_process(Oversight(heard.append, Mode.VERIFY, defer=lambda _: None)):
        would: Outcome = stage.binding.call(stage.check, arguments)
        if would.key != reproducer.about.key:
            return WorkerReplay("skipped", "a call has another key now: its code, its tools or the settings are others")
        if not would.hit:
            return WorkerReplay("skipped", f"a call would not hit now: {would.detail or would.reason.value}")
        try:
            result = stage.binding.call(stage, arguments)
            if hasattr(result, "__await__"):
                import asyncio

                asyncio.run(_await(result))
        except PluginError as error:  # none is there to compare with
            return WorkerReplay("skipped", str(error))
        except Exception as error:  # noqa: BLE001 - the user's own
            return WorkerReplay("failed", f"{type(error).__qualname__}: {error}")
    (ended,) = [each for each in heard if each.key == would.key][-1:] or [would]
    if ended.reason is Reason.VERIFIED:
        return WorkerReplay("same", ended.detail)
    return WorkerReplay(
        "differs" if ended.reason is Reason.VERIFY_DIFFERS else "skipped", ended.detail or ended.reason.value
    )


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _commands(reproducer: LoadedReproducer, folder: Path) -> WorkerReplay:
    """Its commands alone, where the stage can't be imported: of a script, say. Compared by their bytes."""
    try:
        ended = replay_commands(reproducer, folder)
    except CachecError as error:
        return WorkerReplay("skipped", str(error))
    others = [words for words in ended.tools if not words.endswith("the same tool as recorded")]
    if others:
        return WorkerReplay("skipped", others[0])
    if ended.failure:
        return WorkerReplay("failed", ended.failure)
    return (
        WorkerReplay("same")
        if ended.same
        else WorkerReplay("differs", "its commands write other bytes than the stored ones")
    )


def main() -> None:
    """Read a reproducer, run it, and write what came of it."""
    reproducer, folder, result = load(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.path[:0] = [os.path.abspath(each) for each in sys.argv[4:]]
    recipe = reproducer.recipe
    if recipe.line is None:  # a command line sets its variables by itself
        os.environ.update({name: value for name, value in recipe.environ.items() if value is not None})
    ended = msgspec.json.encode(run_reproducer(reproducer, folder))
    Path(result).write_bytes(ended)


if __name__ == "__main__":
    main()
