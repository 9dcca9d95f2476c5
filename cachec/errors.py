"""Every exception that cachec raises on purpose.

    CachecError
    ├── UsageError               the API was used wrongly; the message says what to do instead
    │   ├── UnkeyableArgument        an argument has no stable key
    │   │   └── UnreadableArgument       a path whose content can't be read; a call runs uncached then
    │   ├── UnresolvedCode           code was reached that can't be fingerprinted; a call runs uncached then
    │   ├── CapturedWeights          a weight set came in through a global or a closure
    │   ├── UnsupportedFunction      the function can't be a stage (a generator, say)
    │   └── UnstorableResult         no codec can store what the stage returned; a call returns it all the same
    ├── ConfigError              a setting is unknown or malformed
    │   └── NoStoreFolder            no setting names the store, and there is no home folder to put it into
    ├── CacheMissError           mode ``require``, and the call would miss
    ├── WeightError
    │   ├── CheckpointError          a checkpoint file is malformed
    │   ├── UnknownWeight            no weight of that name (also a KeyError)
    │   ├── WeightReadError          the bytes of a placeholder were asked for
    │   ├── WeightsChanged           the file changed after it was opened
    │   └── HandleClosed             a handle was used after its stage returned, or after release
    ├── LinkError                a weight set does not fit an artifact's manifest
    ├── PluginError              a plugin is missing or broken
    │   └── Uncacheable              a call can run, and its key or its result can't be stored: the stage runs uncached
    │       ├── UnsupportedVersion       a library is not of the versions that its plugin knows
    │       ├── ProcessBoundProgram      a program refers to objects of this process, and no other process can run it
    │       └── UnstorableValue          an object of a library's has no stored form, or may not be stored as it is
    ├── StageFailed              an isolated stage did not come to its end
    │   ├── StageCrashed             a signal, or a call of exit, ended its process
    │   ├── StageOutOfMemory         it took more memory than it may
    │   └── StageTimedOut            it took longer than it may
    ├── ReproducerError          a reproducer is malformed, or can't be made or run here
    └── StoreFault               internal: the cache itself failed; always caught, counted and treated as a miss

    CachecWarning            a UserWarning: what was asked for works, but costs more or keys less than it seems

A failing stage or compiler raises its own exception, never one of these.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from cachec.model import Fault


#: Characters of a message, and of one text in it that comes from a file or another library.
_MAX_MESSAGE, MAX_FOREIGN = 8000, 160


def printable(text: str) -> str:
    """Text of which a terminal obeys nothing: what can't be printed is written as Python would, line ends too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def clip(text: object, limit: int = MAX_FOREIGN) -> str:
    """The words of a file or another library, for a message: printable, and cut to ``limit`` characters."""
    words = printable(str(text)[: limit + 1])
    return words if len(words) <= limit else words[: limit - 1] + "…"


class CachecError(Exception):
    """Base class: ``except CachecError`` catches everything that cachec raises by itself.

    Its text may be made of names in files that somebody else wrote, so it is printable, line by line, and bounded.
    """

    def __str__(self) -> str:
        text = Exception.__str__(self)  # not KeyError's, which is a repr
        if len(text) <= _MAX_MESSAGE and text.isprintable():
            return text
        return "\n".join(map(printable, text[:_MAX_MESSAGE].split("\n"))) + ("…" if len(text) > _MAX_MESSAGE else "")


class UsageError(CachecError):
    """The API was used in a way that can't work."""


class UnkeyableArgument(UsageError):
    """An argument of a stage has no stable key."""


class UnreadableArgument(UnkeyableArgument):
    """A path among the arguments is keyed by content that can't be read.

    Only ``key()`` and ``invalidate()`` of a stage raise it: a call runs uncached, as ``bypass:key-unreadable``.
    """


class UnresolvedCode(UsageError):
    """The code of a stage reaches something that can't be fingerprinted; ``version=`` takes charge of it. Also where
    code of a value or an argument raises while the key is made.

    Only ``key()`` and ``invalidate()`` of a stage raise it: a call runs uncached, as ``bypass:unresolved-code``.
    """


class CapturedWeights(UsageError):
    """A weight set is reached through a global or a closure, where its reads can't be recorded."""


class UnsupportedFunction(UsageError):
    """The decorated function can't be a stage."""


class UnstorableResult(UsageError):
    """The stage returned a value that no codec can store; its caller gets it, as ``bypass:unstorable-value``."""


class ConfigError(CachecError):
    """A setting is unknown, malformed, or names something that can't be used."""


