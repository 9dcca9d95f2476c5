"""Whether this process is one of cachec's own: a command of it, or a worker that runs stages of others."""

import sys

#: What only such processes import.
_MODULES = ("cachec.__main__", "cachec.worker.worker_process", "cachec.verify.replay_worker")


def is_own_process() -> bool:
    """Whether it is. Nothing is installed there, where what is imported may be recorded. Its calls are not counted:
    the process that asked for them counts them, or they are of a command that says itself how it ended."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", "") in _MODULES or any(module in sys.modules for module in _MODULES)
