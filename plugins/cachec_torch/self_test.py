"""The self-test: whether this package works with the installed torch, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def self_test() -> None:
    """Compile with ``install`` and by AOTInductor, and answer from the cache. Raises what goes wrong."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("first").absolute())
    import torch

    import cachec_torch
    from cachec.cache import Cache
    from cachec.model import Reason

    _check_settings(torch)
    cache = cachec_torch.install(Cache(log="off", mode="on"), strict=True)
    expected = _compiled_once(torch)
    counts = cache.events.counts
    _expect(not counts[Reason.HIT], f"a new store answered: {counts}")
    _expect(not any(reason.value.startswith("bypass") for reason in counts), f"a result is stored by no key: {counts}")
    torch._dynamo.reset()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("second").absolute())
    before = sum(number for reason, number in counts.items() if reason is not Reason.HIT)
    _expect(torch.equal(_compiled_once(torch), expected), "a hit gave other numbers")
    missed = sum(number for reason, number in counts.items() if reason is not Reason.HIT) - before
    _expect(counts[Reason.HIT] and not missed, f"the second compile was no hit: {counts}")
    cachec_torch.uninstall()
    _check_library(torch)


def _expect(condition: object, otherwise: str) -> None:
    if not condition:  # no assert: they may be off
        raise RuntimeError(otherwise)


def _compiled_once(torch: Any) -> Any:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    made = torch.compile(_function)(x)
    _expect(torch.allclose(made, _function(x)), "compiled numbers differ from those of torch itself")
    return made


def _function(x: Any) -> Any:
    return (x.sin() * 2 + x).sum(dim=1)


def _check_settings(torch: Any) -> None:
    """A switch and an option show, and nothing else does."""
    from torch._inductor import config

    from cachec_torch import plugin

    before = dict(plugin.ambient())
    with torch.device("meta"), config.patch(max_autotune=not config.max_autotune):
        names = plugin.ambient().keys() - before.keys()
        _expect({"default_device", "inductor/max_autotune"} <= names, f"settings do not show: {sorted(names)}")
    _expect(dict(plugin.ambient()) == before, "settings do not go back")


def _check_library(torch: Any) -> None:
    import numpy as np

    import cachec_torch
    from cachec.programs.linker import link
    from cachec.weights import WeightSet
    from cachec_torch.seams import known_options

    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    weights = WeightSet.from_arrays({"weight": weight})
    x = np.ones((3, 4), np.float32)
    program = cachec_torch.to_exported(lambda: torch.nn.Linear(4, 2, bias=False), weights, (torch.from_numpy(x),))
    quick = known_options({"aot_inductor.compile_wrapper_opt_level": "O0"})
    library = cachec_torch.compile_aoti(program, options=quick)
    _expect(np.allclose(link(library, weights)(x), x @ weight.T), "a library computes other numbers")
