from passes import lower, simplify
from passes.manager import run

__all__ = ["run"]
