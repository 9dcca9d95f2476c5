from rnn.cell import step
from rnn.model import unroll

__all__ = ["step", "unroll"]
