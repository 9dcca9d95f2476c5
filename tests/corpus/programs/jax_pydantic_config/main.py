from pathlib import Path

import jax
import jax.numpy as jnp

import cachec
from settings import Settings

cache = cachec.Cache()


def build(settings):
    def forward(x):
        key = jax.random.key(settings.seed)
        for layer in settings.layers:
            if layer.kind == "dense":
                key, sub = jax.random.split(key)
                x = jnp.tanh(x @ jax.random.normal(sub, (x.shape[-1], layer.units), settings.dtype))
            else:
                x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return x

    return forward


@cache.stage(tools=["jax", "jaxlib", "pydantic"])
def evaluate(settings: Settings, batch: int) -> list[float]:
    x = jnp.ones((batch, 3), settings.dtype)
    return [round(float(v), 3) for v in jax.jit(build(settings))(x)[0]]


@cache.stage(tools=["pydantic"])
def schema_fields(settings: Settings) -> list[str]:
    return sorted(type(settings).model_json_schema()["properties"])


def main():
    settings = Settings.model_validate_json(Path("settings.json").read_text())
    print("RESULT", evaluate(settings, 2))
    print("RESULT", evaluate(settings.model_copy(update={"seed": 1}), 2))
    print("RESULT", schema_fields(settings))


if __name__ == "__main__":
    main()
