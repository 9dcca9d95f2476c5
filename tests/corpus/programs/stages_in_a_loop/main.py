import cachec

cache = cachec.Cache()
TARGETS = {"cpu": 8, "gpu": 32}
STAGES = {}


def make(target, lanes):
    def blocks(n):
        return target, max(1, n // lanes)

    return cache.stage(blocks)


for target, lanes in TARGETS.items():
    STAGES[target] = make(target, lanes)

if __name__ == "__main__":
    for target, stage in STAGES.items():
        print("RESULT", stage(100), stage(4))
