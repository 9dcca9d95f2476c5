"""The pipeline of an ``mlir-opt``-like command as an ``mlir_reproducer`` resource, which ``--run-reproducer`` reads.

The form is that of LLVM's ``mlir/lib/Pass/PassCrashRecovery.cpp`` (``PassReproducerOptions``): a string ``pipeline``
and the flags ``disable_threading`` and ``verify_each`` of the external resource ``mlir_reproducer`` in the trailer.
"""

from __future__ import annotations

import re

from cachec.reproduce.recipe import Command

#: Tools whose main is MLIR's ``MlirOptMain``, which knows ``--run-reproducer``.
TOOLS = re.compile(r"[\w.+-]*-opt(-\d+)?")

_PIPELINE = re.compile(r"--?pass-pipeline=(.*)", re.DOTALL)
_MAGIC = b"ML\xefR"


def pipeline_of(command: Command) -> str | None:
    """The textual pipeline in the arguments, None where there is none or the tool is no mlir-opt."""
    if TOOLS.fullmatch(command.tool.name) is None:
        return None
    for arg in command.args:
        found = _PIPELINE.fullmatch(arg) if isinstance(arg, str) else None
        if found is not None:
            return found[1]
    return None


def reproducer_of(command: Command, ir: bytes) -> bytes | None:
    """The IR with the command's pipeline in its trailer; None where there is no pipeline, or the IR is no text."""
    pipeline = pipeline_of(command)
    if pipeline is None or ir.startswith(_MAGIC) or b"\0" in ir or b"mlir_reproducer" in ir:
        return None
    escaped = pipeline.replace("\\", "\\\\").replace('"', "\\22").replace("\n", "\\0A")
    resource = (
        "\n{-#\n  external_resources: {\n    mlir_reproducer: {\n"
        f'      pipeline: "{escaped}",\n      disable_threading: false,\n      verify_each: true\n'
        "    }\n  }\n#-}\n"
    )
    return ir + resource.encode()
