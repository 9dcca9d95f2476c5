# A model that is made once, as inference scripts have it.
import torch
from torch import nn

import cachec

torch.manual_seed(0)
torch.set_grad_enabled(False)

cache = cachec.Cache()
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).eval()


@cache.stage(tools=["torch"])
def predict(x: torch.Tensor) -> torch.Tensor:
    return model(x).softmax(-1)


@cache.stage(tools=["torch"])
def exported_text(batch: int) -> str:
    return torch.export.export(model, (torch.zeros(batch, 3),)).graph_module.code


for batch in (1, 2):
    y = predict(torch.arange(3.0 * batch).reshape(batch, 3))
    print("RESULT", [[round(v, 4) for v in row] for row in y.tolist()])
print("RESULT", len(exported_text(2)))
