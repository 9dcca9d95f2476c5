from .compiler import compile_text

__all__ = ["compile_text"]