class NoStoreFolder(ConfigError):
    """No setting names the store, and the user has no home folder to put it into; stages run uncached."""


class CacheMissError(CachecError):
    """In mode ``require`` the call would have had to run its stage."""


class WeightError(CachecError):
    """Base class of everything that concerns weights."""


class CheckpointError(WeightError):
    """A checkpoint file is malformed; nothing of it was mapped."""


class UnknownWeight(WeightError, KeyError):
    """The weight set has no weight of that name."""


class WeightReadError(WeightError):
    """The bytes of a placeholder were asked for."""


class WeightsChanged(WeightError):
    """A file of weights is not the one that was opened."""


class HandleClosed(WeightError):
    """A weight handle was used after its stage returned or after its set was released."""


class LinkError(CachecError):
    """A weight set does not fit the manifest of the artifact that it is linked to."""


class PluginError(CachecError):
    """A plugin is missing, broken, or answers for nothing that was given."""


class Uncacheable(PluginError):
    """A plugin can't key or store a value, which says nothing against the call: the stage runs uncached."""


class UnsupportedVersion(Uncacheable):
    """An installed library is not of the versions that its plugin supports, or lacks what the plugin uses of it."""


class ProcessBoundProgram(Uncacheable):
    """A program refers to objects of the process that made it (callbacks of Python's), so it can't be stored."""


class UnstorableValue(Uncacheable):
    """An object of a plugin's library has no stored form, or not in its present state. The message says which."""


class UnusableHere(PluginError):
    """A stored value is whole, but this process can't use it: a device, a release, a registration or an import is
    missing. The call is a miss, as ``miss:unusable-here``."""


class StageFailed(CachecError):
    """An isolated stage did not come to its end. stage: its name. reproducer: the path of one, where the setting
    ``repro_dir`` asks for it."""

    def __init__(self, stage: str, words: str) -> None:
        super().__init__(f"stage {stage} {words}")
        self.stage = stage
        self.reproducer: Path | None = None

    def __str__(self) -> str:
        if self.reproducer is None:
            return f"{super().__str__()}\nCACHEC_REPRO_DIR=FOLDER has a reproducer written"
        return f"{super().__str__()}\nto run it again: cachec repro run --run-code {self.reproducer}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Out of a process pool too, where the arguments are not those of ``__init__``."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class StageCrashed(StageFailed):
    """The process of an isolated stage ended before the stage returned.

    returncode: as in ``subprocess``: negative for a signal. stderr: the end of what it wrote to standard error.
    """

    def __init__(self, stage: str, returncode: int, stderr: str) -> None:
        import signal  # where something crashed

        if returncode < 0:
            names = {int(each): each.name for each in signal.Signals}
            how = f"was ended by {names.get(-returncode, f'signal {-returncode}')}"
        else:
            how = f"ended its process with exit code {returncode}"
        tail = f"; the end of its standard error:\n{stderr}" if stderr else ""
        super().__init__(stage, f"{how} before it returned{tail}".rstrip())
        self.returncode = returncode
        self.stderr = stderr


class StageTimedOut(StageFailed):
    """An isolated stage took longer than ``timeout=`` allows, and was ended. timeout: in seconds."""

    def __init__(self, stage: str, timeout: float) -> None:
        super().__init__(stage, f"did not return within {timeout:g} s, and was ended")
        self.timeout = timeout


class StageOutOfMemory(StageFailed):
    """An isolated stage took more memory than ``memory=`` allows, and was ended.

    memory: the limit. taken: what the worker and the programs that it started had resident. Both in bytes.
    """

    def __init__(self, stage: str, memory: int, taken: int) -> None:
        super().__init__(stage, f"took {taken} bytes of memory where memory={memory} is allowed, and was ended")
        self.memory = memory
        self.taken = taken


class ReproducerError(CachecError):
    """A reproducer is malformed or hostile, can't be made of this run, or can't be run here; nothing was written."""


class StoreFault(CachecError):
    """The cache itself failed. No caller of a stage sees it: ``fault`` is counted, and the call goes on without."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault.value}: {detail}")
        self.fault = fault
        self.detail = detail


class ClassNotLoaded(StoreFault):
    """A stored result is of a class whose module is not imported here, and is not to be imported, or can't be. Nothing
    is wrong with the row: where that is told apart, the call is a miss with a reason of its own."""


class ResultUnusableHere(StoreFault):
    """The form of ``UnusableHere`` that leaves the codecs. The row is not damaged: the miss has a reason of its own."""


class CachecWarning(UserWarning):
    """What was asked for works, but costs more, or keys something else, than its author may think."""
