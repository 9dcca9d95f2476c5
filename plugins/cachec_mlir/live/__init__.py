"""Modules of MLIR's Python bindings, where these are installed."""
