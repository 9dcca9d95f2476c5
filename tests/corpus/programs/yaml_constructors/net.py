import yaml

import cachec

cache = cachec.Cache()


def parse(path):
    with open(path) as f:
        return yaml.safe_load(f)


@cache.stage
def budget(path):
    sizes = parse(path)["buffers"]
    return sum(sizes.values()), sorted(sizes)
