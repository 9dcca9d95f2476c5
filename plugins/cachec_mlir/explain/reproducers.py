"""The pipeline of an ``mlir-opt``-like command as an ``mlir_reproducer`` resource, which ``--run-reproducer`` reads.

The form is that of LLVM's ``mlir/lib/Pass/PassCrashRecovery.cpp`` (``PassReproducerOptions``): a string ``pipeline``
and the flags ``disable_threading`` and ``verify_each`` of the external resource ``mlir_reproducer`` in the trailer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cachec.programs.plugin import Reproducer
from cachec_mlir.bytecode.reader import MAGIC
from cachec_mlir.text.scanner import quote

#: Tools with MLIR's ``MlirOptMain``, which accepts ``--run-reproducer``.
TOOLS = re.compile(r"[\w.+-]*-opt(-\d+)?")

_PIPELINE = re.compile(r"--?pass-pipeline=(.*)", re.DOTALL)


def reproducer(command: Sequence[str], data: bytes) -> Reproducer | None:
    """The module with the command's pipeline in its trailer; None where the tool is no mlir-opt, there is no pipeline,
    or the module is no text, or has one already.
    """
    if not TOOLS.fullmatch(command[0]) or data.startswith(MAGIC) or b"\0" in data or b"mlir_reproducer" in data:
        return None
    pipeline = next((match[1] for arg in command[1:] if (match := _PIPELINE.fullmatch(arg))), None)
    if pipeline is None:
        return None
    resource = (
        "\n{-#\n  external_resources: {\n    mlir_reproducer: {\n"
        f"      pipeline: {quote(pipeline)},\n      disable_threading: false,\n      verify_each: true\n"
        "    }\n  }\n#-}\n"
    )
    return Reproducer(data + resource.encode(), ".reproducer.mlir", "--run-reproducer")
