"""The self-test of the plugin, which ``cachec.programs.self_tests`` runs with new releases. Imports Triton."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

import cachec_triton
from cachec.cache import Cache
from cachec.errors import PluginError
from cachec.programs.artifact import Dir
from cachec.programs.self_test_checks import call_twice


@triton.jit  # type: ignore[untyped-decorator]
def _scale(x, w, out, size: tl.constexpr):  # type: ignore[no-untyped-def] # of Triton's language
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at) * tl.load(w + at))


def self_test() -> None:
    """Compile a kernel ahead of time, and store a file as Triton does. Raises where that does not work."""
    cache = Cache()

    @cache.stage(tools=["triton"], isolated=False, version="1")
    def build(kernel: Any) -> Dir:
        signature = {"x": "*fp32", "w": "*fp32", "out": "*fp32", "size": "constexpr"}
        return cachec_triton.compile(kernel, signature, {"size": 64})

    cold, warm = call_twice(build, _scale)
    difference = cachec_triton.plugin.compare(cold, warm) or cachec_triton.plugin.compare(build.uncached(_scale), warm)
    if difference is not None:
        raise PluginError(f"a kernel compiled twice: {difference}")
    _check_manager(cache)


def _check_manager(cache: Cache) -> None:
    """Take a group of files back from the store after Triton's own copy is gone."""
    from cachec_triton.cache_manager import manager_for

    os.environ["TRITON_CACHE_DIR"] = os.path.abspath("triton")
    manager, key, name = manager_for(cache), "a" * 52, "kernel.json"
    first = manager(key)
    found = first.get_group(name)
    place = first.put(b"{}", name)
    first.put_group(name, {name: place})
    os.unlink(place)
    group = manager(key).get_group(name)
    if found is not None or group is None or Path(group[name]).read_bytes() != b"{}":
        raise PluginError(f"the cache manager gave {found} before, and {group} after a group was stored")
