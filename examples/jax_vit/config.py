"""What the model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Config:
    """image, patch: pixels a side. rate: of learning."""

    image: int
    patch: int
    channels: int
    width: int
    depth: int
    heads: int
    hidden: int
    classes: int
    rate: float

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


def load(path: Path) -> Config:
    """Read a YAML file."""
    return Config(**yaml.safe_load(path.read_text()))
