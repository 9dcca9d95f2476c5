"""What ``CACHEC_INSTALL=torch`` does once torch, and once Inductor, has been imported: see ``cachec_startup``.

``install`` imports Inductor, which takes longer than torch itself, so a program that never compiles has no need of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType


def _record_operations() -> None:
    from cachec_torch.kernel_recorder import record

    record()


def _install() -> None:
    from cachec_torch.persistent import install

    install()


#: Module -> what is done when it has been imported. Everything that ``install`` replaces is imported with the second.
ACTIONS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {"torch": _record_operations, "torch._inductor.compile_fx": _install}
)
