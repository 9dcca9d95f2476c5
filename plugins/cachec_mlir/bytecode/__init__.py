"""MLIR bytecode, without MLIR: its sections and resources, stripped and linked."""
