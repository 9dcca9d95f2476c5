import json
from dataclasses import asdict, dataclass, fields


@dataclass
class ModelConfig:
    dim: int = 8
    heads: int = 2
    layers: int = 2
    causal: bool = True

    @classmethod
    def from_json(cls, path):
        with open(path) as f:
            raw = json.load(f)
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in raw.items() if k in known})

    def __post_init__(self):
        if self.dim % self.heads:
            raise ValueError(f"{asdict(self)}: dim must be a multiple of heads")
