"""What the net under a run caught, as reads of its trace; and the paths of reads, kept from anchors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from cachec.base.anchors import Anchors, anchors_of
from cachec.commands.opens import FolderWatch
from cachec.key.code.ran import LIVE, RanKeys
from cachec.key.dependencies import Dependencies, listing_digest
from cachec.key.request import Request, Requests
from cachec.key.tools.environment import variable_digest
from cachec.model import Read, Reason
from cachec.recording import Recorder
from cachec.recording.net import Net

#: Reads whose ``where`` is a path.
_PATHS = frozenset({"file", "absent", "listing", "tool", "code"})


class Observing:
    """Observes runs of stages in one opened cache, where the setting ``record`` has it so, and keeps their paths.

    base_dir: the setting, an anchor.
    """

    def __init__(self, ran: RanKeys, requests: Requests, *, base_dir: str | None, on: bool) -> None:
        self._ran = ran
        self._requests = requests
        self._base_dir = base_dir
        self._on = on

    # --- a run

    def net(self, request: Request) -> Net | None:
        """The net for a run that is about to begin; None where nothing is recorded."""
        if not self._on:
            return None
        folders = {os.path.dirname(os.path.abspath(path)) for path in request.found.paths if os.path.isfile(path)}
        folders |= {os.path.abspath(path) for path in request.found.paths if os.path.isdir(path)}
        try:
            folders.add(os.getcwd())
        except FileNotFoundError:
            folders.discard("")  # the current folder is gone, and nothing can be opened in it
        return Net(self._requests.is_project, FolderWatch(folders))

    def collect(self, request: Request, recorder: Recorder) -> None:
        """Make reads of what the net of a run caught; keep the result out where that can't be done."""
        net = recorder.net
        if net is None:
            return
        observed = net.observed
        seen = self._ran.code(observed, self._requests.coverage(request), self.anchors(request))
        if seen.kept_out is not None:
            recorder.keep_out(*seen.kept_out)
        for read in seen.reads:
            recorder.seen(self.resolved(read, request))
        known = {read.where for read in recorder.reads() if read.kind in _PATHS}
        known |= {os.path.abspath(path) for path in request.found.paths}
        folders = tuple(os.path.join(os.path.abspath(path), "") for path in request.found.paths if os.path.isdir(path))
        for path in [*self._ran.files(observed), *_beside(net)]:
            if path not in known and not path.startswith(folders) and not os.path.isdir(path):
                self._file(path, path in observed.absent, recorder)
        for path in self._ran.folders(observed):
            if path not in known and os.path.isdir(path):
                recorder.listing(path, listing_digest(os.listdir(path)))
        for variable in observed.variables:
            recorder.environment(variable, variable_digest(variable, os.environ))

    def _file(self, path: str, absent: bool, recorder: Recorder) -> None:
        try:
            recorder.file(path, recorder.digests.of_path(path))
        except FileNotFoundError:
            if absent:
                recorder.absent(path)
            else:
                recorder.keep_out(Reason.INPUT_CHANGED, f"file {path} was opened, and is gone by now")
        except OSError as error:
            if not absent:
                recorder.keep_out(Reason.INPUT_CHANGED, f"file {path} was opened, and can't be read: {error.strerror}")

    # --- paths of reads

    def anchors(self, request: Request) -> Anchors:
        """What the anchors of a stage's reads stand for here and now."""
        code = getattr(request.stage.__wrapped__, "__code__", None)
        source = code.co_filename if code is not None else "<unknown>"
        return anchors_of(source, self._base_dir, os.environ.get("HOME"))

    def kept(self, read: Read, request: Request) -> Read:
        """A read as a trace keeps it."""
        if read.kind not in _PATHS or read.where == LIVE:
            return read
        return msgspec.structs.replace(read, where=self.anchors(request).keep(read.where))

    def resolved(self, read: Read, request: Request) -> Read:
        """A kept read with the path that it stands for here; as it is where its anchor is no folder here."""
        if read.kind not in _PATHS or read.where == LIVE:
            return read
        path = self.anchors(request).resolve(read.where)
        return read if path is None or path == read.where else msgspec.structs.replace(read, where=path)

    def present(self, read: Read, dependencies: Dependencies) -> str:
        """The digest that a resolved read has now."""
        if read.kind in {"code", "module", "distribution"}:
            return self._ran.present(read, read.where)
        return dependencies.present(read)


def _beside(net: Net) -> Iterator[str]:
    """What native code opened in the watched folders: all that was, less what Python did and what the run made."""
    observed = net.observed
    opened, written = net.beside.drained() if net.beside is not None else (frozenset(), frozenset())
    for path in sorted(opened - written - observed.sources.keys() - observed.opened.keys() - observed.made.keys()):
        if os.path.isfile(path) and not path.endswith((".py", ".pyc")):
            yield path
