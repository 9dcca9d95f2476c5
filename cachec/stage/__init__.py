"""Stages: the decorator, the one hit-or-miss decision, and one run of a stage."""

from cachec.stage.declared import depends
from cachec.stage.decorator import Stage

__all__ = ["Stage", "depends"]
