from dataclasses import asdict, dataclass, replace

import cachec
from config import Config, ModelConfig, OptimConfig

cache = cachec.Cache()


@dataclass
class Plan:
    parameters: int
    shapes: dict[str, tuple[int, int]]


@cache.stage
def plan(cfg: ModelConfig) -> Plan:
    shapes = {}
    for layer in range(cfg.layers):
        for name in ("q", "k", "v", "o"):
            shapes[f"{layer}.{name}"] = (cfg.dim, cfg.dim)
    return Plan(sum(a * b for a, b in shapes.values()), shapes)


@cache.stage
def schedule(cfg: OptimConfig, steps: int) -> list[float]:
    rates = []
    for step in range(steps):
        base = cfg.lr * min(1.0, (step + 1) / cfg.warmup)
        rates.append(round(base / (1 + cfg.decay * step), 9))
    return rates


def main():
    cfg = Config()
    cfg = replace(cfg, model=replace(cfg.model, layers=3))
    result = plan(cfg.model)
    print("RESULT", result.parameters, sorted(result.shapes.items())[0])
    print("RESULT", asdict(result) == asdict(plan(cfg.model)))
    print("RESULT", schedule(cfg.optim, cfg.steps))


if __name__ == "__main__":
    main()
