import cachec
from configs import MODELS

cache = cachec.Cache()


def flatten(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", repr(value)


@cache.stage
def flags(config: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in sorted(flatten(config))]


@cache.stage
def parameters(name: str) -> int:
    encoder = MODELS[name]["encoder"]
    return encoder["layers"] * 12 * encoder["dim"] ** 2


if __name__ == "__main__":
    for name, config in MODELS.items():
        print("RESULT", name, flags(config))
        print("RESULT", name, parameters(name))
