from .callbacks import Callback, EarlyStop
from .loop import Trainer

__all__ = ["Callback", "EarlyStop", "Trainer"]
