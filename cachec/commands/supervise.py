"""Runs one command and says whether any of its descendants outlived it. Started as a process of its own.

    python -I -S supervise.py REPORT_FD PROGRAM ARGV0 ARGUMENT...

It is the subreaper of what it starts (prctl(2), PR_SET_CHILD_SUBREAPER), so a daemon that forked twice, left the
session and closed every descriptor still shows. To the report goes one line: ``exit CODE SURVIVORS`` (CODE as in
``subprocess``, negative for a signal; SURVIVORS 0 or 1), or ``errno NUMBER`` where the program can't be started.
Imports nothing of cachec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36

#: Sent to the whole process group: the command decides, and the supervisor lives on to report.
_FOR_THE_COMMAND = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the command in ``sys.argv``; see above."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        os.write(report, f"errno {ctypes.get_errno()}\n".encode())
        return 1
    for number in _FOR_THE_COMMAND:
        signal.signal(number, signal.SIG_IGN)
    try:
        child = os.posix_spawn(
            sys.argv[2],
            sys.argv[3:],
            _environment(),
            setsigdef=[*_FOR_THE_COMMAND, signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        os.write(report, f"errno {error.errno}\n".encode())
        return 1
    code = None
    while code is None:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
    os.write(report, f"exit {code} {int(_has_children())}\n".encode())
    return 0


def _environment() -> dict[bytes, bytes]:
    """The environment as it was given: the interpreter may have added LC_CTYPE to its own (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        variables = file.read().split(b"\0")
    return dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)


def _has_children() -> bool:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


if __name__ == "__main__":
    sys.exit(main())
