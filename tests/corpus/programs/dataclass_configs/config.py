from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelConfig:
    heads: int = 4
    head_dim: int = 16
    layers: int = 2

    @property
    def dim(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-3
    decay: float = 0.01
    warmup: int = 10


@dataclass(frozen=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    steps: int = 30
