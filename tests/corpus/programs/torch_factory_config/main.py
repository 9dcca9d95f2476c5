import argparse
import json

import torch

import cachec
from factory import build_model, load_config

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def checksum(config: dict, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = build_model(config)
    return {name: round(float(p.detach().abs().sum()), 4) for name, p in model.named_parameters()}


@cache.stage(tools=["torch"])
def forward(config: dict, seed: int, batch: int) -> list[float]:
    torch.manual_seed(seed)
    model = build_model(config).eval()
    with torch.inference_mode():
        return [round(v, 4) for v in model(torch.ones(batch, config["in"])).flatten().tolist()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", nargs="?", default="small.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], type=lambda s: s.split("="))
    args = parser.parse_args()
    config = load_config(args.config)
    config.update({key: json.loads(value) for key, value in args.set})
    print("RESULT", checksum(config, args.seed))
    print("RESULT", forward(config, args.seed, 2))
