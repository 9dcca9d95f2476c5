"""The starter: a process that has imported what is installed, and forks a worker for each call.

It is the parent of the workers, and so their tracer. It runs no code of the project, and has one thread. It stays in
the session of the caller, and ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

from cachec.tracing.codec import encode
from cachec.tracing.process import kill_traced
from cachec.tracing.supervisor import trace_call
from cachec.worker.child import Common, serve
from cachec.worker.generators import import_generators
from cachec.worker.messages import Start, Started
from cachec.worker.protocol import Channel, Ended

#: Without a call for so long it ends: what it has imported takes memory.
_IDLE_SECONDS = 60.0

#: How often, and with which pause, it is looked for processes to kill: what a killed one leaves behind comes to us.
_ROUNDS, _ROUND_SECONDS = 100, 0.005


def command_line(control: int) -> list[str]:
    """What starts a starter, with the flags of this interpreter. control: the descriptor of its socket."""
    from subprocess import _args_from_interpreter_flags as flags  # type: ignore[attr-defined] # as multiprocessing does

    # The folder of cachec comes first for its own imports alone: ``Start.path`` replaces the path.
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    text = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from {__name__} import main; main()"
    return [sys.executable, *flags(), "-c", text, folder, str(control)]


def main() -> None:
    """Make workers, one after another, as long as the caller is there."""
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Ended):
        _serve(Channel(fd))


def _serve(control: Channel) -> None:
    common = Common()
    start: Start = control.receive()[0]
    sys.path[:] = start.path
    _load(start.packages, common)
    control.send(Started())
    while True:
        try:
            packages, (channel, report) = control.receive(timeout=_IDLE_SECONDS)
        except TimeoutError:
            return
        _load(packages, common)
        readers = {control.fileno(): _end_all}
        worker = Channel(channel)
        accesses = trace_call(partial(serve, worker, common), readers)
        worker.close()
        with open(report, "wb") as file:
            file.write(encode(accesses))
        control.send(accesses.returncode)


def _load(packages: Sequence[str], common: Common) -> None:
    """Import packages for the workers to come."""
    common.variables.is_loading = True
    for name in packages:
        with contextlib.suppress(Exception, SystemExit):  # a worker that needs it imports it again, and says so
            importlib.import_module(name)
    import_generators()
    common.variables.is_loading = False
    if packages:
        gc.collect()
        gc.freeze()  # so that a worker's collections do not copy what it shares with this process


def _end_all() -> bool:
    """Kill the worker with all that it has started, as the caller has ended."""
    for _ in range(_ROUNDS):
        if not kill_traced():
            break
        time.sleep(_ROUND_SECONDS)
    return False
