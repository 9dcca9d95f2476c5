"""``cachec server``: the processes that ``cachec exec`` leaves behind for its next misses."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import click

from cachec import config
from cachec.cli.session import json_option, print_as_json
from cachec.launcher import client
from cachec.launcher.inherited_fds import list_inherited


@click.command("server")
@click.argument("what", type=click.Choice(["status", "stop"]), default="status")
@json_option
def command(what: str) -> None:
    """List the servers of the store, or stop them; where there is none, say what keeps one from starting here.

    The first miss of cachec exec leaves a process behind that answers the next ones, which need not import anything
    then. It ends by itself once nobody has asked it for some minutes; it is never needed (CACHEC_SERVER=off).

    \b
    Examples:
      cachec server
      cachec server stop

    \b
    JSON: {"servers": [{"pid", "socket"}], "why"}: those that are there, or that were stopped; what keeps one from
    starting here, empty for nothing
    """
    folder = client.server_folder(os.environ, os.getcwd()) or os.fspath(config.load().dir)
    is_stopped = what == "stop"
    found = [(pid, f"{folder}/{name}") for name, pid in _find_servers(folder, is_stopped=is_stopped)]
    why = _why_none()
    if print_as_json({"servers": [{"pid": pid, "socket": path} for pid, path in found], "why": why}):
        return
    for pid, path in found:
        click.echo(f"{pid} stopped" if is_stopped else f"{pid} waits at {path}")
    if not found:
        click.echo(f"no server: {why or 'the next miss of cachec exec starts one'}")


def _why_none() -> str:
    """What keeps ``cachec exec`` from a server where it is called as this command is; empty for nothing."""
    if config.load().server == "off":
        return "the setting server is off"
    if opened := list_inherited(os.environ):
        numbers = ", ".join(map(str, sorted(opened)))
        return f"the caller hands on open files beside the standard streams (descriptor {numbers}; see /proc/self/fd)"
    if {"", os.getcwd()} & {*sys.path}:
        return "Python searches the current folder for modules (python -m, PYTHONPATH)"
    if not client.surroundings():
        return "another program traces this process, or there is no /proc"
    return ""


def _find_servers(folder: str, *, is_stopped: bool) -> Iterator[tuple[str, int]]:
    """(name of the socket, process number) of each that answers. What does not leaves its socket, which is no use."""
    try:
        opened = client.open_own(folder)
    except FileNotFoundError:
        return
    try:
        for name in sorted(os.listdir(opened)):
            try:
                pid = _process(opened, name, is_stopped=is_stopped)
            except OSError:
                if is_stopped:
                    os.unlink(name, dir_fd=opened)
                continue
            yield name, pid
    finally:
        os.close(opened)


def _process(folder: int, name: str, *, is_stopped: bool) -> int:
    connection, pid = client.connect(folder, name)
    connection.close()
    if is_stopped:
        pidfd = os.pidfd_open(pid)
        try:
            connection, now = client.connect(folder, name)  # so the number was still its own when it was taken hold of
            connection.close()
            if now == pid:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        finally:
            os.close(pidfd)
    return pid
