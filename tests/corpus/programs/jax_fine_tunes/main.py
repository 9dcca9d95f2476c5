import jax
import jax.numpy as jnp
import numpy as np

import cachec

cache = cachec.Cache()


def autoencoder(p, x):
    z = jax.nn.silu(x @ p["encoder.weight"] + p["encoder.bias"])
    return z @ p["decoder.weight"]


@cache.stage(tools=["jax", "jaxlib"])
def build(weights: cachec.WeightSet, batch: int) -> cachec.File:
    import cachec_jax

    width = weights.specs["encoder.weight"].shape[0]
    return cachec_jax.compile_xla(autoencoder, weights.placeholders(), jax.ShapeDtypeStruct((batch, width), jnp.float32))


x = np.eye(5, dtype=np.float32)[:2]
for name in ("base", "tuned"):
    weights = cachec.open_weights(f"{name}.safetensors")
    model = cachec.link(build(weights, 2), weights)
    print("RESULT", name, np.round(model.numpy(x)[1], 3).tolist())
