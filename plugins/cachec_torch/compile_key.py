"""What counts for a compiled program and the keys of some releases of torch lack. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config as autograd
from torch._inductor import config

from cachec.model import Reason
from cachec_torch.ambient import overridden, switched
from cachec_torch.project_modules import UnstorableOperation

#: Switches that torch sets by itself while it compiles.
_CHANGING = frozenset({"dispatch_modes", "function_modes", "grad", "inference_mode"})

#: Exact types of options whose whole value is in the key.
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


def missing_settings(details: type) -> tuple[tuple[str, str], ...]:
    """The switches that are not at their defaults.

    details: the class of what torch hashes. Where it does not look at the number of threads, for which C++ kernels are
    made, that is here too.
    """
    found = {name: value for name, value in switched(torch).items() if name not in _CHANGING}
    if not hasattr(details, "_may_generate_cpu_cpp_code"):
        found["threads"] = str(torch.get_num_threads())
    return tuple(sorted(found.items()))


def check_options(details: Any) -> None:
    """Raise UnstorableOperation for an option that is set to code, of which torch's key holds the name alone.

    Where a release knows how to identify the code of an option (``uuid``), its details have an attribute of that name.
    """
    for module, prefix in ((config, "inductor"), (autograd, "functorch")):
        for name, value in overridden(module._config, prefix):
            if not (_is_plain(value) or hasattr(details, name) or hasattr(details, f"_{name}")):
                raise UnstorableOperation(
                    Reason.UNNAMED_CODE,
                    f"the option {name} of {module.__name__} is set to a {type(value).__qualname__}, whose code torch "
                    f"{torch.__version__} does not count; leave it out, or let torch keep its own caches (uninstall())",
                )


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for item in value.items() for each in item)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or type(value).__module__ == "torch"
