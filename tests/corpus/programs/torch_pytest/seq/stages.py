import torch

import cachec
from seq.models import Tagger

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def parameters(model: torch.nn.Module) -> dict[str, int]:
    return {name: p.numel() for name, p in model.named_parameters()}


@cache.stage(tools=["torch"])
def export_ops(kind: str, tokens: torch.Tensor) -> list[str]:
    model = Tagger(kind, vocab=7, dim=4, tags=3).eval()
    program = torch.export.export(model, (tokens,))
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
