import hashlib

import torch

import cachec
from model import Net

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def export_code(width: int, depth: int) -> str:
    program = torch.export.export(Net(width, depth).eval(), (torch.zeros(2, width),))
    return program.graph_module.code


@cache.stage(tools=["torch"])
def operations(width: int, depth: int) -> dict[str, int]:
    program = torch.export.export(Net(width, depth), (torch.zeros(1, width),))
    counts = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            counts[str(node.target)] = counts.get(str(node.target), 0) + 1
    return counts


if __name__ == "__main__":
    code = export_code(4, 2)
    print("RESULT", len(code.splitlines()), hashlib.sha256(code.encode()).hexdigest()[:10])
    print("RESULT", sorted(operations(4, 1).items()))
