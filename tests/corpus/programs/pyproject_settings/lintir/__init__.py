"""Find mistakes in a toy IR."""

__version__ = "0.1"
