import argparse

import cachec

cache = cachec.Cache()


@cache.stage
def signature(weights: cachec.WeightSet) -> list[str]:
    return sorted(f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in weights.specs.items())


@cache.stage
def size(weights: cachec.WeightSet) -> int:
    total = 0
    for name, spec in weights.specs.items():
        count = 1
        for n in spec.shape:
            count *= n
        total += count
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", default="")
    args = parser.parse_args()
    weights = cachec.open_weights("m.safetensors")
    part = weights.select([args.prefix + "*"]).rename(lambda name: name.removeprefix(args.prefix))
    print("RESULT", signature(part))
    print("RESULT", size(weights))


if __name__ == "__main__":
    main()
