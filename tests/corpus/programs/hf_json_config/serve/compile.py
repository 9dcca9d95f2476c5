import functools
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

import cachec

cache = cachec.Cache()
HERE = Path(__file__).parent


@functools.lru_cache(maxsize=1)
def load_model():
    config = AutoConfig.from_pretrained(HERE / "config.json")
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config).eval()


def labels():
    return (HERE / "labels.txt").read_text().split()


@cache.stage(tools=["torch", "transformers"])
def classify(tokens: list[int]) -> dict[str, float]:
    with torch.no_grad():
        scores = load_model()(torch.tensor([tokens])).logits.softmax(-1)[0]
    return {label: round(float(score), 4) for label, score in zip(labels(), scores)}


@cache.stage(tools=["torch", "transformers"])
def graph_size(length: int) -> int:
    program = torch.export.export(load_model(), (), {"input_ids": torch.ones(1, length, dtype=torch.long)}, strict=False)
    return sum(node.op == "call_function" for node in program.graph.nodes)
