"""What cachec asks the MLIR plugin."""

from __future__ import annotations

from cachec.plugin import Plugin


class MlirPlugin(Plugin):
    """Modules of any MLIR."""

    name = "mlir"
