"""A child of the server (``server``): it answers a request as a process of its own, and the next ones if it can.

It can where the last was a hit, or a run whose result was stored, so that nothing was to be said against it: then all
that this one had of the request is given back before it is answered (its descriptors, folder, variables, leases and
connections), and the process is what it was, but for what is kept of files with their identity, as in any process that
goes on. A child that met an error, got a signal, was left with a process, a descriptor or a thread, imported a module,
or ran what was not stored ends with its request; so no run sees what another left, and no child works with a module
whose file it does not watch.
"""

from __future__ import annotations

import array  # noqa: F401 - recv_fds imports it, and a child that imports a module ends
import fcntl
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

from cachec.base.fsio import Identity, identity_fields, identity_if_there
from cachec.commands.process import GRACE_SECONDS, kill_session
from cachec.launcher import client
from cachec.launcher.result import pack, unpack
from cachec.launcher.stage import ServerChildState
from cachec.store.locks import SERVES
from cachec.tracing.process import children

#: The status of a child that found the files of a module changed.
STALE = 3

#: Seconds that a child waits for the rest of a request, and for the other to have gone once it has its answer.
_PATIENCE = 10.0

_DESCRIPTORS, _MAX_REQUEST = 4, 1 << 28

#: Requests that a child answers at most: what a library keeps of each is bounded by that.
_MOST = 500


def identities(paths: Iterable[str]) -> dict[str, Identity | None]:
    """What is at each path; None where nothing is."""
    return {path: identity_if_there(path) for path in paths}


def are_as_they_were(sources: dict[str, Identity | None]) -> bool:
    """Whether ``identities`` would say the same."""
    for path, known in sources.items():
        try:
            state = os.stat(path)
        except (OSError, ValueError):
            if known is not None:
                return False
        else:
            if known is None or known != identity_fields(state):
                return False
    return True


def serve(connection: socket.socket, channel: socket.socket, sources: dict[str, Identity | None]) -> NoReturn:
    """Answer a request, and those that come by the channel. What goes wrong here the one that asked does again by
    itself. sources: what this process was imported from."""
    status = 1
    try:
        os.setsid()  # what the command leaves behind, if this is killed, is found by it
        server_state = ServerChildState()
        status = _serve(connection, channel, sources, server_state)
        server_state.keeper.dismiss()
    finally:
        os._exit(status)


def _serve(
    connection: socket.socket,
    channel: socket.socket,
    sources: dict[str, Identity | None],
    server_state: ServerChildState,
) -> int:
    """Answer requests as long as that is possible; the status to end with."""
    modules = len(sys.modules)
    for _ in range(_MOST):
        if not are_as_they_were(sources):
            return STALE
        with connection:
            is_as_before = _answer(connection, server_state)
        if not is_as_before or len(sys.modules) != modules or threading.active_count() > 1:
            break
        channel.sendall(b"\1")
        _, received, _, _ = socket.recv_fds(channel, 1, 1)
        if not received:
            break  # the server has gone, or has enough of us
        connection = socket.socket(fileno=received[0])
    return 0


def _answer(connection: socket.socket, server_state: ServerChildState) -> bool:
    """Answer one request; whether this process is as it was before."""
    from cachec.launcher.execute import conclude

    connection.settimeout(_PATIENCE)
    before = _descriptors()
    with open("/proc/self/comm", "wb", 0) as name:
        name.write(b"%b%d" % (SERVES.encode(), client.peer(connection)))
    line = _receive_request(connection)
    connection.sendall(os.getpid().to_bytes(8, "little"))
    if connection.recv(1) != b"\1":
        return False
    _end_with(connection)
    ending = conclude(line, {}, server_state=server_state)
    if _is_closed(connection):
        kill_session()
        return False
    # What the other reads and writes from here on is no news, and with it all is done.
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) & ~os.O_ASYNC)
    is_as_before = ending is not None and ending.stored
    if is_as_before:
        _give_back()
        is_as_before = _descriptors() == before and not _has_children(server_state.keeper.pid)
    connection.settimeout(None)
    connection.sendall(pack([]) if ending is None else ending.encode())
    if not is_as_before:
        return False
    # A signal that the other sends on comes before this, and ends us: none is left for the next request.
    connection.settimeout(_PATIENCE)
    return connection.recv(1) == b""


def _receive_request(connection: socket.socket) -> list[str]:
    """The command line of a request. Its folder, streams and variables become those of this process."""
    _, received, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
    folder, *streams = received
    with connection.makefile("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        count, *fields = unpack(stream.read(min(length, _MAX_REQUEST)))
    os.fchdir(folder)
    os.close(folder)
    for fd, given in enumerate(streams):
        os.dup2(given, fd)
        os.close(given)
    args, variables = fields[: int(count)], fields[int(count) :]
    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    time.tzset()
    return list(map(os.fsdecode, args))


def _give_back() -> None:
    """Hold nothing of the request any more: a build waits for its pipes. Raises OSError where what was said can't be
    written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")
    os.environb.clear()
    tempfile.tempdir = None  # which it keeps from the first request that made one, and TMPDIR may be another's


def _descriptors() -> set[str]:
    """The numbers of all that is open."""
    return {*os.listdir("/proc/self/fd")}


def _has_children(keeper: int) -> bool:
    """Whether another process that this one has started is there, be it to be waited for."""
    return children() != {keeper}  # no set is that where the kernel does not list them


def _end_with(connection: socket.socket) -> None:
    """Have the kernel send SIGIO where the other end goes: as the launcher's end is the command's."""
    signal.signal(signal.SIGIO, _ask_command_to_end)
    signal.signal(signal.SIGALRM, lambda *_: kill_session())
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_closed(connection):
        os.kill(os.getpid(), signal.SIGTERM)


def _ask_command_to_end(_number: int, _frame: FrameType | None) -> None:
    """Pass SIGTERM on to the command; what has not ended after a while is killed."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end has gone."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False  # it is there, and waits
    finally:
        connection.setblocking(True)
