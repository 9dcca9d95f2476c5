import torch

from seq.stages import export_ops, parameters


def test_parameters(recurrent):
    counts = parameters(recurrent)
    assert all(counts.values())
    print()
    print("RESULT", recurrent.kind, sum(counts.values()))


def test_export(recurrent):
    tokens = torch.tensor([[1, 2, 3]])
    ops = export_ops(recurrent.kind, tokens)
    assert ops
    print()
    print("RESULT", recurrent.kind, len(ops), ops[-1])
