from typing import NamedTuple

import flax.linen as nn

from .attention import SelfAttention


class LMConfig(NamedTuple):
    vocab: int = 11
    dim: int = 8
    heads: int = 2
    layers: int = 2


class LM(nn.Module):
    config: LMConfig

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(self.config.vocab, self.config.dim)
        x = embed(tokens)
        for _ in range(self.config.layers):
            x = x + SelfAttention(self.config.heads)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.config.dim)(nn.gelu(nn.Dense(2 * self.config.dim)(nn.LayerNorm()(x))))
        return embed.attend(x)
