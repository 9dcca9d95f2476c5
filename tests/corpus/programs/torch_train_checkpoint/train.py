"""A loop with a DataLoader; the checkpoint's digest is the stage's result."""

import dataclasses
import hashlib
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cachec

logging.basicConfig(level=logging.INFO)
log = logging.getLogger(__name__)
cache = cachec.Cache()


@dataclasses.dataclass(frozen=True)
class Config:
    lr: float = 0.1
    batch_size: int = 4
    epochs: int = 2
    seed: int = 0


def dataset():
    x = torch.linspace(-1, 1, 12)[:, None]
    return TensorDataset(x, torch.sin(2 * x))


def digest(state):
    h = hashlib.sha256()
    for name in sorted(state):
        h.update(name.encode() + state[name].mul(1000).round().numpy().tobytes())
    return h.hexdigest()[:12]


@cache.stage(tools=["torch"])
def train(config: Config) -> dict[str, object]:
    torch.manual_seed(config.seed)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    loader = DataLoader(dataset(), batch_size=config.batch_size, shuffle=True, generator=torch.Generator().manual_seed(config.seed))
    for epoch in range(config.epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        log.info("epoch %d: %.4f", epoch, total)
    return {"loss": round(total, 3), "digest": digest(model.state_dict())}


if __name__ == "__main__":
    for lr in (0.05, 0.1):
        print("RESULT", lr, train(Config(lr=lr)))
