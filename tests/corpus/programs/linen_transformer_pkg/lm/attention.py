import flax.linen as nn
import jax.numpy as jnp


def rotary(x, base=100.0):
    d = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / base ** (jnp.arange(d) / d)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = x[..., :d], x[..., d:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


class SelfAttention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x):
        d = x.shape[-1]
        shape = (self.heads, d // self.heads)
        q, k, v = (nn.DenseGeneral(shape, use_bias=False, name=n)(x) for n in ("q", "k", "v"))
        y = nn.dot_product_attention(rotary(q), rotary(k), v, mask=nn.make_causal_mask(x[..., 0]))
        return nn.DenseGeneral(d, axis=(-2, -1), use_bias=False, name="o")(y)
