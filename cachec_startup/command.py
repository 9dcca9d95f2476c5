"""``cachec python``: this Python with the arguments that follow, and ``CACHEC_INSTALL`` set.

The file ``cachec-startup.pth`` of an installed cachec does the rest.
"""

import os
import sys

from cachec_startup import DEFAULT, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def become_python(args: "list[str]") -> "NoReturn":
    """Replace this process by Python with these arguments. Raises OSError where it can't be started."""
    os.environ.setdefault(VARIABLE, DEFAULT)
    os.execv(sys.executable, [sys.executable, *args])


def has_startup_file() -> bool:
    """Whether a new process of this Python runs ``cachec-startup.pth``."""
    return any(os.path.exists(os.path.join(folder, "cachec-startup.pth")) for folder in startup_folders())


def startup_folders() -> "list[str]":
    """The folders whose ``.pth`` files a new process of this Python runs."""
    import site

    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
