"""A process that has imported all that a miss of ``cachec exec`` needs, and has children that answer; see ``client``.

Started by the first miss, as a fork of it, before that has done anything: what it has from its parent is what
``client.surroundings`` names. It keeps nothing of a request, which a child answers that was forked for it, or one that
has answered others and has run nothing yet (``serving``). A server that has modules of which any file, or any folder of
the search for modules, was changed since is not asked again: the child that sees it leaves the request alone, and the
server ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
import time

from cachec import config
from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.base.fsio import Identity
from cachec.commands.process import ask_session_to_end
from cachec.key.tools.process_queries import process_start
from cachec.launcher import client
from cachec.launcher.server_child import STALE, identities, serve

#: Seconds without a request after which a server ends, and between two looks whether its socket is still there.
IDLE_SECONDS = 300.0
CHECK_SECONDS = 20.0

#: How much older than the process that imported it, in seconds, a module has to be.
SETTLE_SECONDS = fsio.SETTLE_SECONDS

#: Signals that a child hands to the command before it ends by them.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

#: Children that wait for another request, beside one for each processor: Ninja runs two commands more than these.
_SPARE = 2


def start(folder_fd: int, name: str) -> None:
    """Leave a server behind, where this process can be one. folder_fd: as ``starting.hold`` gives it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # children of a process that ignores it can't be waited for
    try:
        if threading.active_count() > 1:
            return
        began = process_start()
        if child := os.fork():
            os.waitpid(child, 0)
            return
    except OSError:  # whoever goes on tells what is wrong, where it matters
        return
    finally:
        signal.signal(signal.SIGCHLD, before)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.setsid()
        if not os.fork():
            _let_go_of_inherited(folder_fd)
            _Server(folder_fd, name).run(began)
    finally:
        os._exit(0)


def _let_go_of_inherited(but: int) -> None:
    """Pipes of a build are waited for until nobody has them any more."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for fd in [int(entry) for entry in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd != but:
            try:
                os.close(fd)
            except OSError:
                continue  # the one that the list was read by
    os.chdir("/")


class _Server:
    """The process. It ends without a word where there is one already."""

    def __init__(self, folder: int, name: str) -> None:
        """folder: that of the sockets, locked."""
        self._folder = folder
        self._path = f"/proc/self/fd/{self._folder}/{name}"
        self._children = 0
        self._channels: dict[int, socket.socket] = {}  # by which each child that lives is given its next request
        self._waiting: list[int] = []  # those of children that wait for one, the last to have answered last
        self._is_stale = False

    def run(self, began: float) -> None:
        """Answer until nobody asks any more. began: when the process did that imported the first modules."""
        if not _are_older(_sources(), began):
            return
        listener = self._bind()
        if listener is None:
            return
        try:
            _import_all()
            sources = _sources()
            if _are_older(sources, began):
                self._answer(listener, sources)
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_EX)
            if self._is_ours:
                os.unlink(self._path)
            fcntl.flock(self._folder, fcntl.LOCK_UN)  # children have the description too, and may go on for long

    def _bind(self) -> socket.socket | None:
        """The socket, in the place of what a server has left that is gone; None where another is there. The folder is
        not locked any more then."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection, _ = client.connect(self._folder, os.path.basename(self._path))
        except ConnectionRefusedError:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        else:
            connection.close()
            return None
        before = os.umask(0o177)
        listener.bind(self._path)
        os.umask(before)
        self._place = identity_of(self._path)
        listener.listen(128)
        fcntl.flock(self._folder, fcntl.LOCK_UN)
        return listener

    @property
    def _is_ours(self) -> bool:
        try:
            return identity_of(self._path) == self._place
        except OSError:
            return False

    def _answer(self, listener: socket.socket, sources: dict[str, Identity | None]) -> None:
        ready = select.poll()
        ready.register(listener, select.POLLIN)
        last = time.monotonic()
        while not self._is_stale:
            is_busy = len(self._waiting) < len(self._channels)
            woken = {fd for fd, _ in ready.poll(1000 if is_busy else 1000 * CHECK_SECONDS)}
            self._reap()
            for fd in woken & self._channels.keys():
                self._hear(fd, ready)
            if listener.fileno() in woken and not self._is_stale:
                last = time.monotonic()
                connection, _ = listener.accept()
                with connection:
                    self._hand(connection, ready, listener, sources)
            elif woken:
                continue
            elif not self._is_ours or (not is_busy and time.monotonic() - last > IDLE_SECONDS):
                return

    def _hand(
        self,
        connection: socket.socket,
        ready: select.poll,
        listener: socket.socket,
        sources: dict[str, Identity | None],
    ) -> None:
        """Give a request to a child: to one that waits, else to a new one."""
        while self._waiting:
            channel = self._channels[self._waiting.pop()]
            try:
                socket.send_fds(channel, [b"\1"], [connection.fileno()])
            except OSError:  # it was killed: its end is heard of next
                continue
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.fork():
            theirs.close()
            self._children += 1
            self._channels[ours.fileno()] = ours
            ready.register(ours, select.POLLIN)
            return
        for each in (listener, ours, *self._channels.values()):  # a child whose channel another holds waits for ever
            each.close()
        os.close(self._folder)
        serve(connection, theirs, sources)

    def _hear(self, fd: int, ready: select.poll) -> None:
        """A child waits for another request, or has ended."""
        channel = self._channels[fd]
        try:
            is_waiting = channel.recv(1) == b"\1"
        except OSError:
            is_waiting = False
        if is_waiting and len(self._waiting) < len(os.sched_getaffinity(0)) + _SPARE:
            self._waiting.append(fd)
            return
        ready.unregister(fd)
        channel.close()  # which ends it
        del self._channels[fd]
        if fd in self._waiting:
            self._waiting.remove(fd)

    def _reap(self) -> None:
        while self._children and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            if ended.si_code != os.CLD_EXITED and ended.si_status not in _FORWARDED:
                ask_session_to_end(ended.si_pid)  # who asked ends it, if that is there still
            os.waitpid(ended.si_pid, 0)
            self._children -= 1
            self._is_stale |= ended.si_code == os.CLD_EXITED and ended.si_status == STALE


