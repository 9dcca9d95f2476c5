from lm.model import LM, LMConfig

__all__ = ["LM", "LMConfig"]
