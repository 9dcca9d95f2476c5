import sys

import config

import cachec

cache = cachec.Cache()


@cache.stage
def resolve(path: str) -> list:
    return sorted(config.load(path).items())


@cache.stage
def steps(settings: dict, samples: int) -> int:
    return -(-samples // settings["batch"]) * settings["model"]["depth"]


def main():
    path = sys.argv[1]
    print("RESULT", resolve(path))
    print("RESULT", steps(config.load(path), 1000))


if __name__ == "__main__":
    main()