def identity_of(path: str) -> tuple[int, int]:
    """Which file is at a path, not what it leads to. Raises OSError."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _import_all() -> None:
    """Import what a miss needs, and read, and have ``re`` and msgspec make, what each would."""
    import atexit  # noqa: F401 - all that is imported here is for the children
    import ctypes  # noqa: F401
    import difflib  # noqa: F401
    import fnmatch
    import tempfile  # noqa: F401

    import diskcache  # noqa: F401
    import msgspec

    import cachec.codecs.encoder
    import cachec.key.key_diff
    import cachec.launcher.exec_settings
    import cachec.launcher.execute
    import cachec.launcher.memo
    import cachec.launcher.recipe
    import cachec.launcher.traced_command
    import cachec.maintain.maintainer
    import cachec.reproduce.recipe
    import cachec.stage.argument_warnings
    import cachec.stage.progress
    import cachec.stage.run
    import cachec.store.nearest_keys
    import cachec.store.object_writer
    import cachec.store.search_index
    import cachec.store.sqlite_writer
    import cachec.tracing.supervisor
    import cachec.weights.library.stored_weights
    from cachec import model
    from cachec.launcher import adapters
    from cachec.store import store_size

    if remotes := config.load().remote:
        from cachec.remote.schemes import import_clients

        import_clients({url.partition(":")[0] for url in remotes})
    for path in sorted(adapters.SHIPPED.glob("*.toml")):
        adapter = adapters.read(path)
        for pattern in adapter.match:
            fnmatch.fnmatchcase("", pattern)
    for kind in (model.Entry, model.KeyDescription, cachec.store.nearest_keys.Recent, store_size.Usage):
        msgspec.json.Decoder(kind)  # msgspec looks at the annotations of a type once a process
    Distributions().owner(sys.executable)
    gc.freeze()
    gc.set_threshold(100_000)  # what a request makes is no cycle, but for little


def _sources() -> dict[str, Identity | None]:
    """The files of all modules that are imported, and the folders where modules are looked for."""
    modules = [module for name, module in sys.modules.items() if name != "__main__"]  # that is each process's own
    files = {file for module in modules if (file := getattr(module, "__file__", None))}
    return identities((*files, *sys.path))


def _are_older(sources: dict[str, Identity | None], began: float) -> bool:
    """Whether none can have changed since it was imported."""
    settled = 1e9 * (began - SETTLE_SECONDS)
    return not any(each is not None and each.changed_ns > settled for each in sources.values())
