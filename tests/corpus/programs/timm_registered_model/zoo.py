import torch
from timm.layers import Mlp, PatchEmbed
from timm.models import register_model
from torch import nn


class TinyPatch(nn.Module):
    pool = "mean"

    def __init__(self, dim=8, num_classes=10, act_layer=nn.GELU, **kwargs):
        super().__init__()
        self.embed = PatchEmbed(img_size=8, patch_size=4, embed_dim=dim)
        self.mlp = Mlp(dim, 2 * dim, act_layer=act_layer)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.mlp(self.embed(x))
        x = x.mean(1) if self.pool == "mean" else x.amax(1)
        return self.head(x)


@register_model
def tiny_patch(pretrained=False, **kwargs):
    return TinyPatch(**{k: v for k, v in kwargs.items() if v is not None})


@register_model
def tiny_patch_wide(pretrained=False, **kwargs):
    return TinyPatch(dim=16, act_layer=nn.ReLU, num_classes=kwargs.get("num_classes", 10))
