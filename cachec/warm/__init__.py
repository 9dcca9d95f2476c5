"""Warming: targets that are declared once, and compiled before anybody waits for them."""

from cachec.warm.model import Result, Row, Status, Target
from cachec.warm.rows import expand, select, shard
from cachec.warm.schedule import Listener, Warmer, warm
from cachec.warm.summary import Summary
from cachec.warm.targets import DeclaredTargets, load

__all__ = [
    "DeclaredTargets",
    "Listener",
    "Result",
    "Row",
    "Status",
    "Summary",
    "Target",
    "Warmer",
    "expand",
    "load",
    "select",
    "shard",
    "warm",
]
