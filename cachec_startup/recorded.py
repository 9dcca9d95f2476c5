"""Whether this process is one of cachec's own, that runs stages or commands of others and records what they import."""

import sys

#: What only such processes import.
_MODULES = ("cachec.worker.child", "cachec.verify.replay_worker")


def is_recorded() -> bool:
    """Whether it is. Nothing is installed there, and its calls are counted by the process that asked for them."""
    return any(module in sys.modules for module in _MODULES)
