"""One run of a command under watch, for stages and for the launcher: what it depends on goes into the stage's trace.

Seen are: which weight files it opened; that nothing it was given changed meanwhile; that it wrote its outputs; that
nothing it started goes on. What contradicts its description keeps the result out of the store.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Literal

from cachec.base import fsio
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.mounts import WATCHED_FILESYSTEMS, Mounts
from cachec.base.paths import entries
from cachec.commands.process import Ended, run_process
from cachec.errors import CachecWarning
from cachec.key.dependencies import ABSENT, listing_digest
from cachec.model import Reason
from cachec.recording import Recorder

WeightRule = Literal["content", "opened", "withheld"]


class Reads:
    """Puts files that a command reads, or looks for, into the trace. kept: the path that one is recorded under, None
    where it is not."""

    def __init__(self, recorder: Recorder, kept: Callable[[str], str | None]) -> None:
        self.recorder = recorder
        self.kept = kept

    def file(self, path: str, *, required: bool = False) -> None:
        """By content; as ``ABSENT`` where it can't be read, for which ``required`` raises OSError then."""
        place = self.kept(path)
        if place is None:
            return
        try:
            digest = self.recorder.digests.of_path(path)
        except OSError:
            self.recorder.file(place, ABSENT)
            if required:
                raise
        else:
            self.recorder.file(place, digest)

    def identity(self, path: str) -> Identity:
        """The state of a file that does not count where it is there. Raises OSError where it is not."""
        try:
            return fsio.identity(path)
        except OSError:
            self.absent(path)
            raise

    def absent(self, path: str) -> None:
        """Looked for, and not there."""
        place = self.kept(path)
        if place is not None:
            self.recorder.absent(place)

    def candidate(self, path: str) -> None:
        """By content where it is there, else as absent."""
        if os.path.lexists(path):
            self.file(path)
        else:
            self.absent(path)

    def listing(self, path: str) -> None:
        """The names in a folder."""
        place = self.kept(path)
        if place is None:
            return
        try:
            self.recorder.listing(place, listing_digest(entries(path)))
        except OSError:
            self.recorder.listing(place, ABSENT)

    def output(self, path: str) -> str:
        """An output, in words."""
        return f"its output {path}"


class Watched:
    """Looks at a command's files when it is made; ``run`` then runs the command, and looks again."""

    def __init__(
        self,
        reads: Reads,
        *,
        given: Collection[str],
        outputs: Collection[str],
        weights: Mapping[str, WeightRule],
        undescribed: Collection[str] = (),
    ) -> None:
        """given: files whose content counts. outputs: files, and folders. weights: file -> rule. undescribed: files
        that it may or may not write. Absolute paths. Raises FileNotFoundError for weights that are not there."""
        self._reads = reads
        self._rules = weights
        self._weights = {path: reads.identity(path) for path, rule in weights.items() if rule != "content"}
        content = (path for path, rule in weights.items() if rule == "content")
        self._given = {path: identity_if_there(path) for path in (*given, *content) if reads.kept(path) is not None}
        self._named = outputs
        self._outputs = [path for path in outputs if reads.kept(path) is not None]
        self._written = {path: before for output in self._outputs for path, before in states(output)}
        self._undescribed = {path: identity_if_there(path) for path in undescribed}

    def run(
        self,
        args: Sequence[str],
        program: str,
        *,
        environ: Mapping[str, str],
        cwd: str,
        stdin: bytes | str | None,
        pass_fds: Sequence[int] = (),
        timeout: float | None = None,
        ends_with_us: bool = False,
        in_session: bool = False,
    ) -> Ended:
        """See ``run_process``. Where that raises, weights that were read count all the same: a stage may go on."""
        with ExitStack() as stack:
            touched, unwatched = self._arm(stack)
            is_certain = False
            try:
                ended = run_process(
                    args,
                    program,
                    environ=environ,
                    cwd=cwd,
                    stdin=stdin,
                    pass_fds=pass_fds,
                    timeout=timeout,
                    supervised=touched is not None,
                    ends_with_us=ends_with_us,
                    in_session=in_session,
                )
                is_certain = ended.survivors is False and stdin is None and not pass_fds
            finally:
                # Drained before files are looked at, which opens them.
                opened = touched() if is_certain and touched is not None else frozenset(self._weights)
                self._record_weights(opened | unwatched, args[0])
        self._look_again(ended)
        return ended

    def _arm(self, stack: ExitStack) -> tuple[Callable[[], frozenset[str]] | None, frozenset[str]]:
        """(what tells the weights that were opened, None for no watch; those that can't be watched)."""
        if not self._weights:
            return None, frozenset()
        mounts = Mounts()
        unwatched = frozenset(path for path in self._weights if mounts.kind(path) not in WATCHED_FILESYSTEMS)
        watched = self._weights.keys() - unwatched
        if not watched:
            return None, unwatched
        from cachec.commands.opens import OpenWatch

        try:
            watch = stack.enter_context(OpenWatch(watched))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES):
                raise
            warnings.warn(
                f"the kernel gives no watch ({error.strerror}), so weight files count by content; "
                "see fs.inotify.max_user_watches and max_user_instances",
                CachecWarning,
                stacklevel=4,
            )
            return None, unwatched
        return watch.touched, unwatched

    def _record_weights(self, opened: Collection[str], name: str) -> None:
        """Weights that were read or may have been count by content."""
        for path, before in self._weights.items():
            is_same = identity_if_there(path) == before
            if path not in opened and is_same:
                continue
            if self._rules[path] == "withheld":
                warnings.warn(
                    f"weight file {path!r} was to be withheld from {name!r} and may have been read; its content counts "
                    "now (say opened where the command may open it)",
                    CachecWarning,
                    stacklevel=4,
                )
            self._reads.file(path)
            if not is_same and self._reads.kept(path) is not None:
                self._keep_out(Reason.INPUT_CHANGED, f"weight file {path} was replaced or written to while it was read")

    def _look_again(self, ended: Ended) -> None:
        if ended.survivors:
            self._keep_out(Reason.UNDESCRIBED, "a process that it started went on, and may write after it")
        for path in () if ended.returncode else self._named:
            if not os.path.lexists(path):  # told before what else was written: likely it is that, under another name
                self._keep_out(Reason.UNDESCRIBED, f"it ended well and did not write {self._reads.output(path)}")
        for path in _changed(self._given):
            self._keep_out(Reason.INPUT_CHANGED, f"{path} was written to or replaced while the command ran")
        for path in _changed(self._undescribed):
            self._keep_out(Reason.UNDESCRIBED, f"{path} was written, and no argument is known to be for that")
        for output in self._outputs if not ended.returncode else ():
            old = next((path for path, now in states(output) if self._written.get(path) == now), None)
            if old is not None:
                self._keep_out(Reason.UNDESCRIBED, f"output {old} was there before, and the command did not write it")

    def _keep_out(self, reason: Reason, words: str) -> None:
        self._reads.recorder.keep_out(reason, words)


def states(path: str) -> Iterator[tuple[str, Identity | None]]:
    """Of the file, or of every file below the folder; nothing where neither is there."""
    if not os.path.isdir(path):
        now = identity_if_there(path)
        if now is not None:
            yield path, now
        return
    for where, _, names in os.walk(path):
        for name in names:
            place = os.path.join(where, name)
            yield place, identity_if_there(place)


def _changed(before: Mapping[str, Identity | None]) -> list[str]:
    return [path for path, state_before in before.items() if identity_if_there(path) != state_before]
