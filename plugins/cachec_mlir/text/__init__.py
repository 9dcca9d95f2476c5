"""MLIR text, without a parser: where its resources and constants are, stripped, linked, and its canonical tokens."""
