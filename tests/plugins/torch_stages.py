"""Stages over ``torch_modules``, in a module that imports no torch: a hit by them in a new process imports none."""

from __future__ import annotations

from typing import Any

import cachec

#: What makes g++ quick.
QUICK = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.enable_line_tables": False,
    "cpp.vec_isa_ok": True,
}


def stages(cache: cachec.Cache) -> tuple[Any, Any]:
    """``lower(weights)`` and ``build(program)`` of ``Small``; where the processor is in no key, only recorded."""

    @cache.stage(tools=["torch"], portable=True)
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        from tests.plugins.torch_modules import small_program

        return small_program(weights)

    @cache.stage(tools=["torch"], portable=True)
    def build(program: cachec.Program) -> cachec.File:
        import cachec_torch

        return cachec_torch.compile_aoti(program, options=QUICK)

    return lower, build
