"""Which open files a launcher was given beside its streams: what a command does with them, no trace shows.

Imports nothing but ``os``.
"""

import os


def list_inherited(environ: "os._Environ[str] | dict[str, str]") -> "list[int]":
    """Return the descriptors above 2 that a command would inherit; but those of make's job server (``MAKEFLAGS``).

    To be called before this process opens anything that is inherited.
    """
    own = set(_of_job_server(environ.get("MAKEFLAGS", "")))
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and fd not in own and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            continue  # the one that the list was read by
    return found


def _of_job_server(flags: str) -> "list[int]":
    """The descriptors of ``--jobserver-auth=3,4`` (GNU make, "POSIX Jobserver Interaction")."""
    for word in flags.split():
        name, _, value = word.partition("=")
        if name in ("--jobserver-auth", "--jobserver-fds"):
            return [int(each) for each in value.split(",") if each.isdigit()]
    return []
