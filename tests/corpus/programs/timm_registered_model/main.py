"""A model of the project in timm's registry."""

import timm
import torch

import cachec
import zoo  # registers  # noqa: F401

cache = cachec.Cache()


@cache.stage(tools=["torch", "timm"])
def ops(name: str, size: int) -> list[str]:
    model = timm.create_model(name, num_classes=2).eval()
    program = torch.export.export(model, (torch.zeros(1, 3, size, size),))
    return [str(n.target).removeprefix("aten.") for n in program.graph.nodes if n.op == "call_function"]


if __name__ == "__main__":
    print("RESULT", sorted(timm.list_models("tiny_patch*")))
    for name in ("tiny_patch", "tiny_patch_wide"):
        print("RESULT", name, ops(name, 8))
